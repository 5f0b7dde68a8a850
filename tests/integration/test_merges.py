"""Merging a task's work: all of it or nothing, in a queue, with the user's checkout left in peace."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import pytest

from quarterdeck.core import board, merges, queue, reviews, settings, tasks, worktrees
from quarterdeck.domain.errors import Conflict, NotFound
from quarterdeck.domain.records import Task
from quarterdeck.git.merging import STRATEGIES, MergeStrategy
from quarterdeck.store.tx import Tx
from tests.git_repo import GitRepo
from tests.integration.review_core import ANN, BOB, review_core


async def refused(work: Coroutine[Any, Any, Any]) -> Conflict:
    with pytest.raises(Conflict) as caught:
        await work
    return caught.value


def nothing_left(repo: GitRepo) -> None:
    """No worktree, branch or lock of ours is left in a repository."""
    assert repo.git("worktree", "list", "--porcelain").count("worktree ") == 1
    assert repo.git("for-each-ref", "refs/heads/quarterdeck") == ""
    assert [path.name for path in (repo.path / ".git").glob("*.lock")] in ([], ["quarterdeck.lock"])


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_merge_lands_completes_the_task_and_cleans_up(strategy: MergeStrategy, tmp_path: Path) -> None:
    async def run() -> None:
        async with review_core(tmp_path) as desk:
            repo = desk.repos[0]
            task = await desk.work({"a.txt": "changed\n", "new/file.txt": "new\n"}, "Change a")
            tree = (await desk.worktrees(task))[0]
            repo.commit({"b.txt": "meanwhile\n"}, "Meanwhile")
            repo.write({"mine.txt": "untracked\n", "b.txt": "an edit of mine\n"})
            outcome = await merges.merge(desk.core, ANN, task.id, strategy=strategy)
            assert outcome.task.status == await desk.status(task) == "completed"
            assert outcome.landed[0].new == repo.git("rev-parse", "main")
            assert repo.git("show", "main:new/file.txt") == "new"
            assert (repo.path / "a.txt").read_text() == "changed\n"
            assert repo.git("status", "--porcelain") == " M b.txt\n?? mine.txt"
            parents = repo.git("log", "-1", "--format=%P", "main").split()
            assert len(parents) == (2 if strategy == "merge" else 1)
            subjects = {
                "squash": "Change a",
                "merge": "Merge: Change a",
                "rebase": "Work in progress on Change a",
            }
            assert repo.git("log", "-1", "--format=%s", "main") == subjects[strategy]
            assert not Path(tree.path).exists()
            assert await desk.worktrees(task) == []
            nothing_left(repo)
            said = await reviews.listing(desk.core, ANN, task.id)
            assert [each.kind for each in said] == ["requested", "merged"]
            history = (await tasks.get(desk.core, ANN, task.id)).transitions
            assert (history[-1].to_status, history[-1].actor) == ("completed", "engine")
            assert not (await refused(merges.merge(desk.core, ANN, task.id))).data.get("files")

    asyncio.run(run())


def test_a_conflict_answers_with_files_and_lines_and_leaves_everything(tmp_path: Path) -> None:
    async def run() -> None:
        async with review_core(tmp_path) as desk:
            repo = desk.repos[0]
            task = await desk.work({"a.txt": "theirs\n"})
            await worktrees.settle(desk.core, await desk.worktrees(task), "Theirs")
            repo.commit({"a.txt": "ours\n"})
            before = repo.state()
            for strategy in STRATEGIES:
                error = await refused(merges.merge(desk.core, ANN, task.id, strategy=strategy))
                assert error.data["code"] == "MERGE_CONFLICT"
                assert error.data["conflict_files"] == ["a.txt"]
                hunk = error.data["conflicts"][0]["hunks"][0]
                assert (hunk["line"], hunk["ours"], hunk["theirs"]) == (1, ["ours"], ["theirs"])
            rebased = await refused(merges.rebase(desk.core, ANN, task.id))
            assert rebased.data["code"] == "REBASE_CONFLICT"
            after = repo.state()
            assert {**after, "files": ""} == {**before, "files": ""}
            assert await desk.status(task) == "review"
            assert len(await desk.worktrees(task)) == 1

    asyncio.run(run())


def test_a_dirty_checkout_refuses_with_names_and_nothing_changed(tmp_path: Path) -> None:
    async def run() -> None:
        async with review_core(tmp_path, repos=2) as desk:
            task = await desk.work({"a.txt": "one\n"})
            for each in await desk.worktrees(task):
                Path(each.path, "a.txt").write_text("changed\n")
            desk.repos[1].write({"a.txt": "mine\n"})
            tips = [repo.git("rev-parse", "main") for repo in desk.repos]
            error = await refused(merges.merge(desk.core, ANN, task.id))
            assert (error.data["code"], error.data["files"]) == ("MERGE_FAILED", ["a.txt"])
            assert [repo.git("rev-parse", "main") for repo in desk.repos] == tips
            assert (desk.repos[0].path / "a.txt").read_text() == "a\n"
            desk.repos[1].git("checkout", "--quiet", "a.txt")
            outcome = await merges.merge(desk.core, ANN, task.id)
            assert len(outcome.landed) == 2
            for repo in desk.repos:
                assert (repo.path / "a.txt").read_text() == "changed\n"
                nothing_left(repo)

    asyncio.run(run())


def test_twenty_branches_at_once_of_which_one_is_bad(tmp_path: Path) -> None:
    async def run() -> None:
        async with review_core(tmp_path) as desk:
            repo = desk.repos[0]
            work = [await desk.work({f"{n}.txt": "x\n"}, f"Task {n}") for n in range(19)]
            bad = await desk.work({"a.txt": "bad\n"}, "Bad")
            repo.commit({"a.txt": "good\n"})
            results = await asyncio.gather(
                *(merges.merge(desk.core, ANN, task.id) for task in (*work[:10], bad, *work[10:])),
                return_exceptions=True,
            )
            failed = [each for each in results if isinstance(each, BaseException)]
            assert [type(each) for each in failed] == [Conflict]
            assert await desk.status(bad) == "review"
            subjects = repo.git("log", "--format=%s", "main", "-19").splitlines()
            assert sorted(subjects) == sorted(f"Task {n}" for n in range(19))
            assert repo.git("log", "--merges", "--oneline", "main") == ""
            assert repo.git("status", "--porcelain") == ""
            assert all((repo.path / f"{n}.txt").exists() for n in range(19))

    asyncio.run(run())


def test_merges_that_are_not_queued_begin_anew_when_the_target_moved(tmp_path: Path) -> None:
    async def run() -> None:
        async with review_core(tmp_path, serialize_merges=False) as desk:
            work = [await desk.work({f"{n}.txt": "x\n"}, f"Task {n}") for n in range(3)]
            await asyncio.gather(*(merges.merge(desk.core, ANN, task.id) for task in work))
            assert [await desk.status(task) for task in work] == ["completed"] * 3

    asyncio.run(run())


def test_the_gate_judges_what_the_target_would_become(tmp_path: Path) -> None:
    async def run() -> None:
        gate = "git log -1 --format=%s; pwd; env; test ! -e one.txt || test ! -e two.txt"
        async with review_core(tmp_path, gate=gate) as desk:
            repo = desk.repos[0]
            one, two = await desk.work({"one.txt": "1\n"}, "One"), await desk.work({"two.txt": "2\n"}, "Two")
            await merges.merge(desk.core, ANN, one.id)
            tip = repo.git("rev-parse", "main")
            error = await refused(merges.merge(desk.core, ANN, two.id))
            assert error.data["code"] == "MERGE_FAILED"
            said = error.data["gate_output"].splitlines()
            assert said[0] == "Two"
            assert str(desk.core.data_dir / "gates") in said[1]
            assert not [line for line in said if line.startswith(("QUARTERDECK_TOKEN", "PYTEST"))]
            assert repo.git("rev-parse", "main") == tip
            assert list((desk.core.data_dir / "gates").glob("*")) == []
            assert await desk.status(two) == "review"

    asyncio.run(run())


def test_an_approval_is_for_what_was_looked_at(tmp_path: Path) -> None:
    async def run() -> None:
        async with review_core(tmp_path) as desk:
            task = await desk.work({"a.txt": "one\n"})
            await settings.update(desk.core, ANN, {"general.require_review_approval": True})
            error = await refused(merges.merge(desk.core, ANN, task.id))
            assert (error.data["code"], "next_tool" in error.data) == ("ACTION_NOT_ALLOWED", False)
            await reviews.approve(desk.core, ANN, task.id)
            assert await desk.status(task) == "review"
            Path((await desk.worktrees(task))[0].path, "late.txt").write_text("not looked at\n")
            assert "changed since" in (await refused(merges.merge(desk.core, ANN, task.id))).message
            await reviews.approve(desk.core, ANN, task.id)
            await merges.merge(desk.core, ANN, task.id)
            assert desk.repos[0].git("show", "main:late.txt") == "not looked at"

    asyncio.run(run())


def test_a_rebase_brings_the_branch_onto_the_tip_and_its_worktree_with_it(tmp_path: Path) -> None:
    async def run() -> None:
        async with review_core(tmp_path) as desk:
            repo = desk.repos[0]
            task = await desk.work({"new.txt": "new\n"})
            tip = repo.commit({"a.txt": "newer\n"})
            outcome = await merges.rebase(desk.core, ANN, task.id)
            tree = (await desk.worktrees(task))[0]
            assert tree.base_commit == tip
            assert repo.git("rev-parse", f"{tree.branch}~1") == tip
            assert outcome.landed[0].new == repo.git("rev-parse", tree.branch)
            assert Path(tree.path, "a.txt").read_text() == "newer\n"
            assert repo.git("-C", tree.path, "status", "--porcelain") == ""
            assert (await merges.rebase(desk.core, ANN, task.id)).landed == ()
            assert await desk.status(task) == "review"
            await merges.merge(desk.core, ANN, task.id, strategy="rebase")
            assert repo.git("rev-parse", "main~1") == tip

    asyncio.run(run())


def test_only_a_task_in_review_with_changes_is_merged(tmp_path: Path) -> None:
    async def run() -> None:
        async with review_core(tmp_path) as desk:
            task = await desk.task()
            await worktrees.ensure(desk.core, ANN, task.id)
            error = await refused(merges.merge(desk.core, ANN, task.id))
            assert (error.data["code"], error.data["next_tool"]) == ("ACTION_NOT_ALLOWED", "request_review")
            await reviews.request(desk.core, ANN, task.id, "")
            assert "no changes" in (await refused(merges.merge(desk.core, ANN, task.id))).message
            desk.repos[0].path.rename(tmp_path / "elsewhere")
            gone = await refused(merges.merge(desk.core, ANN, task.id))
            assert "is gone" in gone.message and gone.hint, gone
            (tmp_path / "elsewhere").rename(desk.repos[0].path)
            with pytest.raises(NotFound):
                await merges.merge(desk.core, BOB, task.id)
            with pytest.raises(NotFound):
                await worktrees.ensure(desk.core, BOB, task.id)

    asyncio.run(run())


def test_a_branch_from_the_remote_brings_its_own_changes_only(tmp_path: Path) -> None:
    async def run() -> None:
        async with review_core(tmp_path, worktree_base_ref_strategy="remote") as desk:
            repo = desk.repos[0]
            repo.git("clone", "--quiet", "--bare", ".", str(tmp_path / "remote.git"))
            repo.git("remote", "add", "origin", str(tmp_path / "remote.git"))
            repo.git("clone", "--quiet", str(tmp_path / "remote.git"), str(tmp_path / "colleague"))
            theirs = GitRepo.at(tmp_path / "colleague")
            upstream = theirs.commit({"upstream.txt": "1\n"}, "Upstream")
            theirs.git("push", "--quiet", "origin", "main")
            behind = await desk.work({"one.txt": "1\n"}, "Behind")
            diverged = await desk.work({"two.txt": "2\n"}, "Diverged")
            await merges.merge(desk.core, ANN, behind.id)
            assert repo.git("log", "--format=%s", "-2", "main").split("\n") == ["Behind", "Upstream"]
            assert repo.git("rev-parse", "main~1") == upstream
            repo.git("reset", "--quiet", "--hard", "main~2")
            repo.commit({"local.txt": "mine\n"}, "Local")
            await merges.merge(desk.core, ANN, diverged.id)
            assert repo.git("show", "--name-only", "--format=", "main").split() == ["two.txt"]
            assert repo.git("log", "--format=%s", "-2", "main").split("\n") == ["Diverged", "Local"]

    asyncio.run(run())


def test_a_merge_is_pushed_only_when_the_setting_says_so(tmp_path: Path) -> None:
    async def run() -> None:
        async with review_core(tmp_path) as desk:
            repo = desk.repos[0]
            repo.git("clone", "--quiet", "--bare", ".", str(tmp_path / "remote.git"))
            repo.git("remote", "add", "origin", str(tmp_path / "remote.git"))
            first, second = await desk.work({"one.txt": "1\n"}), await desk.work({"two.txt": "2\n"})
            await merges.merge(desk.core, ANN, first.id)
            assert repo.git("ls-remote", "origin", "main").split()[0] != repo.git("rev-parse", "main")
            await settings.update(desk.core, ANN, {"push_after_merge": True})
            assert (await merges.merge(desk.core, ANN, second.id)).notes == ()
            assert repo.git("ls-remote", "origin", "main").split()[0] == repo.git("rev-parse", "main")

    asyncio.run(run())


def test_a_caller_who_goes_away_does_not_stop_a_merge(tmp_path: Path) -> None:
    async def run() -> None:
        async with review_core(tmp_path) as desk:
            task = await desk.work({"a.txt": "one\n"})
            call = asyncio.create_task(merges.merge(desk.core, ANN, task.id))
            await asyncio.sleep(0)
            call.cancel()
            with pytest.raises(asyncio.CancelledError):
                await call
            await desk.core.settle()
            assert await desk.status(task) == "completed"

    asyncio.run(run())


def test_an_agent_that_is_still_at_work_is_stopped_first(tmp_path: Path) -> None:
    async def run() -> None:
        async with review_core(tmp_path) as desk:
            core, task = desk.core, await desk.work({"a.txt": "one\n"})

            def submit(tx: Tx) -> str:
                return queue.submit(tx, kind="auto", spec={}, agent="claude-code", task_id=task.id).id

            job_id = await core.db.tx(ANN, submit)
            # Its process is gone when the folder of the attempt is.
            attempt = core.data_dir / "attempts" / f"{job_id}-1"
            attempt.mkdir(parents=True)
            asked: list[str] = []
            tree = Path((await desk.worktrees(task))[0].path)

            async def stop(_: object, __: object, stopped: Task) -> None:
                asked.append(stopped.id)
                (tree / "last.txt").write_text("written while it ended\n")

            merges.STOPPING.append(stop)
            try:
                merging = asyncio.create_task(merges.merge(core, ANN, task.id))
                assert (await queue.wait_for_end(core, ANN, job_id, 60)).state == "CANCELED"
                assert not merging.done()
                attempt.rmdir()
                await merging
            finally:
                merges.STOPPING.remove(stop)
            assert asked == [task.id]
            assert desk.repos[0].git("show", "main:last.txt") == "written while it ended"
            conflicting = await desk.work({"a.txt": "theirs\n"})
            desk.repos[0].commit({"a.txt": "ours\n"})
            await refused(merges.merge(core, ANN, conflicting.id))
            assert asked == [task.id], "who works on what cannot be merged is left alone"

    asyncio.run(run())


def test_a_task_is_merged_once_however_many_ask(tmp_path: Path, database_url: str) -> None:
    async def run() -> None:
        async with review_core(tmp_path / "core", database_url=database_url) as desk:
            task = await desk.work({"a.txt": "one\n"})
            asked = [merges.merge(desk.core, ANN, task.id) for _ in range(3)]
            results = await asyncio.gather(*asked, return_exceptions=True)
            refusals = [each for each in results if isinstance(each, Conflict)]
            assert [each.data["code"] for each in refusals] == ["ACTION_NOT_ALLOWED"] * 2
            assert desk.repos[0].git("rev-list", "--count", "main") == "2"

    asyncio.run(run())


def test_names_that_are_no_text_are_shown_and_merged(tmp_path: Path) -> None:
    async def run() -> None:
        async with review_core(tmp_path) as desk:
            task = await desk.work({"a.txt": "one\n"})
            tree = Path((await desk.worktrees(task))[0].path)
            for folder, content in ((tree, "theirs\n"), (desk.repos[0].path, "mine\n")):
                Path(os.fsdecode(os.fsencode(folder) + b"/\xff.txt")).write_text(content)
            diff = await worktrees.diff(desk.core, ANN, task.id)
            assert [file.path for file in diff.repos[0].diff.files] == [
                "a.txt",
                "\N{REPLACEMENT CHARACTER}.txt",
            ]
            error = await refused(merges.merge(desk.core, ANN, task.id))
            assert error.data["files"] == ["\N{REPLACEMENT CHARACTER}.txt"]
            Path(os.fsdecode(os.fsencode(desk.repos[0].path) + b"/\xff.txt")).unlink()
            await merges.merge(desk.core, ANN, task.id)

    asyncio.run(run())


def test_work_that_was_moved_to_done_can_still_be_merged(tmp_path: Path) -> None:
    async def run() -> None:
        async with review_core(tmp_path) as desk:
            task = await desk.work({"a.txt": "one\n"})
            await board.update(desk.core, ANN, task.id, {}, "DONE")
            assert (await merges.merge(desk.core, ANN, task.id)).task.status == "completed"
            assert desk.repos[0].git("show", "main:a.txt") == "one"

    asyncio.run(run())


def test_the_radar_names_other_live_tasks_that_touch_the_same_files(tmp_path: Path) -> None:
    async def run() -> None:
        async with review_core(tmp_path) as desk:
            one = await desk.work({"a.txt": "1\n", "b.txt": "1\n"}, "One")
            two = await desk.work({"a.txt": "2\n", "c.txt": "2\n"}, "Two")
            await desk.work({"c.txt": "3\n"}, "Three")
            await worktrees.settle(desk.core, await desk.worktrees(two), "Committed")
            found = await worktrees.overlaps(desk.core, ANN, one.id)
            assert [(each.task.id, each.files) for each in found] == [(two.id, ("a.txt",))]
            diff = await worktrees.diff(desk.core, ANN, one.id)
            assert (diff.files, diff.insertions, diff.deletions) == (2, 2, 2)
            await merges.merge(desk.core, ANN, two.id)
            assert await worktrees.overlaps(desk.core, ANN, one.id) == []

    asyncio.run(run())
