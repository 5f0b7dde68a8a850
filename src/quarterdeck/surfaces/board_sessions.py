"""The board's PAIR sessions: opening, finding and ending them."""

from typing import Annotated
from urllib.parse import quote

from pydantic import Field

from quarterdeck.core import pair, settings
from quarterdeck.core.pair import Pair
from quarterdeck.surfaces.board import envelope
from quarterdeck.surfaces.schema import Args, Id, Row
from quarterdeck.surfaces.table import Call, tool

_EDITORS = {"vscode": "code", "cursor": "cursor"}


class SessionsCreate(Args):
    task_id: Id
    reuse_if_exists: bool = True
    worktree_path: Annotated[str, Field(min_length=1, max_length=4096)] | None = None


@tool("write", "pair_worker", binds=("task_id",))
async def sessions_create(call: Call, a: SessionsCreate) -> Row:
    """Open a PAIR session on a task, or return the one it has; says how to attach."""
    found = await pair.create(
        call.core, call.caller, a.task_id, reuse=a.reuse_if_exists, worktree_path=a.worktree_path
    )
    primary = _primary(found)
    brief = bool(await settings.get(call.core, "ui.skip_pair_instructions"))
    again = "is open already" if found.already_exists else "is open"
    return envelope(
        True,
        f"session {found.name} {again} in {found.backend}",
        "SESSION_EXISTS" if found.already_exists else "SESSION_CREATED",
        hint=primary,
        session_id=found.session.id,
        already_exists=found.already_exists,
        **_row(found),
        agent=found.session.agent,
        primary_command=primary,
        commands=_commands(found),
        links=_links(found),
        instructions=None if brief else _instructions(found),
        next_step=f"run: {primary}",
    )


class OnTask(Args):
    task_id: Id


@tool("read", "viewer", binds=("task_id",))
async def sessions_exists(call: Call, a: OnTask) -> Row:
    """Whether a task has a PAIR session, and whether its agent still runs."""
    found = await pair.find(call.core, call.caller, a.task_id)
    if found is None:
        return envelope(
            True,
            "there is no session",
            "SESSION_NOT_FOUND",
            task_id=a.task_id,
            exists=False,
            alive=False,
            session_name=None,
            backend=None,
            worktree_path=None,
            prompt_path=None,
        )
    died, hint = {}, "it belongs to another core" if found.elsewhere else None
    if not found.alive:
        hint = "sessions_create opens it anew"
        died = {
            "exit_code": found.state.exit_code if found.state else None,
            "last_output": found.state.tail if found.state else None,
        }
    return envelope(
        True,
        f"session {found.name} is open" if found.alive else f"session {found.name} has died",
        "SESSION_EXISTS" if found.alive else "SESSION_DEAD",
        hint=hint,
        next_tool=None if found.alive else "sessions_create",
        next_arguments=None if found.alive else {"task_id": a.task_id},
        task_id=a.task_id,
        exists=found.alive,
        alive=found.alive,
        **_row(found),
        **died,
    )


@tool("write", "pair_worker", binds=("task_id",))
async def sessions_kill(call: Call, a: OnTask) -> Row:
    """End a task's PAIR session. Its worktree stays."""
    found = await pair.kill(call.core, call.caller, a.task_id)
    return envelope(
        True,
        f"session {found.name} is ended",
        "SESSION_KILLED",
        task_id=a.task_id,
        exists=False,
        was_alive=found.alive,
        **_row(found),
    )


def _row(found: Pair) -> Row:
    return {
        "session_name": found.name,
        "backend": found.backend,
        "worktree_path": found.worktree_path,
        "prompt_path": found.prompt_path,
    }


def _primary(found: Pair) -> str:
    if found.backend in _EDITORS:
        words = (_EDITORS[found.backend], "--new-window", found.worktree_path, found.prompt_path)
        return pair.command_line(words)
    return pair.command_line(found.attach)


def _commands(found: Pair) -> list[str]:
    if found.backend in _EDITORS:
        return [_primary(found)]
    socket = found.attach[: found.attach.index("attach-session")]
    target = f"={found.name}"
    return [
        _primary(found),
        pair.command_line((*socket, "capture-pane", "-p", "-t", f"{target}:")),
        pair.command_line((*socket, "kill-session", "-t", target)),
    ]


def _links(found: Pair) -> Row:
    path = quote(found.worktree_path)
    return {"vscode": f"vscode://file{path}", "cursor": f"cursor://file{path}"}


def _instructions(found: Pair) -> str:
    if found.backend in _EDITORS:
        return (
            f"Open the worktree in the editor; its MCP configuration names the server. {found.prompt_path} "
            "has the task. Commit your work there; request_review when it is done."
        )
    return (
        "Attach to the terminal on the core's host; detach with Ctrl-b d, the agent goes on. The checkout is "
        "on the task's own branch; request_review when it is done."
    )


TOOLS = (sessions_create, sessions_exists, sessions_kill)
