"""The benchmarks. Each yields one table; nothing here asserts a time."""

import contextlib
import random
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from bench import fill
from bench.loader import drive
from bench.servers import Bare, Core, Load, compare

Cell = str | int | float | None


@dataclass(frozen=True, slots=True)
class Table:
    """One benchmark's figures: named columns, a row a thing measured."""

    title: str
    note: str
    columns: tuple[str, ...]
    rows: list[tuple[Cell, ...]] = field(default_factory=list)

    def as_json(self) -> dict[str, Any]:
        rows = [dict(zip(self.columns, row, strict=True)) for row in self.rows]
        return {"title": self.title, "note": self.note, "rows": rows}


@dataclass(frozen=True)
class Options:
    rounds: int = 5
    concurrency: int = 16
    postgres: bool = False


def calls(options: Options) -> Iterator[Table]:
    """CPU of a call on a small and on a large store."""
    small, large, chance = 1_000, 100_000, random.Random(3)
    with contextlib.ExitStack() as stack:
        bare, loads, filling = stack.enter_context(Bare()), dict[str, Load](), 0.0
        for size in (small, large):
            directory = Path(stack.enter_context(TemporaryDirectory(prefix="qd-bench-")))
            began = time.perf_counter()
            ids = fill.tasks(directory, size)
            filling = time.perf_counter() - began
            core = stack.enter_context(Core(directory))
            core.searchable()
            loads |= {
                f"ping {size}": Load(core, [core.request("ping")]),
                f"task_get {size}": Load(
                    core, [core.request("task_get", task_id=chance.choice(ids)) for _ in range(500)]
                ),
                f"task_create {size}": Load(core, [_create(core)], 500),
                f"task_list {size}": Load(core, [core.request("task_list")], 200),
            }
        costs = compare(bare, loads, options.concurrency, options.rounds)
    table = Table(
        f"calls: server CPU at concurrency {options.concurrency}",
        f"Aim: at most 5 x bare, flat. The large store took {filling:.0f} s to fill. task_list answers 50 tasks.",
        ("tool", "tasks", "cpu_us", "x_bare", "x_small_store", "p50_ms", "p99_ms"),
    )
    for tool in ("ping", "task_get", "task_create", "task_list"):
        for size in (small, large):
            cost, base = costs[f"{tool} {size}"], costs[f"{tool} {small}"]
            flat = None if size == small else cost.ratio / base.ratio
            table.rows.append((tool, size, cost.cpu_us, cost.ratio, flat, cost.p50_ms, cost.p99_ms))
    yield table


def writes(options: Options) -> Iterator[Table]:
    """Tasks created a second, durably, at rising concurrency."""
    table = Table(
        "writes: task_create",
        "Each is on disk when it is answered. x_bare_rate is the share of the bare endpoint's own rate.",
        ("store", "clients", "per_s", "x_bare_rate", "cpu_us", "x_bare", "p50_ms", "p99_ms"),
    )
    with Bare() as bare, contextlib.ExitStack() as stack:
        cores = {"sqlite": stack.enter_context(_core(stack))}
        if options.postgres:
            from tests.postgres import Postgres

            server = stack.enter_context(Postgres(durable=True))
            cores["postgres"] = stack.enter_context(_core(stack, server.create_database()))
        for clients in (1, 16, 64):
            loads = {name: Load(core, [_create(core)], 1000) for name, core in cores.items()}
            for name, cost in compare(bare, loads, clients, options.rounds).items():
                table.rows.append(
                    (name, clients, cost.rate, cost.rate_ratio, cost.cpu_us, cost.ratio)
                    + (cost.p50_ms, cost.p99_ms)
                )
    yield table


def search(options: Options) -> Iterator[Table]:
    """decision_search by meaning over 10,000 decisions."""
    size, chance = 10_000, random.Random(4)
    with contextlib.ExitStack() as stack:
        bare = stack.enter_context(Bare())
        directory = Path(stack.enter_context(TemporaryDirectory(prefix="qd-bench-")))
        fill.decisions(directory, size)
        core = stack.enter_context(Core(directory))
        mode = core.searchable()
        # More queries than the cache of queries holds, so that a new one is always embedded.
        fresh = [core.request("decision_search", query=fill.sentence(chance, 7)) for _ in range(2000)]
        loads = {"new query": Load(core, fresh, 200), "repeated query": Load(core, fresh[:1], 200)}
        table = Table(
            f"search: decision_search over {size:,} decisions",
            f"Mode: {mode}. {fill.REAL_VECTORS} decisions are embedded by the model, the rest have random unit "
            "vectors: the search reads them all alike. Ten rows an answer.",
            ("query", "clients", "p50_ms", "p99_ms", "cpu_us", "x_bare"),
        )
        for clients in (1, 8):
            for name, cost in compare(bare, loads, clients, options.rounds).items():
                table.rows.append((name, clients, cost.p50_ms, cost.p99_ms, cost.cpu_us, cost.ratio))
    yield table


def start(options: Options) -> Iterator[Table]:
    """Time to the first answer, and memory."""
    table = Table(
        "start: from the start of the process",
        "Medians. Memory is resident; the model for search is loaded after the core is ready. 10,000 calls are "
        "half task_get, half task_create.",
        ("what", "value", "unit", "x_bare"),
    )
    bare_s, bare_mb, first, later = [], [], [], []
    at_ready, loaded, used = [], [], []
    for _ in range(options.rounds):
        with Bare() as bare:
            bare_s.append(bare.wait("/ping"))
            bare_mb.append(bare.memory())
        with TemporaryDirectory(prefix="qd-bench-") as name:
            with Core(Path(name)) as core:
                first.append((core.healthy, core.ready))
            with Core(Path(name)) as core:
                later.append((core.healthy, core.ready))
                at_ready.append(core.memory())
                core.searchable()
                loaded.append(core.memory())
                if len(used) < 1:
                    made = core.call("task_create", title="one of many")["id"]
                    mixed = [core.request("task_get", task_id=made), _create(core)]
                    drive(core.address, mixed, 10_000, options.concurrency)
                    used.append(core.memory())
    median: Callable[[Any], float] = statistics.median
    seconds, memory = median(bare_s), median(bare_mb)
    table.rows.append(("bare endpoint answers", seconds, "s", 1.0))
    for what, times in (("first start", first), ("later start", later)):
        for index, path in enumerate(("/healthz", "/readyz")):
            value = median([pair[index] for pair in times])
            table.rows.append((f"{what} to {path}", value, "s", value / seconds))
    table.rows.append(("bare endpoint's memory", memory, "MB", 1.0))
    for what, sizes in (
        ("memory at ready", at_ready),
        ("memory with the model", loaded),
        ("after 10,000 calls", used),
    ):
        table.rows.append((what, median(sizes), "MB", median(sizes) / memory))
    yield table


def _core(stack: contextlib.ExitStack, database: str | None = None) -> Core:
    return Core(Path(stack.enter_context(TemporaryDirectory(prefix="qd-bench-"))), database)


def _create(core: Core) -> bytes:
    words = fill.sentence(random.Random(5), 30)
    return core.request(
        "task_create", title="Measure what a call costs", description=words, metadata={"n": 1}
    )


BENCHMARKS: dict[str, Callable[[Options], Iterator[Table]]] = {
    "calls": calls,
    "search": search,
    "start": start,
    "writes": writes,
}
