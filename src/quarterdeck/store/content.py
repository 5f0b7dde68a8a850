"""Briefs, the usage of model providers, and the articles of content jobs."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from sqlalchemy import Select, bindparam, func, insert, null, select, update
from sqlalchemy.dialects import postgresql, sqlite

from quarterdeck.domain.jobs import LIVE
from quarterdeck.domain.records import BatchItem, Brief, ModelUsage, as_dict
from quarterdeck.store.schema import batch_items, briefs, jobs, model_usage
from quarterdeck.store.tx import Shape, Tx, record, within


@dataclass(frozen=True, slots=True)
class Used:
    """The usage of one provider for one purpose; `unknown` calls have no known cost."""

    provider: str
    purpose: str
    requests: int
    input_tokens: int
    output_tokens: int
    cost_usd: float
    unknown: int


def add_brief(tx: Tx, brief: Brief) -> None:
    tx.write(insert(briefs), as_dict(brief))


@cache
def _get(shape: Shape, lock: bool) -> Select[Any]:
    statement = select(briefs).where(briefs.c.id == bindparam("brief_id"), *within(briefs, shape))
    return statement.with_for_update() if lock else statement


def get_brief(tx: Tx, brief_id: str, *, lock: bool = False) -> Brief | None:
    """The caller's brief; `lock` holds the row until the transaction ends."""
    row = tx.one(_get(tx.shape, lock), brief_id=brief_id)
    return None if row is None else record(Brief, row)


def change_brief(tx: Tx, brief_id: str, values: Mapping[str, Any]) -> None:
    """Set columns of the caller's brief."""
    tx.write(update(briefs).where(briefs.c.id == brief_id, *within(briefs, tx.shape)), values)


def newest_briefs(tx: Tx, count: int, status: str | None) -> list[Brief]:
    """The caller's briefs, newest first."""
    return [record(Brief, row) for row in tx.all(_listed(tx, status, oldest=False).limit(count))]


def waiting_briefs(tx: Tx, count: int, *, drafted: bool, lock: bool) -> list[Brief]:
    """The caller's pending briefs, oldest first; only those that have a draft when `drafted`."""
    statement = _listed(tx, "pending", oldest=True).limit(count)
    if drafted:
        statement = statement.where(briefs.c.draft_output.is_not(None))
    if lock:
        statement = statement.with_for_update(skip_locked=True)
    return [record(Brief, row) for row in tx.all(statement)]


def _listed(tx: Tx, status: str | None, *, oldest: bool) -> Select[Any]:
    conditions = within(briefs, tx.shape)
    if status is not None:
        conditions.append(briefs.c.status == status)
    order = (briefs.c.created_at, briefs.c.id)
    return select(briefs).where(*conditions).order_by(*(c if oldest else c.desc() for c in order))


def count_briefs(tx: Tx) -> dict[str, int]:
    """How many briefs of each status the caller has."""
    statement = (
        select(briefs.c.status, func.count().label("many"))
        .where(*within(briefs, tx.shape))
        .group_by(briefs.c.status)
    )
    return {row.status: row.many for row in tx.all(statement)}


def briefed_tasks(tx: Tx, task_ids: Sequence[str]) -> set[str]:
    """Which of these tasks have a brief of the caller that has not failed."""
    if not task_ids:
        return set()
    live = (briefs.c.task_id.in_(task_ids), briefs.c.status != "failed")
    statement = select(briefs.c.task_id).where(*live, *within(briefs, tx.shape, anchored=True))
    return {row.task_id for row in tx.all(statement)}


_ADD_USAGE: dict[str, Any] = {
    "sqlite": sqlite.insert(model_usage).on_conflict_do_nothing(index_elements=["id"]),
    "postgresql": postgresql.insert(model_usage).on_conflict_do_nothing(index_elements=["id"]),
}


def add_usage(tx: Tx, usage: ModelUsage) -> bool:
    """Write one call's usage; False when it was written before."""
    return tx.write(_ADD_USAGE[tx.dialect], as_dict(usage)) > 0


_SUMS = (
    func.count().label("requests"),
    func.coalesce(func.sum(model_usage.c.input_tokens), 0).label("input_tokens"),
    func.coalesce(func.sum(model_usage.c.output_tokens), 0).label("output_tokens"),
    func.coalesce(func.sum(model_usage.c.cost_usd), 0.0).label("cost_usd"),
    (func.count() - func.count(model_usage.c.cost_usd)).label("unknown"),
)


def usage_since(tx: Tx, since: int) -> list[Used]:
    """The caller's usage since a time, by provider and purpose."""
    by = (model_usage.c.provider, model_usage.c.purpose)
    statement = (
        select(*by, *_SUMS)
        .where(model_usage.c.created_at >= since, *within(model_usage, tx.shape))
        .group_by(*by)
        .order_by(*by)
    )
    return [_used(row.provider, row.purpose, row) for row in tx.all(statement)]


def usage_of(tx: Tx, brief_id: str) -> Used:
    """The usage of the caller's brief."""
    mine = within(model_usage, tx.shape, anchored=True)
    row = tx.one(select(*_SUMS).where(model_usage.c.brief_id == brief_id, *mine))
    return _used("", "", row)


def _used(provider: str, purpose: str, row: Any) -> Used:
    return Used(
        provider,
        purpose,
        int(row.requests),
        int(row.input_tokens),
        int(row.output_tokens),
        float(row.cost_usd),
        int(row.unknown),
    )


def add_items(tx: Tx, items: Iterable[BatchItem]) -> None:
    tx.write(
        insert(batch_items),
        [as_dict(item) for item in items],
    )


_WHOLE = [batch_items.c[name] for name in BatchItem.__slots__]
_WITHOUT_TEXT = [null() if column.name == "content" else column for column in _WHOLE]


def _mine(tx: Tx, *job_ids: str) -> Select[Any]:
    """Those of the ids that are jobs of the caller, for the IN of their items."""
    return select(jobs.c.id).where(jobs.c.id.in_(job_ids), *within(jobs, tx.shape))


def items_of(
    tx: Tx, job_id: str, *, whole: bool = False, page: tuple[int, int] | None = None
) -> list[BatchItem]:
    """The items of the caller's job, in order; with their texts when `whole`.

    `page` is how many to leave out and how many to return.
    """
    statement = (
        select(*(_WHOLE if whole else _WITHOUT_TEXT))
        .where(batch_items.c.job_id.in_(_mine(tx, job_id)))
        .order_by(batch_items.c.position)
    )
    if page is not None:
        statement = statement.offset(page[0]).limit(page[1])
    return [record(BatchItem, row) for row in tx.all(statement)]


def change_item(tx: Tx, item: BatchItem, values: Mapping[str, Any]) -> None:
    """Set columns of an item whose job this worker holds."""
    statement = update(batch_items).where(
        batch_items.c.job_id == item.job_id, batch_items.c.position == item.position
    )
    tx.write(statement, {**values, "updated_at": tx.now})


def count_items(tx: Tx, job_ids: Sequence[str]) -> dict[str, dict[str, int]]:
    """How many items of each status the caller's jobs have."""
    counts: dict[str, dict[str, int]] = {job_id: {} for job_id in job_ids}
    if job_ids:
        by = (batch_items.c.job_id, batch_items.c.status)
        statement = (
            select(*by, func.count().label("many"))
            .where(batch_items.c.job_id.in_(_mine(tx, *job_ids)))
            .group_by(*by)
        )
        for row in tx.all(statement):
            counts[row.job_id][row.status] = row.many
    return counts


def live_job_of(tx: Tx, brief_id: str) -> str | None:
    """The caller's job that a brief waits for or is written by."""
    statement = (
        select(jobs.c.id)
        .join(batch_items, batch_items.c.job_id == jobs.c.id)
        .where(
            *within(jobs, tx.shape),
            jobs.c.state.in_(LIVE),
            batch_items.c.slug == brief_id,
            batch_items.c.status.in_(("pending", "drafted")),
        )
        .limit(1)
    )
    row = tx.one(statement)
    return None if row is None else str(row.id)
