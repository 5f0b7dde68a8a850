"""The processes under measurement: the bare endpoint and a core, their CPU time, and the comparison."""

import itertools
import json
import os
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import psutil

from bench.loader import Address, Run, ask, drive, get, tool_call

_START_SECONDS = 60.0


class Server:
    """A server process for the time of a block."""

    address: Address

    def __init__(self, *command: str) -> None:
        environment = {k: v for k, v in os.environ.items() if not k.startswith("QUARTERDECK_")}
        self.began = time.perf_counter()
        self._process = subprocess.Popen(
            [sys.executable, "-m", *command],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        try:
            self._process.communicate(timeout=20)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.communicate()

    def cpu(self) -> float:
        """Seconds of CPU that the process has used, all threads, user and system."""
        # Linux makes the clock of a process from its number; /proc counts in hundredths of a second only.
        return time.clock_gettime((~self._process.pid << 3) | 2)

    def memory(self) -> float:
        """Resident memory in MB."""
        return float(psutil.Process(self._process.pid).memory_info().rss / 1e6)

    def wait(self, path: str) -> float:
        """Seconds from the start of the process until it answers 200 to a path."""
        while (passed := time.perf_counter() - self.began) < _START_SECONDS:
            try:
                if ask(self.address, get(path))[0] == 200:
                    return passed
            except ConnectionError:
                pass
            time.sleep(0.002)
        raise TimeoutError(f"{path} did not answer in {_START_SECONDS} s")


class Bare(Server):
    """The bare Starlette endpoint."""

    def __init__(self) -> None:
        super().__init__("bench.bare")
        self.address = ("127.0.0.1", int(self._process.stdout.readline()))  # type: ignore[union-attr]
        self.ready = self.wait("/ping")


class Core(Server):
    """A core on a data directory, ready; its database is the embedded one unless another is given."""

    def __init__(self, directory: Path, database: str | None = None) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.address = probe.getsockname()
        given = ["--database", database] if database else []
        place = ["--data-dir", str(directory), "--port", str(self.address[1])]
        super().__init__("quarterdeck", "up", *place, *given)
        self.healthy = self.wait("/healthz")
        self.ready = self.wait("/readyz")
        self._token = (directory / "token").read_text().strip()

    def request(self, tool: str, **arguments: Any) -> bytes:
        return tool_call(self._token, tool, **arguments)

    def searchable(self) -> str:
        """Wait until search has decided how it works: `semantic` or `fallback`."""
        deadline = time.monotonic() + 300
        while time.monotonic() < deadline:
            mode = str(json.loads(ask(self.address, get("/readyz"))[1])["search"]["mode"])
            if mode != "loading":
                return mode
            time.sleep(0.05)
        raise TimeoutError("search is still loading")


@dataclass(frozen=True, slots=True)
class Load:
    """One thing to measure: so many requests a round; each round goes on where the last one ended."""

    server: Server
    requests: Iterator[bytes]
    count: int = 1000

    def round(self, concurrency: int) -> tuple[float, Run]:
        """The server's CPU seconds a request, and what the client saw."""
        before = self.server.cpu()
        run = drive(self.server.address, self.requests, self.count, concurrency)
        return (self.server.cpu() - before) / self.count, run


@dataclass(frozen=True, slots=True)
class Cost:
    """Medians over the rounds; a ratio compares each round with the bare rounds before and after it."""

    cpu_us: float
    x_bare: float
    per_s: float
    x_bare_rate: float
    p50_ms: float
    p99_ms: float


def compare(bare: Bare, loads: Mapping[str, Load], concurrency: int, rounds: int) -> dict[str, Cost]:
    """Drive every load in turn, the bare endpoint before and after each, so many times over."""
    yardstick = Load(bare, itertools.repeat(get("/ping")), 4000)
    measured: dict[str, list[Cost]] = {name: [] for name in loads}
    for load in (yardstick, *loads.values()):
        drive(load.server.address, load.requests, 100, concurrency)
    for _ in range(rounds):
        before, before_run = yardstick.round(concurrency)
        for name, load in loads.items():
            cpu, run = load.round(concurrency)
            after, after_run = yardstick.round(concurrency)
            x_bare, x_rate = 2 * cpu / (before + after), 2 * run.rate / (before_run.rate + after_run.rate)
            cost = Cost(cpu * 1e6, x_bare, run.rate, x_rate, run.quantile(0.5), run.quantile(0.99))
            measured[name].append(cost)
            before, before_run = after, after_run
    return {
        name: Cost(*(statistics.median(getattr(cost, field) for cost in costs) for field in Cost.__slots__))
        for name, costs in measured.items()
    }
