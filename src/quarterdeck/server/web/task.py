"""One task: what it says, how it came to its state, what its runs did, its changes and their review."""

import json
from dataclasses import dataclass
from typing import Annotated, Any, Final, Literal

from pydantic import Field

from quarterdeck.core import auto, board, cards, merges, pair, reviews, runs, tasks, trail, worktrees
from quarterdeck.domain.errors import Conflict, Invalid
from quarterdeck.domain.jobs import LIVE
from quarterdeck.domain.records import Worktree
from quarterdeck.domain.states import ACTIONS
from quarterdeck.server.web import patches
from quarterdeck.server.web.routing import Answer, Request, go, route
from quarterdeck.server.web.show import page
from quarterdeck.surfaces.schema import Args, Some, Text, parse

_REASON: Final = 2000


@route("GET", "/tasks/{id}")
async def one_task(request: Request) -> Answer:
    return await _page(request, None)


async def _page(request: Request, refused: Conflict | None) -> Answer:
    """The task as it is now; with what stood in the way of a merge when one was refused."""
    core, caller, task_id = request.core, request.caller, request.params["id"]
    context = await tasks.context(core, caller, task_id)
    found, _ = await cards.some(core, caller, [task_id], {})
    jobs = await runs.of_task(core, caller, task_id)
    live = next((job for job in jobs if job.state in LIVE), None)
    session = await pair.find(core, caller, task_id) if context.history.task.task_type == "PAIR" else None
    return page(
        request,
        "task.html",
        answer_status=409 if refused else 200,
        context=context,
        task=context.history.task,
        card=found[0],
        around=await board.surroundings(core, caller, task_id),
        jobs=jobs,
        live=live,
        steps=await trail.steps(core, caller, live.id) if live else [],
        reviews=await reviews.listing(core, caller, task_id),
        worktrees=await worktrees.of(core, caller, task_id),
        session=session,
        attach=pair.command_line(session.attach) if session and session.attach else None,
        refused=refused,
    )


@route("POST", "/tasks/{id}/act", "operator")
async def act(request: Request) -> Answer:
    """An action of the state machine."""
    action = request.given("action")
    if action not in ACTIONS:
        raise Invalid(f"there is no action {action[:40]!r}", field="action")
    changes = tasks.Changes(
        action=action, reason=request.given("reason")[:_REASON] or None, actor=request.caller.actor
    )
    changed = await tasks.update(request.core, request.caller, request.params["id"], changes)
    return go(request, f"/tasks/{changed.id}")


@route("POST", "/tasks/{id}/start", "pair_worker")
async def start(request: Request) -> Answer:
    """Let the agent of an AUTO task begin."""
    await auto.start(request.core, request.caller, request.params["id"])
    return go(request, f"/tasks/{request.params['id']}")


@route("POST", "/tasks/{id}/stop", "pair_worker")
async def stop(request: Request) -> Answer:
    await auto.stop(request.core, request.caller, request.params["id"])
    return go(request, f"/tasks/{request.params['id']}")


@route("POST", "/tasks/{id}/session", "pair_worker")
async def open_session(request: Request) -> Answer:
    """Open a PAIR session, or show the one there is."""
    await pair.create(request.core, request.caller, request.params["id"])
    return go(request, f"/tasks/{request.params['id']}")


@route("POST", "/tasks/{id}/session/end", "pair_worker")
async def end_session(request: Request) -> Answer:
    await pair.kill(request.core, request.caller, request.params["id"])
    return go(request, f"/tasks/{request.params['id']}")


@route("POST", "/tasks/{id}/route", "operator")
async def assign(request: Request) -> Answer:
    """Let the router choose the agent."""
    _, changed = await tasks.route(request.core, request.caller, request.params["id"], assign=True)
    return go(request, f"/tasks/{changed.id}")


@route("POST", "/tasks/{id}/note", "pair_worker")
async def add_note(request: Request) -> Answer:
    """Add a paragraph to the scratchpad."""
    form = parse(NoteForm, {"content": request.given("content")})
    await board.append_scratchpad(request.core, request.caller, request.params["id"], form.content)
    return go(request, f"/tasks/{request.params['id']}")


class NoteForm(Args):
    content: Some


@dataclass(frozen=True, slots=True)
class Changed:
    """What a task changed in one repository."""

    worktree: Worktree
    files: list[patches.File]
    cut: bool


@route("GET", "/tasks/{id}/diff")
async def task_diff(request: Request) -> Answer:
    """What the task changed, side by side."""
    core, caller, task_id = request.core, request.caller, request.params["id"]
    task = (await tasks.get(core, caller, task_id)).task
    found = await worktrees.diff(core, caller, task_id)
    shown = []
    for each in found.repos:
        files, cut = patches.read(each.diff.patch)
        shown.append(Changed(each.worktree, files, cut or each.diff.cut))
    overlaps = await worktrees.overlaps(core, caller, task_id)
    return page(request, "task_diff.html", task=task, found=found, repos=shown, overlaps=overlaps)


@route("POST", "/tasks/{id}/review", "operator")
async def ask_review(request: Request) -> Answer:
    summary = request.given("summary")[:10_000]
    task = await reviews.request(request.core, request.caller, request.params["id"], summary)
    return go(request, f"/tasks/{task.id}")


@route("POST", "/tasks/{id}/approve", "operator")
async def approve(request: Request) -> Answer:
    text = request.given("text")[:10_000]
    task = await reviews.approve(request.core, request.caller, request.params["id"], text)
    return go(request, f"/tasks/{task.id}")


class Remark(Args):
    """A comment on a line of the new side."""

    path: Annotated[str, Field(min_length=1, max_length=4096)]
    line: Annotated[int, Field(ge=1)]
    text: Some
    repo: Annotated[str, Field(max_length=4096)] | None = None


class Rejection(Args):
    feedback: Text = ""
    action: Literal["reopen", "backlog"] = "reopen"
    comments: Annotated[list[Remark], Field(default_factory=list, max_length=500)]


@route("POST", "/tasks/{id}/reject", "operator")
async def reject(request: Request) -> Answer:
    """Send the work back with words and comments on lines; the agent's next run gets both."""
    try:
        comments: Any = json.loads(request.given("comments") or "[]")
    except (ValueError, RecursionError):
        comments = None
    given = {"feedback": request.given("feedback"), "comments": comments}
    if request.given("action"):
        given["action"] = request.given("action")
    form = parse(Rejection, given, "correct the form and send it again")
    if not form.feedback and not form.comments:
        raise Invalid("say what is to be done, or comment on a line", field="feedback")
    task = await reviews.reject(
        request.core,
        request.caller,
        request.params["id"],
        form.feedback,
        action=form.action,
        comments=[one.model_dump(exclude_none=True) for one in form.comments],
    )
    return go(request, f"/tasks/{task.id}")


class MergeForm(Args):
    strategy: Literal["squash", "merge", "rebase"]


@route("POST", "/tasks/{id}/merge", "maintainer")
async def merge(request: Request) -> Answer:
    """Merge; a conflict or a gate that failed is shown on the task's page, and nothing has changed."""
    strategy = parse(MergeForm, {"strategy": request.given("strategy") or "squash"}).strategy
    try:
        await merges.merge(request.core, request.caller, request.params["id"], strategy=strategy)
    except Conflict as refused:
        if request.wants_json:
            raise
        return await _page(request, refused)
    return go(request, f"/tasks/{request.params['id']}")


@route("POST", "/tasks/{id}/rebase", "maintainer")
async def rebase(request: Request) -> Answer:
    try:
        await merges.rebase(request.core, request.caller, request.params["id"])
    except Conflict as refused:
        if request.wants_json:
            raise
        return await _page(request, refused)
    return go(request, f"/tasks/{request.params['id']}")
