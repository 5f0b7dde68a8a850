"""Plans that were proposed and wait for a person."""

from collections.abc import Mapping
from typing import Any

from sqlalchemy import insert, select, update

from quarterdeck.domain.records import Proposal, as_dict
from quarterdeck.store.schema import proposals
from quarterdeck.store.tx import Tx, record, within


def add(tx: Tx, proposal: Proposal) -> None:
    tx.write(insert(proposals), as_dict(proposal))


def held(tx: Tx, proposal_id: str) -> Proposal | None:
    """The caller's proposal, locked for this transaction."""
    mine = select(proposals).where(proposals.c.id == proposal_id, *within(proposals, tx.shape))
    row = tx.one(mine.with_for_update())
    return None if row is None else record(Proposal, row)


def newest(tx: Tx, count: int, status: str | None) -> list[Proposal]:
    """The caller's proposals, newest first."""
    conditions = within(proposals, tx.shape)
    if status is not None:
        conditions.append(proposals.c.status == status)
    statement = (
        select(proposals)
        .where(*conditions)
        .order_by(proposals.c.created_at.desc(), proposals.c.id.desc())
        .limit(count)
    )
    return [record(Proposal, row) for row in tx.all(statement)]


def change(tx: Tx, proposal_id: str, values: Mapping[str, Any]) -> None:
    """Set columns of the caller's proposal."""
    tx.write(update(proposals).where(proposals.c.id == proposal_id, *within(proposals, tx.shape)), values)
