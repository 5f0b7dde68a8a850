"""The board as people look at it: four columns of cards, filtered, each with what its work came to."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from quarterdeck.core.context import Core
from quarterdeck.domain.callers import Caller
from quarterdeck.domain.records import Plan, Project, Task
from quarterdeck.domain.states import COLUMN_OF, COLUMNS, Column, column_of
from quarterdeck.store import cards as rows
from quarterdeck.store import plans as plan_rows
from quarterdeck.store.cards import Runs
from quarterdeck.store.tx import Tx

FILTERS = ("project", "plan", "agent", "priority", "text")
_MOST = 500


@dataclass(frozen=True, slots=True)
class Card:
    """A task with the names around it and what its jobs came to."""

    task: Task
    column: Column
    project: Project | None
    plan: Plan | None
    runs: Runs | None

    @property
    def agent(self) -> str | None:
        live = self.runs.agent if self.runs else None
        return live or self.task.agent_backend or self.task.assigned_agent


@dataclass(frozen=True, slots=True)
class ColumnView:
    """One column: its newest cards, and how many there are."""

    name: Column
    cards: list[Card]
    total: int


@dataclass(frozen=True, slots=True)
class Choices:
    """What the filters can be set to."""

    projects: list[Project]
    plans: list[Plan]
    agents: list[str]


def _statuses(column: str) -> list[str]:
    return [status for status, where in COLUMN_OF.items() if where == column]


async def columns(
    core: Core, caller: Caller, filters: Mapping[str, str], *, count: int = 100
) -> list[ColumnView]:
    """The four columns with their newest cards."""

    def body(tx: Tx) -> list[ColumnView]:
        tally = rows.tally(tx, filters)
        return [
            ColumnView(
                name,
                _cards(tx, rows.in_column(tx, _statuses(name), filters, count)),
                sum(tally.get(status, 0) for status in _statuses(name)),
            )
            for name in COLUMNS
        ]

    return await core.db.read(caller, body)


async def more(
    core: Core, caller: Caller, column: Column, filters: Mapping[str, str], *, after: int, count: int = 100
) -> list[Card]:
    """The next cards of a column, after so many."""
    return await core.db.read(
        caller, lambda tx: _cards(tx, rows.in_column(tx, _statuses(column), filters, count, after))
    )


async def some(
    core: Core, caller: Caller, ids: Sequence[str], filters: Mapping[str, str]
) -> tuple[list[Card], dict[Column, int]]:
    """The cards of these tasks that pass the filters, and how many each column has now."""

    def body(tx: Tx) -> tuple[list[Card], dict[Column, int]]:
        tally = rows.tally(tx, filters)
        counts = {name: sum(tally.get(status, 0) for status in _statuses(name)) for name in COLUMNS}
        return _cards(tx, rows.some(tx, ids[:_MOST], filters)), counts

    return await core.db.read(caller, body)


def _cards(tx: Tx, found: Sequence[Task]) -> list[Card]:
    runs = rows.runs_of(tx, [task.id for task in found])
    its_plans = rows.plans_by_id(tx, sorted({task.plan_id for task in found if task.plan_id}))
    projects = {one.id: one for one in rows.all_projects(tx, _MOST)} if found else {}
    return [
        Card(
            task,
            column_of(task.status),
            projects.get(task.project_id or ""),
            its_plans.get(task.plan_id or ""),
            runs.get(task.id),
        )
        for task in found
    ]


async def choices(core: Core, caller: Caller) -> Choices:
    """What the caller can filter by, and give a task to."""

    def body(tx: Tx) -> Choices:
        named = rows.agents_named(tx, _MOST)
        return Choices(
            rows.all_projects(tx, _MOST),
            plan_rows.newest(tx, _MOST, None, archived=False),
            list(dict.fromkeys([*core.agents, *named])),
        )

    return await core.db.read(caller, body)
