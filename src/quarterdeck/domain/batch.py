"""The batch specification file: one Markdown file, a block of variables, and a block for each article."""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from quarterdeck.domain import plain_yaml
from quarterdeck.domain.content import BANNED_WORDS, WORDS
from quarterdeck.domain.errors import Invalid

MAX_BYTES: Final = 1 << 20
MAX_ARTICLES: Final = 500

_BATCH_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,99}")
_SLUG = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,99}")
_FACT = re.compile(
    r"\*\*(Service|Category|Priority):\*\*[ \t]*(.*?)(?=[ \t]*(?:\*\*\w+:\*\*|$))", re.IGNORECASE
)
_ARTICLE = re.compile(r"###[ \t]+Article[ \t]+(\d+)[ \t]*(?::[ \t]*(.*?))?[ \t]*#*", re.IGNORECASE)
_OPENING = re.compile(r" {0,3}(`{3,}|~{3,})[ \t]*([\w+-]*)[ \t]*")
_HEADING = re.compile(r"#{1,3}[ \t]")
_VARIABLE = re.compile(r"\{\{\s*(\w+)\s*\}\}")

# The keys of an article that have a place of their own in the prompt; the rest follow by name.
_PLACED = ("SLUG", "TITLE", "OUTLINE", "DIFFICULTY", "PRIMARY_KEYWORD")


@dataclass(frozen=True, slots=True)
class Article:
    """One article to write; `line` is where it begins in the file."""

    number: int
    line: int
    slug: str
    title: str
    fields: Mapping[str, Any]

    @property
    def difficulty(self) -> str | None:
        return _text(self.fields.get("DIFFICULTY")) or None

    @property
    def primary_keyword(self) -> str | None:
        return _text(self.fields.get("PRIMARY_KEYWORD")) or None


@dataclass(frozen=True, slots=True)
class BatchSpec:
    """A parsed batch specification."""

    batch_id: str
    service: str | None
    category: str | None
    priority: str | None
    variables: Mapping[str, Any]
    articles: tuple[Article, ...]

    def prompt(self, article: Article) -> str:
        """What a model is asked for one article; `{{ NAME }}` stands for a variable."""
        lines = ["Write a help article in Markdown.", f"Title: {article.title}"]
        for label, value in (("Service", self.service), ("Category", self.category)):
            lines += [f"{label}: {value}"] if value else []
        for label, key in (("Reader's level", "DIFFICULTY"), ("Primary keyword", "PRIMARY_KEYWORD")):
            value = _text(article.fields.get(key))
            lines += [f"{label}: {value}"] if value else []
        lines += [f"{key}: {_text(value)}" for key, value in article.fields.items() if key not in _PLACED]
        if article.fields.get("OUTLINE"):
            lines += ["Outline:", _outline(article.fields["OUTLINE"])]
        if self.variables:
            lines += ["Facts:", *(f"- {key}: {_text(value)}" for key, value in self.variables.items())]
        lines += [
            f"Length: {WORDS[0]} to {WORDS[1]} words. Use at least two section headings (##) and leave out "
            "no heading level.",
            f"Do not use these words: {', '.join(BANNED_WORDS)}.",
        ]
        return _filled("\n".join(lines), self.variables)


@dataclass(frozen=True, slots=True)
class _Block:
    line: int
    values: dict[str, Any]


@dataclass(slots=True)
class _Section:
    """An article's heading and the block below it."""

    number: int
    heading: str
    line: int
    block: _Block | None = None


def checked_batch_id(batch_id: str) -> str:
    """The id, which names a file and is never a path."""
    if not _BATCH_ID.fullmatch(batch_id):
        raise Invalid(
            "batch_id must be letters, digits, hyphens and underscores",
            field="batch_id",
            hint="it is the name of the specification file without its folder and without .md",
        )
    return batch_id


def parse(batch_id: str, text: str) -> BatchSpec:
    """The specification in a file's text; Invalid names the line of what is wrong."""
    if (nul := text.find("\0")) >= 0:
        raise _wrong(text.count("\n", 0, nul) + 1, "a NUL character")
    facts: dict[str, str] = {}
    variables: _Block | None = None
    sections: list[_Section] = []
    current: _Section | None = None
    for line, kind, content in _pieces(text.removeprefix("\ufeff")):
        if kind == "text":
            for match in _FACT.finditer(content):
                facts.setdefault(match[1].lower(), match[2].strip())
            if heading := _ARTICLE.fullmatch(content.rstrip()):
                current = _Section(int(heading[1]), heading[2] or "", line)
                sections.append(current)
            elif _HEADING.match(content):
                current = None
        elif content.lstrip().startswith("SERVICE_NAME:"):
            if variables is not None:
                raise _wrong(line, "a second block of variables", f"the first is at line {variables.line}")
            variables = _Block(line, _mapping(content, line))
        elif current is not None:
            if current.block is not None:
                raise _wrong(line, f"article {current.number} has a second yaml block")
            current.block = _Block(line, _mapping(content, line))
    if not sections:
        raise _wrong(1, "no article", "each begins with a heading like `### Article 1: Title`")
    if len(sections) > MAX_ARTICLES:
        raise _wrong(sections[MAX_ARTICLES].line, f"more than {MAX_ARTICLES} articles")
    known = variables.values if variables else {}
    return BatchSpec(
        batch_id=batch_id,
        service=facts.get("service") or None,
        category=facts.get("category") or None,
        priority=facts.get("priority") or None,
        variables=known,
        articles=_articles(sections, known),
    )


def _pieces(text: str) -> Iterator[tuple[int, str, str]]:
    """Each line of text, and each yaml block with the line of its first row; other code is left out."""
    fence, language, start, block = "", "", 0, list[str]()
    for number, line in enumerate(text.splitlines(), 1):
        opening = _OPENING.fullmatch(line)
        if not fence:
            if opening:
                fence, language, start, block = opening[1], opening[2].lower(), number, []
            else:
                yield number, "text", line
        elif opening and not opening[2] and opening[1].startswith(fence):
            if language in ("yaml", "yml"):
                yield start + 1, "yaml", "\n".join(block)
            fence = ""
        else:
            block.append(line)
    if fence:
        raise _wrong(start, "a code block that is never closed")


def _mapping(source: str, line: int) -> dict[str, Any]:
    try:
        # The empty rows make the reader count lines as the file does.
        loaded = plain_yaml.load("\n" * (line - 1) + source)
    except plain_yaml.Misread as error:
        where = error.where or f"line {line}"
        raise Invalid(f"{where}: not valid yaml: {error.problem}", field="batch_id") from None
    if not isinstance(loaded, dict):
        raise _wrong(line, "the yaml block must be keys with values")
    return loaded


def _articles(sections: list[_Section], variables: Mapping[str, Any]) -> tuple[Article, ...]:
    seen: dict[str, int] = {}
    articles = []
    for section in sections:
        if section.block is None:
            raise _wrong(section.line, f"article {section.number} has no yaml block")
        fields, line = section.block.values, section.block.line
        slug = _text(fields.get("SLUG"))
        title = _filled(_text(fields.get("TITLE")) or section.heading, variables)
        if not _SLUG.fullmatch(slug):
            raise _wrong(line, f"article {section.number} needs a SLUG of letters, digits and hyphens")
        # Two slugs that differ in case alone would be one file on some disks.
        if (first := seen.setdefault(slug.casefold(), line)) != line:
            raise _wrong(line, f"SLUG {slug} is taken", f"by the article at line {first}")
        if not title:
            raise _wrong(line, f"article {section.number} needs a TITLE")
        articles.append(Article(section.number, section.line, slug, title[:500], fields))
    return tuple(articles)


def _filled(text: str, variables: Mapping[str, Any]) -> str:
    """A text with the value of a variable wherever it says `{{ NAME }}`."""
    return _VARIABLE.sub(
        lambda match: _text(variables[match[1]]) if match[1] in variables else match[0], text
    )


def _text(value: Any) -> str:
    """A value of a block as it stands in a prompt."""
    if value is None:
        return ""
    if isinstance(value, str):
        return value.strip()
    if isinstance(value, list) and not any(isinstance(inner, dict | list) for inner in value):
        return ", ".join(_text(inner) for inner in value)
    return json.dumps(value, ensure_ascii=False)


def _outline(value: Any, depth: int = 0) -> str:
    """An outline as a nested list, whatever shape it was given in."""
    if isinstance(value, list):
        return "\n".join(_outline(inner, depth) for inner in value)
    indent = "  " * depth
    if isinstance(value, dict):
        return "\n".join(f"{indent}- {key}\n{_outline(inner, depth + 1)}" for key, inner in value.items())
    return "\n".join(f"{indent}- {line.lstrip('- ')}" for line in _text(value).splitlines())


def _wrong(line: int, what: str, hint: str | None = None) -> Invalid:
    return Invalid(f"line {line}: {what}", field="batch_id", hint=hint)
