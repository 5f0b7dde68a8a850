"""A task's own checkouts: made, listed and removed beside the user's own, which they never touch.

git is told which administrative folder belongs to a worktree, instead of asking the `.git` file in it: an
agent may have changed or removed that file. The user's configuration holds, so that a worktree has the same
files as a checkout by hand.
"""

import asyncio
import contextlib
import os
import shutil
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal, ParamSpec, TypeVar

from quarterdeck.git.spawn import (
    LOCK_SECONDS,
    LOCK_TRIES,
    GitError,
    identity,
    in_the_way,
    in_turn,
    readable,
    users_git,
)

Strategy = Literal["remote", "local_if_ahead", "local"]
PREFIX: Final = "quarterdeck/"
REMOTE: Final = "origin"
# Instead of an old commit: the ref must not exist.
NONE: Final = ""

_FETCH_SECONDS: Final = 60.0
_CHECKOUT_SECONDS: Final = 600.0
_PROTOCOLS: Final = ("file", "git", "http", "https", "ssh")
_WHOLE_TRIES: Final = 20

P = ParamSpec("P")
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Base:
    """Where a branch begins: the commit, the local branch it will go back to, and what is worth telling."""

    commit: str
    target: str
    note: str | None = None


@dataclass(frozen=True, slots=True)
class Listed:
    """One checkout of a repository as git lists it; `branch` is None when its head is detached."""

    path: Path
    head: str | None
    branch: str | None
    bare: bool = False
    missing: bool = False


@dataclass(frozen=True, slots=True)
class Settled:
    """What a worktree's branch holds after its leftovers were committed."""

    head: str
    committed: bool
    note: str | None = None


class Refused(Exception):
    """What was asked for cannot be done as things are; nothing was changed. `files` are in the way."""

    def __init__(self, message: str, files: tuple[str, ...] = ()) -> None:
        self.message = readable(message)
        self.files = tuple(map(readable, files))
        super().__init__(self.message)


async def to_the_end(work: Callable[P, Awaitable[T]], *args: P.args, **kwargs: P.kwargs) -> T:
    """Do it whole even when whoever waits for it is cancelled; the cancellation follows then."""
    task = asyncio.ensure_future(work(*args, **kwargs))
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        while not task.done():
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.wait({task})
        if not task.cancelled():
            task.exception()  # seen, so that nobody is told of it at the end of the loop
        raise


async def text(repo: Path, *args: str) -> str:
    """git's answer as text, without the line's end."""
    answer = await users_git(args, repo)
    return answer.decode("utf-8", "surrogateescape").removesuffix("\n")


async def resolve(repo: Path, name: str) -> str | None:
    """The commit that a full ref or commit id names, or None."""
    try:
        return await text(repo, "rev-parse", "--verify", "--quiet", "--end-of-options", f"{name}^{{commit}}")
    except GitError:
        return None


async def is_ancestor(repo: Path, older: str, newer: str) -> bool:
    try:
        await users_git(["merge-base", "--is-ancestor", older, newer], repo)
    except GitError as error:
        if error.code == 1:
            return False
        raise
    return True


async def common_dir(repo: Path) -> Path:
    """The folder that all checkouts of a repository share."""
    found = Path(await text(repo, "rev-parse", "--git-common-dir"))
    return (found if found.is_absolute() else repo / found).resolve()


async def problem_of(path: Path, worktrees: Path) -> str | None:
    """Why a folder cannot be a repository of a project; None when it can."""
    real = await asyncio.to_thread(path.resolve)
    if not await asyncio.to_thread(real.is_dir):
        return "is not a folder"
    if real.is_relative_to(await asyncio.to_thread(worktrees.resolve)):
        return "lies within the worktrees of tasks"
    try:
        bare, inside = (await text(real, "rev-parse", "--is-bare-repository", "--is-inside-git-dir")).split()
        if bare == "true":
            return None
        if inside == "true":
            return "is the inner folder of a repository"
        prefix = await text(real, "rev-parse", "--show-prefix")
    except GitError as error:
        if "dubious ownership" in error.said:
            return "is a repository of another user, which git refuses"
        return "is not a git repository"
    return "is a folder inside a repository, not its top" if prefix else None


async def base_of(repo: Path, branch: str | None, default: str, strategy: Strategy) -> Base:
    """The commit to begin at, fetched first where the strategy looks at a remote and there is one.

    A branch that was not asked for by name may be missing: then the one that is checked out is taken.
    """
    target = branch or default
    note = None
    if strategy != "local" and await _has_remote(repo):
        note = await _fetch(repo, target)
    local = await resolve(repo, f"refs/heads/{target}")
    remote = await resolve(repo, f"refs/remotes/{REMOTE}/{target}")
    if local is None and remote is None and branch is None:
        current = await current_branch(repo)
        if current is not None and current != target:
            return await base_of(repo, current, current, strategy)
    if strategy == "local" or remote is None:
        chosen = local or remote
    elif strategy == "remote" or local is None:
        chosen = remote
    else:
        ahead = await text(repo, "rev-list", "--count", f"{remote}..{local}")
        chosen = local if int(ahead) else remote
    if chosen is None and target == await current_branch(repo):
        raise Refused(f"{repo} has no commit yet, so there is nothing to begin at")
    if chosen is None:
        raise Refused(f"there is no branch {target} in {repo}")
    return Base(chosen, target, note)


async def current_branch(repo: Path) -> str | None:
    """The branch that a checkout is on, also before its first commit; None when its head is detached."""
    try:
        return (await text(repo, "symbolic-ref", "--quiet", "HEAD")).removeprefix("refs/heads/")
    except GitError:
        return None


async def _has_remote(repo: Path) -> bool:
    return REMOTE in (await text(repo, "remote")).split("\n")


async def _fetch(repo: Path, branch: str) -> str | None:
    """Bring the remote's branch; what went wrong, since the local one serves as well."""
    spec = f"+refs/heads/{branch}:refs/remotes/{REMOTE}/{branch}"
    words = ["fetch", "--quiet", "--no-tags", "--no-write-fetch-head", "--end-of-options", REMOTE, spec]
    try:
        await in_turn(words, repo, protocols=_PROTOCOLS, timeout=_FETCH_SECONDS)
    except GitError as error:
        return f"{REMOTE}/{branch} could not be fetched: {error.said[:500]}"
    return None


async def push(repo: Path, branch: str) -> str | None:
    """Push a branch to the remote; what went wrong, or None."""
    if not await _has_remote(repo):
        return f"there is no remote {REMOTE}"
    spec = f"refs/heads/{branch}:refs/heads/{branch}"
    words = ["push", "--quiet", "--end-of-options", REMOTE, spec]
    try:
        await users_git(words, repo, protocols=_PROTOCOLS, timeout=_FETCH_SECONDS)
    except GitError as error:
        return f"{branch} could not be pushed: {error.said[:500]}"
    return None


async def add(repo: Path, path: Path, branch: str, commit: str) -> None:
    """Check out `branch` in the new folder `path`; the branch is made at `commit` unless it exists.

    It is done to its end, and what an earlier try left half made does not matter.
    """
    await to_the_end(_add, repo, path, branch, commit)


async def _add(repo: Path, path: Path, branch: str, commit: str) -> None:
    for attempt in range(LOCK_TRIES + 1):
        await _drop(repo, path)
        await asyncio.to_thread(path.parent.mkdir, parents=True, exist_ok=True)
        exists = await resolve(repo, f"refs/heads/{branch}") is not None
        how = [str(path), branch] if exists else ["--no-track", "-b", branch, str(path), commit]
        try:
            await users_git(["worktree", "add", "--quiet", *how], repo, timeout=_CHECKOUT_SECONDS)
            return
        except BaseException as error:
            await _drop(repo, path)
            if attempt == 0 and isinstance(error, GitError) and " already " in error.said:
                await prune(repo)  # git may remember a worktree that is gone
            elif attempt == LOCK_TRIES or not in_the_way(error):
                raise
        await asyncio.sleep(LOCK_SECONDS)


async def add_detached(repo: Path, path: Path, commit: str) -> None:
    """Check out a commit in a new folder, on no branch; to its end."""
    await to_the_end(_add_detached, repo, path, commit)


async def _add_detached(repo: Path, path: Path, commit: str) -> None:
    await asyncio.to_thread(path.parent.mkdir, parents=True, exist_ok=True)
    words = ["worktree", "add", "--quiet", "--detach", str(path), commit]
    await in_turn(words, repo, timeout=_CHECKOUT_SECONDS)


async def remove(repo: Path, path: Path, branch: str | None) -> None:
    """Remove a worktree with all that is in it, and its branch. What is gone already does not matter."""
    await to_the_end(_remove, repo, path, branch)


async def _remove(repo: Path, path: Path, branch: str | None) -> None:
    await _drop(repo, path)
    if branch is not None and await asyncio.to_thread(repo.is_dir):
        await delete_ref(repo, f"refs/heads/{branch}")


async def _drop(repo: Path, path: Path) -> None:
    """Delete the folder and git's own record of it."""
    if await asyncio.to_thread(os.path.lexists, path):
        await asyncio.to_thread(delete_folder, path)
    with contextlib.suppress(OSError):
        path.parent.rmdir()
    if await asyncio.to_thread(repo.is_dir) and (admin := await admin_dir(repo, path)) is not None:
        await asyncio.to_thread(_remove_record, admin)


def _remove_record(admin: Path) -> None:
    # Not by `git worktree prune`: it would take one that another git is just beginning to make.
    shutil.rmtree(admin, ignore_errors=True)
    with contextlib.suppress(OSError):
        admin.parent.rmdir()


async def forget(repo: Path, path: Path) -> None:
    """Remove git's record of a worktree whose folder is gone."""
    admin = await admin_dir(repo, path)
    if admin is not None:
        await asyncio.to_thread(_forget, admin, path)


def _forget(admin: Path, path: Path) -> None:
    if not path.exists() and not _is_being_made(admin):
        _remove_record(admin)


def delete_folder(path: Path) -> None:
    """Delete a folder, also where somebody took its rights away."""
    try:
        shutil.rmtree(path)
    except PermissionError:
        path.chmod(0o700)
        for parent, names, _ in os.walk(path):
            for folder in (Path(parent, name) for name in names):
                if not folder.is_symlink():
                    folder.chmod(0o700)
        shutil.rmtree(path)


async def delete_ref(repo: Path, ref: str) -> None:
    """Delete a ref whatever it points at; it may be gone already."""
    await in_turn(["update-ref", "-d", "--end-of-options", ref], repo)


async def prune(repo: Path) -> None:
    await users_git(["worktree", "prune"], repo)


async def admin_dir(repo: Path, path: Path) -> Path | None:
    """Where git keeps the head and index of a worktree, found by its path alone."""
    return await asyncio.to_thread(_admin_dir, await common_dir(repo), path)


def _admin_dir(common: Path, path: Path) -> Path | None:
    wanted = {str(path / ".git"), str(path.resolve() / ".git")}
    with contextlib.suppress(OSError):
        for entry in sorted((common / "worktrees").iterdir()):
            with contextlib.suppress(OSError):
                if (entry / "gitdir").read_text(errors="surrogateescape").strip() in wanted:
                    return entry
    return None


async def listing(repo: Path) -> list[Listed]:
    """Every checkout of a repository, the main one first."""
    raw = await in_turn(["worktree", "list", "--porcelain", "-z"], repo)
    found = []
    for block in raw.split(b"\0\0"):
        fields: dict[str, str] = {}
        for line in block.strip(b"\0").split(b"\0"):
            key, _, value = os.fsdecode(line).partition(" ")
            fields[key] = value
        if path := fields.get("worktree"):
            found.append(
                Listed(
                    path=Path(path),
                    head=fields.get("HEAD"),
                    branch=fields["branch"].removeprefix("refs/heads/") if "branch" in fields else None,
                    bare="bare" in fields,
                    missing="prunable" in fields,
                )
            )
    return found


async def branches(repo: Path) -> dict[str, str]:
    """The branches that were made for tasks, and their commits."""
    form = "--format=%(refname:lstrip=2) %(objectname)"
    rows = await text(repo, "for-each-ref", form, f"refs/heads/{PREFIX}")
    return dict(row.split(" ", 1) for row in rows.splitlines())


async def exists(repo: Path, path: Path) -> bool:
    """Whether a worktree is there, both its folder and git's record of it."""
    return await asyncio.to_thread(path.is_dir) and await admin_dir(repo, path) is not None


async def is_whole(repo: Path, path: Path) -> bool:
    """Whether a worktree is there and its making came to its end.

    A git that a killed core left behind goes on by itself, so it is given a moment.
    """
    for _ in range(_WHOLE_TRIES):
        admin = await admin_dir(repo, path)
        if admin is None or not await asyncio.to_thread(path.is_dir):
            return False
        if not await asyncio.to_thread(_is_being_made, admin):
            return True
        await asyncio.sleep(LOCK_SECONDS)
    return False


def _is_being_made(admin: Path) -> bool:
    """git locks a worktree with this word until all of its files are there."""
    try:
        return (admin / "locked").read_text(errors="replace").startswith("initializing")
    except OSError:
        return False


async def inside(repo: Path, path: Path) -> dict[str, str]:
    """The environment that makes git work on a worktree, whatever its `.git` file says."""
    admin = await admin_dir(repo, path)
    if admin is None or not await asyncio.to_thread(path.is_dir):
        raise Refused(f"the worktree {path} is gone")
    return {"GIT_DIR": str(admin), "GIT_WORK_TREE": str(path)}


async def changed_files(repo: Path, path: Path) -> list[str]:
    """The files of a worktree that are not committed, untracked ones too; those git ignores do not count."""
    own = await inside(repo, path)
    raw = await users_git(
        ["status", "--porcelain", "-z", "--no-renames", "--untracked-files=all", "--ignore-submodules=all"],
        path,
        env=own,
    )
    return [os.fsdecode(row[3:]) for row in raw.split(b"\0") if row]


async def settle(repo: Path, path: Path, branch: str, message: str) -> Settled:
    """Commit what a worktree holds on its branch, in the repository's name. Done to its end."""
    return await to_the_end(_settle, repo, path, branch, message)


async def _settle(repo: Path, path: Path, branch: str, message: str) -> Settled:
    own = await inside(repo, path)
    note = await _on_its_branch(repo, path, branch, own)
    dirty = await changed_files(repo, path)
    if note is not None:
        return Settled(await tip(repo, branch), False, note if dirty else None)
    if not dirty:
        return Settled(await tip(repo, branch), False)
    await _with_lock(path, own, ["add", "--all", "--", "."])
    note = await _without_repositories(path, own)
    staged = await users_git(["diff", "--cached", "--name-only", "--ignore-submodules=none"], path, env=own)
    if not staged:
        return Settled(await tip(repo, branch), False, note)
    words = ["commit", "--quiet", "--no-verify", "--cleanup=whitespace", "--file=-"]
    whose = await identity(repo)
    await users_git(words, path, stdin=message.encode(), env={**own, **whose})
    return Settled(await tip(repo, branch), True, note)


async def tip(repo: Path, branch: str) -> str:
    """The commit of a branch, or Refused when it is gone."""
    found = await resolve(repo, f"refs/heads/{branch}")
    if found is None:
        raise Refused(f"the branch {branch} is gone")
    return found


async def _on_its_branch(repo: Path, path: Path, branch: str, own: dict[str, str]) -> str | None:
    """Bring a worktree back on its branch where the branch can simply follow; why not, else."""
    try:
        ref = (await users_git(["symbolic-ref", "--quiet", "HEAD"], path, env=own)).decode().strip()
    except GitError:
        ref = ""
    if ref == f"refs/heads/{branch}":
        return None
    head = (await users_git(["rev-parse", "--verify", "HEAD"], path, env=own)).decode().strip()
    known = await resolve(repo, f"refs/heads/{branch}")
    if known is not None and not await is_ancestor(repo, known, head):
        return f"the worktree {path} is not on its branch {branch}, and has changes that are not committed"
    await users_git(["update-ref", f"refs/heads/{branch}", head, known or NONE], repo)
    await users_git(["symbolic-ref", "HEAD", f"refs/heads/{branch}"], path, env=own)
    return None


async def _with_lock(path: Path, own: dict[str, str], words: list[str]) -> None:
    """Run a command that writes the index; a lock that a killed git left behind is taken away."""
    for attempt in range(LOCK_TRIES + 1):
        try:
            await users_git(words, path, env=own, timeout=_CHECKOUT_SECONDS)
        except GitError as error:
            if "index.lock" not in error.said or attempt == LOCK_TRIES:
                raise
            if attempt == LOCK_TRIES - 1:
                await asyncio.to_thread(Path(own["GIT_DIR"], "index.lock").unlink, missing_ok=True)
            await asyncio.sleep(LOCK_SECONDS)
        else:
            return


async def _without_repositories(path: Path, own: dict[str, str]) -> str | None:
    """Take new repositories inside the worktree out of the index: only their commit's id would go in."""
    raw = await users_git(
        ["diff", "--cached", "--raw", "-z", "--no-renames", "--diff-filter=A"], path, env=own
    )
    fields = raw.split(b"\0")[:-1]
    pairs = zip(fields[::2], fields[1::2], strict=True)
    nested = [os.fsdecode(name) for row, name in pairs if row.split()[1] == b"160000"]
    if not nested:
        return None
    await users_git(["rm", "--cached", "--force", "--quiet", "--", *nested], path, env=own)
    return f"left out, as they are repositories of their own: {readable(', '.join(nested[:10]))}"


async def snapshot(repo: Path, path: Path, branch: str) -> str:
    """A tree of all that a worktree holds now; when nothing is uncommitted, the branch's own commit."""
    if not await changed_files(repo, path):
        return await tip(repo, branch)
    own = await inside(repo, path)
    index = Path(own["GIT_DIR"], f"quarterdeck-snapshot-{os.urandom(4).hex()}")
    aside = {**own, "GIT_INDEX_FILE": str(index)}
    try:
        with contextlib.suppress(FileNotFoundError):
            await asyncio.to_thread(shutil.copy2, Path(own["GIT_DIR"], "index"), index)
        await users_git(["add", "--all", "--", "."], path, env=aside, timeout=_CHECKOUT_SECONDS)
        return (await users_git(["write-tree"], path, env=aside)).decode().strip()
    finally:
        for leftover in (index, index.with_name(index.name + ".lock")):
            leftover.unlink(missing_ok=True)
