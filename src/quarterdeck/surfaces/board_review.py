"""The board's review: asking for one, approving, rejecting, rebasing and merging."""

from typing import Annotated, Literal

from pydantic import Field

from quarterdeck.core import merges, reviews
from quarterdeck.core.reviews import RejectionAction
from quarterdeck.domain.errors import Denied
from quarterdeck.domain.records import Task
from quarterdeck.surfaces.board import envelope, status_of
from quarterdeck.surfaces.schema import Args, Id, Row, Some, Text
from quarterdeck.surfaces.table import Call, tool

Strategy = Literal["squash", "merge", "rebase"]


class RequestReview(Args):
    task_id: Id
    summary: Text


@tool("write", "pair_worker", binds=("task_id",))
async def request_review(call: Call, a: RequestReview) -> Row:
    """Move a task to REVIEW with a summary of the work."""
    task = await reviews.request(call.core, call.caller, a.task_id, a.summary)
    return envelope(True, "The task is in review.", "REVIEW_REQUESTED", **_shown(task))


class Comment(Args):
    path: Annotated[str, Field(min_length=1, max_length=4096)]
    line: Annotated[int, Field(ge=1)] | None = None
    text: Annotated[str, Field(min_length=1, max_length=10_000)]


class Review(Args):
    task_id: Id
    action: Literal["approve", "reject", "merge", "rebase"]
    feedback: Text | None = None
    rejection_action: RejectionAction = "reopen"
    strategy: Strategy = "squash"
    message: Annotated[Some, Field(max_length=10_000)] | None = None
    comments: Annotated[list[Comment], Field(default_factory=list, max_length=200)]


@tool("destructive", "operator", binds=("task_id",))
async def review(call: Call, a: Review) -> Row:
    """Approve, reject, rebase or merge a task in REVIEW. merge and rebase need maintainer."""
    if a.action in ("merge", "rebase") and not call.caller.may("maintainer"):
        raise Denied(f"review with action {a.action} needs the profile maintainer")
    match a.action:
        case "approve":
            return await _approve(call, a)
        case "reject":
            return await _reject(call, a)
        case "rebase":
            return await _rebase(call, a)
        case "merge":
            return await _merge(call, a)


async def _approve(call: Call, a: Review) -> Row:
    task = await reviews.approve(call.core, call.caller, a.task_id, a.feedback or "")
    return envelope(
        True,
        "Approved. The task stays in REVIEW until it is merged.",
        "APPROVED",
        # No next tool: merging is a decision of its own, and not every reviewer's.
        "a maintainer can merge it with the action merge",
        **_shown(task),
    )


async def _reject(call: Call, a: Review) -> Row:
    comments = [comment.model_dump() for comment in a.comments]
    task = await reviews.reject(
        call.core, call.caller, a.task_id, a.feedback or "", action=a.rejection_action, comments=comments
    )
    return envelope(
        True,
        "Rejected. The agent's next run gets the feedback.",
        "REJECTED",
        feedback=a.feedback or "",
        comments=comments,
        **_shown(task),
    )


async def _rebase(call: Call, a: Review) -> Row:
    outcome = await merges.rebase(call.core, call.caller, a.task_id)
    said = (
        "The branch is on the tip of its target." if outcome.landed else "The branch was on the tip already."
    )
    return envelope(True, said, "REBASED", **_landed(outcome), **_shown(outcome.task))


async def _merge(call: Call, a: Review) -> Row:
    outcome = await merges.merge(call.core, call.caller, a.task_id, strategy=a.strategy, message=a.message)
    return envelope(
        True,
        "Merged. Worktree and branch are gone.",
        "MERGED",
        strategy=outcome.strategy,
        **_landed(outcome),
        **_shown(outcome.task),
    )


def _landed(outcome: merges.Outcome) -> Row:
    """Which branches moved where, and what is worth knowing beside it."""
    return {
        "commits": [
            {"repo": each.worktree.repo_path, "branch": each.branch, "old": each.old, "commit": each.new}
            for each in outcome.landed
        ],
        "notes": list(outcome.notes),
    }


def _shown(task: Task) -> Row:
    return {"task_id": task.id, **status_of(task)}


TOOLS = (request_review, review)
