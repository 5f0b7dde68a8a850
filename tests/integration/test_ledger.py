"""The ledger: every kind of drift, made by hand, is found and mended."""

from __future__ import annotations

import asyncio
import os
import shutil
from pathlib import Path
from typing import Any

from quarterdeck.core import board, ledger, queue, tasks, worktrees
from quarterdeck.core.ledger import Drift
from quarterdeck.domain.callers import SYSTEM
from quarterdeck.git import worktrees as checkouts
from quarterdeck.store import tasks as task_rows
from quarterdeck.store.tx import Tx
from tests.integration.review_core import ANN, Desk, review_core


async def drift(desk: Desk) -> list[str]:
    return sorted(each.kind for each in await ledger.check(desk.core))


async def tended(desk: Desk) -> list[str]:
    """What the core mends by itself."""
    return sorted(each.kind for each in await ledger.tend(desk.core))


async def fixed(desk: Desk) -> list[str]:
    """What `doctor --fix` mends; after it nothing is left."""
    mended = sorted(each.kind for each in await ledger.repair(desk.core))
    assert await drift(desk) == []
    return mended


async def changed(desk: Desk, task_id: str, **values: Any) -> None:
    await desk.core.db.tx(SYSTEM, task_rows.change, task_id, values)


def test_worktrees_that_drifted_from_their_tasks(tmp_path: Path) -> None:
    async def run() -> None:
        async with review_core(tmp_path) as desk:
            repo = desk.repos[0]
            live = await desk.work({"a.txt": "live\n"}, "Live")
            assert await drift(desk) == []

            tree = (await desk.worktrees(live))[0]
            await worktrees.settle(desk.core, [tree], "Work")
            shutil.rmtree(tree.path)
            assert await drift(desk) == ["worktree_missing"]
            assert await tended(desk) == ["worktree_missing"]
            assert Path(tree.path, "a.txt").read_text() == "live\n"
            await checkouts.remove(repo.path, Path(tree.path), tree.branch)
            assert await tended(desk) == ["worktree_missing"]
            assert await desk.worktrees(live) == [], "without its branch it is forgotten"
            assert await drift(desk) == []

            idle = await desk.task("Idle")
            await worktrees.ensure(desk.core, ANN, idle.id)
            await changed(desk, idle.id, status="completed")
            assert await tended(desk) == ["worktree_of_finished_task"]

            done = await desk.work({"a.txt": "never merged\n"}, "Done")
            await board.update(desk.core, ANN, done.id, {}, "DONE")
            tree = (await desk.worktrees(done))[0]
            assert await drift(desk) == ["worktree_not_merged"]
            assert await tended(desk) == [], "nobody's work goes without a word"
            assert Path(tree.path).exists()
            assert await fixed(desk) == ["worktree_not_merged"]
            assert not Path(tree.path).exists()
            assert repo.git("show", f"refs/quarterdeck/kept/{done.id}:a.txt") == "never merged"

            gone = await desk.work({"a.txt": "deleted\n"}, "Gone")
            await desk.core.db.tx(ANN, task_rows.remove, gone.id)
            assert await tended(desk) == ["worktree_of_deleted_task"]
            assert repo.git("for-each-ref", "refs/heads/quarterdeck") == ""
            assert await drift(desk) == []

    asyncio.run(run())


def test_folders_records_and_branches_that_nobody_knows(tmp_path: Path) -> None:
    async def run() -> None:
        async with review_core(tmp_path) as desk:
            repo, data = desk.repos[0], desk.core.data_dir
            root = worktrees.root(desk.core)
            repo.git("branch", "quarterdeck/stray")
            repo.git("worktree", "add", "--quiet", "-b", "quarterdeck/elsewhere", str(tmp_path / "theirs"))
            assert await drift(desk) == ["branch_unknown"], "a branch that is checked out is somebody's"
            assert await tended(desk) == []
            assert await fixed(desk) == ["branch_unknown"]
            assert repo.git("rev-parse", "refs/quarterdeck/kept/stray") == repo.git("rev-parse", "main")

            (root / "empty" / "repo").mkdir(parents=True)
            (root / "full" / "repo").mkdir(parents=True)
            (root / "full" / "repo" / "work.txt").write_text("precious\n")
            repo.git("worktree", "add", "--quiet", "--detach", str(data / "gates" / "left"))
            assert await drift(desk) == ["folder_unknown", "folder_unknown", "gate_left"]
            assert await tended(desk) == ["folder_unknown", "gate_left"]
            assert await fixed(desk) == ["folder_unknown", "record_stale"]
            (kept,) = (data / "kept").iterdir()
            assert (kept / "work.txt").read_text() == "precious\n"
            assert repo.git("worktree", "list", "--porcelain").count("worktree ") == 2

            job, fresh = data / "attempts" / "job_gone-1", data / "attempts" / "job_fresh-1"
            for folder in (job, fresh):
                folder.mkdir(parents=True)
            os.utime(job, (1, 1))
            assert await tended(desk) == ["attempt_left"]
            assert (job.exists(), fresh.exists()) == (False, True)

    asyncio.run(run())


def test_jobs_and_tasks_that_do_not_fit_together(tmp_path: Path, database_url: str) -> None:
    async def run() -> None:
        async with review_core(tmp_path / "core", database_url=database_url) as desk:
            core = desk.core

            def submit(tx: Tx, task_id: str) -> str:
                return queue.submit(tx, kind="auto", spec={}, agent="claude-code", task_id=task_id).id

            def start(tx: Tx, task_id: str) -> None:
                tasks.write(tx, tasks.held(tx, task_id), {}, status="in_progress", actor="engine")

            over, stuck, by_hand = [await desk.task(title) for title in ("Over", "Stuck", "By hand")]
            job_id = await core.db.tx(ANN, submit, over.id)
            await changed(desk, over.id, status="completed")
            await core.db.tx(ANN, start, stuck.id)
            await board.update(core, ANN, by_hand.id, {}, "IN_PROGRESS")
            assert await drift(desk) == ["job_missing", "job_of_finished_task"]
            assert len(await tended(desk)) == 2
            assert (await queue.get(core, ANN, job_id)).state == "CANCELED"
            assert await desk.status(stuck) == "pending"
            assert await desk.status(by_hand) == "in_progress"
            assert await drift(desk) == []

    asyncio.run(run())


def test_other_parts_add_what_they_compare_and_a_broken_repair_is_left_over(tmp_path: Path) -> None:
    async def run() -> None:
        async with review_core(tmp_path) as desk:

            async def broken() -> None:
                raise OSError("no")

            async def terminals(core: object) -> list[Drift]:
                return [Drift("terminal_left", "a session", "it is ended", mend=broken)]

            ledger.CHECKS.append(terminals)
            try:
                assert await drift(desk) == ["terminal_left"]
                assert await tended(desk) == []
            finally:
                ledger.CHECKS.remove(terminals)

    asyncio.run(run())
