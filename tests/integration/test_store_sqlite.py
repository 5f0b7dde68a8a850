"""SQLite when the disk, the file or the whole transaction gives way."""

from __future__ import annotations

import asyncio
import contextlib
import re
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text
from sqlalchemy.exc import IntegrityError, OperationalError

from quarterdeck.domain.errors import Conflict, Unavailable
from quarterdeck.events import ALL, Bus, Event
from quarterdeck.store import cards, runs, scratchpads, tasks, trail
from quarterdeck.store.db import Database, open_database
from quarterdeck.store.tx import Tx
from tests.store import ANN, add, ask, is_chained, new_task, opened, whole_log

IDS = [f"id-{number}" for number in range(100)]


@pytest.fixture
def url(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    # A batch then ends when nobody waits any more, however slow the machine is.
    monkeypatch.setattr("quarterdeck.store.sqlite._BATCH_SECONDS", 60)
    return f"sqlite:///{tmp_path / 'quarterdeck.db'}"


def in_one_batch(db: Database, *bodies: Callable[[Tx], Any]) -> asyncio.Future[list[Any]]:
    """Results and errors of bodies that the writer finds waiting, and so commits together."""
    return asyncio.gather(*(db.tx(ANN, body) for body in bodies), return_exceptions=True)


@contextlib.contextmanager
def busy(db: Database) -> Iterator[None]:
    """The writer works on something else for the time of the block; what is sent to it meanwhile waits."""
    held = threading.Event()
    working = asyncio.ensure_future(db.tx(ANN, lambda tx: held.wait(30)))
    try:
        yield
    finally:
        held.set()
        working.add_done_callback(lambda done: done.exception())


def leave_pages(tx: Tx, count: int) -> None:
    """Let the file grow by so many pages and no more."""
    pages = tx.conn.exec_driver_sql("PRAGMA page_count").scalar_one()
    tx.conn.exec_driver_sql(f"PRAGMA max_page_count = {pages + count}")


def make_room(tx: Tx) -> None:
    tx.conn.exec_driver_sql("PRAGMA max_page_count = 1000000")


def add_large(tx: Tx) -> str:
    return add(tx, new_task(description="x" * 20_000))


def test_a_full_disk_in_mid_batch_loses_nothing_that_was_acknowledged(url: str) -> None:
    async def run() -> None:
        seen: list[Event] = []
        bus = Bus()
        bus.on(ALL, seen.append)
        async with opened(url, bus) as db:
            acknowledged = {await db.tx(ANN, add)}
            failed = 0
            for _ in range(3):
                await db.tx(ANN, leave_pages, 30)
                with busy(db):
                    batch = in_one_batch(db, *[add_large] * 40)
                    await asyncio.sleep(0)
                for result in await batch:
                    if isinstance(result, str):
                        acknowledged.add(result)
                    else:
                        assert isinstance(result, Unavailable)
                        assert "full" in result.message
                        failed += 1
                await db.tx(ANN, make_room)
                acknowledged.add(await db.tx(ANN, add_large))
            assert failed
            assert {row[0] for row in ask(url, "select id from tasks")} == acknowledged
            events = await whole_log(db)
            assert {event.entity_id for event in events} == acknowledged
            assert is_chained(events)
            assert seen == events
        assert ask(url, "pragma integrity_check") == [("ok",)]

    asyncio.run(run())


def roll_back_everything(tx: Tx) -> None:
    taken = add(tx)
    statement = "insert or rollback into projects values (:id, 'ann', 'p', '', 1, 1, null, null)"
    for _ in range(2):
        tx.conn.execute(text(statement), {"id": taken})


def roll_back_everything_and_hide_it(tx: Tx) -> None:
    with contextlib.suppress(IntegrityError):
        roll_back_everything(tx)


def roll_back_everything_and_say_conflict(tx: Tx) -> None:
    try:
        roll_back_everything(tx)
    except IntegrityError as error:
        raise Conflict("taken") from error


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        (roll_back_everything, IntegrityError),
        (roll_back_everything_and_hide_it, sqlite3.OperationalError),
        (roll_back_everything_and_say_conflict, Conflict),
    ],
)
def test_an_operation_that_rolls_back_the_transaction_takes_its_batch_along_and_nobody_commits_alone(
    url: str, body: Callable[[Tx], None], kind: type[Exception]
) -> None:
    async def run() -> None:
        async with opened(url) as db:
            with busy(db):
                batch = in_one_batch(db, add, add, body, add, add)
                await asyncio.sleep(0)
            first, second, culprit, *later = await batch
            for undone in (first, second):
                assert isinstance(undone, Unavailable)
                assert undone.hint == "try again"
            assert first is not second
            assert isinstance(culprit, kind)
            assert all(isinstance(result, str) for result in later)
            assert {row[0] for row in ask(url, "select id from tasks")} == set(later)
            assert ask(url, "select count(*) from projects") == [(0,)]
            events = await whole_log(db)
            assert [event.entity_id for event in events] == later
            assert is_chained(events)

    asyncio.run(run())


def postpone_a_broken_key(tx: Tx) -> str:
    tx.conn.exec_driver_sql("PRAGMA defer_foreign_keys = ON")
    return add(tx, new_task(parent_task_id="nobody"))


def test_a_commit_that_fails_fails_every_caller_and_leaves_nothing(url: str) -> None:
    async def run() -> None:
        seen: list[Event] = []
        bus = Bus()
        bus.on(ALL, seen.append)
        async with opened(url, bus) as db:
            with busy(db):
                batch = in_one_batch(db, add, add, postpone_a_broken_key, add, add)
                await asyncio.sleep(0)
            assert [type(result) for result in await batch] == [Unavailable] * 5
            assert ask(url, "select count(*) from tasks") == [(0,)]
            assert await whole_log(db) == seen == []
            task_id = await db.tx(ANN, add)
            assert [event.entity_id for event in seen] == [task_id]
            assert is_chained(await whole_log(db))

    asyncio.run(run())


def test_a_log_that_grew_behind_the_writers_back_costs_one_batch(url: str) -> None:
    async def run() -> None:
        async with opened(url) as db, opened(url) as other:
            first = await db.tx(ANN, add)
            with pytest.raises(Unavailable):
                await other.tx(ANN, add)
            second = await other.tx(ANN, add)
            events = await whole_log(db)
            assert [event.entity_id for event in events] == [first, second]
            assert is_chained(events)

    asyncio.run(run())


def test_an_own_error_is_kept_when_the_batch_is_lost_afterwards(url: str) -> None:
    def refuse(tx: Tx) -> None:
        raise Conflict("mine")

    async def run() -> None:
        async with opened(url) as db:
            with busy(db):
                batch = in_one_batch(db, refuse, postpone_a_broken_key, add)
                await asyncio.sleep(0)
            assert [type(result) for result in await batch] == [Conflict, Unavailable, Unavailable]

    asyncio.run(run())


def test_a_mistake_in_a_statement_is_not_called_an_outage(url: str) -> None:
    def misspell(tx: Tx) -> None:
        tx.conn.execute(text("select * from taskz"))

    async def run() -> None:
        async with opened(url) as db:
            with pytest.raises(OperationalError, match="no such table"):
                await db.tx(ANN, misspell)
            with pytest.raises(OperationalError, match="no such table"):
                await db.read(ANN, misspell)

    asyncio.run(run())


def test_a_writer_waits_for_another_process_that_holds_the_file(url: str) -> None:
    async def run() -> None:
        async with opened(url) as db:
            other = sqlite3.connect(url.removeprefix("sqlite:///"), isolation_level=None)
            with contextlib.closing(other):
                other.execute("begin immediate")
                writing = asyncio.ensure_future(db.tx(ANN, add))
                assert await db.read(ANN, tasks.newest, 10, {}) == []
                assert not writing.done()
                other.execute("rollback")
                task_id = await writing
                assert ask(url, "select id from tasks") == [(task_id,)]

    asyncio.run(run())


def test_a_file_that_is_no_database_is_refused(tmp_path: Path) -> None:
    (tmp_path / "notes.db").write_text("Dear diary, " * 1000)

    async def run(path: Path, reason: str) -> None:
        db = open_database(f"sqlite:///{path}", Bus())
        with pytest.raises(Unavailable, match=reason):
            await db.start()
        with pytest.raises(Unavailable, match="closed"):
            await db.tx(ANN, add)
        await db.close()

    asyncio.run(run(tmp_path / "notes.db", "not a database"))
    asyncio.run(run(tmp_path / "nowhere" / "quarterdeck.db", "unable to open"))


WRITES_UNTIL_KILLED = """
import asyncio, sys
from quarterdeck.events import Bus
from quarterdeck.store.db import open_database
from tests.store import ANN, add

async def write(db):
    while True:
        print(await db.tx(ANN, add), flush=True)

async def main():
    db = open_database(sys.argv[1], Bus())
    await db.start()
    await asyncio.gather(*(write(db) for _ in range(8)))

asyncio.run(main())
"""


def test_what_was_acknowledged_outlives_a_killed_process(url: str) -> None:
    command = [sys.executable, "-c", WRITES_UNTIL_KILLED, url]
    root = Path(__file__).parents[2]
    with subprocess.Popen(command, cwd=root, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        acknowledged = {process.stdout.readline().strip() for _ in range(200)}
        process.kill()
        acknowledged |= {line.strip() for line in process.stdout if line.endswith("\n")}

    async def run() -> None:
        async with opened(url) as db:
            events = await whole_log(db)
            assert is_chained(events)
            kept = {row[0] for row in ask(url, "select id from tasks")}
            assert acknowledged <= kept
            assert kept == {event.entity_id for event in events}

    asyncio.run(run())


@pytest.mark.parametrize(
    "read",
    [
        lambda tx: cards.in_column(tx, ["pending", "failed"], {}, 100),
        lambda tx: cards.some(tx, IDS, {}),
        lambda tx: cards.runs_of(tx, IDS),
        lambda tx: runs.live(tx, ["QUEUED", "STALE"], 100),
        lambda tx: runs.over(tx, {}, 100),
        lambda tx: runs.titles_of(tx, IDS),
        lambda tx: tasks.page(tx, tasks.Wanted(statuses=["review"]), None, 50),
        lambda tx: tasks.some(tx, IDS),
        lambda tx: scratchpads.of(tx, IDS),
        lambda tx: trail.newest(tx, {"task": IDS[0]}, None, 50),
    ],
    ids=["column", "cards", "runs", "live", "over", "titles", "page", "tasks", "notes", "trail"],
)
def test_what_people_look_at_often_reads_none_of_the_rows_that_it_does_not_show(
    url: str, read: Callable[[Tx], object]
) -> None:
    def plans(tx: Tx) -> list[str]:
        database = tx.conn.connection.dbapi_connection
        assert isinstance(database, sqlite3.Connection)
        said: list[str] = []
        database.set_trace_callback(said.append)
        read(tx)
        database.set_trace_callback(None)
        asked = [each for each in said if each.startswith("SELECT")]
        assert asked
        return [row[3] for each in asked for row in database.execute(f"EXPLAIN QUERY PLAN {each}")]

    async def body() -> list[str]:
        async with opened(url) as db:
            await db.tx(ANN, add)
            return await db.read(ANN, plans)

    all_of_a_user = re.compile(
        r"(SCAN (tasks|jobs|events))|((tasks|jobs|events) USING .*INDEX \S+ \(user_id=\?\)$)"
    )
    steps = asyncio.run(body())
    assert not [step for step in steps if all_of_a_user.search(step)], steps
