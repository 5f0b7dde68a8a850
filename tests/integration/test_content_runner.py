"""Content jobs and the workers they lose: leases, fences, heartbeats, a stop in the middle."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from quarterdeck.core import batches, content
from quarterdeck.core.content_runner import ContentRunner, _reap, held
from quarterdeck.domain.callers import SYSTEM
from quarterdeck.domain.errors import Conflict
from quarterdeck.domain.ids import now_us
from quarterdeck.domain.jobs import MAX_ATTEMPTS
from quarterdeck.domain.records import Job
from quarterdeck.events import Bus
from quarterdeck.store import content as rows
from quarterdeck.store import jobs
from quarterdeck.store.db import open_database
from quarterdeck.store.tx import Tx
from tests.integration.content_core import (
    ANN,
    ARTICLE,
    LOCAL,
    asked_for,
    content_core,
    ended,
    put_batch,
    set_keys,
    until,
)
from tests.model_server import ModelServer, Reply

THREE = ("alpha", "beta", "gamma")


@pytest.fixture
def server() -> Iterator[ModelServer]:
    with ModelServer() as server:
        server.answer = lambda asked: Reply(ARTICLE)
        yield server


@pytest.fixture(autouse=True)
def keys(monkeypatch: pytest.MonkeyPatch) -> None:
    set_keys(monkeypatch)


def test_a_core_that_stops_gives_the_job_back_and_the_next_goes_on(
    server: ModelServer, tmp_path: Path, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    put_batch(tmp_path, "first", *THREE)
    gate = threading.Event()
    server.script("gemini", Reply(ARTICLE), Reply(ARTICLE, gate=gate))

    async def stop_in_the_middle() -> None:
        async with content_core(tmp_path, server, database_url=database_url) as core:
            await batches.start(core, ANN, "first")
            await until(lambda: len(server.requests) == 2)

    async def go_on() -> None:
        async with content_core(tmp_path, server, database_url=database_url) as core:
            [left] = (await batches.status(core, ANN)).runs
            done = await ended(core, ANN, left)
            assert (done.job.state, done.job.attempt) == ("SUCCEEDED", 1), "giving back is no lost attempt"
            assert (await content.usage(core, ANN, "day")).total.requests == 3

    defaults = ContentRunner.__init__.__kwdefaults__
    assert defaults is not None
    monkeypatch.setitem(defaults, "grace_seconds", 0.2)
    asyncio.run(stop_in_the_middle())
    gate.set()
    asyncio.run(go_on())
    assert asked_for(server) == ["alpha", "beta", "beta", "gamma"]


def test_an_article_in_flight_is_finished_before_a_core_stops(server: ModelServer, tmp_path: Path) -> None:
    put_batch(tmp_path, "first", *THREE)
    server.script("gemini", Reply(ARTICLE, delay=0.5))

    async def run() -> None:
        async with content_core(tmp_path, server) as core:
            await batches.start(core, ANN, "first")
            await until(lambda: len(server.requests) == 1)
        async with content_core(tmp_path, server) as core:
            [left] = (await batches.status(core, ANN)).runs
            await ended(core, ANN, left)
        assert asked_for(server) == list(THREE)

    asyncio.run(run())


def test_a_worker_that_lost_its_job_cannot_write_to_it(database_url: str) -> None:
    def queue(tx: Tx) -> str:
        spec = {"type": "articles", "provider": "gemini"}
        return batches._queue(tx, "ann", spec, [("alpha", "Alpha", None)]).job.id

    def claim(tx: Tx, worker: str, lease_us: int) -> Job:
        job = jobs.claim(tx, [batches.KIND], worker, lease_us)
        assert job is not None
        return job

    def write(tx: Tx, job: Job) -> None:
        held(tx, job)
        rows.change_item(tx, rows.items_of(tx, job.id)[0], {"status": "completed", "content": "x"})

    async def run() -> None:
        db = open_database(database_url, Bus())
        await db.start()
        try:
            job_id = await db.tx(ANN, queue)
            late = await db.tx(SYSTEM, claim, "late", -1)
            assert (late.id, late.attempt, late.worker, late.state) == (job_id, 1, "late", "RUNNING")
            await db.tx(SYSTEM, _reap, everyone=False)
            fresh = await db.tx(SYSTEM, claim, "fresh", 60_000_000)
            assert (fresh.id, fresh.attempt) == (job_id, 2)
            with pytest.raises(Conflict):
                await db.tx(SYSTEM, write, late)
            assert (await db.read(SYSTEM, rows.items_of, job_id))[0].status == "pending"
            await db.tx(SYSTEM, write, fresh)
            assert (await db.read(SYSTEM, rows.items_of, job_id))[0].status == "completed"
        finally:
            await db.close()

    asyncio.run(run())


def test_a_job_whose_worker_went_away_is_adopted_when_its_lease_ends(
    server: ModelServer, tmp_path: Path, database_url: str
) -> None:
    put_batch(tmp_path, "first", *THREE)

    async def run() -> None:
        async with content_core(tmp_path, server, database_url=database_url) as core:
            queued = await batches.start(core, ANN, "first")
            await ended(core, ANN, queued)

            def back(tx: Tx) -> None:
                job = jobs.get(tx, queued.job.id)
                assert job is not None
                gone = {"state": "RUNNING", "worker": "gone", "lease_until": now_us() + 300_000}
                jobs.change(tx, job, gone)
                rows.change_item(tx, rows.items_of(tx, job.id)[2], {"status": "pending", "content": None})

            await core.db.tx(SYSTEM, back)
            runner = ContentRunner(core, lease_seconds=0.5, heartbeat_seconds=0.1)
            runner.start()
            done = await ended(core, ANN, queued)
            assert (done.job.state, done.job.attempt) == ("SUCCEEDED", 2)
            assert asked_for(server) == [*THREE, "gamma"]
            await runner.close()

    asyncio.run(run())


def test_a_heartbeat_keeps_a_long_article_from_being_taken(
    server: ModelServer, tmp_path: Path, database_url: str
) -> None:
    put_batch(tmp_path, "first", "alpha")
    server.script("gemini", Reply(ARTICLE, delay=5))

    async def run() -> None:
        async with content_core(tmp_path, server, database_url=database_url) as core:
            runners = [ContentRunner(core, lease_seconds=4, heartbeat_seconds=0.2) for _ in range(3)]
            for runner in runners:
                runner.start()
            done = await ended(core, ANN, await batches.start(core, ANN, "first"))
            assert (done.job.state, done.job.attempt) == ("SUCCEEDED", 1)
            assert len(server.requests) == 1
            for runner in runners:
                await runner.close()

    asyncio.run(run())


def test_a_job_that_is_taken_away_ends_the_work_but_not_the_bill(server: ModelServer, tmp_path: Path) -> None:
    put_batch(tmp_path, "first", *THREE)
    gate = threading.Event()
    server.script("gemini", Reply(ARTICLE, gate=gate))

    async def run() -> None:
        async with content_core(tmp_path, server) as core:
            queued = await batches.start(core, ANN, "first")
            await until(lambda: len(server.requests) == 1)

            def cancel(tx: Tx) -> None:
                job = jobs.get(tx, queued.job.id)
                assert job is not None
                jobs.change(tx, job, {"state": "CANCELED", "finished_at": tx.now})

            await core.db.tx(SYSTEM, cancel)
            gate.set()
            async with asyncio.timeout(30):
                while (await content.usage(core, ANN, "day")).total.requests < 1:
                    await asyncio.sleep(0.02)
            [shown] = (await batches.batch_status(core, ANN, "first")).runs
            assert (shown.job.state, shown.counts) == ("CANCELED", {"pending": 3})
            assert len(server.requests) == 1

    asyncio.run(run())


def test_a_job_that_loses_worker_after_worker_is_given_up(server: ModelServer, tmp_path: Path) -> None:
    put_batch(tmp_path, "first", *THREE)

    async def run() -> None:
        async with content_core(tmp_path, server) as core:
            queued = await batches.start(core, ANN, "first")
            await ended(core, ANN, queued)

            def lost_again(tx: Tx) -> None:
                job = jobs.get(tx, queued.job.id)
                assert job is not None
                gone = {"state": "RUNNING", "worker": "gone", "lease_until": 0, "attempt": MAX_ATTEMPTS}
                jobs.change(tx, job, gone)
                rows.change_item(tx, rows.items_of(tx, job.id)[2], {"status": "pending", "content": None})

            await core.db.tx(SYSTEM, lost_again)
        async with content_core(tmp_path, server) as core:
            given_up = await ended(core, ANN, queued)
            assert (given_up.job.state, given_up.job.reason_code) == ("FAILED", "WORKER_LOST")
            again = await ended(core, ANN, await batches.start(core, ANN, "first"))
            assert again.job.state == "SUCCEEDED"
        assert asked_for(server) == [*THREE, "gamma"]

    asyncio.run(run())


def test_a_draft_that_a_crash_left_unwritten_is_written_by_the_next_attempt(
    server: ModelServer, tmp_path: Path
) -> None:
    put_batch(tmp_path, "first", *THREE)

    async def run() -> None:
        async with content_core(tmp_path, server) as core:
            queued = await batches.start(core, LOCAL, "first")
            await ended(core, LOCAL, queued)

            def crashed(tx: Tx) -> None:
                job = jobs.get(tx, queued.job.id)
                assert job is not None
                # The lease is a minute long, but nobody else can have the embedded database open.
                gone = {"state": "RUNNING", "worker": "gone", "lease_until": now_us() + 60_000_000}
                jobs.change(tx, job, gone)
                rows.change_item(tx, rows.items_of(tx, job.id)[2], {"status": "pending", "content": None})

            await core.db.tx(SYSTEM, crashed)
        drafts = tmp_path / "batches" / "first"
        (drafts / "beta.md").unlink()
        (drafts / "alpha.md").write_text("edited by hand")
        async with content_core(tmp_path, server) as core:
            await ended(core, LOCAL, queued)
        assert ARTICLE in (drafts / "beta.md").read_text()
        assert (drafts / "alpha.md").read_text() == "edited by hand"

    asyncio.run(run())
