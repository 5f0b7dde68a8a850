"""Two hundred jobs while a core and two workers are killed at random: each ends once, and nothing is left."""

from __future__ import annotations

import asyncio
import random
import signal
from collections import Counter
from contextlib import ExitStack
from pathlib import Path

import pytest

from quarterdeck.core import queue
from quarterdeck.core.context import Core
from quarterdeck.domain.records import Job
from quarterdeck.store.tx import Tx
from tests.attempts import carriers, token
from tests.jobs import ANN, WorkerProcess, a_core, put
from tests.postgres import Postgres
from tests.store import ask, until, whole_log

JOBS = 200
KILLS = 12


@pytest.fixture
def url(postgres: Postgres, postgres_template: str) -> str:
    return postgres.create_database(postgres_template)


async def submitted(core: Core, script: str) -> list[Job]:
    def body(tx: Tx) -> list[Job]:
        return [put(tx, script, priority=number % 3) for number in range(JOBS)]

    return await core.db.tx(ANN, body)


async def reached(ends: list[str | None], count: int) -> None:
    """So many have ended; as long as one more does, there is time."""
    while (known := len(ends)) < count:
        await until(lambda known=known: len(ends) > known)  # type: ignore[misc]


def test_every_job_ends_once_though_core_and_workers_are_killed_at_random(tmp_path: Path, url: str) -> None:
    mark, ledger, luck = token(), tmp_path / "ledger", random.Random(4)
    ledger.touch()
    # A moment of work, with a child beside it that would stay if anything could.
    script = f"sleep {mark} & sleep 0.1; echo $QUARTERDECK_JOB_ID >> {ledger}; echo done"
    options = {"lease_seconds": 6.0, "heartbeat_seconds": 1.0, "max_attempts": 50, "concurrency": 4}
    processes = [
        WorkerProcess(tmp_path / name, url, serving=name == "core", **options)
        for name in ("core", "first", "second")
    ]

    async def body(stack: ExitStack) -> list[Job]:
        async with a_core(tmp_path / "observer", url) as core:
            ends: list[str | None] = []
            core.bus.on("job.finished", lambda event: ends.append(event.entity_id))
            jobs = await submitted(core, script)
            for process in processes:
                stack.enter_context(process.running())
            for number in range(KILLS):
                await reached(ends, number * 12 + 5)
                await asyncio.sleep(luck.random() * 0.3)
                victim = luck.choice(processes)
                victim.end(signal.SIGKILL)
                victim.start()
            await reached(ends, JOBS)
            for process in processes:
                process.end(signal.SIGTERM)
            ended = [await queue.get(core, ANN, job.id) for job in jobs]
            events = await whole_log(core.db)
        finished = Counter(event.entity_id for event in events if event.kind == "job.finished")
        assert finished == Counter(job.id for job in jobs), "each job ended once"
        return ended

    with ExitStack() as stack:
        ended = asyncio.run(body(stack))
    assert Counter(job.state for job in ended) == {"SUCCEEDED": JOBS}
    runs = Counter(ledger.read_text().split())
    assert all(1 <= runs[job.id] <= job.attempt for job in ended), "nothing ran that was not an attempt"
    assert any(job.attempt > 1 for job in ended), "some lost their worker"
    assert ask(url, "select count(*) from tokens where job_id is not null and revoked_at is null") == [(0,)]
    assert ask(url, "select count(*) from workers") == [(0,)]
    assert [each for process in processes for each in (process.data_dir / "attempts").iterdir()] == []
    assert carriers(f"sleep\0{mark}") == []
