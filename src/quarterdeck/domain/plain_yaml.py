"""YAML from somebody's file, as text, lists and mappings only, and never more work than the file is long."""

from collections.abc import Iterator
from typing import Any, Final

import yaml

_MAX_DEPTH: Final = 20
_WORDS: Final = {"true": True, "false": False, "null": None, "~": None, "": None}
# The one written in C is eight times as fast, but not in every build of PyYAML.
_PARSER: Final[Any] = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class Misread(Exception):
    """The text is not YAML, or uses a part of it that is not allowed; `where` is a line and column."""

    def __init__(self, where: str, problem: str) -> None:
        super().__init__(problem)
        self.where = where
        self.problem = problem


def load(text: str) -> Any:
    """What the text says. Scalars stay as they were written: 3.10 stays 3.10, and `no` stays no.

    Only unquoted true, false and null are more than text. Aliases (which can multiply without end), tags and
    deep nesting are refused.
    """
    try:
        return _document(yaml.parse(text, Loader=_PARSER))
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        raise Misread(_place(mark) if mark else "", error.problem or str(error.context)) from None
    # A character, an escape or a version number out of range is no error of the parser's own kind.
    except (yaml.YAMLError, ValueError, OverflowError) as error:
        raise Misread("", " ".join(str(error).split())[:200]) from None


def _document(events: Iterator[Any]) -> Any:
    next(events)
    if isinstance(next(events), yaml.StreamEndEvent):
        return None
    data = _value(next(events), events, 0)
    next(events)
    after = next(events)
    if not isinstance(after, yaml.StreamEndEvent):
        raise _misread(after, "there is a second document")
    return data


def _value(event: Any, events: Iterator[Any], depth: int) -> Any:
    if isinstance(event, yaml.AliasEvent):
        raise _misread(event, "an alias (*name) is not allowed")
    if event.tag is not None:
        raise _misread(event, "a tag (!name) is not allowed")
    if depth >= _MAX_DEPTH:
        raise _misread(event, f"nested deeper than {_MAX_DEPTH} levels")
    if isinstance(event, yaml.ScalarEvent):
        return event.value if event.style else _WORDS.get(event.value.lower(), event.value)
    if isinstance(event, yaml.SequenceStartEvent):
        items = []
        while not isinstance(event := next(events), yaml.SequenceEndEvent):
            items.append(_value(event, events, depth + 1))
        return items
    found: dict[str, Any] = {}
    while not isinstance(event := next(events), yaml.MappingEndEvent):
        if not isinstance(event, yaml.ScalarEvent):
            raise _misread(event, "a name must be text")
        if event.value in found:
            raise _misread(event, f"{event.value[:64]} comes twice")
        found[event.value] = _value(next(events), events, depth + 1)
    return found


def _misread(event: Any, problem: str) -> Misread:
    return Misread(_place(event.start_mark), problem)


def _place(mark: Any) -> str:
    return f"line {mark.line + 1}, column {mark.column + 1}"
