"""Plans, phases, checkpoints and the state that a plan's agents share."""

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

from sqlalchemy import Select, bindparam, func, insert, select, update
from sqlalchemy.dialects import postgresql, sqlite

from quarterdeck.domain.plans import Progress
from quarterdeck.domain.records import Checkpoint, Phase, Plan, StateValue, Task, as_dict
from quarterdeck.store.schema import checkpoints, phases, plan_state, plans, tasks
from quarterdeck.store.tx import Shape, Tx, record, within


def add(tx: Tx, plan: Plan, its_phases: Sequence[Phase]) -> None:
    tx.write(insert(plans), as_dict(plan))
    if its_phases:
        rows = [as_dict(phase) for phase in its_phases]
        tx.write(insert(phases), rows)


@cache
def _by_slug(shape: Shape, lock: bool) -> Select[Any]:
    statement = (
        select(plans)
        .where(plans.c.slug == bindparam("slug"), *within(plans, shape))
        .order_by(plans.c.created_at)
    )
    return statement.with_for_update() if lock else statement


def by_slug(tx: Tx, slug: str, *, lock: bool = False) -> list[Plan]:
    """The caller's plan of that slug; an admin, who sees everyone's, may find several."""
    return [record(Plan, row) for row in tx.all(_by_slug(tx.shape, lock), slug=slug)]


def by_id(tx: Tx, plan_id: str) -> Plan | None:
    """The caller's plan, locked for this transaction."""
    row = tx.one(select(plans).where(plans.c.id == plan_id, *within(plans, tx.shape)).with_for_update())
    return None if row is None else record(Plan, row)


def _mine(tx: Tx, *plan_ids: str) -> Select[Any]:
    """Those of the ids that are plans of the caller, for the IN of rows that hang on them."""
    return select(plans.c.id).where(plans.c.id.in_(plan_ids), *within(plans, tx.shape))


def _my_phases(tx: Tx, *phase_ids: str) -> Select[Any]:
    """Those of the ids that are phases of the caller's plans."""
    of_plan = phases.c.plan_id == plans.c.id
    return (
        select(phases.c.id).join(plans, of_plan).where(phases.c.id.in_(phase_ids), *within(plans, tx.shape))
    )


def slugs_of(tx: Tx, plan_ids: Sequence[str]) -> dict[str, str]:
    """The slugs of the caller's plans."""
    if not plan_ids:
        return {}
    mine = select(plans.c.id, plans.c.slug).where(plans.c.id.in_(plan_ids), *within(plans, tx.shape))
    return {row.id: row.slug for row in tx.all(mine)}


def newest(tx: Tx, count: int, status: str | None, *, archived: bool) -> list[Plan]:
    """The caller's plans, newest first; archived ones only when asked for."""
    conditions = within(plans, tx.shape)
    if status is not None:
        conditions.append(plans.c.status == status)
    elif not archived:
        conditions.append(plans.c.status != "archived")
    statement = (
        select(plans).where(*conditions).order_by(plans.c.created_at.desc(), plans.c.id.desc()).limit(count)
    )
    return [record(Plan, row) for row in tx.all(statement)]


def progress_of(tx: Tx, plan_ids: Sequence[str]) -> dict[str, Progress]:
    """The progress of the caller's plans."""
    if not plan_ids:
        return {}
    statement = (
        select(tasks.c.plan_id, tasks.c.status, func.count().label("tally"))
        .where(tasks.c.plan_id.in_(_mine(tx, *plan_ids)), tasks.c.status != "cancelled")
        .group_by(tasks.c.plan_id, tasks.c.status)
    )
    totals: dict[str, list[int]] = {}
    for row in tx.all(statement):
        total = totals.setdefault(row.plan_id, [0, 0])
        total[0] += row.tally
        total[1] += row.tally if row.status == "completed" else 0
    return {plan_id: Progress(*total) for plan_id, total in totals.items()}


def change(tx: Tx, plan_id: str, values: Mapping[str, Any]) -> None:
    """Set columns of the caller's plan."""
    tx.write(update(plans).where(plans.c.id == plan_id, *within(plans, tx.shape)), values)


def phases_of(tx: Tx, plan_id: str, *, lock: bool = False) -> list[Phase]:
    """The phases of the caller's plan, in order."""
    statement = select(phases).where(phases.c.plan_id.in_(_mine(tx, plan_id))).order_by(phases.c.position)
    return [record(Phase, row) for row in tx.all(statement.with_for_update() if lock else statement)]


def change_phase(tx: Tx, phase_id: str, values: Mapping[str, Any]) -> None:
    """Set columns of a phase of the caller's plan."""
    tx.write(update(phases).where(phases.c.id.in_(_my_phases(tx, phase_id))), values)


def tasks_of(tx: Tx, plan_id: str) -> list[Task]:
    """The tasks of the caller's plan, in order."""
    statement = (
        select(tasks)
        .join(phases, phases.c.id == tasks.c.phase_id)
        .where(tasks.c.plan_id.in_(_mine(tx, plan_id)))
        .order_by(phases.c.position, tasks.c.position)
    )
    return [record(Task, row) for row in tx.all(statement)]


def states_in(tx: Tx, phase_id: str) -> list[str]:
    """The states of the tasks in a phase of the caller's plan."""
    inside = tasks.c.phase_id.in_(_my_phases(tx, phase_id))
    return [row.status for row in tx.all(select(tasks.c.status).where(inside))]


def add_checkpoint(tx: Tx, checkpoint: Checkpoint) -> None:
    tx.write(insert(checkpoints), as_dict(checkpoint))


def checkpoints_of(tx: Tx, phase_ids: Sequence[str]) -> list[Checkpoint]:
    """The checkpoints of phases of the caller's plans, oldest first."""
    statement = (
        select(checkpoints)
        .where(checkpoints.c.phase_id.in_(_my_phases(tx, *phase_ids)))
        .order_by(checkpoints.c.created_at, checkpoints.c.id)
    )
    return [record(Checkpoint, row) for row in tx.all(statement)]


def _upsert(fresh: Any) -> Any:
    changed = {name: fresh.excluded[name] for name in ("value", "category", "updated_at")}
    return fresh.on_conflict_do_update(index_elements=["plan_id", "key"], set_=changed)


_PUT_STATE = {
    "sqlite": _upsert(sqlite.insert(plan_state)),
    "postgresql": _upsert(postgresql.insert(plan_state)),
}


def put_state(tx: Tx, value: StateValue) -> None:
    """Set a key of a plan that was read in this transaction."""
    tx.write(_PUT_STATE[tx.dialect], as_dict(value))


def get_state(tx: Tx, plan_id: str, key: str) -> StateValue | None:
    """A value of the caller's plan."""
    mine = plan_state.c.plan_id.in_(_mine(tx, plan_id))
    row = tx.one(select(plan_state).where(mine, plan_state.c.key == key))
    return None if row is None else record(StateValue, row)


def list_state(tx: Tx, plan_id: str, category: str | None, count: int) -> list[StateValue]:
    """The values of the caller's plan by key."""
    statement = select(plan_state).where(plan_state.c.plan_id.in_(_mine(tx, plan_id)))
    if category is not None:
        statement = statement.where(plan_state.c.category == category)
    return [record(StateValue, row) for row in tx.all(statement.order_by(plan_state.c.key).limit(count))]
