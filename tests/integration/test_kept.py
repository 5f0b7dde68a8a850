"""Statements that are run on SQLite's driver itself do what SQLAlchemy would do with them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import create_engine, select
from sqlalchemy.engine import Connection
from sqlalchemy.exc import IntegrityError, OperationalError

from quarterdeck.domain.ids import new_id
from quarterdeck.domain.records import Task, Transition
from quarterdeck.events import Draft
from quarterdeck.store import kept, log, schema, tasks
from quarterdeck.store.migrate import migrate
from quarterdeck.store.tx import Tx, record
from tests.store import ANN, BOB, new_task


@pytest.fixture
def conn(tmp_path: Path) -> Iterator[Connection]:
    engine = create_engine(f"sqlite:///{tmp_path / 'quarterdeck.db'}", isolation_level="AUTOCOMMIT")
    migrate(engine)
    with engine.connect() as connection:
        yield connection
    engine.dispose()


def seen_by_sqlalchemy(conn: Connection, table: Any, kind: Any) -> list[Any]:
    return [record(kind, row) for row in conn.execute(select(table).order_by(*table.primary_key))]


def test_rows_are_written_and_read_as_by_sqlalchemy(conn: Connection) -> None:
    tx = Tx(conn, ANN, "sqlite")
    made = [new_task(created_at=number, metadata={"n": [number, None, "ü"]}) for number in range(3)]
    made.append(new_task(status="review", priority="urgent", created_at=3))
    steps = [Transition(new_id(), task.id, None, "pending", "why", None, task.created_at) for task in made]
    for task, step in zip(made, steps, strict=True):
        tasks.add(tx, task)
        tasks.add_transition(tx, step)
    events = log.seal(
        [Draft(1, "ann", "ann", "t", "k", None, ok=ok, data={"a": [ok]}) for ok in (True, False)], 0, ""
    )
    log.append(tx, events)
    assert seen_by_sqlalchemy(conn, schema.tasks, Task) == sorted(made, key=lambda task: task.id)
    assert seen_by_sqlalchemy(conn, schema.transitions, Transition) == sorted(steps, key=lambda step: step.id)
    assert log.after(tx, 0) == events
    assert [tasks.get(tx, task.id) for task in made] == made
    assert tasks.get(tx, made[0].id, lock=True) == made[0]
    assert tasks.newest(tx, 2, {}) == made[:1:-1]
    assert tasks.newest(tx, 9, {"status": "review", "priority": "urgent"}) == made[3:]
    assert tasks.history(tx, made[1].id) == [steps[1]]


def test_other_users_rows_stay_unseen(conn: Connection) -> None:
    task = new_task()
    tasks.add(Tx(conn, ANN, "sqlite"), task)
    theirs = Tx(conn, BOB, "sqlite")
    assert tasks.get(theirs, task.id) is None
    assert tasks.newest(theirs, 9, {}) == []
    assert tasks.history(theirs, task.id) == []


def test_errors_are_those_of_sqlalchemy(conn: Connection) -> None:
    tx, task = Tx(conn, ANN, "sqlite"), new_task()
    tasks.add(tx, task)
    with pytest.raises(IntegrityError):
        tasks.add(tx, task)
    conn.exec_driver_sql("DROP TABLE transitions")
    with pytest.raises(OperationalError):
        tasks.history(tx, task.id)


def test_only_marked_statements_are_kept() -> None:
    assert kept.find(select(schema.tasks)) is None
    marked = kept.kept(select(schema.tasks))
    assert kept.find(marked) is kept.find(marked) is not None
