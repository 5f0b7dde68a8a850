"""Full-text queries that both databases read alike, and the fusion of several rankings into one."""

import re
import unicodedata
from collections.abc import Iterable, Iterator, Sequence

MAX_WORDS = 32
MAX_IDENTIFIERS = 16
MAX_PHRASE = 16
MAX_QUERY = 4_000  # characters of a query that are read; more is a document, not a question
MAX_TOKEN = 64  # characters; PostgreSQL refuses a query word of more than 2,046 bytes

_STOP = """
about after again all also am an and any are as at be because been before being but by can could
couldn did didn do does doesn doing don done for from get had has have having he her here him his
how if in into is isn it its just let like ll me more most my no nor not of off on once only or
other our out over own re same she should shouldn so some such than that the their them then there
these they this those through to too under until up us ve very was wasn we were what when where
which while who whom why will with won would wouldn you your
"""
STOP_WORDS = frozenset(_STOP.split())

# Chinese and Japanese put no spaces: one character is one token, or a word of theirs would never match.
_IDEOGRAPHS = "\u3041-\u3096\u309d-\u309f\u30a1-\u30fa\u30fc-\u30ff\u3400-\u4dbf\u4e00-\u9fff"
_TOKEN = re.compile(rf"[{_IDEOGRAPHS}]|[^\W_{_IDEOGRAPHS}]+")
_COMPOUND = re.compile(r"[A-Za-z0-9]+(?:[_-][A-Za-z0-9]+)*")
_HUMP = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z]{2})")
_CANDIDATE = re.compile(r"#?[^\W_]+(?:(?!\.\.)[_./\\:#@+-]{1,3}[^\W_]+)*")
_CAMEL = re.compile(r"[a-z0-9][A-Z]|[A-Z]{2}[a-z]{2}")
_ORDINAL = re.compile(r"\d+(?:st|nd|rd|th)")


def fuse(rankings: Sequence[Sequence[str]], k: int = 60) -> list[str]:
    """Reciprocal rank fusion: every id of any ranking, best first; a tie goes to the earlier ranking."""
    scores: dict[str, float] = {}
    for ranking in rankings:
        for rank, row_id in enumerate(dict.fromkeys(ranking), start=1):
            scores[row_id] = scores.get(row_id, 0.0) + 1 / (k + rank)
    return sorted(scores, key=lambda row_id: -scores[row_id])


def tokens(text: str) -> list[str]:
    """The alphanumeric runs of a text in order: case and accents folded, all else a separator."""
    return [token[:MAX_TOKEN] for token in _TOKEN.findall(_fold(text))]


def plain(text: str) -> str:
    """What gets indexed: the text's tokens, then the other spellings of its compound words.

    `FooBar` adds `foo bar`, `foo_bar` and `foo-bar` add `foobar`, so that a query finds any spelling by any
    other. The additions stand at the end, where they break no phrase.
    """
    spoken = tokens(text)
    return " ".join([*spoken, *(token for spelling in _spellings(text) for token in spelling)])


def words(text: str) -> list[str]:
    """The distinct words of a query, `MAX_WORDS` at most; no stop words, no lone letters; may be empty."""
    distinct = dict.fromkeys(tokens(text[:MAX_QUERY]))
    return [token for token in distinct if not _says_little(token)][:MAX_WORDS]


def identifiers(text: str) -> list[tuple[str, ...]]:
    """The phrases of a query that name one thing, as consecutive tokens of `plain`.

    Names of code, files, packages, versions, tickets and error codes: `user_id`, `FooBarBaz`, `orders.v2`,
    `src/app/main.py`, `CVE-2024-0727`, `#1234`, `SIGTERM`.
    """
    text = _unmarked(text[:MAX_QUERY])
    shouted = text == text.upper()
    found: dict[tuple[str, ...], None] = {}
    for match in _CANDIDATE.finditer(text):
        phrase = tuple(tokens(match[0]))[:MAX_PHRASE]
        if phrase and _names_one_thing(match[0], phrase, shouted):
            found[phrase] = None
    return list(found)[:MAX_IDENTIFIERS]


def fts5_and(query: str) -> str | None:
    """An FTS5 expression for rows that hold every word, or None when the query has no word."""
    return " AND ".join(f'"{word}"' for word in words(query)) or None


def fts5_phrases(query: str) -> str | None:
    """An FTS5 expression for rows that hold any identifier, or None when the query has none."""
    return " OR ".join(f'"{" ".join(phrase)}"' for phrase in identifiers(query)) or None


def tsquery_and(query: str) -> str | None:
    """The text of a PostgreSQL tsquery for rows that hold every word, or None when there is no word."""
    return " & ".join(words(query)) or None


def tsquery_phrases(query: str) -> str | None:
    """The text of a PostgreSQL tsquery for rows that hold any identifier, or None when there is none."""
    return " | ".join(f"({' <-> '.join(phrase)})" for phrase in identifiers(query)) or None


def _fold(text: str) -> str:
    # Folding case may bring a mark back.
    return _unmarked(_unmarked(text).casefold())


def _unmarked(text: str) -> str:
    if text.isascii():
        return text
    bare = (char for char in unicodedata.normalize("NFKD", text) if unicodedata.category(char)[0] != "M")
    return unicodedata.normalize("NFC", "".join(bare))


def _spellings(text: str) -> Iterable[tuple[str, ...]]:
    seen: dict[tuple[str, ...], None] = {}
    for match in _COMPOUND.finditer(_unmarked(text)):
        parts = tuple(_parts(match[0]))
        if len(parts) > 1 and len(match[0]) <= MAX_TOKEN:  # longer ones are encoded data
            spoken = tuple(tokens(match[0]))
            joined = ("".join(parts),)
            seen.update((spelling, None) for spelling in (parts, joined) if spelling != spoken)
    return seen


def _parts(compound: str) -> Iterator[str]:
    for piece in re.split(r"[_-]", compound):
        for part in _HUMP.split(piece):
            yield part.lower()


def _names_one_thing(written: str, phrase: tuple[str, ...], shouted: bool) -> bool:
    if _CAMEL.search(written):
        return True
    if len(phrase) == 1:
        return _is_code(written, phrase[0], shouted)
    if "_" in written or any(char.isdigit() for char in written):
        return True
    if all(len(token) == 1 for token in phrase):  # e.g., i.e., w/o
        return False
    if any(mark in written for mark in (".", "::", "@", "\\")) or written.count("/") > 1:
        return True
    # A hyphen, a slash or a colon alone joins prose as well: and/or, how-to.
    return not any(_says_little(token) for token in phrase)


def _says_little(token: str) -> bool:
    # Lone letters are what is left of "user's" and "e.g."; asking for them too would find nothing.
    return token in STOP_WORDS or (len(token) == 1 and token.isascii() and token.isalpha())


def _is_code(written: str, token: str, shouted: bool) -> bool:
    digits = sum(char.isdigit() for char in token)
    if digits == len(token):
        return digits > 2 or written.startswith("#")
    if digits:
        return not _ORDINAL.fullmatch(token)
    return len(token) > 5 and written.isupper() and not shouted
