"""Takes jobs from the queue and runs them: woken by events, a lease on each, and nothing left behind."""

import asyncio
import os
import secrets
import socket
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import structlog

from quarterdeck.core import queue, settings
from quarterdeck.core.context import Core
from quarterdeck.core.models import keep
from quarterdeck.core.queue import LOG, SYSTEM, Claimed, Ending, File
from quarterdeck.domain.errors import Conflict, Invalid, NotFound, QuarterdeckError
from quarterdeck.domain.jobs import PROMPT, WORKED
from quarterdeck.domain.records import Job, WorkerRow
from quarterdeck.events import Event
from quarterdeck.run import checks
from quarterdeck.run.agent_run import Failed, JobRun, Lost, remove
from quarterdeck.run.attempts import Recovered, recover

__all__ = ["Failed", "JobRun", "Runner", "Worker"]

Runner = Callable[[JobRun], Awaitable[Ending]]

_RETRY_SECONDS = 5.0
# After its deadline the agent's end and what follows have so long before the job is ended for them.
_SLACK_SECONDS = 10.0
# A worker that stops lets a job whose agent has ended come to its end.
_WIND_UP_SECONDS = 5.0
# The workers of this process: one data directory belongs to one process at a time.
_here: "dict[str, Worker]" = {}

logger = structlog.get_logger()


class Worker:
    """Runs jobs of the kinds it has a runner for. Prompts have a lane of their own beside `concurrency`."""

    def __init__(self, core: Core, runners: Mapping[str, Runner], *, concurrency: int | None = None) -> None:
        self._core = core
        self._runners = runners
        self._settings = core.settings.worker
        self._heartbeat = min(self._settings.heartbeat_seconds, self._settings.lease_seconds / 3)
        self._given = concurrency
        self._concurrency = self._settings.concurrency if concurrency is None else concurrency
        self.id = f"{socket.gethostname()[:100]}:{os.getpid()}:{secrets.token_hex(4)}"
        self.root = core.data_dir / "attempts"
        self._runs: dict[str, JobRun] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._wake = asyncio.Event()
        self._stopping = False
        self._due = 0.0
        # Attempts that ended while a claim was on its way: one of them may be what it brings.
        self._claiming = False
        self._ended: dict[str, int] = {}
        self._strays: set[tuple[str, int]] = set()
        self._loops: list[asyncio.Task[None]] = []
        for kind in ("job.queued", "job.stale", "job.finished"):
            core.bus.on(kind, self._heard)
        core.bus.on("settings.updated", lambda event: self._wake.set())

    def start(self) -> None:
        _here[self.id] = self
        self._loops = [
            asyncio.create_task(self._run(), name="worker"),
            asyncio.create_task(self._beat(), name="worker-heartbeat"),
        ]

    async def close(self) -> None:
        """Stop: what runs is given back to the queue, its processes ended; it counts as no attempt."""
        self._stopping = True
        self._wake.set()
        if not self._loops:
            return
        claiming, beating = self._loops
        await asyncio.wait([claiming])
        if winding_up := [task for task in self._tasks if self._winds_up(task)]:
            await asyncio.wait(winding_up, timeout=_WIND_UP_SECONDS)
        for run in list(self._runs.values()):
            run.end("stopping")
        if self._tasks:
            await asyncio.wait(self._tasks)
        beating.cancel()
        _here.pop(self.id, None)
        with suppress(QuarterdeckError):
            await self._core.db.tx(SYSTEM, queue.leave, self.id)

    def _winds_up(self, task: "asyncio.Task[None]") -> bool:
        run = self._runs.get(task.get_name())
        return run is not None and run.winding_up

    def _heard(self, event: Event) -> None:
        """Something was queued, lost or ended: end what is not ours any more, and look for work."""
        if event.data.get("job_kind") not in WORKED:
            return
        if event.kind != "job.queued":
            job, attempt = str(event.entity_id), int(event.data["attempt"])
            run = self._runs.get(job)
            if run is not None and attempt >= run.job.attempt:
                run.end("cancelled" if event.kind == "job.finished" else "lost")
            elif self._claiming:
                self._ended[job] = attempt
        self._wake.set()

    async def _run(self) -> None:
        arrived = False
        while not self._stopping:
            self._wake.clear()
            try:
                if not arrived:
                    await self._arrive()
                    arrived = True
                if time.monotonic() >= self._due:
                    await self._core.db.tx(SYSTEM, queue.tidy, self._settings.max_attempts)
                await self._fill()
                pause = await self._pause()
            except QuarterdeckError as error:
                logger.warning("job.worker_waits", error=error.message)
                pause = _RETRY_SECONDS
            except Exception as error:
                logger.exception("job.worker_broke", error=str(error))
                pause = _RETRY_SECONDS
            with suppress(TimeoutError):
                async with asyncio.timeout(pause):
                    await self._wake.wait()

    async def _pause(self) -> float:
        """Until a lease or a waiting job's time runs out; at most the length of a lease."""
        due = await self._core.db.read(SYSTEM, queue.seconds_until_due)
        pause = self._settings.lease_seconds if due is None else min(due, self._settings.lease_seconds)
        pause = max(pause, 0.02)
        self._due = time.monotonic() + pause
        return pause

    # Claiming.

    async def _fill(self) -> None:
        """Claim jobs while there is room."""
        if self._given is None and self._settings.concurrency:  # one that was told to rest does
            wanted = int(await settings.get(self._core, settings.CONCURRENCY))
            if wanted != self._concurrency:
                self._concurrency = wanted
                await self._core.db.tx(SYSTEM, queue.resize, self.id, wanted)
        while not self._stopping and (kinds := self._open_kinds()):
            claimed = await self._claim(kinds)
            if claimed is None:
                return
            self._launch(claimed)
            if self._ended.get(claimed.job.id, -1) >= claimed.job.attempt:
                self._runs[claimed.job.id].end("cancelled")

    def _open_kinds(self) -> list[str]:
        counted = sum(run.job.kind != PROMPT for run in self._runs.values())
        room = counted < self._concurrency
        return [kind for kind in self._runners if room or kind == PROMPT]

    async def _claim(self, kinds: list[str]) -> Claimed | None:
        self._ended.clear()
        self._claiming = True
        try:
            lease = self._settings.lease_seconds
            return await self._core.db.tx(SYSTEM, queue.claim, kinds, self.id, lease, self._core.place)
        finally:
            self._claiming = False

    def _launch(self, claimed: Claimed, recorded: Any = None) -> None:
        job = claimed.job
        run = JobRun(self._core, claimed, self.root / f"{job.id}-{job.attempt}", recorded)
        self._runs[job.id] = run
        task = asyncio.create_task(self._work(run), name=job.id)
        self._tasks.add(task)
        task.add_done_callback(self._worked)

    def _worked(self, task: "asyncio.Task[None]") -> None:
        self._tasks.discard(task)
        self._runs.pop(task.get_name(), None)
        self._wake.set()
        if not task.cancelled() and (error := task.exception()) is not None:
            logger.error("job.worker_broke", error=str(error), job=task.get_name())

    # One attempt. Nothing cancels these: only the runner inside is cancelled.

    async def _work(self, run: JobRun) -> None:
        lost = False
        try:
            ending = await self._ending(run)
        except Lost as error:
            logger.warning("job.lost", job=run.job.id, attempt=run.job.attempt, why=str(error))
            ending, lost = None, True
        run.ending = True
        try:
            if ending is not None:
                await self._finish(run, ending)
            elif lost and run.why is None:
                await self._write(run, queue.lose, self._settings.max_attempts)
            elif run.why == "cancelled":
                await self._keep_log(run)
        finally:
            await run.close()
        if ending is None and run.why == "stopping":
            await self._write(run, queue.give_back)

    async def _ending(self, run: JobRun) -> Ending | None:
        """Let the runner run; None when it was ended before its time."""
        await asyncio.to_thread(run.folder.mkdir, mode=0o700, parents=True, exist_ok=True)
        work = run.begin(self._runners[run.job.kind](run))
        limit = run.job.timeout_s
        timer = (
            None
            if limit is None
            else asyncio.get_running_loop().call_later(limit + _SLACK_SECONDS, run.end, "timeout")
        )
        await asyncio.wait([work])
        if timer is not None:
            timer.cancel()
        try:
            return work.result()
        except asyncio.CancelledError:
            if run.why is None:
                return Ending("FAILED", "The run was interrupted.", reason="INTERNAL_ERROR")
            timed_out = Ending("FAILED", f"It did not end within {limit} seconds.", reason="TIMEOUT")
            return timed_out if run.why == "timeout" else None
        except Failed as error:
            return Ending(
                "FAILED", error.summary, reason=error.reason, files=error.files, result=error.result
            )
        except Lost:
            raise
        except QuarterdeckError as error:
            logger.warning("job.failed", job=run.job.id, error=error.message)
            # What is missing or in the way is the user's to mend, and no fault of ours.
            theirs = isinstance(error, Invalid | NotFound | Conflict)
            reason = "EXECUTOR_ERROR" if theirs else "INTERNAL_ERROR"
            return Ending("FAILED", error.message, reason=reason)
        except Exception as error:
            logger.exception("job.broke", job=run.job.id)
            summary = f"Something broke on our side ({type(error).__name__})."
            return Ending("FAILED", summary, reason="INTERNAL_ERROR")

    async def _finish(self, run: JobRun, ending: Ending) -> None:
        if all(file.name != LOG for file in ending.files) and (log := await run.log()):
            ending = replace(ending, files=[*ending.files, File(LOG, "text/plain", log)])
        if not await self._write(run, queue.finish, _with_usage(run, ending)):
            await self._keep_log(run)

    async def _keep_log(self, run: JobRun) -> None:
        log = await run.log()
        files = [*run.left, *([File(LOG, "text/plain", log)] if log else [])]
        if files:
            await self._write(run, queue.add_files, files)

    async def _write(self, run: JobRun, body: Callable[..., Any], *args: Any) -> bool:
        """Write down how it ended, while the job is ours and the database comes back in time."""
        try:
            await keep(self._core, SYSTEM, lambda tx: body(tx, run.job, *args))
            return True
        except Conflict:
            logger.warning("job.fenced", job=run.job.id, attempt=run.job.attempt)
        except QuarterdeckError as error:
            logger.error("job.unwritten", job=run.job.id, error=error.message)
        return False

    # Staying alive.

    async def _beat(self) -> None:
        """Renew what runs; end what is not ours any more."""
        pause = self._heartbeat
        while True:
            await asyncio.sleep(pause)
            runs = list(self._runs.values())
            try:
                own = await self._core.db.tx(SYSTEM, queue.beat, self.id, self._settings.lease_seconds)
            except QuarterdeckError as error:
                logger.warning("job.leases_not_renewed", error=error.message)
                pause = min(self._heartbeat, 1.0)
                continue
            pause = self._heartbeat
            for run in runs:
                if (run.job.id, run.job.attempt) in own:
                    run.renew()
                else:
                    run.end("lost")
            await self._give_up_strays(own)

    async def _give_up_strays(self, own: set[tuple[str, int]]) -> None:
        """What is ours by the database and yet not here: a claim whose answer was lost on its way."""
        strays = own - {(run.job.id, run.job.attempt) for run in self._runs.values()}
        for job_id, attempt in strays & self._strays:
            logger.warning("job.lost", job=job_id, attempt=attempt, why="unknown here")
            with suppress(QuarterdeckError):
                job = await queue.get(self._core, SYSTEM, job_id)
                ours = replace(job, worker=self.id, attempt=attempt)
                await self._core.db.tx(SYSTEM, queue.lose, ours, self._settings.max_attempts)
        self._strays = strays

    # Starting after a loss.

    async def _arrive(self) -> None:
        """Tell of ourselves, and see to what earlier workers of this data directory left."""
        row = WorkerRow(
            self.id,
            self._core.place,
            socket.gethostname(),
            os.getpid(),
            list(self._runners),
            self._concurrency,
            0,
            0,
        )
        await self._core.db.tx(SYSTEM, queue.arrive, row)
        await checks.sweep(self._core)
        left = await self._core.db.read(SYSTEM, queue.left_behind, self._core.place, list(_here))
        jobs = {f"{job.id}-{job.attempt}": job for job in left}
        for folder in await asyncio.to_thread(_folders, self.root):
            job = jobs.pop(folder.name, None)
            if any(
                folder.name == run.folder.name for other in _here.values() for run in other._runs.values()
            ):
                continue
            found = await recover(folder)
            if any(each.outcome == "running" for each in found):
                continue
            if job is None or not await self._take_over(job, folder, found):
                await asyncio.to_thread(remove, folder)
                if job is not None:
                    await self._lose(job)
        for job in jobs.values():
            await self._lose(job)
        await self._core.db.tx(SYSTEM, queue.forget_gone, self._core.place, list(_here))

    async def _take_over(self, job: Job, folder: Path, found: list[Recovered]) -> bool:
        """Go on with an attempt whose agents had ended by themselves; whether we do."""
        recorded = {each.folder.name: each.exit for each in found if each.exit is not None}
        if job.kind not in self._runners or not found:
            return False
        # A prompt is not asked twice: its runner tells what the agent had said before it was stopped.
        if job.kind != PROMPT and any(each.outcome != "exited" for each in found):
            return False
        try:
            lease = self._settings.lease_seconds
            claimed = await self._core.db.tx(SYSTEM, queue.take_over, job, self.id, lease)
        except Conflict:
            return False
        await asyncio.to_thread(_keep_only, folder, set(recorded))
        logger.info("job.taken_over", job=job.id, attempt=job.attempt)
        self._launch(claimed, recorded)
        return True

    async def _lose(self, job: Job) -> None:
        with suppress(Conflict):
            await self._core.db.tx(SYSTEM, queue.lose, job, self._settings.max_attempts)


def _with_usage(run: JobRun, ending: Ending) -> Ending:
    """The ending with what its agents cost, where the runner did not say; unknown stays unknown."""
    known = [outcome.usage for outcome in run.outcomes if outcome.usage is not None]
    costs = [outcome.cost_usd for outcome in run.outcomes if outcome.cost_usd is not None]
    if ending.cost_usd is None and costs:
        ending = replace(ending, cost_usd=sum(costs))
    if ending.input_tokens is None and ending.output_tokens is None and known:
        ending = replace(
            ending,
            input_tokens=sum(
                each.input_tokens + each.cache_read_tokens + each.cache_write_tokens for each in known
            ),
            output_tokens=sum(each.output_tokens for each in known),
        )
    return ending


def _folders(root: Path) -> list[Path]:
    return sorted(each for each in root.iterdir() if each.is_dir()) if root.is_dir() else []


def _keep_only(folder: Path, names: set[str]) -> None:
    """Clear the scratch folder of an attempt that goes on, but for what its agents left."""
    for each in folder.iterdir():
        if each.name not in names:
            remove(each) if each.is_dir() and not each.is_symlink() else each.unlink(missing_ok=True)
