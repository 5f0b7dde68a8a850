"""Work sessions: an agent's log of what it did, and handing it over to the next one."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from quarterdeck.core import plans
from quarterdeck.core.context import Core
from quarterdeck.domain.callers import SYSTEM, Caller
from quarterdeck.domain.errors import Conflict, Invalid, NotFound
from quarterdeck.domain.ids import new_id, now_us
from quarterdeck.domain.records import Artifact, Decision, LogEntry, Session
from quarterdeck.domain.sessions import AGENT_TYPES, Replay, new_session_id, writable
from quarterdeck.store import memory as memory_rows
from quarterdeck.store import plans as plan_rows
from quarterdeck.store import sessions as rows
from quarterdeck.store.tx import Tx

WORK = "work"
_SHOWN = 50
_SWEPT = 200

Shown = tuple[Session, str | None]


async def start(
    core: Core,
    caller: Caller,
    *,
    agent: str,
    plan_slug: str | None = None,
    context: dict[str, Any] | None = None,
) -> Shown:
    """Open a session, perhaps on a plan."""
    known_agent(core, agent)

    def body(tx: Tx) -> Shown:
        plan = None if plan_slug is None else plans.found(tx, plan_slug)
        session = Session(
            id=new_session_id(),
            user_id=caller.user_id,
            kind=WORK,
            agent=agent,
            project_id=plan.project_id if plan else caller.project_id,
            plan_id=plan.id if plan else None,
            task_id=caller.task_id,
            parent_id=None,
            status="active",
            context=context or {},
            summary=None,
            handoff=None,
            created_at=tx.now,
            active_at=tx.now,
            ended_at=None,
        )
        rows.add(tx, session)
        _emit(tx, "session.started", session, agent=agent)
        return session, plan_slug

    return await core.db.tx(caller, body)


def known_agent(core: Core, agent: str) -> str:
    """An agent type of the document, or an agent of the registry."""
    if agent not in AGENT_TYPES and agent not in core.agents:
        known = ", ".join((*AGENT_TYPES, *core.agents))
        raise Invalid(f"there is no agent type {agent!r}", field="agent_type", hint=f"one of {known}")
    return agent


async def log(
    core: Core,
    caller: Caller,
    session_id: str,
    message: str,
    *,
    kind: str = "info",
    data: dict[str, Any] | None = None,
) -> LogEntry:
    """Add an entry; a decision also enters the memory, where every surface finds it."""

    def body(tx: Tx) -> LogEntry:
        session = writable(_held(tx, session_id))
        details = data
        if kind == "decision":
            details = {**(data or {}), "decision_id": _remember(tx, session, message, data)}
        entry = LogEntry(session_id, kind, message, details, tx.now)
        rows.log(tx, entry)
        _touch(tx, session)
        _emit(tx, "session.logged", session, type=kind)
        return entry

    return await core.db.tx(caller, body)


def _remember(tx: Tx, session: Session, message: str, data: dict[str, Any] | None) -> str:
    plan = plan_rows.slugs_of(tx, [session.plan_id]) if session.plan_id else {}
    about = f"Work session {session.id}" + "".join(f" on plan {slug}" for slug in plan.values())
    why = (data or {}).get("reason") or (data or {}).get("context")
    return memory_rows.add_decision(
        tx,
        Decision(
            id=new_id(),
            user_id=session.user_id,
            task_id=session.task_id,
            context=f"{about}: {why}" if isinstance(why, str) else about,
            decision=message,
            outcome=None,
            confidence=None,
            tags=["session", *plan.values()],
            created_at=tx.now,
        ),
    ).id


async def add_artifact(
    core: Core, caller: Caller, session_id: str, path: str, action: str, metadata: dict[str, Any] | None
) -> Artifact:
    def body(tx: Tx) -> Artifact:
        session = writable(_held(tx, session_id))
        artifact = Artifact(session_id, path, action, metadata, tx.now)
        rows.add_artifact(tx, artifact)
        _touch(tx, session)
        _emit(tx, "session.artifact", session, path=path[:200], action=action)
        return artifact

    return await core.db.tx(caller, body)


async def hand_off(
    core: Core,
    caller: Caller,
    session_id: str,
    *,
    summary: str,
    next_steps: Sequence[str] = (),
    blockers: Sequence[str] = (),
    context_for_next: dict[str, Any] | None = None,
) -> Shown:
    """Pause a session and leave word for the next agent."""
    handoff = {
        "summary": summary,
        "next_steps": list(next_steps),
        "blockers": list(blockers),
        "context_for_next": context_for_next or {},
    }

    def body(tx: Tx) -> Shown:
        session = writable(_held(tx, session_id))
        return _set(tx, session, "session.handed_off", status="paused", handoff=handoff)

    return await core.db.tx(caller, body)


async def resume(core: Core, caller: Caller, session_id: str) -> Shown:
    """Make a paused session active again."""

    def body(tx: Tx) -> Shown:
        session = _held(tx, session_id)
        if session.status == "active":
            raise Conflict(f"session {session_id} is not paused", field="session_id", hint="go on with it")
        if session.status != "paused":
            writable(session)
        return _set(tx, session, "session.resumed", status="active")

    return await core.db.tx(caller, body)


async def end(core: Core, caller: Caller, session_id: str, status: str, summary: str | None) -> Shown:
    """End a session, or pause it; nothing is written to an ended one."""

    def body(tx: Tx) -> Shown:
        session = _held(tx, session_id)
        if session.status != "paused":
            writable(session)
        over = None if status == "paused" else tx.now
        return _set(
            tx, session, "session.ended", status=status, summary=summary or session.summary, ended_at=over
        )

    return await core.db.tx(caller, body)


async def replay(core: Core, caller: Caller, session_id: str) -> Replay:
    return await core.db.read(caller, lambda tx: _replay(tx, _found(tx, session_id)))


def _replay(tx: Tx, session: Session) -> Replay:
    def of(*types: str, count: int = _SHOWN) -> list[LogEntry]:
        return rows.entries(tx, session.id, types, count)

    return Replay(
        session=session,
        counts=rows.counts(tx, session.id),
        last_checkpoint=next(iter(of("checkpoint", count=1)), None),
        recent=of("progress", "success", "checkpoint", count=20),
        decisions=of("decision"),
        errors=of("error"),
        artifacts=rows.artifacts(tx, session.id, 200),
    )


async def go_on(core: Core, caller: Caller, session_id: str, agent: str | None) -> tuple[Shown, Replay]:
    """A new session that carries on an older one, which is handed off when it was still open."""
    if agent is not None:
        known_agent(core, agent)

    def body(tx: Tx) -> tuple[Shown, Replay]:
        before = _held(tx, session_id)
        left = _replay(tx, before)
        if before.status in ("active", "paused"):
            _set(tx, before, "session.ended", status="handed_off", ended_at=tx.now)
        session = replace(
            before,
            id=new_session_id(),
            agent=agent or before.agent,
            parent_id=before.id,
            status="active",
            context={**before.context, **(before.handoff or {}).get("context_for_next", {})},
            summary=None,
            handoff=None,
            created_at=tx.now,
            active_at=tx.now,
            ended_at=None,
        )
        rows.add(tx, session)
        _emit(tx, "session.started", session, agent=session.agent, parent=before.id)
        return _shown(tx, session), left

    return await core.db.tx(caller, body)


async def listing(
    core: Core, caller: Caller, *, plan_slug: str | None = None, status: str | None = None, limit: int = 20
) -> list[Shown]:
    """The caller's work sessions, newest first; `limit` is clamped to 1–100."""

    def body(tx: Tx) -> list[Shown]:
        plan = None if plan_slug is None else plans.found(tx, plan_slug)
        count = min(max(limit, 1), 100)
        found = rows.newest(tx, WORK, count, plan_id=plan.id if plan else None, status=status)
        slugs = plan_rows.slugs_of(tx, [s.plan_id for s in found if s.plan_id])
        return [(session, slugs.get(session.plan_id or "")) for session in found]

    return await core.db.read(caller, body)


async def close_idle(core: Core, idle_seconds: float) -> int:
    """End the work sessions of all users that nobody wrote to for so long; how many there were."""

    def body(tx: Tx) -> int:
        stale = rows.idle(tx, WORK, now_us() - int(idle_seconds * 1_000_000), _SWEPT)
        for session in stale:
            _set(
                tx,
                session,
                "session.ended",
                status="failed",
                summary=session.summary or "closed after sitting idle",
                ended_at=tx.now,
            )
        return len(stale)

    closed = 0
    while count := await core.db.tx(SYSTEM, body):
        closed += count
    return closed


def _found(tx: Tx, session_id: str, *, lock: bool = False) -> Session:
    session = rows.get(tx, session_id, lock=lock)
    if session is None or session.kind != WORK:
        raise NotFound(f"session {session_id} not found", field="session_id", hint="session_list shows yours")
    return session


def _held(tx: Tx, session_id: str) -> Session:
    return _found(tx, session_id, lock=True)


def _set(tx: Tx, session: Session, event: str, **values: Any) -> Shown:
    rows.change(tx, session.id, {**values, "active_at": tx.now})
    _emit(tx, event, session, before=session.status, after=values["status"])
    return _shown(tx, replace(session, active_at=tx.now, **values))


def _shown(tx: Tx, session: Session) -> Shown:
    slugs = plan_rows.slugs_of(tx, [session.plan_id]) if session.plan_id else {}
    return session, slugs.get(session.plan_id or "")


def _touch(tx: Tx, session: Session) -> None:
    rows.change(tx, session.id, {"active_at": max(tx.now, session.active_at)})


def _emit(tx: Tx, kind: str, session: Session, **data: Any) -> None:
    tx.emit(kind, session.id, task_id=session.task_id, user_id=session.user_id, **data)
