"""What the relay asks of the store: pages of jobs, the caller's repositories, and webhooks."""

from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import func, insert, select, update

from quarterdeck.domain.records import Delivery, Job, as_dict
from quarterdeck.store.schema import deliveries, jobs, repos
from quarterdeck.store.tx import Tx, record, within


def page(tx: Tx, kind: str, state: str | None, count: int, offset: int) -> tuple[list[Job], int]:
    """Some of the caller's jobs of a kind, newest first, and how many there are."""
    chosen = [jobs.c.kind == kind, *within(jobs, tx.shape)]
    if state is not None:
        chosen.append(jobs.c.state == state)
    statement = (
        select(jobs)
        .where(*chosen)
        .order_by(jobs.c.created_at.desc(), jobs.c.id.desc())
        .limit(count)
        .offset(offset)
    )
    total = tx.one(select(func.count().label("total")).select_from(jobs).where(*chosen))
    return [record(Job, row) for row in tx.all(statement)], 0 if total is None else int(total.total)


def repo_paths(tx: Tx) -> list[str]:
    """The folders of the caller's repositories."""
    return [row.path for row in tx.all(select(repos.c.path).where(*within(repos, tx.shape)))]


def add_delivery(tx: Tx, delivery: Delivery) -> None:
    tx.write(insert(deliveries), as_dict(delivery))


def delivery_of(tx: Tx, job_id: str) -> Delivery | None:
    """The webhook's message of a job of the caller."""
    statement = (
        select(deliveries)
        .join(jobs, jobs.c.id == deliveries.c.job_id)
        .where(deliveries.c.job_id == job_id, *within(jobs, tx.shape))
        .order_by(deliveries.c.created_at.desc())
        .limit(1)
    )
    row = tx.one(statement)
    return None if row is None else record(Delivery, row)


def due(tx: Tx, count: int, until: int) -> Sequence[Delivery]:
    """Take messages that wait to be sent now; until then nobody else takes them."""
    statement = (
        select(deliveries)
        .where(deliveries.c.state == "pending", deliveries.c.next_at <= tx.now)
        .order_by(deliveries.c.next_at, deliveries.c.id)
        .limit(count)
        .with_for_update(skip_locked=True)
    )
    found = [record(Delivery, row) for row in tx.all(statement)]
    for delivery in found:
        change_delivery(tx, delivery, {"next_at": until})
    return found


def next_due(tx: Tx) -> int | None:
    """When the next message is to be sent."""
    row = tx.one(select(func.min(deliveries.c.next_at).label("at")).where(deliveries.c.state == "pending"))
    return None if row is None or row.at is None else int(row.at)


def change_delivery(tx: Tx, delivery: Delivery, values: Mapping[str, Any]) -> None:
    tx.write(update(deliveries).where(deliveries.c.id == delivery.id), values)
