"""The line of an agent's own sessions on a task, headless or with a person: each can resume the last."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from quarterdeck.core.context import Core
from quarterdeck.domain.callers import Caller
from quarterdeck.domain.records import Job, Session
from quarterdeck.domain.sessions import new_session_id
from quarterdeck.store import sessions as rows
from quarterdeck.store.tx import Tx

KIND = "auto"


async def last(core: Core, caller: Caller, task_id: str, agent: str) -> Session | None:
    """The newest session of an agent on a task."""
    return await core.db.read(caller, rows.last_of_task, task_id, agent)


async def before(core: Core, caller: Caller, session: Session) -> Session | None:
    """The agent's session on the same task before this one."""
    return await core.db.read(
        caller, rows.last_of_task, str(session.task_id), session.agent, session.created_at, session.id
    )


async def begin(core: Core, caller: Caller, job: Job, heads: Mapping[str, str]) -> Session:
    """The session of a job. A later attempt finds the one of the first, with the commits it began at."""

    def body(tx: Tx) -> Session:
        known = rows.live_of_task(tx, str(job.task_id), KIND)
        if known is not None and known.context.get("job_id") == job.id:
            return known
        if known is not None:
            rows.change(tx, known.id, {"status": "failed", "ended_at": tx.now})
        session = Session(
            id=new_session_id(),
            user_id=job.user_id,
            kind=KIND,
            agent=str(job.agent),
            project_id=job.project_id,
            plan_id=None,
            task_id=job.task_id,
            parent_id=None,
            status="active",
            context={"job_id": job.id, "heads": dict(heads)},
            summary=None,
            handoff=None,
            created_at=tx.now,
            active_at=tx.now,
            ended_at=None,
        )
        rows.add(tx, session)
        _emit(tx, "session.started", session, agent=session.agent, session_kind=KIND)
        return session

    return await core.db.tx(caller, body)


async def keep(core: Core, caller: Caller, session: Session, agent_session_id: str | None) -> Session:
    """Remember the agent's own id, so that another attempt, or a person, can go on with it."""
    if agent_session_id is None or agent_session_id == session.agent_session_id:
        return session
    values = {"agent_session_id": agent_session_id}
    await core.db.tx(caller, lambda tx: rows.change(tx, session.id, values))
    return replace(session, agent_session_id=agent_session_id)


def ended(tx: Tx, job: Job) -> None:
    """End the session of a job with it."""
    session = None if job.task_id is None else rows.live_of_task(tx, job.task_id, KIND)
    if session is None or session.context.get("job_id") != job.id:
        return
    status = "completed" if job.state == "SUCCEEDED" else "failed"
    values = {"status": status, "summary": job.summary, "ended_at": tx.now, "active_at": tx.now}
    rows.change(tx, session.id, values)
    _emit(tx, "session.ended", session, before="active", after=status)


def _emit(tx: Tx, kind: str, session: Session, **data: Any) -> None:
    tx.emit(kind, session.id, task_id=session.task_id, user_id=session.user_id, **data)
