"""Where commits come from: folders that are allowed, remotes of every kind, and one cache for each."""

from __future__ import annotations

import asyncio
import fcntl
import os
import socketserver
import subprocess
import threading
import time
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import pytest

from quarterdeck.config import Settings
from quarterdeck.core import ledger, life
from quarterdeck.core.context import Core
from quarterdeck.git.spawn import GitError
from quarterdeck.run.checkout import Checkout, Limits, prepare, reopen
from quarterdeck.run.mirror import CheckoutError
from tests.git_repo import ENVIRONMENT, GitRepo
from tests.job_spec import job_spec

T = TypeVar("T")


def run(work: Coroutine[Any, Any, T]) -> T:
    return asyncio.run(work)


class Worker:
    """Prepares jobs with one cache and one list of allowed folders."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.allowed: list[Path] = []
        self.count = 0

    def coroutine(self, repo: dict[str, Any], limits: Limits | None = None) -> Coroutine[Any, Any, Checkout]:
        self.count += 1
        into = self.folder / "jobs" / str(self.count)
        return prepare(
            job_spec(repo, readPaths=["."]), into, self.folder / "cache", self.allowed, limits=limits
        )

    def files(self, **repo: Any) -> dict[str, str]:
        checkout = run(self.coroutine(repo))
        return {name: (checkout.path / name).read_text() for name in checkout.files}

    def refusal(self, *, limits: Limits | None = None, **repo: Any) -> CheckoutError:
        with pytest.raises(CheckoutError) as caught:
            run(self.coroutine(repo, limits))
        return caught.value


@pytest.fixture
def worker(tmp_path: Path) -> Worker:
    return Worker(tmp_path / "worker")


@pytest.fixture
def repo(tmp_path: Path) -> GitRepo:
    return GitRepo(tmp_path / "repos" / "source")


class OldServer(socketserver.ThreadingTCPServer):
    """git:// as servers spoke it before protocol 2: a commit is given out only at the end of a branch."""

    daemon_threads = True
    allow_reuse_address = True

    def __init__(self, root: Path) -> None:
        self.root = root
        super().__init__(("127.0.0.1", 0), OldSession)

    @property
    def url(self) -> str:
        return f"git://127.0.0.1:{self.server_address[1]}/"


class OldSession(socketserver.StreamRequestHandler):
    server: OldServer
    rbufsize = 0

    def handle(self) -> None:
        length = int(self.rfile.read(4), 16)
        request = self.rfile.read(length - 4).decode()
        path = request.removeprefix("git-upload-pack ").partition("\0")[0]
        subprocess.run(
            ["git", "upload-pack", "--strict", f"{self.server.root}{path}/.git"],
            env=ENVIRONMENT,
            stdin=self.connection,
            stdout=self.connection,
            stderr=subprocess.DEVNULL,
            check=False,
        )


class SilentSession(socketserver.BaseRequestHandler):
    def handle(self) -> None:
        time.sleep(5)


@contextmanager
def serving(server: socketserver.TCPServer) -> Iterator[None]:
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield
    finally:
        server.shutdown()
        thread.join()
        server.socket.close()


@pytest.fixture
def old_server(repo: GitRepo) -> Iterator[OldServer]:
    server = OldServer(repo.path.parent)
    with serving(server):
        yield server


def test_file_url_is_read_like_a_folder(worker: Worker, repo: GitRepo) -> None:
    commit = repo.commit({"ä b": "x\n"})
    worker.allowed = [repo.path.parent]
    for url in (f"file://{repo.path}", f"file://localhost{repo.path}/.git"):
        assert worker.files(url=url, baselineCommit=commit) == {"ä b": "x\n"}
    assert worker.refusal(url=f"file://elsewhere{repo.path}", baselineCommit=commit).reason == "POLICY"


def test_folder_that_is_not_allowed_is_refused(worker: Worker, repo: GitRepo, tmp_path: Path) -> None:
    commit = repo.commit({"a": "x\n"})
    (tmp_path / "repos" / "source-2").mkdir()
    for allowed in ([], [tmp_path / "repos" / "other"], [tmp_path / "repos" / "source-2"]):
        worker.allowed = allowed
        ways: list[dict[str, Any]] = [
            {"type": "local", "path": str(repo.path)},
            {"url": f"file://{repo.path}"},
        ]
        for named in ways:
            error = worker.refusal(**named, baselineCommit=commit)
            assert (error.reason, "may read" in str(error)) == ("POLICY", True)
    assert not (worker.folder / "cache").exists()


def test_link_to_a_folder_that_is_not_allowed_is_refused(
    worker: Worker, repo: GitRepo, tmp_path: Path
) -> None:
    commit = repo.commit({"a": "x\n"})
    allowed = tmp_path / "allowed"
    allowed.mkdir()
    (allowed / "link").symlink_to(repo.path)
    pointing = allowed / "pointing"
    pointing.mkdir()
    (pointing / ".git").write_text(f"gitdir: {repo.path / '.git'}\n")
    worker.allowed = [allowed]
    for path in (allowed / "link", pointing):
        assert worker.refusal(type="local", path=str(path), baselineCommit=commit).reason == "POLICY"


def test_folder_within_a_repository_is_no_repository(worker: Worker, repo: GitRepo) -> None:
    commit = repo.commit({"src/a": "x\n"})
    worker.allowed = [repo.path / "src"]
    error = worker.refusal(type="local", path=str(repo.path / "src"), baselineCommit=commit)
    assert "not a git repository" in str(error)


def test_linked_worktree_of_an_allowed_repository_is_read(worker: Worker, repo: GitRepo) -> None:
    commit = repo.commit({"a": "x\n"})
    repo.git("worktree", "add", "--quiet", "../linked")
    worker.allowed = [repo.path.parent]
    assert worker.files(type="local", path=str(repo.path.parent / "linked"), baselineCommit=commit) == {
        "a": "x\n"
    }


def test_bare_repository_is_read(worker: Worker, repo: GitRepo) -> None:
    commit = repo.commit({"a": "x\n"})
    repo.git("clone", "--quiet", "--bare", ".", "../bare.git")
    worker.allowed = [repo.path.parent]
    path = str(repo.path.parent / "bare.git")
    assert worker.files(type="local", path=path, baselineCommit=commit.upper()) == {"a": "x\n"}


def test_hook_and_configuration_of_the_source_run_nothing(
    worker: Worker, repo: GitRepo, tmp_path: Path
) -> None:
    commit = repo.commit({"a": "x\n"})
    ran = tmp_path / "ran"
    repo.git("config", "uploadpack.packObjectsHook", f"touch {ran};")
    repo.git("config", "core.fsmonitor", f"touch {ran};")
    worker.allowed = [repo.path]
    assert worker.files(type="local", path=str(repo.path), baselineCommit=commit) == {"a": "x\n"}
    assert not ran.exists()


def test_server_that_gives_out_no_single_commit_is_asked_for_the_branch(
    worker: Worker, repo: GitRepo, old_server: OldServer
) -> None:
    commits = [repo.commit({"a": f"{number}\n"}) for number in range(4)]
    url = f"{old_server.url}source"
    with pytest.raises(AssertionError, match="does not allow request for unadvertised object"):
        GitRepo(worker.folder / "other").git("fetch", url, commits[1])
    # The tip first: it comes alone, and what lies behind it must still be found after.
    assert worker.files(url=url, baselineCommit=commits[3]) == {"a": "3\n"}
    assert worker.files(url=url, baselineCommit=commits[1]) == {"a": "1\n"}
    assert worker.files(url=url, baselineCommit=commits[0]) == {"a": "0\n"}


def test_commit_that_is_not_on_the_branch_is_a_clear_error(
    worker: Worker, repo: GitRepo, old_server: OldServer
) -> None:
    repo.commit({"a": "0\n"})
    url = f"{old_server.url}source"
    error = worker.refusal(url=url, baselineCommit="1" * 40)
    assert f"has no commit {'1' * 40}, also not on its branch main" in str(error)
    error = worker.refusal(url=url, baselineCommit="1" * 40, baseBranch="gone")
    assert "couldn't find remote ref refs/heads/gone" in str(error)


def test_commit_in_the_cache_needs_no_server(worker: Worker, repo: GitRepo, old_server: OldServer) -> None:
    commit = repo.commit({"a": "0\n"})
    url = f"{old_server.url}source"
    worker.files(url=url, baselineCommit=commit)
    repo.path.rename(repo.path.with_name("moved"))
    assert worker.files(url=url, baselineCommit=commit) == {"a": "0\n"}


def test_server_that_cannot_be_reached_is_a_clear_error_without_secrets(worker: Worker) -> None:
    error = worker.refusal(url="https://user:hunter2@localhost:1/a.git", baselineCommit="1" * 40)
    assert "https://localhost:1/a.git cannot be fetched" in str(error)
    assert "hunter2" not in str(error)
    assert isinstance(error.__cause__, GitError)
    assert "hunter2" not in str(error.__cause__)


def test_silent_server_is_given_up(worker: Worker) -> None:
    server = socketserver.ThreadingTCPServer(("127.0.0.1", 0), SilentSession)
    server.daemon_threads = True
    server.block_on_close = False
    with serving(server):
        url = f"git://127.0.0.1:{server.server_address[1]}/a.git"
        error = worker.refusal(limits=Limits(fetch_seconds=1), url=url, baselineCommit="1" * 40)
    assert (error.reason, "did not deliver in 1 s" in str(error)) == ("TIMEOUT", True)


def test_jobs_at_once_share_one_cache(worker: Worker, repo: GitRepo) -> None:
    commits = [repo.commit({"a": f"{number}\n"}) for number in range(4)]
    worker.allowed = [repo.path]

    async def all_at_once() -> list[Checkout]:
        named = {"type": "local", "path": str(repo.path)}
        return await asyncio.gather(*(worker.coroutine({**named, "baselineCommit": sha}) for sha in commits))

    texts = [(checkout.path / "a").read_text() for checkout in run(all_at_once())]
    assert texts == ["0\n", "1\n", "2\n", "3\n"]
    assert len(list((worker.folder / "cache").glob("*.git"))) == 1


def fetched_once(worker: Worker, repo: GitRepo) -> tuple[dict[str, Any], Path]:
    """The spec of a second commit, whose cache is there already."""
    first, second = repo.commit({"a": "0\n"}), repo.commit({"a": "1\n"})
    worker.allowed = [repo.path]
    named: dict[str, Any] = {"type": "local", "path": str(repo.path)}
    worker.files(**named, baselineCommit=first)
    [cache] = (worker.folder / "cache").glob("*.git")
    return {**named, "baselineCommit": second}, cache


def test_lock_of_a_killed_git_is_taken_away(worker: Worker, repo: GitRepo) -> None:
    spec, cache = fetched_once(worker, repo)
    (cache / "shallow.lock").touch()
    assert worker.files(**spec) == {"a": "1\n"}


def test_lock_of_a_git_that_outlived_its_core_is_waited_for(worker: Worker, repo: GitRepo) -> None:
    spec, cache = fetched_once(worker, repo)
    lock = cache / "shallow.lock"
    lock.touch()

    async def waited() -> Checkout:
        with cache.with_suffix(".busy").open() as alive:
            fcntl.flock(alive, fcntl.LOCK_SH)
            waiting = asyncio.ensure_future(worker.coroutine(spec))
            assert not (await asyncio.wait([waiting], timeout=0.5))[0]
            lock.unlink()
            return await waiting

    assert (run(waited()).path / "a").read_text() == "1\n"


def test_mirrors_that_no_job_uses_are_removed_after_a_while(tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    repos = [GitRepo(tmp_path / "repos" / name) for name in ("resting", "borrowed")]
    commits = [repo.commit({"a": "here\n"}) for repo in repos]

    async def checkout(number: int, name: str) -> Checkout:
        named = {"type": "local", "path": str(repos[number].path), "baselineCommit": commits[number]}
        into = data / "attempts" / name / "checkout"
        return await prepare(job_spec(named, readPaths=["."]), into, data / "mirrors", [tmp_path / "repos"])

    def locks() -> set[Path]:
        return set((data / "mirrors").glob("*.lock"))

    async def unused(core: Core) -> int:
        return [each.kind for each in await ledger.check(core)].count("mirror_unused")

    async def work() -> None:
        async with life.opened(Settings(), data, serving=False) as core:
            over = await checkout(0, "job_over-1")
            [resting] = locks()
            live = await checkout(1, "job_live-1")
            await over.remove()
            assert await unused(core) == 0
            for lock in locks():
                os.utime(lock, (1, 1))
            assert await unused(core) == 1, "the objects of the other are borrowed"
            with resting.open("rb") as held:
                fcntl.flock(held, fcntl.LOCK_EX)
                await ledger.tend(core)
                assert resting.with_suffix(".git").exists(), "somebody is about to use it"
            await ledger.tend(core)
            assert list((data / "mirrors").glob(f"{resting.stem}.*")) == []
            assert (await reopen(live.spec, live.folder)).files == live.files, "it still reads its commit"
            again = await checkout(0, "job_again-1")
            assert (again.path / "a").read_text() == "here\n"
            assert await unused(core) == 0

    asyncio.run(work())
