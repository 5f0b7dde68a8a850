"""The processes under measurement: the bare endpoint and a core, each with its CPU time and memory."""

import json
import os
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import psutil  # type: ignore[import-untyped]

from bench.loader import Address, Run, ask, drive, get, tool_call

_START_SECONDS = 60.0
PING = get("/ping")


class Server:
    """A server process for the time of a block."""

    def __init__(self, *command: str) -> None:
        environment = {k: v for k, v in os.environ.items() if not k.startswith("QUARTERDECK_")}
        self.began = time.perf_counter()
        self._process = subprocess.Popen(
            [sys.executable, *command],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        self.address: Address = ("127.0.0.1", 0)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.terminate()
        try:
            self._process.wait(20)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        if self._process.stdout is not None:
            self._process.stdout.close()

    def cpu(self) -> float:
        """Seconds of CPU that the process has used, all threads, user and system."""
        # Linux makes the clock of a process from its number; /proc counts in hundredths of a second.
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
        super().__init__("-m", "bench.bare")
        if self._process.stdout is None:
            raise RuntimeError("the bare server has no output")
        self.address = ("127.0.0.1", int(self._process.stdout.readline()))
        self.wait("/ping")


class Core(Server):
    """A core on a data directory, ready; with a `database` that is not the embedded one."""

    def __init__(self, directory: Path, database: str | None = None) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        given = ["--database", database] if database else []
        super().__init__("-m", "quarterdeck", "up", "--data-dir", str(directory), "--port", str(port), *given)
        self.address = ("127.0.0.1", port)
        self.healthy = self.wait("/healthz")
        self.ready = self.wait("/readyz")
        self._token = (directory / "token").read_text().strip()

    def request(self, tool: str, **arguments: Any) -> bytes:
        return tool_call(self._token, tool, **arguments)

    def call(self, tool: str, **arguments: Any) -> Any:
        """The structured content of one call."""
        body = json.loads(ask(self.address, self.request(tool, **arguments))[1])
        return body["result"]["structuredContent"]

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
    """One thing to measure: requests to a server, so many a round."""

    server: Server
    requests: Sequence[bytes]
    count: int = 1000


@dataclass(frozen=True, slots=True)
class Cost:
    """Medians over the rounds; a ratio compares each round with the bare rounds around it."""

    cpu_us: float
    ratio: float
    rate: float
    rate_ratio: float
    p50_ms: float
    p99_ms: float


def compare(bare: Bare, loads: Mapping[str, Load], concurrency: int, rounds: int) -> dict[str, Cost]:
    """Drive every load in turn with the bare endpoint before each and after all, for so many rounds."""
    yardstick = Load(bare, [PING], 4000)
    measured: dict[str, list[tuple[float, Run, float, float]]] = {name: [] for name in loads}
    for load in (yardstick, *loads.values()):
        drive(load.server.address, load.requests, min(load.count, 200), concurrency)
    for _ in range(rounds):
        before, before_run = _round(yardstick, concurrency)
        for name, load in loads.items():
            cpu, run = _round(load, concurrency)
            after, after_run = _round(yardstick, concurrency)
            measured[name].append((cpu, run, (before + after) / 2, (before_run.rate + after_run.rate) / 2))
            before, before_run = after, after_run
    return {name: _cost(rows) for name, rows in measured.items()}


def _round(load: Load, concurrency: int) -> tuple[float, Run]:
    before = load.server.cpu()
    run = drive(load.server.address, load.requests, load.count, concurrency)
    return (load.server.cpu() - before) / load.count, run


def _cost(rows: Sequence[tuple[float, Run, float, float]]) -> Cost:
    return Cost(
        cpu_us=statistics.median(cpu for cpu, _, _, _ in rows) * 1e6,
        ratio=statistics.median(cpu / bare for cpu, _, bare, _ in rows),
        rate=statistics.median(run.rate for _, run, _, _ in rows),
        rate_ratio=statistics.median(run.rate / rate for _, run, _, rate in rows),
        p50_ms=statistics.median(run.quantile(0.5) for _, run, _, _ in rows),
        p99_ms=statistics.median(run.quantile(0.99) for _, run, _, _ in rows),
    )
