"""Which lines of which files two sides changed differently, as a merge answers them."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from quarterdeck.git.spawn import GitError, readable, users_git

MAX_FILES: Final = 50
_HUNKS: Final = 5
_LINES: Final = 40
_WIDTH: Final = 300
_BLOB: Final = 4 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Hunk:
    """One place in conflict: its line in the merged file, and what either side has there."""

    line: int
    ours: tuple[str, ...]
    theirs: tuple[str, ...]
    cut: bool = False


@dataclass(frozen=True, slots=True)
class ConflictFile:
    """A file in conflict and why. It has no hunks when it is binary, or a side deleted or renamed it."""

    path: str
    why: str
    hunks: tuple[Hunk, ...] = ()
    cut: bool = False


async def described(repo: Path, tree: str, files: dict[str, str]) -> tuple[ConflictFile, ...]:
    """The files of a merged tree with their marked places; `files` says why each is in conflict."""
    found = []
    for path, why in list(files.items())[:MAX_FILES]:
        try:
            blob = await users_git(["cat-file", "blob", f"{tree}:{path}"], repo, max_output=_BLOB)
        except GitError:  # gone on one side, or too large to show
            blob = b""
        hunks = [] if b"\0" in blob else list(_hunks(blob.decode("utf-8", "replace")))
        found.append(ConflictFile(readable(path), readable(why), tuple(hunks[:_HUNKS]), len(hunks) > _HUNKS))
    return tuple(found)


def _hunks(content: str) -> Iterator[Hunk]:
    """The places between markers. A side is cut to some lines, and the hunk says so."""
    sides: tuple[list[str], list[str]] = ([], [])
    begin, side = 0, -1
    for number, line in enumerate(content.split("\n"), 1):
        if line.startswith("<<<<<<< ") and side < 0:
            sides, begin, side = ([], []), number, 0
        elif line.rstrip("\r") == "=======" and side == 0:
            side = 1
        elif line.startswith(">>>>>>> ") and side == 1:
            cut = any(len(lines) > _LINES for lines in sides)
            ours, theirs = (tuple(line[:_WIDTH] for line in lines[:_LINES]) for lines in sides)
            yield Hunk(begin, ours, theirs, cut)
            side = -1
        elif side >= 0:
            sides[side].append(line)
