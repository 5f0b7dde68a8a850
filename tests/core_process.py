"""A real core in a process of its own, for tests that talk to it from outside, stop it or kill it."""

from __future__ import annotations

import os
import signal
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType

from quarterdeck import paths
from tests import starter

READY_SECONDS = 30.0
STOP_SECONDS = 15.0


def clean_environment(extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """This process's environment with no settings but `extra`; search, which starts slowly, is off."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("QUARTERDECK_")}
    return {**kept, "QUARTERDECK_SEARCH__PROVIDER": "off", **(extra or {})}


class CoreProcess:
    """`quarterdeck up` on a free port for as long as the block lasts. It logs to `core.log` in `data_dir`."""

    def __init__(
        self, data_dir: Path, env: Mapping[str, str] | None = None, args: Sequence[str] = ()
    ) -> None:
        self.data_dir = data_dir
        self._env = clean_environment(env)
        self._args = args
        self._process: starter.Started | None = None

    def __enter__(self) -> CoreProcess:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    @property
    def pid(self) -> int:
        assert self._process is not None, "the core is not running"
        return self._process.pid

    @property
    def url(self) -> str:
        address = paths.read_address(self.data_dir)
        assert address is not None, "the core has written no address"
        return address.url

    @property
    def token(self) -> str:
        token = paths.read_token(self.data_dir)
        assert token is not None, "the core has written no token"
        return token

    @property
    def log(self) -> str:
        return paths.log_file(self.data_dir).read_text()

    def start(self) -> None:
        """Start the core and return when it answers everything."""
        assert self._process is None, "the core is running"
        self.data_dir.mkdir(parents=True, exist_ok=True)
        command = ["up", "--data-dir", str(self.data_dir), "--port", "0", *self._args]
        with paths.log_file(self.data_dir).open("ab") as log:
            self._process = starter.start(command, self._env, stderr=log.fileno())
        deadline = time.monotonic() + READY_SECONDS
        while not self._is_ready():
            if self._process.poll() is not None or time.monotonic() > deadline:
                self.stop()
                raise AssertionError(f"the core did not start:\n{self.log}")
            time.sleep(0.05)

    def stop(self) -> None:
        """End it in order, or by force when it takes too long. Without a running core: nothing."""
        self._end(signal.SIGTERM)

    def kill9(self) -> None:
        """End it without a chance to clean up."""
        self._end(signal.SIGKILL)

    def restart(self) -> None:
        """Another core on the same directory; the port is a new one."""
        self.stop()
        self.start()

    def _end(self, how: signal.Signals) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        process.send_signal(how)
        try:
            process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def _is_ready(self) -> bool:
        """Whether it answers; the address of a killed predecessor may still be there."""
        address = paths.read_address(self.data_dir)
        if address is None or address.pid != self.pid:
            return False
        try:
            with urllib.request.urlopen(f"{address.url}/readyz", timeout=5) as answer:
                return int(answer.status) == 200
        except (urllib.error.URLError, OSError):
            return False
