"""A core that is killed at any step of a merge: the next one brings it to its end, or undoes it."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path

import pytest

from quarterdeck.core import ledger, tasks
from quarterdeck.domain.records import Task
from tests.integration.review_core import ANN, Desk, review_core

CHILD = """
import asyncio, os, signal, sys
from pathlib import Path
from quarterdeck.core import landings, merges, worktrees
from quarterdeck.git import landing
from tests.integration.review_core import ANN, review_core, template

seen = []

def reached(name):
    seen.append(name)
    if name == step and seen.count(step) == count:
        os.kill(os.getpid(), signal.SIGKILL)

def before(module, name):
    function = getattr(module, name)
    def killed(*args, **kwargs):
        reached(name)
        return function(*args, **kwargs)
    setattr(module, name, killed)

landing._reached = reached
before(landing, "land")
before(landings.rows, "change_merge")
before(worktrees, "drop")
before(merges, "_completed")
before(merges, "_rebased")

async def main():
    async with review_core(folder, repos=2) as desk:
        task = await desk.work({"a.txt": "changed\\n", "new.txt": "new\\n"})
        for each in await desk.worktrees(task):
            Path(each.path, "a.txt").write_text("changed\\n")
        for repo in desk.repos:
            repo.commit({"c.txt": "c\\n"})
            repo.write({"b.txt": "mine\\n"})
        (folder / "task").write_text(task.id)
        await getattr(merges, action)(desk.core, ANN, task.id)

# Each in a process of its own, without starting Python anew.
asyncio.run(template())
for case in sys.argv[2:]:
    action, step, count = case.split(":")
    folder, count = Path(sys.argv[1], case), int(count)
    if not os.fork():
        asyncio.run(main())
        os._exit(0)
    _, status = os.wait()
    assert os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL, (case, status)
"""
MERGES = ("land:1", "files:1", "index:1", "swapped:1", "change_merge:1", "files:2", "drop:2", "_completed:1")
REBASES = ("files:1", "land:2", "_rebased:1")
UNDONE = "merge:land:2"


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder for each case, as a core left it that was killed there."""
    folder = tmp_path_factory.mktemp("killed")
    cases = [f"merge:{case}" for case in MERGES] + [f"rebase:{case}" for case in REBASES] + [UNDONE]
    words = [sys.executable, "-c", CHILD, str(folder), *cases]
    done = subprocess.run(words, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr.decode()
    return folder


async def found(desk: Desk, folder: Path) -> Task:
    return (await tasks.get(desk.core, ANN, (folder / "task").read_text())).task


@pytest.mark.parametrize("case", MERGES)
def test_a_merge_that_was_killed_comes_to_its_end(case: str, killed: Path) -> None:
    folder = killed / f"merge:{case}"

    async def run() -> None:
        async with review_core(folder, repos=2) as desk:
            assert {drift.kind for drift in await ledger.check(desk.core)} >= {"merge_unfinished"}
            await ledger.tend(desk.core)
            assert await ledger.check(desk.core) == []
            assert (await found(desk, folder)).status == "completed"
            for repo in desk.repos:
                assert repo.git("show", "main:a.txt") == "changed"
                assert repo.git("log", "--format=%s", "-2", "main").split("\n") == ["Do it", "Change"]
                assert repo.git("status", "--porcelain") == " M b.txt"
                assert (repo.path / "a.txt").read_text() == "changed\n"
                assert repo.git("for-each-ref", "refs/heads/quarterdeck") == ""

    asyncio.run(run())


def test_a_merge_that_cannot_go_on_is_undone_in_all_repositories(killed: Path) -> None:
    folder = killed / UNDONE

    async def run() -> None:
        async with review_core(folder, repos=2) as desk:
            # One has landed; in the other somebody went on meanwhile.
            newer = desk.repos[1].commit({"d.txt": "d\n"}, "Meanwhile")
            await ledger.tend(desk.core)
            assert await ledger.check(desk.core) == []
            task = await found(desk, folder)
            assert task.status == "review"
            assert len(await desk.worktrees(task)) == 2
            assert desk.repos[0].git("log", "-1", "--format=%s", "main") == "Change"
            assert desk.repos[0].git("status", "--porcelain") == " M b.txt"
            assert desk.repos[1].git("rev-parse", "main") == newer

    asyncio.run(run())


@pytest.mark.parametrize("case", REBASES)
def test_a_rebase_that_was_killed_comes_to_its_end(case: str, killed: Path) -> None:
    folder = killed / f"rebase:{case}"

    async def run() -> None:
        async with review_core(folder, repos=2) as desk:
            await ledger.tend(desk.core)
            assert await ledger.check(desk.core) == []
            task = await found(desk, folder)
            assert task.status == "review"
            for repo, tree in zip(desk.repos, await desk.worktrees(task), strict=True):
                assert repo.git("rev-parse", f"{tree.branch}~1") == repo.git("rev-parse", "main")
                assert repo.git("-C", tree.path, "status", "--porcelain") == ""

    asyncio.run(run())
