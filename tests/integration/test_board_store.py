"""The board on either database, and two cores on one."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from quarterdeck.config import Settings
from quarterdeck.core import (
    audit,
    board,
    life,
    projects,
    proposals,
    queue,
    settings,
    task_views,
    tasks,
    waits,
    worktrees,
)
from quarterdeck.core.context import Core
from quarterdeck.domain.callers import Caller
from quarterdeck.domain.errors import NotFound
from quarterdeck.domain.records import Task
from quarterdeck.domain.states import COLUMNS, column_of
from quarterdeck.run.worker import JobRun, Worker
from quarterdeck.store.tx import Tx
from tests.git_repo import GitRepo
from tests.jobs import a_core, put, reaches
from tests.store import ANN, BOB

ADMIN = Caller(None, "maintainer", everyone=True)
TASK = {
    "title": "Proposed",
    "type": "AUTO",
    "description": "",
    "acceptance_criteria": ["x"],
    "priority": "high",
}


@contextlib.asynccontextmanager
async def opened(url: str, folder: Path) -> AsyncIterator[Core]:
    folder.mkdir(exist_ok=True)
    configured = Settings(search={"provider": "off"}, database={"url": url})  # type: ignore[arg-type]
    async with life.opened(configured, folder) as core:
        yield core


async def walked(core: Core, caller: Caller, wanted: board.Wanted, limit: int) -> list[Task]:
    """Everything a list holds, page by page."""
    found: list[Task] = []
    cursor: str | None = None
    for _ in range(100):
        page = await board.page(core, caller, wanted, cursor=cursor, limit=limit)
        found += page.tasks
        if page.next_cursor is None:
            return found
        cursor = page.next_cursor
    raise AssertionError("the list has no end")


def test_pages_hold_every_task_once_in_order(database_url: str, tmp_path: Path) -> None:
    async def run() -> None:
        async with opened(database_url, tmp_path) as core:
            chance = random.Random(7)
            project, _ = await projects.create(core, ANN, name="P")
            made: list[Task] = []
            for number in range(60):
                new = board.NewTask(
                    f"Task {number}",
                    project_id=project.id if number % 3 else None,
                    column=chance.choice(COLUMNS),
                    priority=chance.choice(["low", "high"]),
                )
                made.append(await board.create(core, ANN, new))
            await board.create(core, BOB, board.NewTask("Another's"))
            made.sort(key=lambda task: (task.created_at, task.id), reverse=True)
            assert await walked(core, ANN, board.Wanted(), 7) == made
            of_project = [task for task in made if task.project_id == project.id]
            assert await walked(core, ANN, board.Wanted(project_id=project.id), 7) == of_project
            bound = replace(ANN, project_id=project.id)
            assert await walked(core, bound, board.Wanted(), 7) == of_project
            done = [task for task in of_project if column_of(task.status) == "DONE"]
            wanted = board.Wanted(project_id=project.id, statuses=("completed", "cancelled"))
            assert await walked(core, ANN, wanted, 3) == done
            low = [task for task in made if task.priority == "low"]
            assert await walked(core, ANN, board.Wanted(priority="low"), 7) == low
            assert len(await walked(core, ADMIN, board.Wanted(), 50)) == 61

    asyncio.run(run())


def test_a_task_lives_and_goes_on_either_database(database_url: str, tmp_path: Path) -> None:
    async def run() -> None:
        repo = GitRepo(tmp_path / "repo")
        repo.commit({"a.txt": "a"})
        async with opened(database_url, tmp_path / "data") as core:
            project, _ = await projects.create(core, ANN, name="P", repo_paths=[str(repo.path)])
            await projects.open_(core, ANN, project.id)
            await projects.open_(core, ANN, project.id)
            proposal, _ = await proposals.propose(core, ANN, [TASK], [])
            _, view = await proposals.accept(core, ANN, proposal.id)
            task = view.phases[0].tasks[0]
            assert (task.project_id, task.task_type) == (project.id, "AUTO")
            await board.append_scratchpad(core, ANN, task.id, "one")
            await board.append_scratchpad(core, ANN, task.id, "two")

            def ran(tx: Tx) -> None:
                job = queue.submit(tx, kind="auto", spec={}, agent=None, task_id=task.id, place="elsewhere")
                queue.cancel(tx, job, "stopped")
                queue._put(tx, job, [queue.File(queue.LOG, "text/plain", b"a" * 100_000 + b" the end")])

            await core.db.tx(ANN, ran)
            full = task_views.FULL
            found = await task_views.detail(core, ANN, task.id, full, notes=True, logs=True, review=True)
            assert found.scratchpad == "one\ntwo"
            assert found.logs and found.logs[0].content.endswith("a the end") and found.logs[0].cut
            place = await task_views.workplace(core, ANN, task.id)
            assert [each.path for each in place.repos] == [str(repo.path)]
            await board.delete(core, ANN, task.id)
            with pytest.raises(NotFound):
                await tasks.get(core, ANN, task.id)
            newest = await audit.tail(core, ANN, audit.Wanted(task=task.id), cursor=None, limit=1)
            assert newest.events[0].kind == "task.deleted"
            verdict = await audit.verify(core)
            assert verdict.broken is None and verdict.checked >= 8

    asyncio.run(run())


def test_context_tells_of_worktrees_and_of_who_touches_the_same_files(tmp_path: Path) -> None:
    async def run() -> None:
        repo = GitRepo(tmp_path / "repo")
        repo.commit({"a.txt": "a\n", "b.txt": "b\n"})
        before = repo.state()
        async with opened(f"sqlite:///{tmp_path / 'quarterdeck.db'}", tmp_path / "data") as core:
            project, _ = await projects.create(core, ANN, name="P", repo_paths=[str(repo.path)])
            one, two = [
                await board.create(core, ANN, board.NewTask(title, project_id=project.id))
                for title in ("One", "Two")
            ]
            for task in (one, two):
                tree = Path((await worktrees.ensure(core, ANN, task.id))[0].path)
                (tree / "a.txt").write_text(f"{task.title}\n")
                (tree / "new.txt").write_text("new\n")
            found = await task_views.workplace(core, ANN, one.id)
            state = found.repos[0]
            assert (state.has_changes, state.files, state.insertions, state.deletions) == (True, 2, 2, 1)
            assert (state.target_branch, found.branch) == ("main", f"quarterdeck/{one.id}")
            assert found.working_dir == state.worktree_path
            assert [(each.task.id, each.files) for each in found.overlaps] == [(two.id, ("a.txt", "new.txt"))]
            for task in (one, two):
                await board.delete(core, ANN, task.id)
            assert not Path(str(state.worktree_path)).exists()
        after = repo.state()
        assert {name: after[name] for name in ("status", "refs", "worktrees")} == {
            name: before[name] for name in ("status", "refs", "worktrees")
        }

    asyncio.run(run())


def test_settings_are_kept_on_either_database(database_url: str, tmp_path: Path) -> None:
    async def run() -> None:
        async with opened(database_url, tmp_path) as core:
            for value in (False, True, False):
                await settings.update(core, ANN, {"auto_review": value})
                assert await settings.get(core, "general.auto_review") is value

    asyncio.run(run())


def test_the_number_of_agents_at_once_changes_while_they_run(tmp_path: Path) -> None:
    async def run() -> None:
        async with a_core(tmp_path, concurrency=1) as core:
            go_on = asyncio.Event()

            async def hold(run: JobRun) -> queue.Ending:
                await go_on.wait()
                return queue.Ending("SUCCEEDED", "done")

            worker = Worker(core, {"auto": hold})
            worker.start()
            try:
                jobs = [await core.db.tx(ANN, put, kind="auto", agent="usual") for _ in range(4)]
                await reaches(core, jobs[0], "RUNNING", ANN)
                await settings.update(core, ANN, {"max_concurrent_agents": 3})
                await reaches(core, jobs[2], "RUNNING", ANN)
                states = [(await queue.get(core, ANN, job.id)).state for job in jobs]
                assert states == ["RUNNING", "RUNNING", "RUNNING", "QUEUED"]
            finally:
                go_on.set()
                await worker.close()

    asyncio.run(run())


def test_what_one_core_does_wakes_and_reaches_another(request: pytest.FixtureRequest, tmp_path: Path) -> None:
    server = request.getfixturevalue("postgres")
    url = server.create_database(request.getfixturevalue("postgres_template"))

    async def run() -> None:
        async with opened(url, tmp_path / "one") as one, opened(url, tmp_path / "two") as two:
            task = await board.create(one, ANN, board.NewTask("Shared"))
            assert await settings.get(two, "general.auto_review") is True
            waiter = asyncio.create_task(waits.wait(two, ANN, waits.Wanted([task.id]), 60))
            async with asyncio.timeout(60):
                while not two.waiting:
                    await asyncio.sleep(0.01)
            await board.update(one, ANN, task.id, {}, "REVIEW")
            outcome = await waiter
            assert (outcome.code, outcome.decisive.status) == ("TASK_CHANGED", "review")
            with two.bus.listen("settings.updated") as listener:
                await settings.update(one, ANN, {"auto_review": False})
                async with asyncio.timeout(60):
                    await listener.wait()
            assert await settings.get(two, "general.auto_review") is False

    try:
        asyncio.run(run())
    finally:
        server.drop_database(url)
