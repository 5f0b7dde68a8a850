"""Relay jobs by other agents than Claude Code: each one runs in the sandbox, and its patch comes out."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.agents.conftest import Kind, kinds, table
from tests.fake_model import FakeModel, script
from tests.integration.relay_core import PATCH, RelayCore, answer, read

EVERY = ("codex", "gemini", "opencode", "gemini-acp", "claude-acp")


@pytest.fixture(params=EVERY)
def kind(request: pytest.FixtureRequest, model: FakeModel) -> Kind:
    return kinds(model)[request.param]


@pytest.fixture
def relay(kind: Kind, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RelayCore]:
    variables = {
        "QUARTERDECK_DEFAULTS__RELAY_AGENT": kind.agent.id,
        "QUARTERDECK_WORKER__SANDBOX_NETWORK": "isolated",
    }
    with RelayCore(tmp_path_factory.mktemp("relay"), table(kind), **variables) as relay:
        yield relay


def test_it_works_in_the_sandbox_without_a_network_and_answers_with_a_patch(
    kind: Kind, relay: RelayCore
) -> None:
    client = relay.modern(path="/mcp/relay")
    steps = script({"text": answer()})
    job = relay.ran(client, task__description=steps, execution__preferredModel=kind.model or "default")
    log = read(client, job["id"], "logs.txt")
    assert job["state"] == "SUCCEEDED", (job["summary"], log[-3000:])
    assert read(client, job["id"], "patch.diff") == PATCH
    assert (job["result"]["sandbox"], job["result"]["network"]) == ("bubblewrap", "isolated")
