"""Runs content jobs: one article after another, each kept with its usage before the next is asked for.

A crash never pays for a kept article again. The one in flight, whose answer had not been kept, is asked for
once more by the next attempt.
"""

import asyncio
import contextlib
import os
import secrets
import socket
from dataclasses import dataclass, replace
from typing import Any

import structlog

from quarterdeck.core import drafts
from quarterdeck.core.batches import ARTICLES, KIND
from quarterdeck.core.context import Core
from quarterdeck.core.models import PATIENCE, Generated, keep, record
from quarterdeck.domain import callers
from quarterdeck.domain import content as texts
from quarterdeck.domain.content import Provider
from quarterdeck.domain.errors import Conflict, Invalid, QuarterdeckError, RateLimited
from quarterdeck.domain.ids import iso
from quarterdeck.domain.jobs import MAX_ATTEMPTS
from quarterdeck.domain.records import BatchItem, Brief, Job
from quarterdeck.events import Event
from quarterdeck.store import content as rows
from quarterdeck.store import jobs
from quarterdeck.store.tx import Tx

SYSTEM = replace(callers.SYSTEM, tool="content.runner")
_RETRY_SECONDS = 5.0
_LOG_ENTRIES = 50

logger = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Stop:
    """Why a job cannot go on with the items it has left."""

    reason: str
    summary: str


class ContentRunner:
    """Claims content jobs, a few at a time, for as long as the core lives."""

    def __init__(
        self,
        core: Core,
        *,
        lease_seconds: float = 60.0,
        heartbeat_seconds: float = 15.0,
        concurrency: int = 3,
        grace_seconds: float = 5.0,
    ) -> None:
        self._core = core
        self._lease = lease_seconds
        self._heartbeat = heartbeat_seconds
        self._concurrency = concurrency
        self._grace = grace_seconds
        self.worker = f"{socket.gethostname()}:{os.getpid()}:{secrets.token_hex(4)}"
        self._wake = asyncio.Event()
        self._stopping = False
        self._loop: asyncio.Task[None] | None = None
        self._running: set[asyncio.Task[None]] = set()
        core.bus.on("job.queued", self._heard)

    def start(self) -> None:
        self._loop = asyncio.create_task(self._run(), name="content-runner")

    async def close(self) -> None:
        """Stop after the articles in flight; one that takes longer is given up and its lease given back."""
        self._stopping = True
        if self._loop is not None:
            self._loop.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._loop
        if self._running:
            await asyncio.wait(self._running, timeout=self._grace)
        for work in list(self._running):
            work.cancel()
        await asyncio.gather(*self._running, return_exceptions=True)

    def _heard(self, event: Event) -> None:
        if event.data.get("job_kind") == KIND:
            self._wake.set()

    async def _run(self) -> None:
        # One process owns an embedded database: what runs in it at start has lost its worker.
        orphans = self._core.db.dialect == "sqlite"
        while True:
            self._wake.clear()
            try:
                await self._core.db.tx(SYSTEM, _reap, everyone=orphans)
                orphans = False
                await self._fill()
                pause = await self._until_lapse()
            except QuarterdeckError as error:
                logger.warning("job.runner_waits", error=error.message)
                pause = _RETRY_SECONDS
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause):
                    await self._wake.wait()

    async def _fill(self) -> None:
        """Claim jobs while there is room."""
        while len(self._running) < self._concurrency:
            job = await self._core.db.tx(SYSTEM, self._claim)
            if job is None:
                return
            work = asyncio.create_task(self._work(job), name=f"content-{job.id}")
            self._running.add(work)
            work.add_done_callback(self._worked)

    def _claim(self, tx: Tx) -> Job | None:
        job = jobs.claim(tx, [KIND], self.worker, self._lease_us)
        if job is not None:
            tx.emit("job.started", job.id, user_id=job.user_id, job_kind=KIND, attempt=job.attempt)
        return job

    @property
    def _lease_us(self) -> int:
        return int(self._lease * 1_000_000)

    async def _until_lapse(self) -> float:
        """Until a lease may have ended that nobody extended; at most the length of one."""
        left = await self._core.db.read(SYSTEM, jobs.next_lapse, [KIND])
        return self._lease if left is None else min(max(left / 1_000_000, 0.05), self._lease)

    def _worked(self, work: "asyncio.Task[None]") -> None:
        self._running.discard(work)
        self._wake.set()
        if not work.cancelled() and (error := work.exception()) is not None:
            logger.error("job.broke", error=str(error), kind=type(error).__name__)

    async def _work(self, job: Job) -> None:
        """One attempt at a job, from claim to its end or to the loss of its lease."""
        work = asyncio.current_task()
        beat = asyncio.create_task(self._beat(job, work))
        try:
            stop = await self._items(job)
            if self._stopping and stop is None and await self._left(job):
                await self._give_back(job)
                return
            await keep(self._core, SYSTEM, lambda tx: _finish(tx, held(tx, job), stop))
        except Conflict:
            logger.warning("job.fenced", job=job.id, attempt=job.attempt)
        except asyncio.CancelledError:
            await asyncio.shield(self._give_back(job))
            raise
        except Exception as error:
            logger.exception("job.broke", job=job.id)
            broke = Stop("INTERNAL_ERROR", f"something broke on our side ({type(error).__name__})")
            with contextlib.suppress(QuarterdeckError):
                await self._core.db.tx(SYSTEM, lambda tx: _finish(tx, held(tx, job), broke))
        finally:
            beat.cancel()

    async def _beat(self, job: Job, work: "asyncio.Task[None] | None") -> None:
        """Extend the lease while the work goes on; when the job is not ours any more, end the work."""

        def extend(tx: Tx) -> None:
            jobs.extend(tx, held(tx, job), self._lease_us)

        while True:
            await asyncio.sleep(self._heartbeat)
            try:
                await self._core.db.tx(SYSTEM, extend)
            except Conflict:
                if work is not None:
                    work.cancel()
                return
            except QuarterdeckError as error:
                logger.warning("job.heartbeat_missed", job=job.id, error=error.message)

    async def _give_back(self, job: Job) -> None:
        """Let another worker, or the next start, go on at once. It does not count as an attempt."""

        def body(tx: Tx) -> None:
            ours = held(tx, job)
            values = {"state": "QUEUED", "worker": None, "lease_until": None, "attempt": ours.attempt - 1}
            jobs.change(tx, ours, values)
            tx.emit("job.queued", job.id, user_id=job.user_id, job_kind=KIND, batch=job.idempotency_key)

        # Whatever is in the way, the lease ends by itself.
        with contextlib.suppress(QuarterdeckError):
            await self._core.db.tx(SYSTEM, body)

    async def _left(self, job: Job) -> bool:
        items = await self._core.db.read(SYSTEM, rows.items_of, job.id)
        return any(item.status in ("pending", "drafted") for item in items)

    async def _items(self, job: Job) -> Stop | None:
        """Work on what is left, in order; why it had to stop early."""
        articles = job.spec["type"] == ARTICLES
        stop = None
        for item in await self._core.db.read(SYSTEM, rows.items_of, job.id):
            if item.status in ("completed", "failed"):
                continue
            if self._stopping or (stop := self._hindrance(job)) is not None:
                break
            error = await (self._article(job, item) if articles else self._brief(job, item))
            if error is not None and (stop := _stops(error)) is not None:
                break
        if articles:
            await drafts.write_missing(self._core, job)
        return stop

    def _hindrance(self, job: Job) -> Stop | None:
        names: set[Provider] = {job.spec[key] for key in ("provider", "draft", "refine") if key in job.spec}
        away = sorted(name for name in names if self._core.providers.breakers[name].state == "open")
        if not away:
            return None
        return Stop(
            "PROVIDER_UNAVAILABLE", f"{', '.join(away)} failed repeatedly and is left alone for a while"
        )

    async def _ask(
        self, provider: Provider, prompt: str, max_tokens: int, temperature: float = 0.7
    ) -> tuple[Generated | None, QuarterdeckError | None]:
        """An answer, a paid one without text, or none; and the error, if any."""
        answer = None
        try:
            answer = await self._core.providers.ask(
                provider,
                prompt,
                system=texts.SYSTEM,
                temperature=temperature,
                max_tokens=max_tokens,
                patience=PATIENCE,
            )
            answer.usable()
        except QuarterdeckError as error:
            return answer, error
        return answer, None

    async def _keep(
        self, job: Job, answer: Generated | None, purpose: str, brief: Brief | None, body: Any
    ) -> None:
        """Write down an item's outcome and what it cost; if the job was lost meanwhile, only the cost."""
        owner, brief_id = (brief.user_id, brief.id) if brief else (job.user_id, None)

        def paid(tx: Tx) -> None:
            if answer is not None:
                record(tx, answer, purpose=purpose, brief_id=brief_id, user_id=owner)

        def both(tx: Tx) -> None:
            held(tx, job)
            paid(tx)
            body(tx)

        try:
            await keep(self._core, SYSTEM, both)
        except Conflict:
            await keep(self._core, SYSTEM, paid)
            raise

    async def _article(self, job: Job, item: BatchItem) -> QuarterdeckError | None:
        article = job.spec["articles"][item.position - 1]
        answer, error = await self._ask(job.spec["provider"], article["prompt"], texts.MAX_TOKENS)
        values: dict[str, Any] = {"status": "failed", "error": error.message if error else None}
        if answer is not None and error is None:
            text = texts.unfenced(answer.text)
            values = {"status": "completed", "content": text, "problems": _problems(answer, text)}

        def body(tx: Tx) -> None:
            rows.change_item(tx, item, values)
            _progress(tx, job, item.slug, values["status"])

        await self._keep(job, answer, "batch", None, body)
        if error is None:
            await drafts.write(self._core, job, item, values["content"], values["problems"], answer)
        return error

    async def _brief(self, job: Job, item: BatchItem) -> QuarterdeckError | None:
        mode = job.spec["mode"]
        brief = await self._core.db.tx(SYSTEM, _begin, job, item)
        if mode != "refine" and item.status == "pending":
            prompt = texts.draft_prompt(brief)
            error = await self._stage(job, item, brief, "draft", prompt, last=mode == "draft")
            if error is not None or mode == "draft":
                return error
            brief = await self._core.db.tx(SYSTEM, _begin, job, item)
        prompt = texts.refine_prompt(brief, brief.best_content or "")
        return await self._stage(job, item, brief, "refine", prompt, last=True)

    async def _stage(
        self, job: Job, item: BatchItem, brief: Brief, stage: str, prompt: str, *, last: bool
    ) -> QuarterdeckError | None:
        """Draft or refine one brief."""
        provider: Provider = job.spec[stage]
        tokens, heat = job.spec.get("max_tokens"), job.spec.get("temperature")
        answer, error = await self._ask(
            provider,
            prompt,
            tokens or texts.tokens_for(brief.target_word_count),
            0.7 if heat is None else heat,
        )
        text = texts.unfenced(answer.text) if answer is not None and error is None else None
        found = [] if answer is None or text is None else _problems(answer, text, brief)

        def body(tx: Tx) -> None:
            current = _brief(tx, brief.id)
            entry = _entry(tx, stage, provider, answer, error, found)
            values: dict[str, Any] = {
                "generation_log": [*current.generation_log, entry][-_LOG_ENTRIES:],
                "updated_at": max(tx.now, current.updated_at + 1),
            }
            if error is not None:
                values |= {"status": "failed", "error_message": error.message}
            elif stage == "draft":
                # What was made of an older draft goes with it.
                values |= {"draft_output": text, "refined_output": None, "final_content": None}
            else:
                values |= {"refined_output": text, "final_content": text}
            if error is None and last:
                values["status"] = "review"
            rows.change_brief(tx, brief.id, values)
            done = "failed" if error is not None else "completed" if last else "drafted"
            rows.change_item(
                tx, item, {"status": done, "problems": found, "error": error.message if error else None}
            )
            _progress(tx, job, brief.id, done)

        await self._keep(job, answer, stage, brief, body)
        return error


def held(tx: Tx, job: Job) -> Job:
    """The job as a worker claimed it, locked for this transaction; Conflict when it lost it meanwhile."""
    found = jobs.held(tx, job.id, job.worker or "", job.attempt)
    if found is None:
        raise Conflict(f"job {job.id} is not this worker's any more")
    return found


def _reap(tx: Tx, *, everyone: bool) -> None:
    """Take jobs from workers that went away; one that lost too many is given up."""
    for job in jobs.lapsed(tx, [KIND], everyone=everyone):
        if job.attempt >= MAX_ATTEMPTS:
            _finish(tx, job, Stop("WORKER_LOST", f"lost its worker {job.attempt} times"))
        else:
            jobs.change(tx, job, {"state": "STALE", "worker": None, "lease_until": None})
            tx.emit("job.stale", job.id, user_id=job.user_id, job_kind=KIND, attempt=job.attempt)


def _finish(tx: Tx, job: Job, stop: Stop | None) -> None:
    """End a job by what its items say."""
    items = rows.items_of(tx, job.id)
    done = sum(item.status == "completed" for item in items)
    failed = sum(item.status == "failed" for item in items)
    if job.spec["type"] != ARTICLES:
        for item in items:
            if item.status in ("pending", "drafted"):
                rows.change_brief(tx, item.slug, {"status": "pending", "updated_at": tx.now})
    values: dict[str, Any] = {
        "state": "SUCCEEDED" if done == len(items) else "FAILED",
        "summary": f"{done} of {len(items)} written" + (f", {failed} failed" if failed else ""),
        "result": {"completed": done, "failed": failed, "total": len(items)},
        "lease_until": None,
        "finished_at": tx.now,
    }
    if done < len(items):
        values["reason_code"] = stop.reason if stop else "ITEMS_FAILED"
        values["summary"] += f"; {stop.summary}" if stop else ""
    jobs.change(tx, job, values)
    tx.emit(
        "job.finished",
        job.id,
        user_id=job.user_id,
        job_kind=KIND,
        state=values["state"],
        batch=job.idempotency_key,
        **values["result"],
    )


def _stops(error: QuarterdeckError) -> Stop | None:
    """Whether the items to come would only meet the same error."""
    if isinstance(error, RateLimited):
        return Stop("RATE_LIMITED", error.message)
    return Stop("PROVIDER_REFUSED", error.message) if error.field == "provider" else None


def _begin(tx: Tx, job: Job, item: BatchItem) -> Brief:
    held(tx, job)
    brief = _brief(tx, item.slug)
    if brief.status != "generating":
        rows.change_brief(tx, brief.id, {"status": "generating", "updated_at": tx.now})
        tx.emit("brief.generating", brief.id, task_id=brief.task_id, user_id=brief.user_id)
    return brief


def _brief(tx: Tx, brief_id: str) -> Brief:
    brief = rows.get_brief(tx, brief_id, lock=True)
    if brief is None:
        raise Invalid(f"brief {brief_id} is gone", field="brief_id")
    return brief


def _problems(answer: Generated, text: str, brief: Brief | None = None) -> list[str]:
    found = ["cut off at max_tokens"] if answer.truncated else []
    if brief is None:
        return found + texts.problems(text)
    if brief.content_type not in ("help_article", "blog_post"):
        return found
    words = brief.target_word_count
    return found + texts.problems(text, (words * 3 // 5, words * 8 // 5))


def _entry(
    tx: Tx,
    stage: str,
    provider: str,
    answer: Generated | None,
    error: QuarterdeckError | None,
    problems: list[str],
) -> dict[str, Any]:
    """One line of a brief's generation log."""
    entry: dict[str, Any] = {"at": iso(tx.now), "stage": stage, "provider": provider, "ok": error is None}
    if answer is not None:
        entry |= {
            "model": answer.model,
            "input_tokens": answer.input_tokens,
            "output_tokens": answer.output_tokens,
            "cost": answer.cost_usd,
        }
    if error is not None:
        entry |= {"code": error.code, "error": error.message}
    return entry | ({"problems": problems} if problems else {})


def _progress(tx: Tx, job: Job, slug: str, status: str) -> None:
    counts = rows.count_items(tx, [job.id])[job.id]
    tx.emit(
        "job.progress",
        job.id,
        user_id=job.user_id,
        job_kind=KIND,
        item=slug,
        status=status,
        completed=counts.get("completed", 0),
        failed=counts.get("failed", 0),
        total=sum(counts.values()),
    )
