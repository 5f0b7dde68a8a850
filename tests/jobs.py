"""Jobs whose agent is a shell, for tests of the queue and its workers.

As a program (`python -m tests.jobs DATA_DIR DATABASE_URL SETTINGS`) it is a worker, to be killed.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

from pydantic import SecretStr

from quarterdeck.config import DatabaseSettings, SearchSettings, Settings, WorkerSettings
from quarterdeck.core import life, queue
from quarterdeck.core.context import Core
from quarterdeck.core.queue import Claimed, Ending
from quarterdeck.domain.callers import SYSTEM, Caller
from quarterdeck.domain.records import Job
from quarterdeck.events import Event
from quarterdeck.run.adapters.base import Assignment
from quarterdeck.run.worker import JobRun, Worker
from quarterdeck.store.tx import Tx
from tests.store import until

ROOT = Path(__file__).parents[1]

# An agent of the Agent Client Protocol that answers one prompt with its length, and does not end by itself.
TALKER = """
import json, sys, time
def say(**message):
    print(json.dumps({"jsonrpc": "2.0", **message}), flush=True)
for line in sys.stdin:
    asked = json.loads(line)
    if asked["method"] == "initialize":
        say(id=asked["id"], result={"protocolVersion": 1, "agentCapabilities": {}})
    elif asked["method"] == "session/new":
        say(id=asked["id"], result={"sessionId": "talk"})
    elif asked["method"] == "session/prompt":
        words = f"heard {len(asked['params']['prompt'][0]['text'])}"
        chunk = {"sessionUpdate": "agent_message_chunk", "content": {"type": "text", "text": words}}
        say(method="session/update", params={"sessionId": "talk", "update": chunk})
        say(id=asked["id"], result={"stopReason": "end_turn"})
time.sleep(600)
"""
ANN = Caller("ann", "operator")
BOB = Caller("bob", "operator")
AGENTS: dict[str, dict[str, Any]] = {
    "sh": {"adapter": "command", "command": ["sh"], "max_concurrent": 64},
    "single": {"adapter": "command", "command": ["sh"], "max_concurrent": 1},
    "double": {"adapter": "command", "command": ["sh"], "max_concurrent": 2},
    "secretive": {"adapter": "command", "command": ["sh"], "env": {"API_KEY": "hush-hush-hush"}},
    "usual": {"adapter": "command", "command": ["sh"]},
    "talker": {"adapter": "acp", "command": [sys.executable, "-u", "-c", TALKER]},
    "away": {"adapter": "command", "command": ["no-such-program-anywhere"]},
}


def settings(database_url: str | None = None, **worker: Any) -> Settings:
    quick = {"heartbeat_seconds": 0.5, "lease_seconds": 30.0, "grace_seconds": 1.0}
    return Settings(
        database=DatabaseSettings(url=SecretStr(database_url) if database_url else None),
        search=SearchSettings(provider="off"),
        worker=WorkerSettings(**{**quick, **worker}),
        agents=AGENTS,
    )


@contextlib.asynccontextmanager
async def a_core(folder: Path, database_url: str | None = None, **worker: Any) -> AsyncIterator[Core]:
    folder.mkdir(parents=True, exist_ok=True)
    async with life.opened(settings(database_url, **worker), folder, "http://127.0.0.1:1") as core:
        yield core


@contextlib.asynccontextmanager
async def working(core: Core, **options: Any) -> AsyncIterator[Worker]:
    """A worker in this process."""
    worker = Worker(core, RUNNERS, **options)
    worker.start()
    try:
        yield worker
    finally:
        await worker.close()


async def run_script(run: JobRun) -> Ending:
    """Runs the script of the spec; then waits for the file that the spec names, if it does."""
    cwd = run.folder / "cwd"
    cwd.mkdir()
    outcome = await run.run_agent(
        Assignment(
            run.job.spec["script"],
            cwd,
            run.folder / "home",
            mcp_url=run.mcp_url,
            token=run.token,
            job_id=run.job.id,
        )
    )
    if gate := run.job.spec.get("gate"):
        Path(f"{gate}.reached").touch()
        await until(lambda: Path(gate).exists())
    if not outcome.ok:
        return Ending("FAILED", outcome.error or "", reason="EXECUTOR_ERROR")
    return Ending("SUCCEEDED", outcome.final_text, result={"tool_calls": run.seen.tool_call_count})


RUNNERS = {"relay": run_script, "auto": run_script, "prompt": run_script}


def put(tx: Tx, /, script: str = "true", **fields: Any) -> Job:
    """Queue a job that runs a script, on the agent `sh` unless it says otherwise."""
    spec = {"script": script, **fields.pop("spec", {})}
    return queue.submit(tx, **{"kind": "relay", "agent": "sh", "spec": spec, **fields})


async def ended(core: Core, job: Job, caller: Caller = ANN) -> Job:
    found = await queue.wait_for_end(core, caller, job.id, 60)
    assert found.finished_at is not None, f"{found.id} is still {found.state}"
    return found


async def reaches(core: Core, job: Job, state: str, caller: Caller = ANN) -> Job:
    """The job as soon as it is in a state."""
    async with asyncio.timeout(60):
        with core.bus.listen(f"job:{job.id}") as listener:
            while (found := await queue.get(core, caller, job.id)).state != state:
                await listener.wait()
    return found


KINDS = ["relay", "auto", "prompt"]
DONE = Ending("SUCCEEDED", "done")


class Queue:
    """The queue as workers and users see it, one call a transaction."""

    def __init__(self, core: Core) -> None:
        self.core = core
        self.events: list[Event] = []
        core.bus.on("*", self.events.append)

    async def put(self, caller: Caller = ANN, **fields: Any) -> Job:
        return await self.core.db.tx(caller, put, **fields)

    async def claim(
        self, worker: str = "w1", kinds: list[str] = KINDS, lease: float = 60.0, place: str | None = None
    ) -> Claimed | None:
        return await self.core.db.tx(SYSTEM, queue.claim, kinds, worker, lease, place)

    async def take(self, worker: str = "w1", **options: Any) -> Job:
        claimed = await self.claim(worker, **options)
        assert claimed is not None, "nothing to claim"
        return claimed.job

    async def do(self, body: Callable[..., Any], *args: Any, caller: Caller = SYSTEM) -> Any:
        return await self.core.db.tx(caller, body, *args)

    async def get(self, job: Job) -> Job:
        return await queue.get(self.core, ANN, job.id)

    async def told(self, job: Job) -> list[Event]:
        """What was told of a job, once its end was."""

        def known() -> list[Event]:
            return [event for event in self.events if event.entity_id == job.id]

        await until(lambda: any(event.kind == "job.finished" for event in known()))
        return known()

    async def tidy(self, max_attempts: int = 3) -> None:
        await self.do(queue.tidy, max_attempts)


@contextlib.asynccontextmanager
async def a_queue(folder: Path, url: str) -> AsyncIterator[Queue]:
    async with a_core(folder, url) as core:
        yield Queue(core)


Body = Callable[[Queue], Coroutine[Any, Any, None]]
OnAQueue = Callable[[Body], None]


def run_on_a_queue(folder: Path, url: str, body: Body) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(60), a_queue(folder, url) as it:
            await body(it)

    asyncio.run(bounded())


class WorkerProcess:
    """A worker of its own, to be killed."""

    def __init__(self, data_dir: Path, database_url: str, **worker: Any) -> None:
        self.data_dir = data_dir
        self._command = [sys.executable, "-m", "tests.jobs", str(data_dir), database_url, json.dumps(worker)]
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        self.data_dir.mkdir(parents=True, exist_ok=True)
        with (self.data_dir / "worker.log").open("ab") as log:
            self._process = subprocess.Popen(
                self._command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=ROOT,
                env={**os.environ, "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}"},
            )

    def send(self, number: signal.Signals) -> None:
        assert self._process is not None, "the worker is not running"
        self._process.send_signal(number)

    def end(self, number: signal.Signals = signal.SIGKILL) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.send_signal(number)
            try:
                process.wait(60)
            finally:
                process.kill()

    @contextlib.contextmanager
    def running(self) -> Iterator[WorkerProcess]:
        self.start()
        try:
            yield self
        finally:
            self.end()


async def _serve(data_dir: Path, database_url: str, worker: dict[str, Any]) -> None:
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    serving = worker.pop("serving", False)
    given = settings(database_url, **worker)
    async with life.opened(given, data_dir, "http://127.0.0.1:1", serving=serving) as core, working(core):
        await stop.wait()


if __name__ == "__main__":
    asyncio.run(_serve(Path(sys.argv[1]), sys.argv[2], json.loads(sys.argv[3])))
