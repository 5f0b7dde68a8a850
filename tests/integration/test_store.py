"""What both databases promise: one transaction for rows and events, in order, told only after COMMIT."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import pytest
from sqlalchemy import create_engine, text
from sqlalchemy.exc import IntegrityError

from quarterdeck.domain.callers import SYSTEM
from quarterdeck.domain.errors import Conflict, Invalid, Unavailable
from quarterdeck.events import ALL, Bus, Event
from quarterdeck.store import log, tasks
from quarterdeck.store.db import Database, open_database
from quarterdeck.store.tx import Tx
from tests.store import ANN, add, ask, is_chained, new_task, opened, until, whole_log


async def all_at_once(db: Database, *bodies: Callable[[Tx], Any]) -> list[Any]:
    """The results and errors of bodies that wait behind one another, so that SQLite commits them together."""
    held = threading.Event()
    first = asyncio.ensure_future(db.tx(ANN, lambda tx: held.wait(30)))
    rest = [asyncio.ensure_future(db.tx(ANN, body)) for body in bodies]
    await asyncio.sleep(0)
    held.set()
    await first
    return await asyncio.gather(*rest, return_exceptions=True)


def test_rows_and_event_are_on_disk_when_the_result_is_there(database_url: str) -> None:
    async def run() -> None:
        async with opened(database_url) as db:
            for _ in range(5):
                task_id = await db.tx(ANN, add)
                assert ask(database_url, "select user_id from tasks where id = :id", id=task_id) == [("ann",)]
                assert ask(
                    database_url, "select actor, kind from events where entity_id = :id", id=task_id
                ) == [("ann", "task.created")]

    asyncio.run(run())


def refuse(tx: Tx) -> None:
    add(tx)
    raise Conflict("not now")


def stop_iterating(tx: Tx) -> None:
    add(tx)
    next(iter(()))


def leave_an_event_that_is_no_json(tx: Tx) -> None:
    add(tx)
    tx.emit("task.strange", None, value=object())


def leave_an_event_that_is_no_text(tx: Tx) -> None:
    add(tx)
    tx.emit("task.strange", "\udc80")


def break_a_constraint(tx: Tx) -> None:
    add(tx, new_task(parent_task_id="nobody"))
    add(tx)


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        (refuse, Conflict),
        (stop_iterating, RuntimeError),
        (leave_an_event_that_is_no_json, TypeError),
        (leave_an_event_that_is_no_text, UnicodeEncodeError),
        (break_a_constraint, IntegrityError),
    ],
)
def test_a_body_that_fails_leaves_nothing_and_its_neighbours_commit(
    database_url: str, body: Callable[[Tx], None], kind: type[Exception]
) -> None:
    async def run() -> None:
        seen: list[Event] = []
        bus = Bus()
        bus.on(ALL, seen.append)
        async with opened(database_url, bus) as db:
            results = await all_at_once(db, add, body, add, body, add)
            assert [type(result) for result in results] == [str, kind, str, kind, str]
            kept = {result for result in results if isinstance(result, str)}
            assert {row[0] for row in ask(database_url, "select id from tasks")} == kept
            events = await whole_log(db)
            assert {event.entity_id for event in events} == kept
            assert len(events) == 3
            assert is_chained(events)
            await until(lambda: len(seen) >= 3)
            assert seen == events

    asyncio.run(run())


def test_sixteen_writers_leave_one_dense_chain_that_is_delivered_in_order_after_commit(
    database_url: str,
) -> None:
    writers, each = 16, 50

    async def run() -> None:
        seen: list[Event] = []
        early: list[Event] = []
        bus = Bus()
        engine = create_engine(database_url.replace("postgresql:", "postgresql+psycopg:"))
        with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as outside:

            def deliver(event: Event) -> None:
                seen.append(event)
                known = text("select count(*) from tasks where id = :id")
                if outside.execute(known, {"id": event.entity_id}).scalar_one() != 1:
                    early.append(event)

            bus.on(ALL, deliver)
            async with opened(database_url, bus) as db:

                async def write() -> list[str]:
                    return [await db.tx(ANN, add) for _ in range(each)]

                written = await asyncio.gather(*(write() for _ in range(writers)))
                await until(lambda: len(seen) >= writers * each)
                events = await whole_log(db)
        engine.dispose()
        assert len(events) == writers * each
        assert is_chained(events)
        assert seen == events
        assert early == []
        assert sorted(str(event.entity_id) for event in events) == sorted(sum(written, []))

    asyncio.run(run())


def test_the_chain_goes_on_after_a_restart(database_url: str) -> None:
    async def run() -> None:
        for _ in range(3):
            async with opened(database_url) as db:
                await asyncio.gather(*(db.tx(ANN, add) for _ in range(5)))
        async with opened(database_url) as db:
            events = await whole_log(db)
            assert len(events) == 15
            assert is_chained(events)
            changed = [*events[:7], Event(**{**as_dict(events[7]), "actor": "mallory"}), *events[8:]]
            assert not is_chained(changed)

    asyncio.run(run())


def as_dict(event: Event) -> dict[str, Any]:
    return {name: getattr(event, name) for name in Event.__slots__}


def test_events_of_before_the_start_are_not_delivered_again(database_url: str) -> None:
    async def run() -> None:
        async with opened(database_url) as db:
            await db.tx(ANN, add)
        seen: list[Event] = []
        bus = Bus()
        bus.on(ALL, seen.append)
        async with opened(database_url, bus) as db:
            await db.tx(ANN, add)
            await until(lambda: bool(seen))
        assert [event.seq for event in seen] == [2]

    asyncio.run(run())


def test_a_handler_that_fails_stops_neither_the_write_nor_the_other_handlers(database_url: str) -> None:
    async def run() -> None:
        seen: list[Event] = []
        bus = Bus()
        bus.on(ALL, lambda event: [][event.seq])
        bus.on("task.created", seen.append)
        async with opened(database_url, bus) as db:
            await asyncio.wait_for(asyncio.gather(db.tx(ANN, add), db.tx(ANN, add)), 60)
            await until(lambda: len(seen) >= 2)
        assert [event.seq for event in seen] == [1, 2]

    asyncio.run(run())


def test_a_reading_body_that_fails_leaves_its_reader_in_order(database_url: str) -> None:
    async def run() -> None:
        async with opened(database_url) as db:
            task_id = await db.tx(ANN, add)
            for body, kind in ((refuse, Exception), (stop_iterating, Exception)):
                failed = await asyncio.gather(
                    *(db.read(ANN, body) for _ in range(20)), return_exceptions=True
                )
                assert all(isinstance(result, kind) for result in failed)
            found = await asyncio.gather(*(db.read(ANN, tasks.get, task_id) for _ in range(20)))
            assert all(task is not None for task in found)
            assert ask(database_url, "select count(*) from tasks") == [(1,)]

    asyncio.run(run())


def test_a_reading_body_sees_one_moment_and_a_later_one_the_next(database_url: str) -> None:
    async def run() -> None:
        begun, written = threading.Event(), threading.Event()

        def look(tx: Tx) -> tuple[int, int]:
            before = len(log.after(tx, 0))
            begun.set()
            written.wait(30)
            return before, len(log.after(tx, 0))

        async with opened(database_url) as db:
            await db.tx(ANN, add)
            looking = asyncio.ensure_future(db.read(SYSTEM, look))
            await asyncio.to_thread(begun.wait, 30)
            await db.tx(ANN, add)
            written.set()
            assert await looking == (1, 1)
            assert len(await whole_log(db)) == 2

    asyncio.run(run())


def test_a_caller_who_leaves_disturbs_nobody(database_url: str) -> None:
    async def run() -> None:
        async with opened(database_url) as db:
            held = threading.Event()
            gone = asyncio.ensure_future(db.tx(ANN, lambda tx: (held.wait(30), add(tx))))
            stays = asyncio.ensure_future(db.tx(ANN, add))
            await asyncio.sleep(0)
            gone.cancel()
            held.set()
            assert await stays
            assert is_chained(await whole_log(db))

    asyncio.run(run())


def test_closing_finishes_what_was_accepted(database_url: str) -> None:
    async def run() -> None:
        db = open_database(database_url, Bus())
        await db.start()
        writes = [asyncio.ensure_future(db.tx(ANN, add)) for _ in range(100)]
        reads = [asyncio.ensure_future(db.read(ANN, lambda tx: 7)) for _ in range(20)]
        await asyncio.sleep(0)
        await db.close()
        done = {row[0] for row in ask(database_url, "select id from tasks")}
        assert set(await asyncio.gather(*writes)) == done
        assert len(done) == 100
        assert await asyncio.gather(*reads) == [7] * 20
        for refused in (db.tx(ANN, add), db.read(ANN, lambda tx: 7)):
            with pytest.raises(Unavailable, match="closed"):
                await refused
        await db.close()

    before = threading.active_count()
    asyncio.run(run())
    assert threading.active_count() == before


VALUES = [
    None,
    False,
    0,
    -0.0,
    "",
    [],
    {},
    0.1 + 0.2,
    5e-324,
    1.7976931348623157e308,
    2**53 + 1,
    -(2**63),
    10**40,
    "Zürich 東京 👩‍🚀 \u0000 \u2028 \\ \" '",
    {"z": 1, "a": {"y": None, "b": [True, {"": "empty"}]}, "2": 2, "10": 1},
    [[[[[[[["deep"]]]]]]]],
]


def test_json_values_come_back_exactly(database_url: str) -> None:
    async def run() -> None:
        async with opened(database_url) as db:
            for value in VALUES:
                task = new_task(metadata={"value": value})
                await db.tx(ANN, add, task)
                found = await db.read(ANN, tasks.get, task.id)
                assert found is not None
                assert repr(found.metadata) == repr({"value": value})

                def leave(tx: Tx, value: Any = value) -> None:
                    tx.emit("value.left", None, value=value)

                await db.tx(ANN, leave)
                assert repr((await whole_log(db))[-1].data) == repr({"value": value})
            assert is_chained(await whole_log(db))

    asyncio.run(run())


@pytest.mark.parametrize("url", ["mysql://host/x", "sqlite://", "quarterdeck.db", ""])
def test_a_url_of_another_kind_is_refused(url: str) -> None:
    async def run() -> None:
        with pytest.raises(Invalid, match="database URL") as refused:
            open_database(url, Bus())
        assert refused.value.field == "database.url"

    asyncio.run(run())
