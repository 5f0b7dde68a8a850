"""Sums over days: what work cost, how much was done, how long it took and why it failed."""

from dataclasses import dataclass

from sqlalchemy import BigInteger, case, cast, func, or_, select

from quarterdeck.store.schema import jobs, model_usage, plans, projects, tasks, transitions
from quarterdeck.store.tx import Tx, within

DAY = 86_400_000_000


@dataclass(frozen=True, slots=True)
class Spent:
    """What one agent's jobs for one plan of one project came to on one day."""

    day: int
    agent: str
    project: str
    plan: str
    jobs: int
    failed: int
    cost_usd: float
    tokens: int


@dataclass(frozen=True, slots=True)
class Stay:
    """How long tasks stayed in a status, on average; how often they came to it."""

    status: str
    times: int
    mean_us: float


def spent(tx: Tx, since: int) -> list[Spent]:
    """The caller's jobs that ended since then."""
    day = (jobs.c.finished_at // DAY).label("day")
    names = (
        func.coalesce(jobs.c.agent, jobs.c.kind).label("agent"),
        func.coalesce(projects.c.name, "").label("project"),
        func.coalesce(plans.c.title, "").label("plan"),
    )
    tokens = func.coalesce(jobs.c.input_tokens, 0) + func.coalesce(jobs.c.output_tokens, 0)
    failed = case((jobs.c.state.in_(("FAILED", "EXPIRED")), 1), else_=0)
    whole = jobs.outerjoin(tasks, tasks.c.id == jobs.c.task_id)
    whole = whole.outerjoin(plans, plans.c.id == tasks.c.plan_id)
    whole = whole.outerjoin(projects, projects.c.id == func.coalesce(jobs.c.project_id, tasks.c.project_id))
    statement = (
        select(
            day,
            *names,
            func.count().label("jobs"),
            func.sum(failed).label("failed"),
            func.sum(func.coalesce(jobs.c.cost_usd, 0.0)).label("cost"),
            func.sum(cast(tokens, BigInteger)).label("tokens"),
        )
        .select_from(whole)
        .where(jobs.c.finished_at >= since, *within(jobs, tx.shape))
        .group_by(day, *names)
    )
    return [
        Spent(row.day, row.agent, row.project, row.plan, row.jobs, row.failed, row.cost, int(row.tokens))
        for row in tx.all(statement)
    ]


def asked(tx: Tx, since: int) -> list[Spent]:
    """What the caller's calls to model providers came to."""
    day = (model_usage.c.created_at // DAY).label("day")
    statement = (
        select(
            day,
            model_usage.c.provider,
            func.sum(func.coalesce(model_usage.c.cost_usd, 0.0)).label("cost"),
            func.sum(model_usage.c.input_tokens + model_usage.c.output_tokens).label("tokens"),
        )
        .where(model_usage.c.created_at >= since, *within(model_usage, tx.shape))
        .group_by(day, model_usage.c.provider)
    )
    return [
        Spent(row.day, f"{row.provider} (content)", "", "", 0, 0, row.cost, int(row.tokens))
        for row in tx.all(statement)
    ]


def moved(tx: Tx, since: int) -> dict[tuple[int, str], int]:
    """How many of the caller's tasks came to a status on a day: `pending` first of all means created."""
    day = (transitions.c.created_at // DAY).label("day")
    came = case((transitions.c.from_status.is_(None), "created"), else_=transitions.c.to_status).label("came")
    statement = (
        select(day, came, func.count().label("tally"))
        .join(tasks, tasks.c.id == transitions.c.task_id)
        .where(
            transitions.c.created_at >= since,
            or_(transitions.c.from_status.is_(None), transitions.c.to_status.in_(("completed", "failed"))),
            *within(tasks, tx.shape),
        )
        .group_by(day, came)
    )
    return {(row.day, row.came): row.tally for row in tx.all(statement)}


def stays(tx: Tx, since: int) -> list[Stay]:
    """How long the caller's tasks stayed in each status that they left since then."""
    follows = func.lead(transitions.c.created_at).over(
        partition_by=transitions.c.task_id, order_by=(transitions.c.created_at, transitions.c.id)
    )
    each = (
        select(
            transitions.c.to_status.label("status"),
            transitions.c.created_at.label("came"),
            follows.label("went"),
        )
        .join(tasks, tasks.c.id == transitions.c.task_id)
        .where(*within(tasks, tx.shape))
        .subquery()
    )
    statement = (
        select(
            each.c.status,
            func.count().label("times"),
            func.avg(each.c.went - each.c.came).label("mean"),
        )
        .where(each.c.went >= since)
        .group_by(each.c.status)
    )
    return [Stay(row.status, row.times, float(row.mean)) for row in tx.all(statement)]


def failures(tx: Tx, since: int) -> list[tuple[str, int]]:
    """Why the caller's jobs failed, the most frequent reason first."""
    why = func.coalesce(jobs.c.reason_code, jobs.c.state).label("why")
    tally = func.count().label("tally")
    statement = (
        select(why, tally)
        .where(jobs.c.finished_at >= since, jobs.c.state.in_(("FAILED", "EXPIRED")), *within(jobs, tx.shape))
        .group_by(why)
        .order_by(tally.desc(), why)
        .limit(20)
    )
    return [(row.why, row.tally) for row in tx.all(statement)]
