"""Moving a branch to a new commit, and the checkout that is on it with it.

The checkout follows as with `git pull --ff-only`: files that the move changes are updated where they are
unmodified, other edits stay, and an edit in the way refuses the whole. Done by hand instead of `git merge`,
for three reasons: the branch moves only from the commit that was looked at; hooks stay off; and a crash at
any moment can be told from what is there. Meanwhile we hold two locks: a file lock of our own on the
repository, which git inherits and so outlives us no longer than git does, and the index lock of the checkout,
which carries our name. The new index is made beside the old one and put in its place before the branch moves.
"""

import asyncio
import contextlib
import fcntl
import os
import shutil
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from quarterdeck.git.diffs import touched
from quarterdeck.git.spawn import GitError, users_git
from quarterdeck.git.worktrees import (
    NONE,
    Refused,
    common_dir,
    is_ancestor,
    listing,
    resolve,
    to_the_end,
)

_MARK: Final = b"quarterdeck\n"
_INDEX: Final = "quarterdeck.index"
_LOCK: Final = "quarterdeck.lock"
_QUEUE: Final = "quarterdeck.queue"
_WAIT_SECONDS: Final = 120.0
_BUSY_SECONDS: Final = 5.0
_STEP_SECONDS: Final = 0.05
_GIT_SECONDS: Final = 600.0
_UNDER_WAY: Final = {
    "MERGE_HEAD": "a merge",
    "CHERRY_PICK_HEAD": "a cherry-pick",
    "REVERT_HEAD": "a revert",
}


@dataclass(frozen=True, slots=True)
class Move:
    """A branch of a repository from one commit to another; `old` None makes the branch."""

    repo: Path
    branch: str
    old: str | None
    new: str
    reason: str = "merged by quarterdeck"

    @property
    def ref(self) -> str:
        return f"refs/heads/{self.branch}"


class Moved(Refused):
    """The branch is no longer where it was when the new commit was made."""


@dataclass(frozen=True, slots=True)
class _Checkout:
    """A checkout that is on the branch, and its own folder in the repository."""

    path: Path
    admin: Path
    lock: int

    @property
    def index(self) -> Path:
        return self.admin / "index"

    @property
    def fresh(self) -> Path:
        """The index that is to become the checkout's."""
        return self.admin / _INDEX

    @property
    def index_lock(self) -> Path:
        return self.admin / "index.lock"

    async def git(self, *words: str, env: Mapping[str, str] | None = None) -> bytes:
        return await users_git(words, self.path, env=env, timeout=_GIT_SECONDS, pass_fds=(self.lock,))

    async def with_fresh(self, *words: str) -> bytes:
        return await self.git(*words, env={"GIT_INDEX_FILE": str(self.fresh)})


def _reached(step: str) -> None:
    """Called between the steps of a move; tests end the process here."""


async def land(move: Move) -> None:
    """Move the branch and the checkout that is on it, to the end or not at all. Raises Refused or Moved."""
    await to_the_end(_land, move)


async def check(move: Move) -> None:
    """Raise what `land` would raise now; nothing is changed."""
    async with _held(move.repo) as lock:
        checkout = await _checkout_of(move, lock)
        await _in_place(move)
        if checkout is not None and move.old is not None:
            async with _index_locked(checkout):
                await _prepared(checkout, move, "-u", "-n")


async def _land(move: Move) -> None:
    async with _held(move.repo) as lock:
        checkout = await _checkout_of(move, lock)
        await _in_place(move)
        if checkout is None or move.old is None:
            await _swap(move, move.repo, lock)
            _reached("swapped")
            return
        async with _index_locked(checkout):
            _reached("locked")
            await _prepared(checkout, move, "-u")
            _reached("files")
            checkout.fresh.replace(checkout.index)
            _reached("index")
            try:
                await _swap(move, checkout.path, lock)
            except Moved:
                await _back(checkout, move)
                raise
            _reached("swapped")


async def recover(move: Move) -> Literal["landed", "undone"]:
    """After a crash in the middle of `land`: finish the move if nothing stands against it, else undo it."""
    return await to_the_end(_recover, move)


async def _recover(move: Move) -> Literal["landed", "undone"]:
    async with _held(move.repo) as lock:
        checkout = await _checkout_of(move, lock, careful=False)
        if checkout is not None:
            await asyncio.to_thread(_take_away, checkout)
        tip = await resolve(move.repo, move.ref)
        if tip is not None and await is_ancestor(move.repo, move.new, tip):
            return "landed"
        if checkout is not None and move.old is not None:
            if tip == move.old and await _is_forward(checkout, move):
                await _swap(move, checkout.path, lock)
                return "landed"
            await _restore(checkout, move)
    try:
        await _land(move)
    except Refused:
        return "undone"
    return "landed"


@contextlib.asynccontextmanager
async def queued(repo: Path) -> AsyncIterator[None]:
    """The turn of whoever merges here, gates and all, among all processes of this host."""
    async with _locked(await common_dir(repo) / _QUEUE) as _:
        yield


@contextlib.asynccontextmanager
async def _held(repo: Path) -> AsyncIterator[int]:
    """Our lock on a repository: one move at a time, of whatever process."""
    try:
        async with asyncio.timeout(_WAIT_SECONDS) as waiting, _locked(await common_dir(repo) / _LOCK) as lock:
            waiting.reschedule(None)
            yield lock
    except TimeoutError:
        raise Refused(f"another merge is at work in {repo}") from None


@contextlib.asynccontextmanager
async def _locked(path: Path) -> AsyncIterator[int]:
    """Hold a file lock that ends with us; its descriptor."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        while True:
            with contextlib.suppress(BlockingIOError):
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            await asyncio.sleep(_STEP_SECONDS)
        yield descriptor
    finally:
        os.close(descriptor)


async def _checkout_of(move: Move, lock: int, *, careful: bool = True) -> _Checkout | None:
    """The checkout that is on the branch, if there is one. Raises Refused when it cannot be moved."""
    found: list[_Checkout] = []
    for one in await listing(move.repo):
        if one.bare or one.missing or not one.path.is_dir():
            continue
        admin = await users_git(["rev-parse", "--absolute-git-dir"], one.path)
        folder = Path(os.fsdecode(admin.removesuffix(b"\n")))
        if careful and (what := _rebasing(folder, move.ref)) is not None:
            raise Refused(f"{what} of {move.branch} is under way in {one.path}")
        if one.branch == move.branch:
            found.append(_Checkout(one.path, folder, lock))
    if careful and len(found) > 1:
        raise Refused(f"{move.branch} is checked out in {found[0].path} and in {found[1].path}")
    if careful and found:
        for name, what in _UNDER_WAY.items():
            if (found[0].admin / name).exists():
                raise Refused(f"{what} is under way in {found[0].path}")
    return found[0] if found else None


def _rebasing(admin: Path, ref: str) -> str | None:
    """What is done with a branch in a checkout whose head is detached meanwhile."""
    for name, what in (("rebase-merge", "a rebase"), ("rebase-apply", "a rebase")):
        with contextlib.suppress(OSError):
            if (admin / name / "head-name").read_text().strip() == ref:
                return what
    return None


async def _in_place(move: Move) -> None:
    if await resolve(move.repo, move.ref) != move.old:
        raise Moved(f"{move.branch} has moved on in {move.repo}")


@contextlib.asynccontextmanager
async def _index_locked(checkout: _Checkout) -> AsyncIterator[None]:
    """Hold the checkout's index lock, as git does; wait a little for a git that holds it."""
    # Made elsewhere and linked: at no moment is there a lock that does not say whose it is.
    mark = checkout.admin / f"{_INDEX}.mark"
    mark.write_bytes(_MARK)
    try:
        for _ in range(int(_BUSY_SECONDS / _STEP_SECONDS)):
            with contextlib.suppress(FileExistsError):
                checkout.index_lock.hardlink_to(mark)
                break
            await asyncio.sleep(_STEP_SECONDS)
        else:
            raise Refused(f"another git command is at work in {checkout.path}")
        yield
    finally:
        _take_away(checkout)


def _take_away(checkout: _Checkout) -> None:
    """Remove what a move keeps beside the index; an index lock only when it is ours."""
    fresh = checkout.fresh
    for suffix in ("", ".lock", ".mark"):
        fresh.with_name(fresh.name + suffix).unlink(missing_ok=True)
    with contextlib.suppress(FileNotFoundError):
        if checkout.index_lock.read_bytes() == _MARK:
            checkout.index_lock.unlink()


async def _prepared(checkout: _Checkout, move: Move, *how: str) -> None:
    """Bring the files, and an index beside the old one, from the old commit to the new; or only try."""
    assert move.old is not None
    # With its times, by which git tells what changed since.
    await asyncio.to_thread(shutil.copy2, checkout.index, checkout.fresh)
    # Its complaint about files that need an update is no failure.
    with contextlib.suppress(GitError):
        await checkout.with_fresh("update-index", "-q", "--refresh")
    try:
        await checkout.with_fresh("read-tree", "-m", *how, move.old, move.new)
    except GitError as error:
        raise await _refusal(checkout, move, error) from error


async def _refusal(checkout: _Checkout, move: Move, error: GitError) -> Refused:
    """The refusal with the names of all files that are in the way; git itself stops at the first."""
    assert move.old is not None
    changed = await touched(move.repo, move.old, move.new)
    edited = await checkout.git("diff-index", "--name-only", "-z", "--no-renames", move.old, "--")
    others = await checkout.git("ls-files", "--others", "--exclude-standard", "-z")
    local = {os.fsdecode(name) for name in (edited + others).split(b"\0") if name}
    files = tuple(sorted(name for name in local if _overlap(name, changed)))
    if not files:
        return Refused(f"{checkout.path} cannot follow: {error.said}")
    named = ", ".join(files[:20])
    return Refused(f"local changes in {checkout.path} are in the way: {named}", files)


def _overlap(name: str, changed: frozenset[str]) -> bool:
    """Whether a file is among those, or in the place of a folder of those, or the other way round."""
    parts = name.split("/")
    above = {"/".join(parts[:count]) for count in range(1, len(parts) + 1)}
    return bool(above & changed) or any(path.startswith(name + "/") for path in changed)


async def _swap(move: Move, where: Path, lock: int) -> None:
    """Move the branch from the old commit to the new, unless it is elsewhere by now."""
    words = ["update-ref", "-m", move.reason, "--create-reflog", move.ref, move.new, move.old or NONE]
    try:
        await users_git(words, where, pass_fds=(lock,))
    except GitError as error:
        raise Moved(f"{move.branch} could not be moved in {move.repo}: {error.said}") from error


async def _back(checkout: _Checkout, move: Move) -> None:
    """The branch did not move after all: files and index as they were."""
    assert move.old is not None
    await _prepared(checkout, Move(move.repo, move.branch, move.new, move.old), "-u")
    checkout.fresh.replace(checkout.index)


async def _is_forward(checkout: _Checkout, move: Move) -> bool:
    """Whether the index holds the new commit's files already: only the branch is left to move."""
    assert move.old is not None
    changed = await touched(move.repo, move.old, move.new)
    differs = await checkout.git(
        "diff-index", "--cached", "--name-only", "-z", "--no-renames", move.new, "--"
    )
    return bool(changed) and not changed & {os.fsdecode(name) for name in differs.split(b"\0")}


async def _restore(checkout: _Checkout, move: Move) -> None:
    """Files that were half brought forward, back to what the index says. Edits of the user stay."""
    assert move.old is not None
    changed = await touched(move.repo, move.old, move.new)
    known = {os.fsdecode(name) for name in (await checkout.git("ls-files", "-z")).split(b"\0") if name}
    with contextlib.suppress(GitError):
        await checkout.git("update-index", "-q", "--refresh")
    raw = await checkout.git("diff-files", "--name-only", "-z", "--no-renames")
    differing = {os.fsdecode(name) for name in raw.split(b"\0") if name}
    ours = [
        name
        for name in sorted(changed)
        if (name in differing or name not in known) and await _is_ours(checkout, move, name)
    ]
    for name in ours:
        if name not in known:
            await asyncio.to_thread(_unlink, checkout.path, name)
    put_back = [name for name in ours if name in known]
    for start in range(0, len(put_back), 500):
        await checkout.git("checkout-index", "--force", "-u", "-q", "--", *put_back[start : start + 500])


async def _is_ours(checkout: _Checkout, move: Move, name: str) -> bool:
    """Whether a file is what the move wrote: missing, the new content, or the beginning of it."""
    path = checkout.path / name
    there = await asyncio.to_thread(_content, path)
    if there is None:
        return not path.is_dir()
    try:
        wanted = await checkout.git("cat-file", "--filters", f"{move.new}:{name}")
    except GitError:
        return False
    return wanted.startswith(there)


def _content(path: Path) -> bytes | None:
    try:
        if path.is_symlink():
            return os.fsencode(os.readlink(path))  # noqa: PTH115
        return path.read_bytes()
    except OSError:
        return None


def _unlink(root: Path, name: str) -> None:
    """Remove a file and the folders that it leaves empty."""
    path = root / name
    path.unlink(missing_ok=True)
    for parent in path.parents:
        if parent == root:
            break
        try:
            parent.rmdir()
        except OSError:
            break
