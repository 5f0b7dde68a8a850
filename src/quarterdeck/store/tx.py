"""What a transaction body gets: the connection, the caller's scope, the clock and the events it leaves."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Concatenate, ParamSpec, TypeVar

from sqlalchemy import BindParameter, Table, bindparam, false, func, or_, select
from sqlalchemy.engine import Connection, CursorResult, Row
from sqlalchemy.sql import ColumnElement, Executable

from quarterdeck.domain.callers import Caller
from quarterdeck.domain.ids import now_us
from quarterdeck.events import Draft
from quarterdeck.store.kept import Kept, find
from quarterdeck.store.schema import tasks

P = ParamSpec("P")
T = TypeVar("T")

# Which filters a statement carries: (all users, one project, one task). Statements are built once a shape.
Shape = tuple[bool, bool, bool]


def shape_of(caller: Caller) -> Shape:
    return (caller.everyone, caller.project_id is not None, caller.task_id is not None)


def within(
    table: Table, shape: Shape, *, anchored: bool = False, by_ids: bool = False
) -> list[ColumnElement[bool]]:
    """The conditions that keep a statement on `table` to the caller's rows.

    `anchored` drops the project and task filter for rows reached through a row that passed it.
    `by_ids` is for statements that name their rows: SQLite would rather read all that a user has.
    """
    everyone, project, task = shape
    conditions: list[ColumnElement[bool]] = []
    if not everyone:
        # The function keeps the planner from the user's index.
        owner = func.coalesce(table.c.user_id, "") if by_ids else table.c.user_id
        conditions.append(owner == bindparam("caller_user"))
    if anchored:
        return conditions
    own_project = table.c.id if table.name == "projects" else table.c.get("project_id")
    if project:
        conditions.append(false() if own_project is None else own_project == bindparam("caller_project"))
    if task:
        conditions.append(_of_task(table))
    return conditions


def _of_task(table: Table) -> ColumnElement[bool]:
    """Whether a row belongs to the task a caller is bound to; a plan or project does through its task."""
    bound: BindParameter[Any] = bindparam("caller_task")
    if table.name == "tasks":
        return table.c.id == bound
    if table.name in ("projects", "repos"):
        project = select(tasks.c.project_id).where(tasks.c.id == bound).scalar_subquery()
        return (table.c.id if table.name == "projects" else table.c.project_id) == project
    plan = select(tasks.c.plan_id).where(tasks.c.id == bound).scalar_subquery()
    if table.name == "jobs":
        return or_(table.c.task_id == bound, table.c.id == bound)
    own, through = table.c.get("task_id"), table.c.id if table.name == "plans" else table.c.get("plan_id")
    links = [own == bound] if own is not None else []
    return or_(false(), *links, *([through == plan] if through is not None else []))


class Tx:
    """One operation. Everything it does is one savepoint: all of it is committed, or none."""

    __slots__ = ("caller", "conn", "dialect", "drafts", "now", "scope", "shape")

    def __init__(self, conn: Connection, caller: Caller, dialect: str) -> None:
        self.conn = conn
        self.caller = caller
        self.dialect = dialect
        self.now = now_us()
        self.drafts: list[Draft] = []
        self.shape = shape_of(caller)
        self.scope = {
            "caller_user": caller.user_id,
            "caller_project": caller.project_id,
            "caller_task": caller.task_id,
        }

    def write(self, statement: Executable, params: Mapping[str, Any] | Sequence[Mapping[str, Any]]) -> int:
        """Run an INSERT, UPDATE or DELETE; how many rows it touched."""
        if (kept := self._kept(statement)) is not None:
            return kept.write(self.conn, params)
        if isinstance(params, Mapping):
            params = {**self.scope, **params}
        result: CursorResult[Any] = self.conn.execute(statement, params)
        return result.rowcount

    def one(self, statement: Executable, **params: Any) -> Row[Any] | None:
        if (kept := self._kept(statement)) is not None:
            return next(iter(kept.rows(self.conn, {**self.scope, **params})), None)
        return self.conn.execute(statement, {**self.scope, **params}).one_or_none()

    def all(self, statement: Executable, **params: Any) -> Sequence[Row[Any]]:
        if (kept := self._kept(statement)) is not None:
            return kept.rows(self.conn, {**self.scope, **params})
        return self.conn.execute(statement, {**self.scope, **params}).all()

    def _kept(self, statement: Executable) -> Kept | None:
        return find(statement) if self.dialect == "sqlite" else None

    def emit(
        self,
        kind: str,
        entity_id: str | None,
        *,
        task_id: str | None = None,
        user_id: str | None = None,
        ok: bool = True,
        **data: Any,
    ) -> None:
        """Leave an event; it is numbered and written with this transaction, and delivered after COMMIT."""
        self.drafts.append(
            Draft(
                at=self.now,
                user_id=user_id or self.caller.user_id,
                actor=self.caller.actor,
                tool=self.caller.tool,
                kind=kind,
                entity_id=entity_id,
                task_id=task_id,
                ok=ok,
                data=data,
            )
        )


def record(kind: Callable[..., T], row: Row[Any]) -> T:
    """A row as the record of its columns."""
    return kind(*row)


def with_arguments(
    body: Callable[Concatenate[Tx, P], T], *args: P.args, **kwargs: P.kwargs
) -> Callable[[Tx], T]:
    """The body as a function of its `Tx` alone."""

    def run(tx: Tx) -> T:
        try:
            return body(tx, *args, **kwargs)
        except StopIteration as error:  # a future cannot carry it: its caller would wait for ever
            raise RuntimeError("a transaction body raised StopIteration") from error

    return run
