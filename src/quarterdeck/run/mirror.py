"""Bare caches, one for each source: the exact commit of a job is brought here and nowhere else.

A local repository is only read: git serves the commit from it as it would to any other clone.
"""

import asyncio
import contextlib
import fcntl
import hashlib
import os
import shutil
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final
from urllib.parse import unquote, urlsplit

from quarterdeck.core import ledger
from quarterdeck.core.context import Core
from quarterdeck.core.ledger import Drift
from quarterdeck.domain.jobspec import FailReason, Repo, without_secrets
from quarterdeck.git.spawn import LOCK_SECONDS, GitError, GitTimeout, credentials_apart, git, in_the_way

FETCH_SECONDS: Final = 600.0
_LOCK_POLL_SECONDS: Final = 0.05
_ALL_HISTORY: Final = "2147483647"
_DAY_SECONDS: Final = 86_400.0
_SUFFIXES: Final = (".git", ".lock", ".busy", ".draft", ".gone")
_REMOTE_PROTOCOLS: Final = ("https", "ssh", "git")


class CheckoutError(Exception):
    """The files of a job cannot be had. `reason` is what its record says."""

    def __init__(self, message: str, reason: FailReason = "EXECUTOR_ERROR") -> None:
        super().__init__(message)
        self.reason: FailReason = reason


@dataclass(frozen=True, slots=True)
class Source:
    """Where commits come from: an address for git, whether it is a folder of this host, and whether git may
    use the configuration and credentials of the user who runs the core.
    """

    address: str
    local: bool = False
    user_config: bool = False

    @property
    def shown(self) -> str:
        return without_secrets(self.address)

    @property
    def folder(self) -> str:
        """The name of its cache. All that gives access counts: what one may fetch, another may not see."""
        key = f"{self.user_config} {self.address}".encode("utf-8", "surrogateescape")
        return f"{hashlib.sha256(key).hexdigest()[:32]}.git"


async def source_of(repo: Repo, allowed_local: Sequence[Path], *, user_config: bool = False) -> Source:
    """The source that a spec names. A folder of this host must lie within one of `allowed_local`."""
    if repo.type == "git" and repo.url is not None and not repo.url.startswith("file:"):
        return Source(repo.url, user_config=user_config)
    path = repo.path or ""
    if repo.type == "git":
        url = urlsplit(repo.url or "")
        if url.netloc not in ("", "localhost"):
            raise CheckoutError("the file URL names another host", "POLICY")
        path = unquote(url.path)
    address = str(await _local(Path(path), allowed_local, user_config))
    return Source(address, local=True, user_config=user_config)


async def _local(path: Path, allowed: Sequence[Path], user_config: bool) -> Path:
    """The folder in which this repository keeps its objects; both have to be allowed, by their real names."""
    found = await asyncio.to_thread(path.resolve)
    roots = [await asyncio.to_thread(root.resolve) for root in allowed]
    if not any(found.is_relative_to(root) for root in roots):
        raise CheckoutError(f"{path} is not a repository that this core may read", "POLICY")
    try:
        # The ceiling keeps git from finding a repository that lies around the folder.
        answer = await git(
            ["rev-parse", "--path-format=absolute", "--git-common-dir"],
            found,
            env={"GIT_CEILING_DIRECTORIES": str(found.parent)},
            user_config=user_config,
        )
    except GitError as error:
        raise CheckoutError(f"{path} is not a git repository that can be read: {error.said}") from error
    common = await asyncio.to_thread(Path(os.fsdecode(answer.removesuffix(b"\n"))).resolve)
    if not any(common.is_relative_to(root) for root in roots):
        raise CheckoutError(f"{path} belongs to a repository that this core may not read", "POLICY")
    return common


async def fetch_commit(
    source: Source, commit: str, branch: str, cache_dir: Path, *, timeout: float = FETCH_SECONDS
) -> Path:
    """The bare repository in `cache_dir` that holds the commit; fetched when it is not there yet."""
    cache = cache_dir / source.folder
    deadline = time.monotonic() + timeout
    try:
        async with _locked(cache.with_suffix(".lock"), deadline) as lock:
            os.utime(lock)  # when it was used last
            await _ensure(cache)
            kind = await _kind(cache, commit)
            if kind is None:
                await _fetch(source, commit, branch, cache, deadline)
                kind = await _kind(cache, commit)
    except GitTimeout as error:
        raise CheckoutError(f"{source.shown} did not deliver in {timeout:g} s", "TIMEOUT") from error
    if kind is None:
        raise CheckoutError(f"{source.shown} has no commit {commit}, also not on its branch {branch}")
    if kind != "commit":
        raise CheckoutError(f"{commit} in {source.shown} is a {kind}, not a commit")
    return cache


async def _ensure(cache: Path) -> None:
    if (cache / "HEAD").is_file():
        _sweep(cache)
        return
    draft = cache.with_suffix(".draft")
    await asyncio.to_thread(shutil.rmtree, draft, ignore_errors=True)
    await git(["init", "--quiet", "--bare", "--template=", str(draft)], cache.parent)
    draft.rename(cache)


def _sweep(cache: Path) -> None:
    """Take away locks that a killed git has left, unless some git is still at work here."""
    with contextlib.suppress(BlockingIOError), _marked(cache, fcntl.LOCK_EX):
        for lock in (cache / "shallow.lock", *cache.glob("refs/**/*.lock")):
            lock.unlink(missing_ok=True)


@contextmanager
def _marked(cache: Path, how: int) -> Iterator[int]:
    """The mark of a git that fetches. git inherits it, and has it for as long as it runs, even without us."""
    descriptor = os.open(cache.with_suffix(".busy"), os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(descriptor, how | fcntl.LOCK_NB)
        yield descriptor
    finally:
        os.close(descriptor)


async def _kind(cache: Path, name: str) -> str | None:
    try:
        return (await git(["cat-file", "-t", name], cache)).decode().strip()
    except GitTimeout:
        raise
    except GitError:
        return None


async def _fetch(source: Source, commit: str, branch: str, cache: Path, deadline: float) -> None:
    address, secret = credentials_apart(source.address)

    async def fetch(refspec: str, *options: str) -> None:
        words = ("fetch", "--quiet", "--no-tags", "--no-write-fetch-head", "--no-recurse-submodules")
        while True:
            try:
                with _marked(cache, fcntl.LOCK_SH) as mark:
                    await git(
                        [*words, *options, "--", address, refspec],
                        cache,
                        env=secret,
                        user_config=source.user_config,
                        protocols=("file",) if source.local else _REMOTE_PROTOCOLS,
                        timeout=max(1.0, deadline - time.monotonic()),
                        pass_fds=(mark,),
                    )
                return
            except GitError as error:
                # A git that a killed core left behind goes on by itself.
                if not in_the_way(error) or time.monotonic() > deadline:
                    raise
            await asyncio.sleep(LOCK_SECONDS)
            _sweep(cache)

    try:
        return await fetch(f"+{commit}:refs/baselines/{commit}", "--depth=1")
    except GitTimeout:
        raise
    except GitError as error:
        if source.local:
            missing = "not our ref" in error.said
            problem = f"has no commit {commit}" if missing else f"cannot be fetched: {error.said}"
            raise CheckoutError(f"{source.shown} {problem}") from error
    # Not every server gives out a commit by its id: then its history on the branch is the way to it.
    depth = [f"--depth={_ALL_HISTORY}"] if (cache / "shallow").is_file() else []
    try:
        await fetch(f"+refs/heads/{branch}:refs/branches/{branch}", *depth)
    except GitTimeout:
        raise
    except GitError as error:
        raise CheckoutError(f"{source.shown} cannot be fetched: {error.said}") from error


@asynccontextmanager
async def _locked(path: Path, deadline: float) -> AsyncIterator[int]:
    """Hold the lock of a cache against every other task and process of this host; its descriptor."""
    path.parent.mkdir(parents=True, exist_ok=True)
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            await _hold(descriptor, deadline)
            if _is_at(descriptor, path):
                yield descriptor
                return
        finally:
            os.close(descriptor)


async def _hold(descriptor: int, deadline: float) -> None:
    while True:
        try:
            return fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > deadline:
                raise CheckoutError("another job holds the cache of this repository", "TIMEOUT") from None
            await asyncio.sleep(_LOCK_POLL_SECONDS)


def _is_at(descriptor: int, path: Path) -> bool:
    """Whether the lock is still the one that others find: it goes with a cache that is removed."""
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except FileNotFoundError:
        return False


async def unused(core: Core) -> list[Drift]:
    """The caches that no job has asked for in `relay.mirror_idle_days`, each with how it is removed."""
    days = core.settings.relay.mirror_idle_days
    caches, jobs = core.data_dir / "mirrors", core.data_dir / "attempts"
    idle = await asyncio.to_thread(_idle, caches, jobs, days * _DAY_SECONDS)
    return [
        Drift(
            "mirror_unused",
            f"no job has asked for {cache} in {days:g} days",
            "it is removed; a job that needs it fetches it again",
            mend=partial(_forget, cache, jobs, days * _DAY_SECONDS),
        )
        for cache in idle
    ]


def _idle(caches: Path, jobs: Path, seconds: float) -> list[Path]:
    try:
        stems = {path.stem for path in caches.iterdir() if path.suffix in _SUFFIXES}
    except OSError:
        return []
    borrowed = _borrowed(jobs)
    found = (caches / f"{stem}.git" for stem in sorted(stems))
    return [cache for cache in found if cache.name not in borrowed and _rested(cache, seconds)]


def _rested(cache: Path, seconds: float) -> bool:
    """Whether nobody used it for so long: its lock knows, or its own time where that was removed."""
    for path in (cache.with_suffix(".lock"), cache):
        with contextlib.suppress(OSError):
            return time.time() - path.stat().st_mtime > seconds
    return True


def _borrowed(jobs: Path) -> set[str]:
    """The caches whose objects the checkouts of jobs use, however long ago they were fetched."""
    found = set()
    for borrows in jobs.glob("*/checkout/git/objects/info/alternates"):
        with contextlib.suppress(OSError):
            found |= {Path(line).parent.name for line in borrows.read_text(errors="replace").splitlines()}
    return found


async def _forget(cache: Path, jobs: Path, seconds: float) -> None:
    """Remove a cache, unless somebody has come to use it meanwhile."""
    with contextlib.suppress(CheckoutError):  # somebody holds it
        async with _locked(cache.with_suffix(".lock"), time.monotonic()):
            await asyncio.to_thread(_set_aside, cache, jobs, seconds)
    await asyncio.to_thread(shutil.rmtree, cache.with_suffix(".gone"), ignore_errors=True)


def _set_aside(cache: Path, jobs: Path, seconds: float) -> None:
    if cache.name in _borrowed(jobs) or not _rested(cache, seconds):
        return
    gone = cache.with_suffix(".gone")
    for left in (gone, cache.with_suffix(".draft")):
        shutil.rmtree(left, ignore_errors=True)
    with contextlib.suppress(FileNotFoundError):
        cache.rename(gone)  # whole at one moment, and gone the next
    cache.with_suffix(".busy").unlink(missing_ok=True)
    cache.with_suffix(".lock").unlink()


ledger.CHECKS.append(unused)
