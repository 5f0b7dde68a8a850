"""What was said of the results of tasks."""

from functools import cache
from typing import Any

from sqlalchemy import Select, bindparam, insert, select

from quarterdeck.domain.records import Review, as_dict
from quarterdeck.store.schema import reviews
from quarterdeck.store.tasks import seen
from quarterdeck.store.tx import Shape, Tx, record


def add(tx: Tx, review: Review) -> None:
    tx.write(insert(reviews), as_dict(review))


@cache
def _newest(shape: Shape) -> Select[Any]:
    return (
        select(reviews)
        .where(reviews.c.task_id.in_(seen(shape)))
        .order_by(reviews.c.created_at.desc(), reviews.c.id.desc())
        .limit(bindparam("count"))
    )


def of_task(tx: Tx, task_id: str, count: int) -> list[Review]:
    """The newest reviews of the caller's task, oldest of them first."""
    rows = tx.all(_newest(tx.shape), task_id=task_id, count=count)
    return [record(Review, row) for row in reversed(rows)]
