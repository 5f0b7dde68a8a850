"""What the work came to: cost and tokens by day, agent, project and plan; throughput; time; failures."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from quarterdeck.core.context import Core
from quarterdeck.domain.callers import Caller
from quarterdeck.domain.ids import now_us
from quarterdeck.store import insight as rows
from quarterdeck.store.insight import DAY, Spent, Stay
from quarterdeck.store.tx import Tx

_MOST_DAYS = 366
_NAMED = 7


@dataclass(frozen=True, slots=True)
class Total:
    """What one agent, project or plan came to."""

    name: str
    jobs: int
    failed: int
    cost_usd: float
    tokens: int


@dataclass(frozen=True, slots=True)
class Insight:
    """Everything of some days. Series are by name, one value a day; the smallest are together in one."""

    days: list[int]
    total: Total
    cost: dict[str, list[float]]
    tokens: dict[str, list[float]]
    agents: list[Total]
    projects: list[Total]
    plans: list[Total]
    throughput: dict[str, list[float]]
    stays: list[Stay]
    failures: list[tuple[str, int]]


async def over(core: Core, caller: Caller, days: int) -> Insight:
    """The caller's last days, today as the last of them; at most a year."""
    count = min(max(days, 1), _MOST_DAYS)
    today = now_us() // DAY
    shown = list(range(today - count + 1, today + 1))
    since = shown[0] * DAY

    def body(tx: Tx) -> Insight:
        spent = [*rows.spent(tx, since), *rows.asked(tx, since)]
        moved = rows.moved(tx, since)
        return Insight(
            days=shown,
            total=_total("all", spent),
            cost=_series(spent, shown, lambda one: one.cost_usd),
            tokens=_series(spent, shown, lambda one: float(one.tokens)),
            agents=_totals(spent, lambda one: one.agent),
            projects=_totals(spent, lambda one: one.project),
            plans=_totals(spent, lambda one: one.plan),
            throughput={
                name: [float(moved.get((day, name), 0)) for day in shown]
                for name in ("created", "completed", "failed")
            },
            stays=rows.stays(tx, since),
            failures=rows.failures(tx, since),
        )

    return await core.db.read(caller, body)


def _total(name: str, spent: Sequence[Spent]) -> Total:
    return Total(
        name,
        sum(one.jobs for one in spent),
        sum(one.failed for one in spent),
        sum(one.cost_usd for one in spent),
        sum(one.tokens for one in spent),
    )


def _totals(spent: Sequence[Spent], name: Callable[[Spent], str]) -> list[Total]:
    names = {name(one) for one in spent} - {""}
    totals = [_total(each, [one for one in spent if name(one) == each]) for each in names]
    return sorted(totals, key=lambda one: (-one.cost_usd, -one.tokens, one.name))


def _series(
    spent: Sequence[Spent], days: Sequence[int], value: Callable[[Spent], float]
) -> dict[str, list[float]]:
    sums: dict[str, float] = {}
    for one in spent:
        sums[one.agent] = sums.get(one.agent, 0.0) + value(one)
    named = [name for name in sorted(sums, key=lambda name: -sums[name])[:_NAMED] if sums[name]]
    position = {day: index for index, day in enumerate(days)}
    series = {name: [0.0] * len(days) for name in named}
    rest = [0.0] * len(days)
    for one in spent:
        if one.day in position:
            series.get(one.agent, rest)[position[one.day]] += value(one)
    return {**series, "others": rest} if any(rest) else series
