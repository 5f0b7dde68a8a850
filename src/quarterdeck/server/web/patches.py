"""A patch side by side: old lines left, new lines right, coloured by the language of the file."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from markupsafe import Markup, escape

from quarterdeck.server.web.text import seen

_FILE: Final = re.compile(r"^diff --git (?:\"?a/(?P<old>.*?)\"?) (?:\"?b/(?P<new>.*?)\"?)$")
_HUNK: Final = re.compile(r"^@@ -(\d+)(?:,\d+)? \+(\d+)(?:,\d+)? @@(.*)$")
_COLOURED: Final = 300_000
_LINES: Final = 5_000
_LONG: Final = 2_000


@dataclass(frozen=True, slots=True)
class Row:
    """One row: an old line, a new line, or both. `kind` is same, gone, new or both."""

    kind: str
    old: int | None
    new: int | None
    left: Markup
    right: Markup


@dataclass(slots=True)
class Hunk:
    heading: str
    rows: list[Row] = field(default_factory=list)


@dataclass(slots=True)
class File:
    """One changed file. `note` says what its lines cannot: binary, renamed, a new mode."""

    path: str
    old_path: str | None = None
    status: str = "changed"
    note: str | None = None
    plus: int = 0
    minus: int = 0
    hunks: list[Hunk] = field(default_factory=list)


@dataclass(slots=True)
class _Raw:
    """A hunk as it was read: marks and texts."""

    old: int
    new: int
    heading: str
    lines: list[tuple[str, str]] = field(default_factory=list)


def read(patch: str) -> tuple[list[File], bool]:
    """The files of a patch, and whether some of it was left out."""
    files: list[File] = []
    raw: list[list[_Raw]] = []
    lines, cut = 0, False
    for line in patch.split("\n"):
        if (found := _FILE.match(line)) is not None:
            files.append(File(found["new"]))
            raw.append([])
        elif not files:
            continue
        elif (begun := _HUNK.match(line)) is not None:
            raw[-1].append(_Raw(int(begun[1]), int(begun[2]), begun[3].strip()))
        elif raw[-1] and line[:1] in (" ", "+", "-"):
            lines += 1
            if lines > _LINES:
                cut = True
                break
            raw[-1][-1].lines.append((line[0], line[1 : _LONG + 1]))
        elif not raw[-1]:
            _head(files[-1], line)
    coloured = len(patch) <= _COLOURED
    for file, hunks in zip(files, raw, strict=True):
        paint = _painter(file.path if coloured else "")
        for one in hunks:
            file.plus += sum(mark == "+" for mark, _ in one.lines)
            file.minus += sum(mark == "-" for mark, _ in one.lines)
            file.hunks.append(Hunk(one.heading, list(_rows(one, paint))))
    return files, cut


def _head(file: File, line: str) -> None:
    """A line between a file's name and its first hunk."""
    if line.startswith("new file"):
        file.status = "added"
    elif line.startswith("deleted file"):
        file.status = "deleted"
    elif line.startswith("rename from "):
        file.status, file.old_path = "renamed", line.removeprefix("rename from ")
    elif line.startswith(("Binary files", "GIT binary patch")):
        file.note = "a binary file"
    elif line.startswith("new mode"):
        file.note = f"mode {line.removeprefix('new mode ')}"


def _rows(raw: _Raw, paint: "_Painter") -> Iterator[Row]:
    old, new = raw.old, raw.new
    lefts = iter(paint([text for mark, text in raw.lines if mark != "+"]))
    rights = iter(paint([text for mark, text in raw.lines if mark != "-"]))
    gone: list[Markup] = []
    fresh: list[Markup] = []

    def flush() -> Iterator[Row]:
        nonlocal old, new
        for index in range(max(len(gone), len(fresh))):
            left = gone[index] if index < len(gone) else None
            right = fresh[index] if index < len(fresh) else None
            kind = "gone" if right is None else "new" if left is None else "both"
            yield Row(
                kind,
                old if left is not None else None,
                new if right is not None else None,
                left or Markup(),
                right or Markup(),
            )
            old += left is not None
            new += right is not None
        gone.clear()
        fresh.clear()

    for mark, _ in raw.lines:
        if mark == "-":
            if fresh:
                yield from flush()
            gone.append(next(lefts))
        elif mark == "+":
            fresh.append(next(rights))
        else:
            yield from flush()
            yield Row("same", old, new, next(lefts), next(rights))
            old, new = old + 1, new + 1
    yield from flush()


class _Painter:
    """Colours lines of one language; a text that it cannot read stays plain."""

    def __init__(self, lexer: Any) -> None:
        self._lexer = lexer

    def __call__(self, lines: Sequence[str]) -> list[Markup]:
        shown = [seen(line) for line in lines]
        if self._lexer is None or not shown:
            return [escape(line) for line in shown]
        parts: list[list[Markup]] = [[]]
        for kind, text in self._lexer.get_tokens("\n".join(shown)):
            style = _style(kind)
            for number, piece in enumerate(text.split("\n")):
                if number:
                    parts.append([])
                if piece:
                    word = escape(piece)
                    parts[-1].append(Markup('<i class="{}">{}</i>').format(style, word) if style else word)
        painted = [Markup().join(part) for part in parts]
        # A lexer may end with a line of its own, but must not lose one of ours.
        return painted[: len(shown)] if len(painted) >= len(shown) else [escape(line) for line in shown]


_STYLES: Final = (
    ("Comment", "hc"),
    ("Keyword", "hk"),
    ("Literal.String", "hs"),
    ("Literal.Number", "hn"),
    ("Name.Function", "hf"),
    ("Name.Class", "hf"),
    ("Name.Tag", "hk"),
    ("Name.Decorator", "hf"),
    ("Name.Builtin", "hb"),
)


def _style(kind: Any) -> str | None:
    name = str(kind).removeprefix("Token.")
    return next((style for start, style in _STYLES if name.startswith(start)), None)


def _painter(path: str) -> _Painter:
    from pygments.lexers import get_lexer_for_filename
    from pygments.util import ClassNotFound

    try:
        lexer = get_lexer_for_filename(path, stripnl=False, ensurenl=False) if path else None
    except ClassNotFound:
        lexer = None
    return _Painter(lexer)
