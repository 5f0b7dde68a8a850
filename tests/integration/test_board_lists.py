"""Lists of the board at 100,000 tasks: a page costs the same, whichever way it is filtered."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import insert, text

from quarterdeck.domain.callers import Caller
from quarterdeck.domain.records import Task
from quarterdeck.store import tasks as rows
from quarterdeck.store.schema import metadata
from quarterdeck.store.tasks import Wanted
from quarterdeck.store.tx import Tx
from tests.store import ANN, BOB, opened

MANY = 100_000
PAGE = 50
# Instructions of SQLite's machine: a page takes some thousands, a walk over all tasks some millions.
FEW = 60_000

Page = list[Task]


WAITING_OR_DONE = ("pending", "completed", "failed", "cancelled")


def status_of(number: int) -> str:
    """One in a thousand is in review, the rest are done or wait."""
    return "review" if number % 997 == 0 else WAITING_OR_DONE[number // 3 % 4]


def project_of(number: int) -> str | None:
    return "small" if number % 5000 == 0 else "large" if number % 2 else None


# The same in the words of SQLite, which makes them in a tenth of the time.
TASKS = f"""
INSERT INTO tasks (id, user_id, title, status, priority, project_id, metadata, created_at, updated_at)
WITH RECURSIVE numbers(n) AS (SELECT 0 UNION ALL SELECT n + 1 FROM numbers WHERE n < {MANY - 1})
SELECT printf('t%06d', n), iif(n % 10 = 9, 'bob', 'ann'), 'Task ' || n,
    CASE WHEN n % 997 = 0 THEN 'review' WHEN n / 3 % 4 = 0 THEN 'pending'
        WHEN n / 3 % 4 = 1 THEN 'completed' WHEN n / 3 % 4 = 2 THEN 'failed' ELSE 'cancelled' END,
    'medium', CASE WHEN n % 5000 = 0 THEN 'small' WHEN n % 2 = 1 THEN 'large' END, '{{}}', n / 3, n
FROM numbers
"""


def fill(tx: Tx) -> None:
    for project in ("small", "large"):
        row = {"id": project, "user_id": "ann", "name": project, "description": ""}
        tx.write(insert(metadata.tables["projects"]), {**row, "created_at": 1, "updated_at": 1})
    tx.write(text(TASKS), {})


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A database with very many tasks."""
    path: Path = tmp_path_factory.mktemp("store") / "quarterdeck.db"

    async def run() -> None:
        async with opened(f"sqlite:///{path}") as db:
            await db.tx(ANN, fill)

    asyncio.run(run())
    yield f"sqlite:///{path}"


def measured(tx: Tx, body: Callable[[Tx], Page]) -> tuple[Page, int]:
    """What a body finds, and how many instructions SQLite needed for it."""
    connection: Any = tx.conn.connection.driver_connection
    assert isinstance(connection, sqlite3.Connection)
    steps = 0

    def count() -> int:
        nonlocal steps
        steps += 100
        return 0

    connection.set_progress_handler(count, 100)
    try:
        return body(tx), steps
    finally:
        connection.set_progress_handler(None, 0)


def read(url: str, caller: Caller, body: Callable[[Tx], Page]) -> tuple[Page, int]:
    async def run() -> tuple[Page, int]:
        async with opened(url) as db:
            return await db.read(caller, measured, body)

    return asyncio.run(run())


WANTED = {
    "everything": Wanted(),
    "a common column": Wanted(statuses=("completed", "cancelled")),
    "a rare column": Wanted(statuses=("review",)),
    "a large project": Wanted(project_id="large"),
    "a small project": Wanted(project_id="small"),
    "a column of a small project": Wanted(project_id="small", statuses=("completed", "cancelled")),
    "a column of a large project": Wanted(project_id="large", statuses=("pending", "approved", "failed")),
}


@pytest.mark.parametrize("name", WANTED)
def test_a_page_is_right_and_reads_few_rows(url: str, name: str) -> None:
    wanted = WANTED[name]
    everything = [
        number
        for number in range(MANY)
        if number % 10 != 9
        and (not wanted.statuses or status_of(number) in wanted.statuses)
        and (wanted.project_id is None or project_of(number) == wanted.project_id)
    ]
    expected = [
        f"t{number:06}" for number in sorted(everything, key=lambda n: (n // 3, f"t{n:06}"), reverse=True)
    ]
    first, steps = read(url, ANN, lambda tx: rows.page(tx, wanted, None, PAGE))
    assert [task.id for task in first] == expected[:PAGE]
    assert steps < FEW
    middle = len(expected) // 2
    number = int(expected[middle][1:])
    later, steps = read(url, ANN, lambda tx: rows.page(tx, wanted, (number // 3, expected[middle]), PAGE))
    assert [task.id for task in later] == expected[middle + 1 : middle + 1 + PAGE]
    assert steps < FEW


def test_pages_meet_without_gap_or_overlap(url: str) -> None:
    def body(tx: Tx) -> Page:
        found: Page = []
        before = None
        for _ in range(5):
            page = rows.page(tx, Wanted(), before, PAGE)
            before = (page[-1].created_at, page[-1].id)
            found += page
        return found

    found, _ = read(url, ANN, body)
    at_once, _ = read(url, ANN, lambda tx: rows.page(tx, Wanted(), None, 5 * PAGE))
    assert found == at_once
    assert len({task.id for task in found}) == 5 * PAGE


def test_a_list_holds_one_users_tasks_only(url: str) -> None:
    found, steps = read(url, BOB, lambda tx: rows.page(tx, Wanted(), None, PAGE))
    assert {task.user_id for task in found} == {"bob"}
    assert steps < FEW
    assert read(url, BOB, lambda tx: rows.page(tx, Wanted(project_id="small"), None, PAGE))[0] == []


def test_the_other_filters_narrow_a_list(url: str) -> None:
    def ids(wanted: Wanted) -> list[str]:
        return [task.id for task in read(url, ANN, lambda tx: rows.page(tx, wanted, None, 3))[0]]

    newest = ids(Wanted())
    assert ids(Wanted(excluded=newest[:2]))[0] == newest[2]
    assert ids(Wanted(text="TASK 12345")) == ["t012345"]
    assert ids(Wanted(text="100%")) == []
    assert ids(Wanted(priority="urgent")) == []
    assert ids(Wanted(agent="codex")) == []
