"""A core as a child process: started, waited for, stopped by its process id."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from quarterdeck import paths
from quarterdeck.cli.mcp_client import Connection
from quarterdeck.domain.errors import QuarterdeckError, Unavailable

_START_SECONDS = 60.0
_STOP_SECONDS = 20.0
_POLL_SECONDS = 0.02


@dataclass(frozen=True, slots=True)
class CoreChild:
    """A running core and where it answers. `stop` is to be called whatever happens."""

    process: subprocess.Popen[bytes]
    data_dir: Path
    url: str

    @property
    def port(self) -> int:
        return int(self.url.rpartition(":")[2])

    def readiness(self) -> Any:
        """What `/readyz` says."""
        connection = Connection(self.url)
        try:
            return connection.request("GET", "/readyz")[1]
        finally:
            connection.close()

    def search_mode(self, seconds: float = 30.0) -> str:
        """`semantic` or `fallback`, once the core knows which; `loading` when it takes longer."""
        deadline = time.monotonic() + seconds
        while (mode := str(self.readiness()["search"]["mode"])) == "loading" and time.monotonic() < deadline:
            time.sleep(_POLL_SECONDS)
        return mode

    def kill(self) -> None:
        """`kill -9`: no time for the core to finish anything."""
        self.process.kill()
        self.process.wait()

    def stop(self) -> None:
        """Ask it to end and wait for that; one that does not is killed. Calling it twice is fine."""
        _end(self.process)


def start(data_dir: Path, *, port: int = 0, environment: Mapping[str, str] | None = None) -> CoreChild:
    """A core on a data directory, ready to answer. Its log goes to a file there.

    Only `environment` configures it: no QUARTERDECK_ variable of this process reaches it.
    """
    data_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("QUARTERDECK_")}
    command = [sys.executable, "-m", "quarterdeck", "up", "--port", str(port), "--data-dir", str(data_dir)]
    process = None
    try:
        with paths.log_file(data_dir).open("ab") as log, _undisturbed():
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**inherited, **(environment or {})},
            )
        return CoreChild(process, data_dir, _address(process, data_dir))
    except BaseException:
        if process is not None:
            _end(process)
        raise


@contextlib.contextmanager
def _undisturbed() -> Iterator[None]:
    """Hold back the signals that end this process: a child must not be lost while it is being made."""
    caught: list[int] = []
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    kept = [
        (number, signal.signal(number, lambda caught_now, _: caught.append(caught_now))) for number in numbers
    ]
    try:
        yield
    finally:
        for number, handler in kept:
            signal.signal(number, handler)
    for held_back in caught:
        signal.raise_signal(held_back)


def _address(process: subprocess.Popen[bytes], data_dir: Path) -> str:
    """Where it listens: it writes that down when it is ready."""
    deadline = time.monotonic() + _START_SECONDS
    while time.monotonic() < deadline:
        found = paths.read_address(data_dir)
        if found is not None and found.pid == process.pid:
            return found.url
        if process.poll() is not None:
            raise QuarterdeckError(
                f"the core ended before it was ready ({_ending(process.returncode)})", hint=_last(data_dir)
            )
        time.sleep(_POLL_SECONDS)
    raise Unavailable(f"the core was not ready within {_START_SECONDS:.0f} s", hint=_last(data_dir))


def _end(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(_STOP_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _ending(code: int) -> str:
    return signal.Signals(-code).name if code < 0 else f"exit code {code}"


def _last(data_dir: Path) -> str | None:
    """The end of the core's log."""
    lines = paths.log_file(data_dir).read_text(errors="replace").strip().splitlines()
    return "\n".join(lines[-5:]) or None
