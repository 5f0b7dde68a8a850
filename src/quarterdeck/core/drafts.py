"""Articles of a batch as files with front matter, beside the batch file. The store has them all anyway."""

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import structlog
import yaml

from quarterdeck.core.batches import batch_dir, drafts_dir
from quarterdeck.core.context import Core
from quarterdeck.core.models import Generated
from quarterdeck.domain.callers import SYSTEM
from quarterdeck.domain.ids import iso, now_us
from quarterdeck.domain.records import BatchItem, Job
from quarterdeck.paths import write_private
from quarterdeck.store import content as rows

logger = structlog.get_logger()


async def write(
    core: Core,
    job: Job,
    item: BatchItem,
    text: str,
    problems: Sequence[str],
    answer: Generated | None = None,
) -> None:
    """Write one draft as a whole or not at all; a disk that refuses costs the file, not the article."""
    article = job.spec["articles"][item.position - 1]
    facts: dict[str, Any] = {
        "title": item.title,
        "slug": item.slug,
        "service": job.spec.get("service"),
        "category": job.spec.get("category"),
        "difficulty": article.get("difficulty"),
        "keyword": article.get("keyword"),
        "batch": job.idempotency_key,
        "provider": job.spec["provider"],
        "model": answer.model if answer else None,
        "generated_at": iso(item.updated_at if answer is None else now_us()),
        "problems": list(problems),
    }
    front = yaml.safe_dump(
        {key: value for key, value in facts.items() if value}, sort_keys=False, allow_unicode=True
    )
    try:
        await asyncio.to_thread(_put, _path(core, job, item), f"---\n{front}---\n\n{text}\n")
    except OSError as error:
        logger.warning("job.draft_not_written", slug=item.slug, job=job.id, error=str(error))


async def write_missing(core: Core, job: Job) -> None:
    """Write the drafts that an earlier attempt at this job kept but had no time to write."""
    for item in await core.db.read(SYSTEM, rows.items_of, job.id, whole=True):
        fresh = item.status == "completed" and item.updated_at >= job.created_at
        if fresh and item.content and not await asyncio.to_thread(_path(core, job, item).exists):
            await write(core, job, item, item.content, item.problems)


def _path(core: Core, job: Job, item: BatchItem) -> Path:
    folder = drafts_dir(job.idempotency_key or job.id, job.user_id)
    return batch_dir(core) / folder / f"{item.slug}.md"


def _put(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    write_private(path, text)
