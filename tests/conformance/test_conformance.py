"""The official conformance suite: the scenarios that say something about a product, in every era."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conformance.conftest import Node
from tests.conformance.token_proxy import token_proxy
from tests.integration.own_core import Core

SUITE = ".bin/conformance"
EXPECTED = Path(__file__).with_name("expected-failures.yaml")

# The rest of the suite calls tools, resources and prompts of its own example server.
SCENARIOS = {
    "2026-07-28": (
        *("server-stateless", "tools-list", "dns-rebinding-protection", "caching"),
        *("http-header-validation", "server-sse-multiple-streams"),
        *("resources-list", "sep-2164-resource-not-found"),
    ),
    "2025-11-25": (
        *("server-initialize", "ping", "server-session-lifecycle", "tools-list"),
        *("dns-rebinding-protection", "server-sse-multiple-streams", "resources-list"),
    ),
    "2025-06-18": ("server-initialize", "ping", "server-session-lifecycle", "tools-list"),
    "2025-03-26": ("server-session-lifecycle",),
}


@pytest.fixture(scope="module")
def url(core: Core) -> Iterator[str]:
    """The suite sends no token, so it goes by an address that adds one."""
    with token_proxy(core.url, core.token) as address:
        yield f"{address}/mcp"


@pytest.mark.parametrize(
    ("version", "scenario"), [(version, name) for version, names in SCENARIOS.items() for name in names]
)
def test_scenario_passes(node: Node, url: str, tmp_path: Path, version: str, scenario: str) -> None:
    ran = node.run(
        SUITE,
        *("server", "--url", url, "--scenario", scenario, "--spec-version", version),
        *("--expected-failures", str(EXPECTED), "--output-dir", str(tmp_path / "results")),
    )
    assert ran.returncode == 0, ran.stdout[-4000:] + ran.stderr[-2000:]
    (found,) = (tmp_path / "results").rglob("checks.json")
    checks = json.loads(found.read_text())
    # A scenario that skips all its checks would pass as well.
    assert any(check["status"] == "SUCCESS" for check in checks), checks
