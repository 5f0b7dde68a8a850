"""The content tools of the plans dialect: briefs, texts from models, batches, usage."""

from typing import Annotated

from pydantic import AliasChoices, Field

from quarterdeck.core import batches, content
from quarterdeck.core.content import BriefView, Sums
from quarterdeck.domain.content import BriefStatus, ContentType, Difficulty, Mode, Period, Provider
from quarterdeck.domain.content import count_words as words
from quarterdeck.domain.errors import Invalid
from quarterdeck.domain.ids import iso
from quarterdeck.domain.records import BatchItem, Brief
from quarterdeck.surfaces.schema import Args, Id, Label, Row, Some, Text
from quarterdeck.surfaces.table import Call, Tool, tool

BriefTitle = Annotated[str, Field(min_length=1, max_length=255)]
Words = Annotated[int, Field(ge=10, le=10_000)]
_PAGE = 20


class Config(Args):
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    max_tokens: Annotated[int, Field(ge=1, le=200_000)] | None = None


class ContentGenerate(Args):
    prompt: Some | None = None
    provider: Provider | None = None
    config: Config = Field(default_factory=Config)
    brief_id: Id | None = None
    mode: Mode = "full"
    sync: bool = False


@tool("write", "operator")
async def content_generate(call: Call, a: ContentGenerate) -> Row:
    """Generate text for a prompt; or for a brief_id, queued unless sync. full = draft, then refine."""
    if (a.prompt is None) == (a.brief_id is None):
        raise Invalid("give either prompt or brief_id", field="prompt")
    given = a.config.model_dump(exclude_none=True)
    if a.prompt is not None:
        answer = await content.generate(call.core, call.caller, a.prompt, provider=a.provider, **given)
        used = {"input_tokens": answer.input_tokens, "output_tokens": answer.output_tokens}
        return {
            "success": True,
            "content": answer.text,
            "provider": answer.provider,
            "model": answer.model,
            "usage": {**used, "cost": answer.cost_usd},
            **({"truncated": True} if answer.truncated else {}),
        }
    options = {"mode": a.mode, "provider": a.provider, **given}
    if not a.sync:
        run = await batches.queue_brief(call.core, call.caller, str(a.brief_id), **options)
        return {"success": True, "queued": True, "brief_id": a.brief_id, "job": run_row(run)}
    run, view = await batches.write_brief(call.core, call.caller, str(a.brief_id), **options)
    if run.job.state != "SUCCEEDED":
        return {"success": True, "queued": True, "brief_id": a.brief_id, "job": run_row(run)}
    return {"success": True, "queued": False, "brief": brief_row(view), "content": view.brief.best_content}


class ContentBatchGenerate(Args):
    batch_id: Label | None = None
    provider: Provider | None = None
    dry_run: bool = False
    limit: int = 5
    mode: Mode = "full"


@tool("write", "operator")
async def content_batch_generate(call: Call, a: ContentBatchGenerate) -> Row:
    """Write the articles of a batch file as a job; without batch_id, queue limit (1-50) pending briefs."""
    if a.batch_id is not None:
        if a.dry_run:
            return _preview_row(await batches.preview(call.core, call.caller, a.batch_id))
        run = await batches.start(call.core, call.caller, a.batch_id, a.provider)
        return {"success": True, "queued": run.counts.get("pending", 0), **run_row(run)}
    if a.dry_run:
        brief_ids = await batches.pending(call.core, call.caller, limit=a.limit, mode=a.mode)
        return {"success": True, "dry_run": True, "queued": 0, "brief_ids": brief_ids}
    queued, brief_ids = await batches.queue_pending(
        call.core, call.caller, limit=a.limit, mode=a.mode, provider=a.provider
    )
    job = {"job": run_row(queued)} if queued else {}
    return {"success": True, "queued": len(brief_ids), "brief_ids": brief_ids, **job}


class BriefCreate(Args):
    title: BriefTitle
    content_type: ContentType = "help_article"
    service: Label | None = None
    keywords: Annotated[list[Label], Field(default_factory=list, max_length=50)]
    target_word_count: Words = 800
    description: Text | None = None
    difficulty: Difficulty | None = None
    plan_slug: Label | None = None


@tool("write", "operator")
async def content_brief_create(call: Call, a: BriefCreate) -> Row:
    """Create a content brief for later generation."""
    view = await content.create(call.core, call.caller, **a.model_dump())
    return {"success": True, "brief": _summary(view)}


class OneBrief(Args):
    brief_id: Id = Field(validation_alias=AliasChoices("id", "brief_id"))


@tool("read", "viewer")
async def content_brief_get(call: Call, a: OneBrief) -> Row:
    """A brief with its outputs, generation log and cost."""
    return {"success": True, "brief": brief_row(await content.get(call.core, call.caller, a.brief_id))}


class BriefList(Args):
    status: BriefStatus | None = None
    limit: int = 20


@tool("read", "viewer")
async def content_brief_list(call: Call, a: BriefList) -> Row:
    """Briefs, newest first. limit 1-100."""
    found = await content.listing(call.core, call.caller, status=a.status, limit=a.limit)
    return {"success": True, "briefs": [_summary(view) for view in found], "count": len(found)}


class ContentStatus(Args):
    batch_id: Label | None = None
    include_content: bool = False
    offset: Annotated[int, Field(ge=0)] = 0
    limit: int = 5


@tool("read", "viewer")
async def content_status(call: Call, a: ContentStatus) -> Row:
    """Providers, brief counts and batch progress. include_content pages a batch's articles (limit 1-20)."""
    if a.batch_id is None:
        found = await batches.status(call.core, call.caller)
        return _status_row(found, [run_row(run) for run in found.runs])
    page = (a.offset, min(max(a.limit, 1), _PAGE)) if a.include_content else None
    found = await batches.batch_status(call.core, call.caller, a.batch_id, page=page)
    run = found.runs[0]
    row = {**run_row(run), "articles": [_item_row(item) for item in run.items]}
    if page is not None and a.offset + len(run.items) < run.total:
        row["next_offset"] = a.offset + len(run.items)
    return _status_row(found, [row])


class UsageStats(Args):
    period: Period = "month"


@tool("read", "viewer")
async def content_usage_stats(call: Call, a: UsageStats) -> Row:
    """Requests, tokens and cost by provider and purpose. cost leaves out unknown_cost_requests."""
    report = await content.usage(call.core, call.caller, a.period)
    return {
        "success": True,
        "period": a.period,
        "since": iso(report.since),
        **_sums_row(report.total),
        "by_provider": {name: _sums_row(sums) for name, sums in report.by_provider.items()},
        "by_purpose": {name: _sums_row(sums) for name, sums in report.by_purpose.items()},
    }


class FromPlan(Args):
    plan_slug: Label
    content_type: ContentType = "help_article"
    service: Label | None = None
    limit: int = 5
    target_word_count: Words = 800


@tool("write", "operator")
async def content_from_plan(call: Call, a: FromPlan) -> Row:
    """Make a brief for each unfinished task of a plan that has none. limit 1-100."""
    made = await content.from_plan(call.core, call.caller, **a.model_dump())
    return {
        "success": True,
        "created": len(made.briefs),
        "briefs": [_summary(BriefView(brief, a.plan_slug)) for brief in made.briefs],
        "already_briefed": made.already,
        "tasks_left": made.left,
    }


def _summary(view: BriefView) -> Row:
    brief = view.brief
    return {
        "id": brief.id,
        "title": brief.title,
        "content_type": brief.content_type,
        "service": brief.service,
        "status": brief.status,
        "keywords": brief.keywords,
        "target_word_count": brief.target_word_count,
        "difficulty": brief.difficulty,
        "plan_slug": view.plan_slug,
        "task_id": brief.task_id,
        "created_at": iso(brief.created_at),
        "updated_at": iso(brief.updated_at),
    }


def brief_row(view: BriefView) -> Row:
    brief: Brief = view.brief
    return {
        **_summary(view),
        "description": brief.description,
        "draft_output": brief.draft_output,
        "refined_output": brief.refined_output,
        "final_content": brief.final_content,
        "best_content": brief.best_content,
        "error_message": brief.error_message,
        "generation_log": brief.generation_log,
        "total_cost": view.total_cost,
        "unknown_cost_requests": view.used.unknown if view.used else 0,
    }


def run_row(run: batches.Run) -> Row:
    job = run.job
    waiting = {"pending": sum(run.counts.get(status, 0) for status in ("pending", "drafted"))}
    folder = {"drafts": batches.drafts_dir(run.batch_id, job.user_id).as_posix()} if run.batch_id else {}
    return {
        "batch_id": run.batch_id,
        "job_id": job.id,
        "state": job.state,
        "total": run.total,
        "completed": run.counts.get("completed", 0),
        "failed": run.counts.get("failed", 0),
        **waiting,
        "attempt": job.attempt,
        "summary": job.summary,
        "reason_code": job.reason_code,
        "created_at": iso(job.created_at),
        "started_at": iso(job.started_at),
        "finished_at": iso(job.finished_at),
        **folder,
    }


def _item_row(item: BatchItem) -> Row:
    row: Row = {
        "position": item.position,
        "slug": item.slug,
        "title": item.title,
        "status": item.status,
        "problems": item.problems,
        "error": item.error,
        "updated_at": iso(item.updated_at),
    }
    return row if item.content is None else {**row, "words": words(item.content), "content": item.content}


def _preview_row(preview: batches.Preview) -> Row:
    spec = preview.spec
    articles = [
        {
            "number": article.number,
            "line": article.line,
            "slug": article.slug,
            "title": article.title,
            "difficulty": article.difficulty,
            "primary_keyword": article.primary_keyword,
            "prompt_chars": len(spec.prompt(article)),
            "written": article.slug in preview.done,
        }
        for article in spec.articles
    ]
    todo = [article for article in articles if not article["written"]]
    return {
        "success": True,
        "dry_run": True,
        "batch_id": spec.batch_id,
        "service": spec.service,
        "category": spec.category,
        "priority": spec.priority,
        "total": len(articles),
        "to_generate": len(todo),
        "prompt_chars": sum(article["prompt_chars"] for article in todo),
        "articles": articles,
        "last_run": run_row(preview.run) if preview.run else None,
    }


def _status_row(status: batches.Status, runs: list[Row]) -> Row:
    return {
        "success": True,
        "providers": status.providers,
        "pipeline_available": status.available,
        "counts": status.counts,
        "batches": runs,
    }


def _sums_row(sums: Sums) -> Row:
    return {
        "requests": sums.requests,
        "input_tokens": sums.input_tokens,
        "output_tokens": sums.output_tokens,
        "total_tokens": sums.input_tokens + sums.output_tokens,
        "cost": sums.known_cost,
        "unknown_cost_requests": sums.unknown,
    }


TOOLS: tuple[Tool, ...] = (
    content_generate,
    content_batch_generate,
    content_brief_create,
    content_brief_get,
    content_brief_list,
    content_status,
    content_usage_stats,
    content_from_plan,
)
