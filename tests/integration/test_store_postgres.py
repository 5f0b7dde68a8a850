"""PostgreSQL with more than one core, with connections that break and a server that goes away."""

from __future__ import annotations

import asyncio
import contextlib
import select
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from urllib.parse import urlsplit

import psycopg
import pytest
from sqlalchemy import text
from sqlalchemy.exc import ProgrammingError

from quarterdeck.domain.errors import Unavailable
from quarterdeck.events import ALL, Bus, Draft, Event
from quarterdeck.store import log, tasks
from quarterdeck.store.db import open_database
from quarterdeck.store.postgres import _ORDER
from quarterdeck.store.tx import Tx
from tests.postgres import Postgres
from tests.store import ANN, add, ask, is_chained, new_task, opened, until, whole_log

CUT = "select pg_terminate_backend(pid) from pg_stat_activity where pid <> pg_backend_pid() and datname = "


@pytest.fixture(scope="module")
def server() -> Iterator[Postgres]:
    """One that may be stopped."""
    with Postgres(durable=True) as own:
        yield own


@pytest.fixture
def url(postgres: Postgres, postgres_template: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    # Whatever arrives then came with its notification, not with the regular look at the log.
    monkeypatch.setattr("quarterdeck.store.postgres._RECHECK_SECONDS", 3600)
    url = postgres.create_database(postgres_template)
    yield url
    postgres.drop_database(url)


def listened() -> tuple[Bus, list[Event]]:
    bus, seen = Bus(), list[Event]()
    bus.on(ALL, seen.append)
    return bus, seen


def cut_all_connections(url: str) -> None:
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(CUT.encode() + b"current_database()")


def test_two_cores_share_one_chain_and_both_hear_all_of_it_in_order(url: str) -> None:
    async def run() -> None:
        (one_bus, one_heard), (two_bus, two_heard) = listened(), listened()
        async with opened(url, one_bus) as one, opened(url, two_bus) as two:

            async def write(db_number: int) -> None:
                for _ in range(25):
                    await (one, two)[db_number % 2].tx(ANN, add)

            await asyncio.gather(*(write(number) for number in range(16)))
            await until(lambda: len(one_heard) >= 400 and len(two_heard) >= 400)
            events = await whole_log(one)
            assert len(events) == 400
            assert is_chained(events)
            assert one_heard == two_heard == events

    asyncio.run(run())


def test_of_two_that_make_the_same_the_second_sees_the_first(url: str) -> None:
    task, met = new_task(), threading.Barrier(2)

    def made(tx: Tx) -> bool:
        if tasks.get(tx, task.id) is not None:
            return False
        with contextlib.suppress(threading.BrokenBarrierError):  # the one that is run again is alone
            met.wait(30)
            met.abort()
        add(tx, task)
        return True

    async def run() -> None:
        async with opened(url) as one, opened(url) as two:
            assert sorted(await asyncio.gather(one.tx(ANN, made), two.tx(ANN, made))) == [False, True]
            assert len(await whole_log(one)) == 1

    asyncio.run(run())


def test_cut_connections_lose_no_event_and_repeat_none(url: str) -> None:
    async def run() -> None:
        bus, heard = listened()
        async with opened(url, bus) as db:
            acknowledged: list[str] = []
            unknown = 0

            async def write() -> None:
                nonlocal unknown
                for _ in range(40):
                    try:
                        acknowledged.append(await db.tx(ANN, add))
                    except Unavailable:
                        unknown += 1

            async def cut() -> None:
                for _ in range(8):
                    await asyncio.to_thread(cut_all_connections, url)
                    await asyncio.sleep(0.05)

            await asyncio.gather(cut(), *(write() for _ in range(8)))
            last = await db.tx(ANN, add)
            await until(lambda: bool(heard) and heard[-1].entity_id == last)
            events = await whole_log(db)
            assert heard == events
            assert is_chained(events)
            written = [event.entity_id for event in events]
            assert len(written) == len(set(written)) <= len(acknowledged) + 1 + unknown
            assert {*acknowledged, last} <= set(written)
            assert {row[0] for row in ask(url, "select id from tasks")} == set(written)

    asyncio.run(run())


def test_a_cut_listener_comes_back_and_delivers_what_it_missed(url: str) -> None:
    async def run() -> None:
        bus, heard = listened()
        async with opened(url, bus) as db:
            await db.tx(ANN, add)
            await until(lambda: len(heard) == 1)
            for round_number in range(3):
                assert ask(url, CUT + "current_database() and query like 'LISTEN%'") == [(True,)]
                await db.tx(ANN, add)
                await until(lambda wanted=round_number + 2: len(heard) == wanted)  # type: ignore[misc]
                await until(listening)
            assert heard == await whole_log(db)

    async def listening() -> bool:
        query = "select 1 from pg_stat_activity where datname = current_database() and query like 'LISTEN%'"
        return bool(await asyncio.to_thread(ask, url, query))

    asyncio.run(run())


def test_an_event_whose_notification_is_lost_comes_with_the_next_look(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("quarterdeck.store.postgres._RECHECK_SECONDS", 0.01)

    def append_in_silence(tx: Tx) -> None:
        log.append(tx, log.seal([Draft(1, "ann", "ann", "", "task.created", "x")], *log.tip(tx)))

    async def run() -> None:
        bus, heard = listened()
        async with opened(url, bus) as db:
            await db.tx(ANN, append_in_silence)
            await until(lambda: [event.entity_id for event in heard] == ["x"])

    asyncio.run(run())


def test_a_connection_lost_before_commit_is_tried_again(url: str) -> None:
    async def run() -> None:
        tries = 0

        def lose_it_once(tx: Tx) -> str:
            nonlocal tries
            tries += 1
            task_id = add(tx)
            if tries == 1:
                tx.conn.execute(text("select pg_terminate_backend(pg_backend_pid())"))
            return task_id

        async with opened(url) as db:
            task_id = await db.tx(ANN, lose_it_once)
            assert tries == 2
            assert ask(url, "select id from tasks") == [(task_id,)]
            assert [event.entity_id for event in await whole_log(db)] == [task_id]

            def lose_it_always(tx: Tx) -> None:
                add(tx)
                tx.conn.execute(text("select pg_terminate_backend(pg_backend_pid())"))

            with pytest.raises(Unavailable):
                await db.tx(ANN, lose_it_always)
            assert ask(url, "select count(*) from tasks") == [(1,)]

    asyncio.run(run())


@contextlib.contextmanager
def losing_the_answer_to_commit(url: str) -> Iterator[str]:
    """The URL of a wire to the server that breaks between the first COMMIT and its answer."""
    host, port = urlsplit(url).hostname, urlsplit(url).port
    broken = threading.Event()

    def carry(client: socket.socket) -> None:
        with client, socket.create_connection((host, port)) as server:
            committing = False
            while True:
                for end in select.select([client, server], [], [])[0]:
                    data = end.recv(65536)
                    if not data or (end is server and committing):
                        return
                    if end is client and b"COMMIT\0" in data and not broken.is_set():
                        broken.set()
                        committing = True
                    (server if end is client else client).sendall(data)

    def accept() -> None:
        with contextlib.suppress(OSError):  # it is shut down at the end
            while True:
                threads.submit(carry, wire.accept()[0])

    with ThreadPoolExecutor(32) as threads, socket.create_server(("127.0.0.1", 0)) as wire:
        threads.submit(accept)
        try:
            yield url.replace(f":{port}/", f":{wire.getsockname()[1]}/")
        finally:
            wire.shutdown(socket.SHUT_RDWR)


def test_a_commit_whose_answer_is_lost_is_not_done_again(url: str) -> None:
    async def run() -> None:
        tries = 0

        def count(tx: Tx) -> str:
            nonlocal tries
            tries += 1
            return add(tx)

        async with opened(wire) as db:
            with pytest.raises(Unavailable, match="while the change was committed") as lost:
                await db.tx(ANN, count)
            assert lost.value.hint is not None
            assert "before you try again" in lost.value.hint
            assert tries == 1
            assert ask(url, "select count(*) from tasks") == [(1,)]
            await db.tx(ANN, count)
            assert tries == 2
            assert is_chained(await whole_log(db))

    with losing_the_answer_to_commit(url) as wire:
        asyncio.run(run())


def test_two_transactions_that_lock_each_other_out_both_succeed(url: str) -> None:
    async def run() -> None:
        async with opened(url) as db:
            ids = [await db.tx(ANN, add) for _ in range(2)]
            barrier = asyncio.Barrier(2)
            loop = asyncio.get_running_loop()
            tries = 0

            def both(tx: Tx, first: str, second: str) -> None:
                nonlocal tries
                tries += 1
                tasks.get(tx, first, lock=True)
                if tries <= 2:
                    asyncio.run_coroutine_threadsafe(barrier.wait(), loop).result(30)
                tasks.get(tx, second, lock=True)

            await asyncio.gather(db.tx(ANN, both, *ids), db.tx(ANN, both, *reversed(ids)))
            assert tries == 3

    asyncio.run(run())


def test_a_stopped_server_is_an_outage_and_a_started_one_is_used_again(server: Postgres) -> None:
    url = server.create_database()

    async def run() -> None:
        bus, heard = listened()
        async with opened(url, bus) as db:
            await db.tx(ANN, add)
            for immediate in (False, True):
                await asyncio.to_thread(server.stop, immediate)
                for call in (db.tx(ANN, add), db.read(ANN, tasks.newest, 1, {}), db.tx(ANN, add)):
                    with pytest.raises(Unavailable) as away:
                        await call
                    assert "quarterdeck" not in away.value.message
                    assert "127.0.0.1" not in away.value.message
                await asyncio.to_thread(server.start)
                await db.tx(ANN, add)
            await until(lambda: len(heard) == 3)
            assert heard == await whole_log(db)

    asyncio.run(run())


def test_a_core_starts_and_stops_in_order_without_a_server(server: Postgres) -> None:
    url = server.create_database()

    async def run() -> None:
        async with opened(url) as db:
            await db.tx(ANN, add)
            await asyncio.to_thread(server.stop)
        late = open_database(url, Bus())
        with pytest.raises(Unavailable):
            await late.start()
        await late.close()

    try:
        asyncio.run(run())
    finally:
        server.start()


def test_a_mistake_in_a_statement_is_not_called_an_outage(url: str) -> None:
    def misspell(tx: Tx) -> None:
        tx.conn.execute(text("select * from taskz"))

    async def run() -> None:
        async with opened(url) as db:
            with pytest.raises(ProgrammingError, match="does not exist"):
                await db.tx(ANN, misspell)
            assert await db.tx(ANN, add)

    asyncio.run(run())


def test_more_writers_than_connections_all_get_through(url: str) -> None:
    async def run() -> None:
        bus, heard = listened()
        async with opened(url, bus) as db:
            await asyncio.gather(*(db.tx(ANN, add) for _ in range(60)))
            await until(lambda: len(heard) == 60)

    asyncio.run(run())


def test_a_process_that_is_stopped_in_mid_transaction_does_not_hold_up_the_others_for_ever(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("quarterdeck.store.postgres._OPTIONS", "-c idle_in_transaction_session_timeout=300")
    begun, go_on = threading.Event(), threading.Event()

    def stopped(tx: Tx) -> str:
        tx.conn.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": _ORDER})
        if not begun.is_set():
            begun.set()
            go_on.wait(60)
        return add(tx)

    async def run() -> None:
        async with opened(url) as db:
            late = asyncio.create_task(db.tx(ANN, stopped))
            await until(begun.is_set)
            first = await db.tx(ANN, add)
            go_on.set()
            second = await late
            assert [event.entity_id for event in await whole_log(db)] == [first, second]

    asyncio.run(run())
