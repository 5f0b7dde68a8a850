"""A core of its own, for a test module."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from quarterdeck.paths import read_address


@contextlib.contextmanager
def running_core(folder: Path, **environment: str) -> Iterator[str]:
    """Start a core on a data directory; its address."""
    program = [sys.executable, "-m", "quarterdeck"]
    with (
        (folder / "stderr").open("w") as log,
        subprocess.Popen(
            [*program, "up", "--data-dir", folder, "--port", "0"],
            env={**os.environ, **environment},
            stderr=log,
        ) as process,
    ):
        try:
            end = time.monotonic() + 30
            while (address := read_address(folder)) is None:
                assert process.poll() is None, (folder / "stderr").read_text()
                assert time.monotonic() < end, "the core does not start"
                time.sleep(0.02)
            yield address.url
        finally:
            process.terminate()
