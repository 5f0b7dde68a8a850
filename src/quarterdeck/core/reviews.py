"""Reviews of a task's result: asked for, approved, rejected with remarks. Merging is in `merges`."""

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

from quarterdeck.core import tasks, worktrees
from quarterdeck.core.context import Core
from quarterdeck.domain.callers import Caller
from quarterdeck.domain.errors import Conflict
from quarterdeck.domain.ids import new_id
from quarterdeck.domain.records import Review, Task, Worktree
from quarterdeck.domain.states import column_of
from quarterdeck.git import worktrees as checkouts
from quarterdeck.git.spawn import GitError
from quarterdeck.git.worktrees import Refused
from quarterdeck.store import reviews as rows
from quarterdeck.store.tx import Tx

Kind = Literal["requested", "approved", "rejected", "remarked", "rebased", "merged"]
RejectionAction = Literal["reopen", "return", "in_progress", "backlog"]

LISTED: Final = 50
_ALL: Final = 1000


@dataclass(frozen=True, slots=True)
class Feedback:
    """What the last rejection asks for: words, and remarks on lines (`path`, `line`, `text`)."""

    text: str
    comments: Sequence[Mapping[str, Any]]
    review: Review


async def request(core: Core, caller: Caller, task_id: str, summary: str) -> Task:
    """Put a task into review, with a summary of what was done."""

    def body(tx: Tx) -> Task:
        task = tasks.held(tx, task_id)
        if column_of(task.status) == "DONE":
            raise _not_allowed(f"task {task_id} is {task.status}", "move it back with tasks_move first")
        # Who runs a job is no judge of it: at its end the facts may overrule this.
        by = {} if caller.job_id is None else {"job_id": caller.job_id}
        add(tx, task, "requested", summary, **by)
        if task.status == "review":
            return task
        return tasks.write(tx, task, {}, status="review", actor="board", reason="a review was requested")

    return await core.db.tx(caller, body)


async def approve(core: Core, caller: Caller, task_id: str, text: str = "") -> Task:
    """Record that the work as it is now is good. The task stays in review until it is merged."""
    found = await worktrees.of(core, caller, task_id)
    await worktrees.here(core, found)
    trees = await trees_of(found)

    def body(tx: Tx) -> Task:
        task = in_review(tx, task_id)
        add(tx, task, "approved", text, trees=trees)
        return task

    return await core.db.tx(caller, body)


async def reject(
    core: Core,
    caller: Caller,
    task_id: str,
    feedback: str,
    *,
    action: RejectionAction = "reopen",
    comments: Sequence[Mapping[str, Any]] = (),
) -> Task:
    """Send the work back with what is to be done; the agent's next run gets it."""

    def body(tx: Tx) -> Task:
        task = in_review(tx, task_id)
        add(tx, task, "rejected", feedback, action=action, comments=[dict(each) for each in comments])
        target = "pending" if action == "backlog" else "in_progress"
        reason = f"rejected: {feedback[:200]}" if feedback else "rejected"
        return tasks.write(tx, task, {}, status=target, actor="board", reason=reason)

    return await core.db.tx(caller, body)


async def remark(core: Core, caller: Caller, task_id: str, text: str, by: str) -> None:
    """Keep what an agent said of another's work; it decides nothing."""
    await core.db.tx(caller, lambda tx: add(tx, tasks.held(tx, task_id), "remarked", text, by=by))


async def listing(core: Core, caller: Caller, task_id: str, limit: int = LISTED) -> list[Review]:
    """What was said of a task, the newest at the end; `limit` is clamped to 1–1000."""

    def body(tx: Tx) -> list[Review]:
        tasks.seen(tx, task_id)
        return rows.of_task(tx, task_id, min(max(limit, 1), _ALL))

    return await core.db.read(caller, body)


async def feedback(core: Core, caller: Caller, task_id: str) -> Feedback | None:
    """What the last rejection asks for, unless the work was approved or merged since."""
    for review in reversed(await listing(core, caller, task_id)):
        if review.kind in ("approved", "merged"):
            return None
        if review.kind == "rejected":
            return Feedback(review.text, review.data.get("comments", []), review)
    return None


def approval(tx: Tx, task_id: str) -> Review | None:
    """The approval that holds: nothing was rejected or asked for again since."""
    for review in reversed(rows.of_task(tx, task_id, LISTED)):
        if review.kind == "approved":
            return review
        if review.kind in ("rejected", "requested"):
            return None
    return None


def in_review(tx: Tx, task_id: str) -> Task:
    """The caller's task, locked, if it is in review; else Conflict."""
    task = tasks.held(tx, task_id)
    if column_of(task.status) == "DONE":
        raise _not_allowed(f"task {task_id} is {task.status}", "move it back with tasks_move first")
    if task.status != "review":
        raise _not_allowed(
            f"task {task_id} is in {column_of(task.status)}, not in REVIEW",
            "ask for a review first",
            next_tool="request_review",
            next_arguments={"task_id": task_id, "summary": ""},
        )
    return task


def add(tx: Tx, task: Task, kind: Kind, text: str, **data: Any) -> Review:
    """Write a word on a task's result, and tell of it."""
    review = Review(new_id(), task.id, kind, tx.caller.actor, text, data, tx.now)
    rows.add(tx, review)
    tx.emit("review.added", review.id, task_id=task.id, user_id=task.user_id, review=kind, text=text[:200])
    return review


async def trees_of(found: Sequence[Worktree]) -> dict[str, str]:
    """What worktrees hold now, committed or not, by the worktree's id."""
    trees = {}
    for each in found:
        with contextlib.suppress(Refused, GitError, OSError):
            repo = Path(each.repo_path)
            whole = await checkouts.snapshot(repo, Path(each.path), each.branch)
            trees[each.id] = await checkouts.text(repo, "rev-parse", f"{whole}^{{tree}}")
    return trees


def _not_allowed(message: str, hint: str, **data: Any) -> Conflict:
    return Conflict(message, hint=hint, field="task_id", code="ACTION_NOT_ALLOWED", **data)
