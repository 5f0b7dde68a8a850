"""What a branch changed since it began: numbers for each file, and the patch as far as it may be long."""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from quarterdeck.git.spawn import GitError, readable, users_git

MAX_PATCH: Final = 400_000
MAX_FILES: Final = 2_000
_KEPT: Final = 64 * 1024 * 1024
_SECONDS: Final = 120.0
# The same whatever the user prefers to see.
_OPTIONS: Final = (
    *("--find-renames", "--no-ext-diff", "--no-textconv", "--ignore-submodules=none"),
    *("--src-prefix=a/", "--dst-prefix=b/"),
)


@dataclass(frozen=True, slots=True)
class FileStat:
    """One file of a diff: `status` is A, D, M, R or T; `old_path` where it was renamed from."""

    path: str
    status: str
    insertions: int
    deletions: int
    binary: bool = False
    old_path: str | None = None


@dataclass(frozen=True, slots=True)
class Diff:
    """A diff of two commits or trees. `cut` says that the patch, or the list of files, is not whole."""

    base: str
    head: str
    files: tuple[FileStat, ...]
    patch: str
    cut: bool
    count: int
    insertions: int
    deletions: int


async def diff(repo: Path, base: str, head: str, *, max_patch: int = MAX_PATCH) -> Diff:
    """The changes from one commit or tree to another."""
    files = await stats(repo, base, head)
    patch, cut = "", False
    if files and max_patch > 0:
        raw = await _patch(repo, base, head)
        cut = raw is None or len(raw) > max_patch
        patch = (_whole_lines(raw or b"", max_patch) if cut else raw or b"").decode("utf-8", "replace")
    return Diff(
        base=base,
        head=head,
        files=tuple(files[:MAX_FILES]),
        patch=patch,
        cut=cut or len(files) > MAX_FILES or (bool(files) and max_patch <= 0),
        count=len(files),
        insertions=sum(file.insertions for file in files),
        deletions=sum(file.deletions for file in files),
    )


async def _patch(repo: Path, base: str, head: str) -> bytes | None:
    """The whole patch; None when it is far too large."""
    words = ["diff", *_OPTIONS, "--patch", "--no-color", "--end-of-options", base, head]
    try:
        return await users_git(words, repo, max_output=_KEPT, timeout=_SECONDS)
    except GitError as error:
        if "larger than" in error.said:
            return None
        raise


def _whole_lines(raw: bytes, limit: int) -> bytes:
    return raw[: raw.rfind(b"\n", 0, limit) + 1]


async def stats(repo: Path, base: str, head: str) -> list[FileStat]:
    """The changed files with their numbers, in the order of their paths."""
    words = ["diff", *_OPTIONS, "--raw", "--numstat", "-z", "--end-of-options", base, head]
    fields = (await users_git(words, repo, timeout=_SECONDS)).split(b"\0")[:-1]
    statuses: dict[str, tuple[str, str | None]] = {}
    found: list[FileStat] = []
    rest = iter(fields)
    for field in rest:
        if field.startswith(b":"):
            status = field.rsplit(b" ", 1)[1].decode()[0]
            old = os.fsdecode(next(rest)) if status in "RC" else None
            statuses[os.fsdecode(next(rest))] = (status, old)
            continue
        plus, minus, name = field.split(b"\t", 2)
        path = os.fsdecode(name)
        if not path:  # renamed: the two names follow
            next(rest)
            path = os.fsdecode(next(rest))
        status, old = statuses.get(path, ("M", None))
        binary = plus == b"-"
        counts = (0, 0) if binary else (int(plus), int(minus))
        found.append(
            FileStat(readable(path), status, *counts, binary, None if old is None else readable(old))
        )
    return found


async def touched(repo: Path, base: str, head: str) -> frozenset[str]:
    """The paths that differ, renamed files under both names."""
    words = ["diff", "--name-only", "-z", "--no-renames", "--end-of-options", base, head]
    raw = await users_git(words, repo, timeout=_SECONDS)
    return frozenset(os.fsdecode(name) for name in raw.split(b"\0") if name)


async def merge_base(repo: Path, one: str, other: str) -> str | None:
    """The newest commit that both have, or None."""
    try:
        return (await users_git(["merge-base", one, other], repo)).decode().split()[0]
    except GitError as error:
        if error.code == 1:
            return None
        raise
