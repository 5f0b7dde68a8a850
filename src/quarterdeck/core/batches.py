"""Content jobs: a batch file's articles or some briefs, queued as one durable job, and how far it got."""

import asyncio
import importlib.util
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

from quarterdeck.core import content, queue
from quarterdeck.core.content import BriefView
from quarterdeck.core.context import Core
from quarterdeck.core.tokens import LOCAL_USER
from quarterdeck.domain import batch
from quarterdeck.domain.batch import BatchSpec
from quarterdeck.domain.callers import Caller
from quarterdeck.domain.content import BRIEF_STATUSES, PROVIDERS, Mode, Provider
from quarterdeck.domain.errors import (
    Conflict,
    Invalid,
    NotFound,
    QuarterdeckError,
    RateLimited,
    Unavailable,
)
from quarterdeck.domain.jobs import LIVE
from quarterdeck.domain.records import BatchItem, Brief, Job
from quarterdeck.store import content as rows
from quarterdeck.store import jobs
from quarterdeck.store.tx import Tx

KIND = "content"
ARTICLES, BRIEFS = "articles", "briefs"
_SHOWN = 20


@dataclass(frozen=True, slots=True)
class Run:
    """A content job and how many of its items are where; `items` only when they were asked for."""

    job: Job
    counts: Mapping[str, int]
    items: Sequence[BatchItem] = ()

    @property
    def batch_id(self) -> str | None:
        return self.job.idempotency_key

    @property
    def total(self) -> int:
        return sum(self.counts.values())


@dataclass(frozen=True, slots=True)
class Preview:
    """What a batch would do: the articles, and which of them are written already."""

    spec: BatchSpec
    done: frozenset[str]
    run: Run | None


@dataclass(frozen=True, slots=True)
class Status:
    """The state of content generation as one caller sees it."""

    providers: Mapping[Provider, Mapping[str, Any]]
    available: bool
    counts: Mapping[str, int]
    runs: Sequence[Run]


def batch_dir(core: Core) -> Path:
    """Where batch files lie; a relative path of the config counts from the data directory."""
    given = core.settings.content.batch_dir
    return core.data_dir / (given.expanduser() if given else "batches")


def drafts_dir(batch_id: str, user_id: str | None) -> Path:
    """Where a user's drafts of a batch go, below the batch folder. The local user has the plain place."""
    folder = Path(batch_id)
    return folder if user_id == LOCAL_USER else folder / f"@{quote(user_id or 'admin', safe='')}"


async def preview(core: Core, caller: Caller, batch_id: str) -> Preview:
    """What `start` would do now; nothing is called or written."""
    spec = await _load(core, batch_id)

    def body(tx: Tx) -> Preview:
        last = jobs.latest(tx, KIND, batch_id)
        return Preview(spec, frozenset(_done(tx, last)), None if last is None else _run(tx, last))

    return await core.db.read(caller, body)


async def start(core: Core, caller: Caller, batch_id: str, provider: Provider | None = None) -> Run:
    """Queue the articles of a batch that are not written yet; a run that is live is returned as it is."""
    running = await core.db.read(caller, _live_run, batch.checked_batch_id(batch_id))
    if running is not None:
        return running
    spec = await _load(core, batch_id)
    written = await core.db.read(caller, _finished_run, spec)
    if written is not None:
        return written
    chosen = _usable(core, provider)

    def body(tx: Tx) -> Run:
        jobs.hold_key(tx, KIND, batch_id)
        if (known := _live_run(tx, batch_id) or _finished_run(tx, spec)) is not None:
            return known
        done = _done(tx, jobs.latest(tx, KIND, batch_id))
        wanted = {
            "type": ARTICLES,
            "provider": chosen,
            "service": spec.service,
            "category": spec.category,
            "articles": [
                {
                    "slug": article.slug,
                    "title": article.title,
                    "difficulty": article.difficulty,
                    "keyword": article.primary_keyword,
                    "prompt": spec.prompt(article),
                }
                for article in spec.articles
            ],
        }
        items = [(article.slug, article.title, done.get(article.slug)) for article in spec.articles]
        return _queue(tx, caller.user_id, wanted, items, key=batch_id)

    return await core.db.tx(caller, body)


async def queue_brief(
    core: Core,
    caller: Caller,
    brief_id: str,
    *,
    mode: Mode = "full",
    provider: Provider | None = None,
    temperature: float | None = None,
    max_tokens: int | None = None,
) -> Run:
    """Queue one brief; one that waits or is being written already is left to its own job."""
    ready = await core.db.read(caller, _ready, brief_id, mode)
    if isinstance(ready, Run):
        return ready
    spec = _brief_spec(core, mode, provider, temperature=temperature, max_tokens=max_tokens)

    def body(tx: Tx) -> Run:
        still = _ready(tx, brief_id, mode, lock=True)
        return still if isinstance(still, Run) else _queue_briefs(tx, [still], spec)

    return await core.db.tx(caller, body)


def _ready(tx: Tx, brief_id: str, mode: Mode, *, lock: bool = False) -> Brief | Run:
    """A brief that can be written now, or the run that writes it already."""
    brief = content.found(tx, brief_id, lock=lock)
    if (live := rows.live_job_of(tx, brief.id)) is not None:
        return _run(tx, _found(tx, live))
    if brief.status == "published":
        raise Conflict(f"brief {brief_id} is published", field="brief_id", hint="make a new brief")
    if mode == "refine" and not brief.best_content:
        raise Invalid(f"brief {brief_id} has no draft to refine", field="mode", hint="use full or draft")
    return brief


async def write_brief(core: Core, caller: Caller, brief_id: str, **options: Any) -> tuple[Run, BriefView]:
    """Queue one brief and wait for its text, for `content.timeout_seconds` at most."""
    queued = await queue_brief(core, caller, brief_id, **options)
    run = await finished(core, caller, queued.job.id, core.settings.content.timeout_seconds)
    view = await content.get(core, caller, brief_id)
    if run.job.state not in LIVE and run.job.state != "SUCCEEDED":
        raise _failure(run, view.brief)
    return run, view


def _failure(run: Run, brief: Brief) -> QuarterdeckError:
    """Why a brief was not written, as it would have been said in the foreground."""
    if brief.status != "failed":
        return Unavailable(run.job.summary or "the brief was not written", hint="try again later")
    code = brief.generation_log[-1].get("code") if brief.generation_log else None
    kinds: dict[str, type[QuarterdeckError]] = {kind.code: kind for kind in (Invalid, RateLimited)}
    return kinds.get(str(code), Unavailable)(brief.error_message or "the brief was not written")


async def pending(core: Core, caller: Caller, *, limit: int = 5, mode: Mode = "full") -> list[str]:
    """Which briefs `queue_pending` would queue now."""
    return [brief.id for brief in await core.db.read(caller, _waiting, limit, mode)]


async def queue_pending(
    core: Core, caller: Caller, *, limit: int = 5, mode: Mode = "full", provider: Provider | None = None
) -> tuple[Run | None, list[str]]:
    """Queue the caller's oldest pending briefs as one job, 1–50 of them; which they are."""
    if not await pending(core, caller, limit=limit, mode=mode):
        return None, []
    spec = _brief_spec(core, mode, provider)

    def body(tx: Tx) -> tuple[Run | None, list[str]]:
        briefs = _waiting(tx, limit, mode, lock=True)
        return _queue_briefs(tx, briefs, spec) if briefs else None, [brief.id for brief in briefs]

    return await core.db.tx(caller, body)


def _waiting(tx: Tx, limit: int, mode: Mode, *, lock: bool = False) -> list[Brief]:
    briefs = rows.waiting_briefs(tx, min(max(limit, 1), 50), drafted=mode == "refine", lock=lock)
    # An admin sees everyone's; a job is one user's.
    return [brief for brief in briefs if brief.user_id == briefs[0].user_id]


def _brief_spec(core: Core, mode: Mode, provider: Provider | None, **more: Any) -> dict[str, Any]:
    """What a job that writes briefs has to know; refuses what the providers would refuse."""
    stages: dict[str, Provider] = {}
    if mode != "refine":
        stages["draft"] = _usable(core, provider)
    if mode != "draft":
        stages["refine"] = _usable(core, provider, "claude")
    return {"type": BRIEFS, "mode": mode, **stages, **more}


def _usable(core: Core, named: Provider | None, preferred: Provider | None = None) -> Provider:
    """A provider with a key whose breaker lets calls pass.

    Never asked in a transaction: the database's own breaker would take the refusal for its own.
    """
    chosen = core.providers.choose(named, preferred)
    core.providers.check(chosen)
    return chosen


def _queue_briefs(tx: Tx, briefs: Sequence[Brief], spec: dict[str, Any]) -> Run:
    for brief in briefs:
        rows.change_brief(tx, brief.id, {"status": "queued", "error_message": None, "updated_at": tx.now})
    return _queue(tx, briefs[0].user_id, spec, [(brief.id, brief.title, None) for brief in briefs])


def _queue(
    tx: Tx,
    user_id: str | None,
    spec: dict[str, Any],
    items: Sequence[tuple[str, str, BatchItem | None]],
    key: str | None = None,
) -> Run:
    """A new job with its items; an item that is written already is taken over as it is."""
    told = {"batch": key, "total": len(items)}
    job = queue.submit(tx, kind=KIND, spec=spec, agent=None, key=key, user_id=user_id, told=told)
    fresh = [
        BatchItem(
            job_id=job.id,
            position=position,
            slug=slug,
            title=title,
            status="completed" if done else "pending",
            content=done.content if done else None,
            problems=done.problems if done else [],
            error=None,
            updated_at=done.updated_at if done else tx.now,
        )
        for position, (slug, title, done) in enumerate(items, 1)
    ]
    rows.add_items(tx, fresh)
    return _run(tx, job)


async def finished(core: Core, caller: Caller, job_id: str, seconds: float) -> Run:
    """Wait for a job's end, but not longer than this; the run as it then is."""
    loop = asyncio.get_running_loop()
    end = loop.time() + seconds
    with core.bus.listen(f"job:{job_id}") as listener:
        while True:
            run = await core.db.read(caller, lambda tx: _run(tx, _found(tx, job_id)))
            left = end - loop.time()
            if run.job.state not in LIVE or left <= 0:
                return run
            if listener.closed:
                raise Unavailable("the core is stopping", hint="the job goes on when it is up again")
            try:
                async with asyncio.timeout(left):
                    await listener.wait()
            except TimeoutError:
                continue


async def status(core: Core, caller: Caller) -> Status:
    """Providers, brief counts and the caller's newest runs."""

    def body(tx: Tx) -> tuple[dict[str, int], list[Run]]:
        newest = jobs.newest(tx, KIND, _SHOWN)
        counted = rows.count_items(tx, [job.id for job in newest])
        return rows.count_briefs(tx), [Run(job, counted[job.id]) for job in newest]

    counts, runs = await core.db.read(caller, body)
    return _status(core, counts, runs)


async def batch_status(
    core: Core, caller: Caller, batch_id: str, *, page: tuple[int, int] | None = None
) -> Status:
    """The same with the newest run of one batch: all its articles, or a page of them with their texts."""

    def body(tx: Tx) -> tuple[dict[str, int], Run]:
        last = jobs.latest(tx, KIND, batch.checked_batch_id(batch_id))
        if last is None:
            raise NotFound(
                f"batch {batch_id} has no run", field="batch_id", hint="content_batch_generate starts one"
            )
        counts = rows.count_items(tx, [last.id])[last.id]
        items = rows.items_of(tx, last.id, whole=page is not None, page=page)
        return rows.count_briefs(tx), Run(last, counts, items)

    counts, run = await core.db.read(caller, body)
    return _status(core, counts, [run])


def _status(core: Core, counts: Mapping[str, int], runs: Sequence[Run]) -> Status:
    installed = importlib.util.find_spec("pydantic_ai") is not None
    providers = {
        provider: {
            "configured": core.providers.configured(provider),
            "breaker": core.providers.breakers[provider].state,
            "model": core.providers.model_of(provider),
        }
        for provider in PROVIDERS
    }
    ready = any(row["configured"] and row["breaker"] != "open" for row in providers.values())
    return Status(
        providers, installed and ready, {status: counts.get(status, 0) for status in BRIEF_STATUSES}, runs
    )


def _live_run(tx: Tx, batch_id: str) -> Run | None:
    last = jobs.latest(tx, KIND, batch_id)
    return None if last is None or last.state not in LIVE else _run(tx, last)


def _finished_run(tx: Tx, spec: BatchSpec) -> Run | None:
    """The last run, when nothing of the batch is left to write."""
    last = jobs.latest(tx, KIND, spec.batch_id)
    done = _done(tx, last)
    left = any(article.slug not in done for article in spec.articles)
    return None if last is None or left else _run(tx, last)


def _run(tx: Tx, job: Job) -> Run:
    return Run(job, rows.count_items(tx, [job.id])[job.id])


def _done(tx: Tx, job: Job | None) -> dict[str, BatchItem]:
    """What the last run, whatever became of it, has written."""
    items = [] if job is None else rows.items_of(tx, job.id, whole=True)
    return {item.slug: item for item in items if item.status == "completed"}


def _found(tx: Tx, job_id: str) -> Job:
    job = jobs.get(tx, job_id)
    if job is None or job.kind != KIND:
        raise NotFound(f"job {job_id} not found", field="job_id")
    return job


async def _load(core: Core, batch_id: str) -> BatchSpec:
    """Read and parse a batch file."""
    file = batch_dir(core) / f"{batch.checked_batch_id(batch_id)}.md"
    text = await asyncio.to_thread(_read, file)
    return batch.parse(batch_id, text)


def _read(file: Path) -> str:
    try:
        with file.open("rb") as opened:
            raw = opened.read(batch.MAX_BYTES + 1)
    except FileNotFoundError:
        raise NotFound(
            f"there is no batch file {file.name}", field="batch_id", hint="put it into content.batch_dir"
        ) from None
    except OSError as error:
        raise Invalid(
            f"the batch file {file.name} cannot be read: {error.strerror}", field="batch_id"
        ) from None
    if len(raw) > batch.MAX_BYTES:
        raise Invalid(f"the batch file {file.name} is larger than 1 MiB", field="batch_id")
    try:
        return raw.decode()
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        raise Invalid(f"line {line}: not UTF-8", field="batch_id") from None
