"""Review on the board: asked for, approved, rejected, rebased and merged, with every code."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from quarterdeck.core import reviews, tasks, worktrees
from quarterdeck.core.limits import RateLimit
from quarterdeck.domain.callers import Caller
from quarterdeck.domain.records import Task
from quarterdeck.surfaces.all import SURFACES
from quarterdeck.surfaces.table import Desk as Table
from tests.git_repo import GitRepo
from tests.integration.review_core import ANN, BOB, Desk, review_core

ENVELOPE = {"success", "message", "code", "hint", "next_tool", "next_arguments"}
OPERATOR = replace(ANN, profile="operator")
WORKER = replace(ANN, profile="pair_worker")


class Board:
    """The board's tools as a client calls them."""

    def __init__(self, desk: Desk) -> None:
        self.desk = desk
        self._table = Table(desk.core, SURFACES["board"], RateLimit(0), lambda *_: None)

    async def call(self, name: str, *, caller: Caller = ANN, **arguments: Any) -> dict[str, Any]:
        shown = await self._table.call(caller, name, arguments)
        body: dict[str, Any] = shown["structuredContent"]
        assert body.keys() >= ENVELOPE
        assert body["success"] == (not shown["isError"])
        return body

    async def review(self, task: Task, action: str, **arguments: Any) -> dict[str, Any]:
        return await self.call("review", task_id=task.id, action=action, **arguments)


@contextlib.asynccontextmanager
async def opened(folder: Path, **options: Any) -> AsyncIterator[Board]:
    async with review_core(folder, **options) as desk:
        yield Board(desk)


def test_a_task_goes_through_review_to_done(tmp_path: Path) -> None:
    async def run() -> None:
        async with opened(tmp_path) as board:
            desk = board.desk
            task = await desk.work({"a.txt": "one\n"}, "Change a")
            asked = await board.call("request_review", caller=WORKER, task_id=task.id, summary="Changed a.")
            assert (asked["code"], asked["status"], asked["state"]) == (
                "REVIEW_REQUESTED",
                "REVIEW",
                "review",
            )
            approved = await board.review(task, "approve", caller=OPERATOR)
            assert (approved["code"], approved["status"]) == ("APPROVED", "REVIEW")
            assert approved["next_tool"] is None, "who approves does not merge by following it"
            rebased = await board.review(task, "rebase")
            assert (rebased["code"], rebased["commits"]) == ("REBASED", [])
            merged = await board.review(task, "merge", strategy="merge", message="In my own words")
            assert (merged["code"], merged["status"], merged["strategy"]) == ("MERGED", "DONE", "merge")
            repo = desk.repos[0]
            assert merged["commits"][0]["commit"] == repo.git("rev-parse", "main")
            assert repo.git("log", "-1", "--format=%s", "main") == "In my own words"
            kinds = [each.kind for each in await reviews.listing(desk.core, ANN, task.id)]
            assert kinds == ["requested", "requested", "approved", "rebased", "merged"]
            again = await board.call("request_review", task_id=task.id, summary="")
            approved = await board.review(task, "approve")
            for refused in (again, approved):
                assert (refused["code"], refused["next_tool"]) == ("ACTION_NOT_ALLOWED", None)

    asyncio.run(run())


@pytest.mark.parametrize(
    ("action", "column"),
    [
        ("reopen", "IN_PROGRESS"),
        ("return", "IN_PROGRESS"),
        ("in_progress", "IN_PROGRESS"),
        ("backlog", "BACKLOG"),
    ],
)
def test_a_rejection_keeps_its_feedback_for_the_next_run(action: str, column: str, tmp_path: Path) -> None:
    async def run() -> None:
        async with opened(tmp_path) as board:
            core = board.desk.core
            task = await board.desk.work({"a.txt": "one\n"})
            comments: list[dict[str, Any]] = [
                {"path": "a.txt", "line": 1, "text": "Two, not one"},
                {"path": "b.txt", "text": "Why?"},
            ]
            said = await board.review(
                task,
                "reject",
                caller=OPERATOR,
                feedback="Not yet.",
                rejection_action=action,
                comments=comments,
            )
            assert (said["code"], said["status"]) == ("REJECTED", column)
            found = await reviews.feedback(core, ANN, task.id)
            assert found is not None
            assert (found.text, found.comments) == ("Not yet.", [comments[0], {**comments[1], "line": None}])
            last = (await tasks.get(core, ANN, task.id)).transitions[-1]
            assert (last.actor, last.reason) == ("board", "rejected: Not yet.")
            assert (await board.review(task, "reject"))["code"] == "ACTION_NOT_ALLOWED"
            assert (await board.review(task, "merge"))["next_tool"] == "request_review"
            await board.call("request_review", task_id=task.id, summary="Again")
            assert (await reviews.feedback(core, ANN, task.id)) is not None
            await board.review(task, "approve")
            assert await reviews.feedback(core, ANN, task.id) is None

    asyncio.run(run())


def test_a_conflict_is_handed_to_the_agent_which_resolves_it_on_the_newer_target(tmp_path: Path) -> None:
    async def run() -> None:
        async with opened(tmp_path) as board:
            desk = board.desk
            task = await desk.work({"a.txt": "theirs\n"}, "Conflicting")
            desk.repos[0].commit({"a.txt": "ours\n", "new.txt": "1\n"})
            refused = await board.review(task, "rebase")
            assert (refused["code"], refused["next_tool"]) == ("REBASE_CONFLICT", "review")
            said = await board.call("review", **refused["next_arguments"])
            assert said["code"] == "REJECTED"
            found = await reviews.feedback(desk.core, ANN, task.id)
            assert found is not None and "Rebase the branch onto main" in found.text and "a.txt" in found.text
            (worktree,) = await worktrees.of(desk.core, ANN, task.id)
            place = GitRepo.at(Path(worktree.path))
            place.git("rebase", "--quiet", "-X", "theirs", "main")
            place.write({"left.txt": "over\n"})
            summary = await worktrees.settle(desk.core, [worktree], "Left over")
            assert (summary.commits, summary.files) == (2, 2), "what the target has is not the task's own"
            await board.call("request_review", task_id=task.id, summary="Resolved")
            assert (await board.review(task, "merge"))["code"] == "MERGED"
            assert desk.repos[0].git("show", "main:a.txt") == "theirs"

    asyncio.run(run())


def test_refusals_carry_their_codes_and_change_nothing(tmp_path: Path) -> None:
    async def run() -> None:
        async with opened(tmp_path) as board:
            desk = board.desk
            repo = desk.repos[0]
            conflicting = await desk.work({"a.txt": "theirs\n"}, "Conflicting")
            in_the_way = await desk.work({"b.txt": "theirs\n"}, "In the way")
            bare = await reviews.request(desk.core, ANN, (await desk.task("Bare")).id, "")
            repo.commit({"a.txt": "ours\n"})
            repo.write({"b.txt": "mine\n"})
            merge = await board.review(conflicting, "merge")
            assert (merge["code"], merge["conflict_files"]) == ("MERGE_CONFLICT", ["a.txt"])
            assert merge["next_arguments"] == {"task_id": conflicting.id, "action": "rebase"}
            assert (await board.review(conflicting, "rebase"))["code"] == "REBASE_CONFLICT"
            dirty = await board.review(in_the_way, "merge")
            assert (dirty["code"], dirty["files"]) == ("MERGE_FAILED", ["b.txt"])
            assert (await board.review(bare, "merge"))["code"] == "MERGE_FAILED"
            assert (await board.review(bare, "rebase"))["code"] == "REBASE_FAILED"
            for action in ("merge", "rebase"):
                denied = await board.review(conflicting, action, caller=OPERATOR)
                assert denied["code"] == "AUTHORIZATION_DENIED"
            for action in ("approve", "merge"):
                denied = await board.review(conflicting, action, caller=WORKER)
                assert denied["code"] == "AUTHORIZATION_DENIED"
                unknown = await board.review(conflicting, action, caller=BOB)
                assert unknown["code"] == "TASK_NOT_FOUND"
            asked = await board.call("request_review", caller=BOB, task_id=bare.id, summary="")
            assert asked["code"] == "TASK_NOT_FOUND"
            assert [await desk.status(task) for task in (conflicting, in_the_way, bare)] == ["review"] * 3
            assert (repo.path / "b.txt").read_text() == "mine\n"

    asyncio.run(run())
