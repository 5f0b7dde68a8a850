"""Jobs that do nothing, from the queue through a worker and a supervised process, beside a bare loop."""

import asyncio
import contextlib
import statistics
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from pydantic import SecretStr

from bench.measures import Options, Table
from quarterdeck.config import DatabaseSettings, SearchSettings, Settings
from quarterdeck.core import life, queue
from quarterdeck.core.context import Core
from quarterdeck.core.queue import Ending
from quarterdeck.domain.callers import Caller
from quarterdeck.domain.records import Job
from quarterdeck.events import Event
from quarterdeck.run.adapters.base import Assignment
from quarterdeck.run.worker import JobRun, Worker
from quarterdeck.store.tx import Tx

_PROGRAM = ["true"]
_JOBS = 60
_ALONE = 20
_USER = Caller("bench", "operator")
_AGENT = {"adapter": "command", "command": _PROGRAM, "max_concurrent": 64}


@dataclass(frozen=True, slots=True)
class Measured:
    """Jobs a second when many wait, and milliseconds from submit to start when none does."""

    per_s: float
    pickup: tuple[float, ...] = ()


def jobs(options: Options) -> Table:
    """Jobs a second and pickup latency of a no-op command."""
    table = Table(
        "jobs: a command that does nothing",
        f"{_JOBS} jobs a round. A job is queued, claimed, run below a supervisor and ended in four durable "
        "transactions or more; the bare loop only starts the program and waits. Pickup is from the call that "
        "queues a job to the event of its start, on an idle worker.",
        ("what", "at_once", "per_s", "x_bare_rate", "pickup_p50_ms", "pickup_max_ms"),
    )
    with contextlib.ExitStack() as stack:
        stores: dict[str, str | None] = {"sqlite": None}
        if options.postgres:
            from tests.postgres import Postgres

            stores["postgres"] = stack.enter_context(Postgres(durable=True)).create_database()
        for at_once in (1, 4):
            rounds: dict[str, list[Measured]] = {}
            for _ in range(options.rounds):
                rounds.setdefault("bare loop", []).append(Measured(_bare(at_once)))
                for name, url in stores.items():
                    rounds.setdefault(name, []).append(_engine(url, at_once))
            bare = statistics.median(each.per_s for each in rounds["bare loop"])
            for name, found in rounds.items():
                per_s = statistics.median(each.per_s for each in found)
                pickup = [ms for each in found for ms in each.pickup]
                table.add(
                    name,
                    at_once,
                    of=None,
                    per_s=per_s,
                    x_bare_rate=per_s / bare,
                    pickup_p50_ms=statistics.median(pickup) if pickup else None,
                    pickup_max_ms=max(pickup) if pickup else None,
                )
    return table


def _bare(at_once: int) -> float:
    began = time.perf_counter()
    with ThreadPoolExecutor(at_once) as pool:
        list(pool.map(lambda _: subprocess.run(_PROGRAM, capture_output=True, check=True), range(_JOBS)))
    return _JOBS / (time.perf_counter() - began)


def _engine(url: str | None, at_once: int) -> Measured:
    with TemporaryDirectory(prefix="qd-bench-") as directory:
        return asyncio.run(_measured(Path(directory), url, at_once))


async def _measured(directory: Path, url: str | None, at_once: int) -> Measured:
    settings = Settings(
        database=DatabaseSettings(url=SecretStr(url) if url else None),
        search=SearchSettings(provider="off"),
        agents={"noop": _AGENT},
    )
    async with life.opened(settings, directory) as core:
        worker = Worker(core, {"relay": _run}, concurrency=at_once)
        worker.start()
        try:
            pickup = [await _alone(core) for _ in range(_ALONE)] if at_once == 1 else []
            return Measured(await _rate(core), tuple(pickup))
        finally:
            await worker.close()


async def _run(run: JobRun) -> Ending:
    outcome = await run.run_agent(Assignment("", run.folder, run.folder / "home"))
    return Ending("SUCCEEDED" if outcome.ok else "FAILED", "")


def _put(tx: Tx, count: int) -> list[Job]:
    return [queue.submit(tx, kind="relay", spec={}, agent="noop") for _ in range(count)]


async def _alone(core: Core) -> float:
    """Milliseconds until an idle worker has started a job."""
    with core.bus.listen("job.started") as listener:
        began = time.perf_counter()
        [job] = await core.db.tx(_USER, _put, 1)
        heard: list[Event] = []
        while not any(event.entity_id == job.id for event in heard):
            heard += await listener.wait()
        passed = time.perf_counter() - began
    await queue.wait_for_end(core, _USER, job.id, 60)
    return passed * 1000


async def _rate(core: Core) -> float:
    ended: list[Any] = []
    core.bus.on("job.finished", lambda event: ended.append(event.entity_id))
    with core.bus.listen("job.finished") as listener:
        began = time.perf_counter()
        await core.db.tx(_USER, _put, _JOBS)
        while len(ended) < _JOBS:
            await listener.wait()
        return _JOBS / (time.perf_counter() - began)
