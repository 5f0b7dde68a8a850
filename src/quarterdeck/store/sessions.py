"""Sessions with their logs and artifacts. A log is rows: any number of writers, none lost."""

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

from sqlalchemy import Select, bindparam, func, insert, or_, select, update

from quarterdeck.domain.records import Artifact, LogEntry, Session, as_dict
from quarterdeck.store.schema import session_artifacts, session_log, sessions
from quarterdeck.store.tx import Shape, Tx, record, within

_LOG = [session_log.c[name] for name in LogEntry.__slots__]
_ARTIFACT = [session_artifacts.c[name] for name in Artifact.__slots__]
_INSERT_LOG = insert(session_log)


def add(tx: Tx, session: Session) -> None:
    tx.write(insert(sessions), as_dict(session))


@cache
def _get(shape: Shape, lock: bool) -> Select[Any]:
    statement = select(sessions).where(sessions.c.id == bindparam("session_id"), *within(sessions, shape))
    return statement.with_for_update() if lock else statement


def get(tx: Tx, session_id: str, *, lock: bool = False) -> Session | None:
    """The caller's session; `lock` holds the row until the transaction ends."""
    row = tx.one(_get(tx.shape, lock), session_id=session_id)
    return None if row is None else record(Session, row)


def conversation(tx: Tx, session_id: str) -> Session | None:
    """The caller's newest session with the resident agent by its id, or by the agent's own."""
    statement = (
        select(sessions)
        .where(
            sessions.c.kind == "prompt",
            or_(sessions.c.id == session_id, sessions.c.agent_session_id == session_id),
            *within(sessions, tx.shape),
        )
        .order_by(sessions.c.created_at.desc())
        .limit(1)
    )
    row = tx.one(statement)
    return None if row is None else record(Session, row)


def _mine(tx: Tx, session_id: str) -> Select[Any]:
    """The id when it is a session of the caller, for the IN of rows that hang on it."""
    return select(sessions.c.id).where(sessions.c.id == session_id, *within(sessions, tx.shape))


def change(tx: Tx, session_id: str, values: Mapping[str, Any]) -> None:
    """Set columns of the caller's session."""
    tx.write(update(sessions).where(sessions.c.id == session_id, *within(sessions, tx.shape)), values)


def newest(
    tx: Tx, kind: str, count: int, *, plan_id: str | None = None, status: str | None = None
) -> list[Session]:
    """The caller's sessions of a kind, newest first."""
    conditions = [sessions.c.kind == kind, *within(sessions, tx.shape)]
    if plan_id is not None:
        conditions.append(sessions.c.plan_id == plan_id)
    if status is not None:
        conditions.append(sessions.c.status == status)
    statement = (
        select(sessions)
        .where(*conditions)
        .order_by(sessions.c.created_at.desc(), sessions.c.id.desc())
        .limit(count)
    )
    return [record(Session, row) for row in tx.all(statement)]


def idle(tx: Tx, kind: str, before: int, count: int) -> list[Session]:
    """Live sessions of every user with nothing since `before`, locked for this transaction."""
    statement = (
        select(sessions)
        .where(
            sessions.c.kind == kind,
            sessions.c.status.in_(("active", "paused")),
            sessions.c.active_at < before,
        )
        .order_by(sessions.c.active_at)
        .limit(count)
        .with_for_update(skip_locked=True)
    )
    return [record(Session, row) for row in tx.all(statement)]


def log(tx: Tx, entry: LogEntry) -> None:
    tx.write(_INSERT_LOG, as_dict(entry))


def entries(tx: Tx, session_id: str, types: Sequence[str], count: int) -> list[LogEntry]:
    """The newest entries of some types in the caller's session, oldest of them first."""
    statement = (
        select(*_LOG)
        .where(session_log.c.session_id.in_(_mine(tx, session_id)), session_log.c.type.in_(types))
        .order_by(session_log.c.n.desc())
        .limit(count)
    )
    return [record(LogEntry, row) for row in reversed(tx.all(statement))]


def counts(tx: Tx, session_id: str) -> dict[str, int]:
    """How many entries of each type the caller's session has."""
    statement = (
        select(session_log.c.type, func.count().label("tally"))
        .where(session_log.c.session_id.in_(_mine(tx, session_id)))
        .group_by(session_log.c.type)
    )
    return {row.type: row.tally for row in tx.all(statement)}


def add_artifact(tx: Tx, artifact: Artifact) -> None:
    tx.write(insert(session_artifacts), as_dict(artifact))


def artifacts(tx: Tx, session_id: str, count: int) -> list[Artifact]:
    """The newest artifacts of the caller's session, oldest of them first."""
    statement = (
        select(*_ARTIFACT)
        .where(session_artifacts.c.session_id.in_(_mine(tx, session_id)))
        .order_by(session_artifacts.c.n.desc())
        .limit(count)
    )
    return [record(Artifact, row) for row in reversed(tx.all(statement))]


def live_of_task(tx: Tx, task_id: str, kind: str) -> Session | None:
    """The newest session of a kind on the caller's task that has not ended."""
    statement = (
        select(sessions)
        .where(
            sessions.c.task_id == task_id,
            sessions.c.kind == kind,
            sessions.c.status == "active",
            *within(sessions, tx.shape),
        )
        .order_by(sessions.c.created_at.desc(), sessions.c.id.desc())
        .limit(1)
    )
    row = tx.one(statement)
    return None if row is None else record(Session, row)


def last_of_task(
    tx: Tx, task_id: str, agent: str, before: int | None = None, but: str | None = None
) -> Session | None:
    """The newest session of an agent on the caller's task, headless or with a person, ended or not.

    `before` is a time that it may not be younger than, `but` the id of one to leave out.
    """
    conditions = [
        sessions.c.task_id == task_id,
        sessions.c.agent == agent,
        sessions.c.kind.in_(("auto", "pair")),
        *within(sessions, tx.shape),
    ]
    if before is not None:
        conditions.append(sessions.c.created_at <= before)
    if but is not None:
        conditions.append(sessions.c.id != but)
    statement = (
        select(sessions)
        .where(*conditions)
        .order_by(sessions.c.created_at.desc(), sessions.c.id.desc())
        .limit(1)
    )
    row = tx.one(statement)
    return None if row is None else record(Session, row)
