"""Regular expressions that match in linear time: a pattern from somebody's file must never hang the core.

The common part of Python's syntax, with Python's meaning: characters, `.`, classes, `\\d \\w \\s` and their
opposites, groups, `|`, `* + ?` and `{m,n}`. What needs backtracking (look-around, references) is refused.
"""

import re
from functools import lru_cache
from typing import NamedTuple

MAX_PATTERN = 200
_MAX_POSITIONS = 1_000
_MAX_DEPTH = 20
_COUNT = re.compile(r"\{(?:([0-9]+)|([0-9]*),([0-9]*))\}")
_GROUP = re.compile(r"\((?:\?:|\?P<[A-Za-z_]\w*>|(?!\?))")


class _Part(NamedTuple):
    """A piece of the pattern: may it be empty, and which positions can begin and end it (as bit sets)."""

    empty: bool
    first: int
    last: int


_NOTHING = _Part(True, 0, 0)


class Pattern:
    """A compiled pattern. The time of a match grows with the text, whatever the pattern."""

    def __init__(self, text: str) -> None:
        """Raises `ValueError` that says what is wrong with the pattern."""
        if len(text) > MAX_PATTERN:
            raise ValueError(f"is longer than {MAX_PATTERN} characters")
        parser = _Parser(text)
        self._whole = parser.whole()
        self._follow = parser.follow
        self._atoms = [(re.compile(atom), positions) for atom, positions in parser.atoms.items()]

    def fullmatch(self, text: str) -> bool:
        """Whether the pattern matches the whole text."""
        if not text:
            return self._whole.empty
        masks: dict[str, int] = {}
        expected, hit = self._whole.first, 0
        for character in text:
            if character not in masks:
                masks[character] = self._accepting(character)
            hit = expected & masks[character]
            if not hit:
                return False
            expected = 0
            for position in _bits(hit):
                expected |= self._follow[position]
        return bool(hit & self._whole.last)

    def _accepting(self, character: str) -> int:
        mask = 0
        for atom, positions in self._atoms:
            if atom.fullmatch(character):
                mask |= positions
        return mask


@lru_cache(maxsize=256)
def compiled(text: str) -> Pattern:
    """The pattern, compiled once. Raises `ValueError` as `Pattern` does."""
    return Pattern(text)


def _bits(mask: int) -> list[int]:
    found = []
    while mask:
        lowest = mask & -mask
        found.append(lowest.bit_length() - 1)
        mask ^= lowest
    return found


class _Parser:
    """Builds the position automaton: a position is one character's place, `follow` what may come next."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0
        self.depth = 0
        self.work = 0
        self.follow: list[int] = []
        self.atoms: dict[str, int] = {}

    def whole(self) -> _Part:
        part = self._alternatives()
        if self.at < len(self.text):
            raise ValueError("has a ) without its (")
        return part

    def _alternatives(self) -> _Part:
        part = self._sequence()
        while self.text.startswith("|", self.at):
            self.at += 1
            other = self._sequence()
            part = _Part(part.empty or other.empty, part.first | other.first, part.last | other.last)
        return part

    def _sequence(self) -> _Part:
        part = _NOTHING
        while self.at < len(self.text) and self.text[self.at] not in "|)":
            after = self._repeated()
            self._link(part.last, after.first)
            part = _Part(
                part.empty and after.empty,
                part.first | (after.first if part.empty else 0),
                after.last | (part.last if after.empty else 0),
            )
        return part

    def _link(self, ends: int, starts: int) -> None:
        for position in _bits(ends):
            self.follow[position] |= starts

    def _repeated(self) -> _Part:
        start = self.at
        part = self._atom()
        least, most = self._count()
        end = self.at
        if most == 0:
            return _NOTHING
        # Each repetition has positions of its own, so its text is read once for each.
        copies = [part]
        for _ in range((max(least, 1) if most is None else most) - 1):
            self.at = start
            copies.append(self._atom())
            self._link(copies[-2].last, copies[-1].first)
        self.at = end
        if most is None:
            self._link(copies[-1].last, copies[-1].first)
        last = 0
        for copy in copies[(0 if part.empty else max(least - 1, 0)) :]:
            last |= copy.last
        return _Part(part.empty or least == 0, part.first, last)

    def _count(self) -> tuple[int, int | None]:
        bounds: tuple[int, int | None] = (1, 1)
        sign = self.text[self.at : self.at + 1]
        if sign in ("*", "+", "?"):
            bounds = {"*": (0, None), "+": (1, None), "?": (0, 1)}[sign]
            self.at += 1
        elif counted := _COUNT.match(self.text, self.at):
            exact, low, high = counted.groups()
            bounds = (int(exact), int(exact)) if exact else (int(low or 0), int(high) if high else None)
            self.at = counted.end()
        else:
            return bounds
        if bounds[1] is not None and bounds[0] > bounds[1]:
            raise ValueError("has a count whose end is below its start")
        # Greedy or lazy is the same thing when the whole text has to match.
        if self.text.startswith("?", self.at):
            self.at += 1
        return bounds

    def _atom(self) -> _Part:
        self.work += 1
        if self.work > _MAX_POSITIONS:
            raise ValueError(f"repeats too much: at most {_MAX_POSITIONS} characters once written out")
        match self.text[self.at]:
            case "(":
                return self._group()
            case "[":
                return self._position(self._class())
            case "\\":
                return self._position(self._escape())
            case "*" | "+" | "?" | "{" as sign:
                raise ValueError(f"has a {sign} with nothing to repeat; write \\{sign} for the sign itself")
            case "^" | "$" as anchor:
                if self.at != (0 if anchor == "^" else len(self.text) - 1):
                    raise ValueError(f"may have {anchor} only at its {'start' if anchor == '^' else 'end'}")
                self.at += 1
                return _NOTHING
            case character:
                self.at += 1
                return self._position("." if character == "." else re.escape(character))

    def _position(self, atom: str) -> _Part:
        bit = 1 << len(self.follow)
        self.follow.append(0)
        self.atoms[atom] = self.atoms.get(atom, 0) | bit
        return _Part(False, bit, bit)

    def _group(self) -> _Part:
        opening = _GROUP.match(self.text, self.at)
        if not opening:
            raise ValueError("may not use (?…) other than (?:…) and (?P<name>…)")
        self.at = opening.end()
        self.depth += 1
        if self.depth > _MAX_DEPTH:
            raise ValueError(f"has groups nested deeper than {_MAX_DEPTH} levels")
        part = self._alternatives()
        self.depth -= 1
        if not self.text.startswith(")", self.at):
            raise ValueError("has a ( without its )")
        self.at += 1
        return part

    def _escape(self) -> str:
        escape = self.text[self.at : self.at + 2]
        if len(escape) == 1:
            raise ValueError("ends with a backslash")
        if escape[1].isalnum() and escape[1] not in "dDwWsSnrtfv":
            raise ValueError(f"may not use {escape}")
        self.at += 2
        return escape

    def _class(self) -> str:
        """The class as `re` takes it without a warning about set operations, which Python does not have."""
        end = self.at + 1
        if self.text.startswith("^", end):
            end += 1
        atom = self.text[self.at : end]
        first = end
        while end == first or not self.text.startswith("]", end):
            size = 2 if self.text.startswith("\\", end) else 1
            piece = self.text[end : end + size]
            if len(piece) < size:
                raise ValueError("has a [ without its ]")
            atom += f"\\{piece}" if piece in "[&~|" else piece
            end += size
        if "--" in atom:
            raise ValueError("has -- in a class; write \\- for the character itself")
        self.at = end + 1
        try:
            re.compile(atom + "]")
        except re.error as error:
            raise ValueError(f"has a class that cannot be read: {error.msg}") from None
        return atom + "]"
