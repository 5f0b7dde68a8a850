"""The benchmarks. Each makes one table; nothing here asserts a time."""

import contextlib
import random
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import cycle, repeat
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from bench import fill
from bench.loader import drive
from bench.servers import Bare, Core, Load, compare

Cell = str | int | float | None


@dataclass(frozen=True)
class Options:
    rounds: int = 5
    concurrency: int = 16
    postgres: bool = False


@dataclass(frozen=True, slots=True)
class Table:
    """One benchmark's figures: named columns, a row a thing measured."""

    title: str
    note: str
    columns: tuple[str, ...]
    rows: list[Sequence[Cell]] = field(default_factory=list)

    def add(self, *names: Cell, of: Any, **more: Cell) -> None:
        """A row: what it is, then a figure for every other column, from `more` or from the cost `of`."""
        rest = self.columns[len(names) :]
        self.rows.append([*names, *(more[name] if name in more else getattr(of, name) for name in rest)])

    def as_dicts(self) -> list[dict[str, Cell]]:
        return [dict(zip(self.columns, row, strict=True)) for row in self.rows]


def calls(options: Options) -> Table:
    """CPU of a call on a small and on a large store."""
    small, large, chance = 1_000, 100_000, random.Random(3)
    with contextlib.ExitStack() as stack:
        bare, loads, filling = stack.enter_context(Bare()), dict[str, Load](), 0.0
        for size in (small, large):
            directory, began = _directory(stack), time.perf_counter()
            ids = fill.tasks(directory, size)
            filling = time.perf_counter() - began
            core = stack.enter_context(Core(directory))
            core.searchable()
            some = [core.request("task_get", task_id=task_id) for task_id in chance.choices(ids, k=500)]
            loads[f"ping {size}"] = Load(core, repeat(core.request("ping")))
            loads[f"task_get {size}"] = Load(core, cycle(some))
            loads[f"task_create {size}"] = Load(core, repeat(_create(core)), 500)
            loads[f"task_list {size}"] = Load(core, repeat(core.request("task_list")), 200)
        costs = compare(bare, loads, options.concurrency, options.rounds)
    table = Table(
        f"calls: server CPU at concurrency {options.concurrency}",
        f"Aim: at most 5 x bare, and flat. The large store was filled in {filling:.0f} s. "
        "task_list answers 50 tasks.",
        ("tool", "tasks", "cpu_us", "x_bare", "x_small_store", "p50_ms", "p99_ms"),
    )
    for tool in ("ping", "task_get", "task_create", "task_list"):
        few, many = costs[f"{tool} {small}"], costs[f"{tool} {large}"]
        table.add(tool, small, of=few, x_small_store=None)
        table.add(tool, large, of=many, x_small_store=many.x_bare / few.x_bare)
    return table


def search(options: Options) -> Table:
    """decision_search by meaning over 10,000 decisions."""
    size, chance = 10_000, random.Random(4)
    with contextlib.ExitStack() as stack:
        bare, directory = stack.enter_context(Bare()), _directory(stack)
        fill.decisions(directory, size)
        core = stack.enter_context(Core(directory))
        mode = core.searchable()
        # More queries than the core remembers, so that a new one is always embedded.
        fresh = [core.request("decision_search", query=fill.sentence(chance, 7)) for _ in range(2000)]
        loads = {
            "new query": Load(core, cycle(fresh), 200),
            "repeated query": Load(core, repeat(fresh[0]), 200),
        }
        table = Table(
            f"search: decision_search over {size:,} decisions",
            f"Mode: {mode}. {fill.REAL_VECTORS} decisions are embedded by the model, the rest have random "
            "unit vectors: the search reads them all alike. Ten decisions an answer.",
            ("query", "clients", "p50_ms", "p99_ms", "cpu_us", "x_bare"),
        )
        for clients in (1, 8):
            for name, cost in compare(bare, loads, clients, options.rounds).items():
                table.add(name, clients, of=cost)
    return table


def start(options: Options) -> Table:
    """Time to the first answer, and memory."""
    measured: dict[tuple[str, str], list[float]] = {}

    def note(what: str, unit: str, value: float) -> None:
        measured.setdefault((what, unit), []).append(value)

    for _ in range(options.rounds):
        with contextlib.ExitStack() as stack:
            directory, bare = _directory(stack), stack.enter_context(Bare())
            note("bare endpoint answers", "s", bare.ready)
            note("bare endpoint's memory", "MB", bare.memory())
            for which in ("first", "later"):
                with Core(directory) as core:
                    note(f"{which} start to /healthz", "s", core.healthy)
                    note(f"{which} start to /readyz", "s", core.ready)
                    if which == "later":
                        note("memory at ready", "MB", core.memory())
                        core.searchable()
                        note("memory with the search model", "MB", core.memory())
                        mixed = [core.request("task_list", limit=1), _create(core)]
                        drive(core.address, cycle(mixed), 10_000, options.concurrency)
                        note("memory after 10,000 calls", "MB", core.memory())
    table = Table(
        "start: from the start of the process",
        "The search model is loaded after the core is ready. The calls are half task_list, half task_create.",
        ("what", "unit", "value", "x_bare"),
    )
    medians = {key: statistics.median(values) for key, values in measured.items()}
    whole = {unit: value for (what, unit), value in medians.items() if what.startswith("bare")}
    for (what, unit), value in medians.items():
        table.add(what, unit, of=None, value=value, x_bare=value / whole[unit])
    return table


def writes(options: Options) -> Table:
    """Tasks created a second, durably, with more and more clients."""
    table = Table(
        "writes: task_create",
        "Each task is on disk when it is answered. x_bare_rate: the share of the bare endpoint's own rate.",
        ("store", "clients", "per_s", "x_bare_rate", "cpu_us", "x_bare", "p50_ms", "p99_ms"),
    )
    with contextlib.ExitStack() as stack:
        bare, cores = stack.enter_context(Bare()), {"sqlite": stack.enter_context(Core(_directory(stack)))}
        if options.postgres:
            from tests.postgres import Postgres

            url = stack.enter_context(Postgres(durable=True)).create_database()
            cores["postgres"] = stack.enter_context(Core(_directory(stack), url))
        for clients in (1, 16, 64):
            loads = {name: Load(core, repeat(_create(core))) for name, core in cores.items()}
            for name, cost in compare(bare, loads, clients, options.rounds).items():
                table.add(name, clients, of=cost)
    return table


def _directory(stack: contextlib.ExitStack) -> Path:
    return Path(stack.enter_context(TemporaryDirectory(prefix="qd-bench-")))


def _create(core: Core) -> bytes:
    text = fill.sentence(random.Random(5), 30)
    return core.request("task_create", title="Measure a call", description=text, metadata={"n": 1})


BENCHMARKS: dict[str, Callable[[Options], Table]] = {
    "calls": calls,
    "search": search,
    "start": start,
    "writes": writes,
}
