"""PAIR: a person and an agent in one terminal or editor, in the task's own checkout."""

import asyncio
import shlex
import shutil
import uuid
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Final

import structlog

from quarterdeck.core import auto, board, brief, ledger, merges, settings, tasks, tokens, worktrees
from quarterdeck.core.context import Core
from quarterdeck.core.ledger import Drift
from quarterdeck.core.terminals import EDITORS, TMUX, Opening, State, Terminal, prompt_path
from quarterdeck.domain.agents import Agent
from quarterdeck.domain.callers import SYSTEM, Caller
from quarterdeck.domain.errors import Conflict, Invalid, QuarterdeckError, Unavailable
from quarterdeck.domain.ids import new_id, new_token
from quarterdeck.domain.records import Session, Task, Token, Worktree
from quarterdeck.domain.sessions import new_session_id
from quarterdeck.events import Event
from quarterdeck.store import jobs
from quarterdeck.store import projects as project_rows
from quarterdeck.store import sessions as rows
from quarterdeck.store import tokens as token_rows
from quarterdeck.store.tx import Tx

KIND: Final = "pair"
_STARTABLE: Final = ("pending", "approved", "failed")
_SWEPT: Final = 500

logger = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Pair:
    """A PAIR session as it is shown; `state` None for an editor, or another core's, which nobody can ask."""

    session: Session
    state: State | None
    already_exists: bool = False
    attach: tuple[str, ...] = ()
    elsewhere: bool = False

    @property
    def name(self) -> str:
        return str(self.session.context.get("session_name"))

    @property
    def backend(self) -> str:
        return str(self.session.context.get("backend"))

    @property
    def worktree_path(self) -> str:
        return str(self.session.context.get("worktree_path"))

    @property
    def prompt_path(self) -> str:
        return str(self.session.context.get("prompt_path"))

    @property
    def alive(self) -> bool:
        return self.session.status == "active" and (
            self.backend in EDITORS or self.elsewhere or bool(self.state and self.state.alive)
        )


def session_name(task_id: str) -> str:
    """The name of a task's terminal session; the end of an id is random, its beginning is the time."""
    return f"quarterdeck-{task_id.replace('-', '')[-12:]}"


def home_of(core: Core, task_id: str) -> Path:
    """The home of all agents that work on a task, so that each finds what the last one left."""
    return core.data_dir / "homes" / f"task-{task_id}"


async def create(
    core: Core, caller: Caller, task_id: str, *, reuse: bool = True, worktree_path: str | None = None
) -> Pair:
    """Open a session on a PAIR task, or show the one it has. Without `reuse` that one is ended first."""
    task = await core.db.read(caller, tasks.seen, task_id)
    auto.check_type(task, "PAIR")
    terminal = _terminal(core)
    # Before the lock as well: a run holds it from its beginning to its end.
    await _check(core, caller, task, worktree_path)
    async with auto.alone(task_id):
        await _check(core, caller, task, worktree_path)
        known = await find(core, caller, task_id)
        if known is not None:
            if known.elsewhere:
                raise Conflict(
                    f"session {known.name} belongs to another core",
                    hint="attach to it there, or end it with sessions_kill",
                    code="ACTION_NOT_ALLOWED",
                )
            # One whose checkout was deleted under it is of no use to anyone.
            if known.alive and reuse and await asyncio.to_thread(Path(known.worktree_path).is_dir):
                return replace(known, already_exists=True)
            await _close(core, caller, known, "completed", "opened anew")
        backend = task.terminal_backend or str(
            await settings.get(core, "general.default_pair_terminal_backend")
        )
        agent = await _agent(core, task, backend)
        checkouts = await worktrees.ensure(core, caller, task_id)
        return await _open(core, caller, terminal, task, backend, agent, checkouts)


def _terminal(core: Core) -> Terminal:
    if core.terminal is None:
        raise Unavailable("this process opens no terminals", code="SESSION_CREATE_FAILED")
    return core.terminal


async def _agent(core: Core, task: Task, backend: str) -> Agent | None:
    """Who sits in the terminal; an editor brings its own."""
    if backend in EDITORS:
        return None
    agent = await auto.choose(core, task)
    if agent.adapter == "acp":
        # It talks with a program by a protocol; at a terminal nobody could.
        raise auto.NotStarted(
            f"{agent.id} has no terminal of its own", hint="choose another agent_backend", code="NOT_STARTED"
        )
    return agent


async def _check(core: Core, caller: Caller, task: Task, worktree_path: str | None) -> None:
    """Refuse before anything is made."""

    def body(tx: Tx) -> list[str]:
        if task.status in ("completed", "cancelled"):
            raise Conflict(
                f"task {task.id} is {task.status}",
                field="task_id",
                hint="move it back first",
                code="ACTION_NOT_ALLOWED",
                next_tool="tasks_move",
                next_arguments={"task_id": task.id, "status": "BACKLOG"},
            )
        auto.check_repos(tx, task)
        if live := jobs.live_of_task(tx, task.id, [auto.KIND]):
            raise Conflict(
                f"an agent works on task {task.id} by itself",
                hint="stop it first",
                code="ACTION_NOT_ALLOWED",
                next_tool="jobs_submit",
                next_arguments={"task_id": task.id, "action": "stop_agent"},
                job_id=live[-1].id,
            )
        return [repo.name for repo in project_rows.repos_of(tx, task.project_id or "")]

    names = await core.db.read(caller, body)
    if worktree_path is None:
        return
    own = core.data_dir / "worktrees" / task.id
    expected = own / names[0] if len(names) == 1 else own
    if Path(worktree_path) != expected:
        raise Invalid(
            "worktree_path is not the task's own",
            field="worktree_path",
            hint=f"leave it out, or give {expected}",
        )


def places(checkouts: list[Worktree]) -> list[brief.Place]:
    return [brief.Place(Path(each.path).name, each.path, each.branch, each.target) for each in checkouts]


async def _open(
    core: Core,
    caller: Caller,
    terminal: Terminal,
    task: Task,
    backend: str,
    agent: Agent | None,
    checkouts: list[Worktree],
) -> Pair:
    cwd, home = worktrees.workplace([Path(each.path) for each in checkouts]), home_of(core, task.id)
    material = await brief.gather(core, caller, task.id, places(checkouts))
    assert material is not None, "the task was there a moment ago"
    earlier = await resumable(core, caller, task.id, agent, home, cwd)
    opening = Opening(
        name=session_name(task.id),
        backend=backend,
        task=task,
        agent=agent,
        cwd=cwd,
        home=home,
        prompt=brief.compile_brief(material, interactive=True).text,
        mcp_url=f"{core.url}/mcp",
        token=new_token(),
        agent_session_id=earlier or str(uuid.uuid4()),
        resume=earlier is not None,
        repos=tuple(Path(each.repo_path) for each in checkouts),
    )
    session = await core.db.tx(caller, _add, opening, core.place)
    try:
        own_id = await terminal.open(opening)
    except QuarterdeckError as error:
        pair = Pair(session, None)
        await _close(core, caller, pair, "failed", error.message)
        raise Unavailable(error.message, hint=error.hint, code="SESSION_CREATE_FAILED") from error

    def body(tx: Tx) -> Session:
        rows.change(tx, session.id, {"agent_session_id": own_id})
        held = tasks.held(tx, task.id)
        if held.status in _STARTABLE:
            reason = f"{session.agent} in {backend} ({opening.name})"
            tasks.write(tx, held, {}, status="in_progress", reason=reason, actor="board")
        return replace(session, agent_session_id=own_id)

    session = await core.db.tx(caller, body)
    return await _shown(core, session)


def _add(tx: Tx, opening: Opening, place: str) -> Session:
    """The session with its token, bound to the task, before anything runs: after a crash both are ended."""
    task, user = opening.task, opening.task.user_id or tokens.LOCAL_USER
    token = Token(
        id=new_id(),
        user_id=user,
        name=opening.name,
        profile="pair_worker",
        project_id=None,
        task_id=task.id,
        local=False,
        created_at=tx.now,
        expires_at=None,
        last_used_at=None,
        revoked_at=None,
    )
    token_rows.add(tx, token, tokens.digest(opening.token))
    tx.emit(
        "token.minted", token.id, user_id=user, name=token.name, profile=token.profile, by=tx.caller.actor
    )
    session = Session(
        id=new_session_id(),
        user_id=task.user_id,
        kind=KIND,
        agent=opening.agent.id if opening.agent else opening.backend,
        project_id=task.project_id,
        plan_id=None,
        task_id=task.id,
        parent_id=None,
        status="active",
        context={
            "session_name": opening.name,
            "backend": opening.backend,
            "worktree_path": str(opening.cwd),
            "prompt_path": str(prompt_path(opening.cwd)),
            "home": str(opening.home),
            "token_id": token.id,
            "place": place,
        },
        summary=None,
        handoff=None,
        created_at=tx.now,
        active_at=tx.now,
        ended_at=None,
    )
    rows.add(tx, session)
    _emit(tx, "session.started", session, agent=session.agent, session_kind=KIND)
    return session


async def resumable(
    core: Core, caller: Caller, task_id: str, agent: Agent | None, home: Path, cwd: Path
) -> str | None:
    """The agent's own session of its last work on the task, headless or not, where it can be resumed."""
    if agent is None or core.terminal is None:
        return None
    last = await core.db.read(caller, rows.last_of_task, task_id, agent.id)
    if last is None:
        return None
    return await core.terminal.agent_session(agent, home, cwd, last.agent_session_id)


async def find(core: Core, caller: Caller, task_id: str) -> Pair | None:
    """The newest PAIR session of a task that was not ended; it may have died."""

    def body(tx: Tx) -> Session | None:
        tasks.seen(tx, task_id)
        return rows.live_of_task(tx, task_id, KIND)

    session = await core.db.read(caller, body)
    return None if session is None else await _shown(core, session)


async def _shown(core: Core, session: Session) -> Pair:
    pair = Pair(session, None, elsewhere=session.context.get("place") != core.place)
    if core.terminal is None or pair.backend in EDITORS or pair.elsewhere:
        return pair
    words = tuple(core.terminal.attach(pair.name))
    return replace(pair, state=await core.terminal.state(pair.name), attach=words)


async def kill(core: Core, caller: Caller, task_id: str) -> Pair:
    """End the PAIR session of a task; Conflict when it has none. Another core then ends its terminal."""
    pair = await find(core, caller, task_id)
    if pair is None:
        raise Conflict(
            f"task {task_id} has no PAIR session", field="task_id", code="NOT_RUNNING", hint="nothing to end"
        )
    async with auto.alone(task_id):
        await _close(core, caller, pair, "completed", f"ended by {caller.actor}")
    return pair


async def take_over(core: Core, caller: Caller, task_id: str, why: str) -> bool:
    """End a task's session for an agent that goes on by itself. The caller has the task for itself."""
    pair = await find(core, caller, task_id)
    if pair is not None:
        await _close(core, caller, pair, "handed_off", why)
    else:
        await _put_out(core, task_id)
    return pair is not None


async def _put_out(core: Core, task_id: str) -> None:
    """End the terminal here of a session that another core has ended. The caller has the task for itself."""
    if core.terminal is not None and await core.terminal.state(session_name(task_id)) is not None:
        await core.terminal.end(session_name(task_id))


async def _close(core: Core, caller: Caller, pair: Pair, status: str, summary: str) -> None:
    if core.terminal is not None and pair.session.context.get("place") == core.place:
        if pair.backend == TMUX:
            await core.terminal.end(pair.name)
        await _cleared(core, pair)
    await core.db.tx(caller, _ended, pair.session, status, summary)


async def _cleared(core: Core, pair: Pair) -> None:
    """Take away the files that were made for a session here."""
    if core.terminal is not None:
        await core.terminal.clear(Path(pair.worktree_path), Path(str(pair.session.context.get("home"))))


def _ended(tx: Tx, session: Session, status: str, summary: str) -> None:
    held = rows.get(tx, session.id, lock=True)
    if held is None or held.status != "active":
        return
    rows.change(
        tx,
        session.id,
        {"status": status, "summary": summary[:2000], "ended_at": tx.now, "active_at": tx.now},
    )
    token_id = str(session.context.get("token_id"))
    token_rows.revoke(tx, token_id)
    tx.emit("token.revoked", token_id, user_id=session.user_id)
    _emit(tx, "session.ended", session, before="active", after=status)


async def sweep(core: Core) -> int:
    """End what died by itself or with the host: its token and files go. How many there were."""
    if core.terminal is None:
        return 0
    live = await core.db.read(SYSTEM, rows.newest, KIND, _SWEPT, status="active")
    gone = 0
    for session in live:
        if session.context.get("place") != core.place or session.context.get("backend") in EDITORS:
            continue
        async with auto.alone(str(session.task_id)):
            pair = await _shown(core, session)
            if pair.alive:
                continue
            code = pair.state.exit_code if pair.state else None
            said = "it is gone" if pair.state is None else f"it ended with exit code {code}"
            await _close(core, SYSTEM, pair, "completed" if code == 0 else "failed", said)
            gone += 1
    return gone


async def _drifts(core: Core) -> list[Drift]:
    """Terminals against the sessions that the store knows."""
    if core.terminal is None:
        return []
    # The terminals first: one that opens meanwhile has its row before it, and is known.
    names = await core.terminal.names()
    live = await core.db.read(SYSTEM, rows.newest, KIND, _SWEPT, status="active")
    here = [each for each in live if each.context.get("place") == core.place]
    known = {str(each.context.get("session_name")) for each in here}
    past = await core.db.read(SYSTEM, rows.newest, KIND, _SWEPT)
    ended = {str(each.context.get("session_name")) for each in past if each not in live}
    found = [
        Drift(
            "session_dead",
            f"the PAIR session of task {each.task_id} has died",
            "its token and its files are taken back",
            mend=partial(sweep, core),
        )
        for each in here
        if each.context.get("backend") == TMUX and not (await _shown(core, each)).alive
    ]
    for name in names:
        if name not in known:
            found.append(
                Drift(
                    "terminal_unknown",
                    f"the terminal {name} belongs to no PAIR session",
                    "it is ended",
                    safe=name in ended,
                    mend=partial(core.terminal.end, name),
                )
            )
    return found


def watch(core: Core) -> None:
    """End the session of a task that is over, as its checkout may be gone already, and what is here of one
    that another core has ended."""

    def over(event: Event) -> None:
        if event.data.get("after") in ("completed", "cancelled") and event.entity_id:
            core.spawn(_over(core, event.entity_id, str(event.data["after"])))

    def ended(event: Event) -> None:
        if event.task_id and event.entity_id:
            core.spawn(_ended_elsewhere(core, event.task_id, event.entity_id))

    core.bus.on("task.updated", over)
    core.bus.on("session.ended", ended)


async def _over(core: Core, task_id: str, status: str) -> None:
    async with auto.alone(task_id):
        session = await core.db.read(SYSTEM, rows.live_of_task, task_id, KIND)
        if session is not None:
            pair = await _shown(core, session)
            await _close(core, SYSTEM, pair, "completed", f"the task was {status}")


async def _ended_elsewhere(core: Core, task_id: str, session_id: str) -> None:
    session = await core.db.read(SYSTEM, rows.get, session_id)
    if session is None or session.kind != KIND or session.context.get("place") != core.place:
        return
    async with auto.alone(task_id):
        if await core.db.read(SYSTEM, rows.live_of_task, task_id, KIND) is None:
            await _put_out(core, task_id)
            await _cleared(core, Pair(session, None))


async def _leaving(core: Core, caller: Caller, task: Task) -> None:
    async with auto.alone(task.id):
        await take_over(core, caller, task.id, "the task was deleted")
        await worktrees.remove(core, caller, task.id)
        await asyncio.to_thread(shutil.rmtree, home_of(core, task.id), ignore_errors=True)


async def _retyped(core: Core, caller: Caller, task: Task) -> None:
    """An agent is to go on by itself: who sits at the terminal is in its way."""
    if task.task_type == "AUTO":
        async with auto.alone(task.id):
            await take_over(core, caller, task.id, "the task became AUTO")


async def _merging(core: Core, caller: Caller, task: Task) -> None:
    async with auto.alone(task.id):
        await take_over(core, caller, task.id, "the task is merged")


def _emit(tx: Tx, kind: str, session: Session, **data: Any) -> None:
    tx.emit(kind, session.id, task_id=session.task_id, user_id=session.user_id, **data)


def command_line(words: tuple[str, ...]) -> str:
    return shlex.join(words)


board.LEAVING.append(_leaving)
board.RETYPED.append(_retyped)
ledger.CHECKS.append(_drifts)
merges.STOPPING.append(_merging)
