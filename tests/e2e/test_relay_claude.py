"""A JobSpec carried out by the real Claude Code with a scripted model, in the sandbox."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.agent_harness import CLAUDE
from tests.fake_model import FakeModel, script
from tests.integration.relay_core import PATCH, RelayCore, answer, read


@pytest.fixture
def model() -> Iterator[FakeModel]:
    with FakeModel() as model:
        yield model


def claude_core(model: FakeModel, folder: Path, **variables: str) -> RelayCore:
    agent = f"""
[agents.claude-code]
command = [{json.dumps(str(CLAUDE))}]
env = {{ ANTHROPIC_BASE_URL = {json.dumps(model.url)}, ANTHROPIC_API_KEY = "dummy" }}
"""
    return RelayCore(folder / "core", agent, QUARTERDECK_DEFAULTS__RELAY_AGENT="claude-code", **variables)


def test_claude_code_reads_its_checkout_changes_nothing_and_answers_with_a_patch(
    model: FakeModel, tmp_path: Path
) -> None:
    outside = tmp_path / "outside.txt"
    outside.write_text("not for agents")
    with claude_core(model, tmp_path) as core:
        before = core.repo.state()
        client = core.modern(path="/mcp/relay")
        steps = script(
            {"tool": "Read", "input": {"file_path": "src/a.txt"}},
            {"tool": "Read", "input": {"file_path": str(outside)}},
            {"tool": "Bash", "input": {"command": "echo changed > src/a.txt"}},
            {"text": answer(), "usage": {"input": 1000, "output": 100}},
        )
        job = core.ran(client, task__description=steps, execution__preferredModel="claude-sonnet-4-6")
        log = read(client, job["id"], "logs.txt")
        assert job["state"] == "SUCCEEDED", (job["summary"], log[-3000:])
        assert read(client, job["id"], "patch.diff") == PATCH
        assert (job["agent"], job["attempt"]) == ("claude-code", 1)
        assert job["result"]["sandbox"] == "bubblewrap"
        assert job["result"]["denials"] == ["Bash"]
        assert job["outputTokens"] >= 100 and job["costUsd"] > 0
        asked = [each for each in model.requests if each.step is not None]
        assert {each.body["model"] for each in asked} == {"claude-sonnet-4-6"}
        assert "two" in asked[1].text, "what it read of its checkout reached the model"
        assert not any("not for agents" in each.text for each in model.requests)
        assert core.repo.state() == before


def test_claude_code_without_a_network_has_its_model_and_the_core(model: FakeModel, tmp_path: Path) -> None:
    with claude_core(model, tmp_path, QUARTERDECK_WORKER__SANDBOX_NETWORK="isolated") as core:
        client = core.modern(path="/mcp/relay")
        steps = script(
            {"tool": "Read", "input": {"file_path": "src/a.txt"}},
            {"tool": "mcp__quarterdeck__ping", "input": {}},
            {"text": answer()},
        )
        job = core.ran(client, task__description=steps)
        log = read(client, job["id"], "logs.txt")
        assert job["state"] == "SUCCEEDED", (job["summary"], log[-3000:])
        assert read(client, job["id"], "patch.diff") == PATCH
        assert (job["result"]["sandbox"], job["result"]["network"]) == ("bubblewrap", "isolated")
        assert "refused" not in job["result"]
        asked = [each for each in model.requests if each.step is not None]
        assert len(asked) == 3
        assert "pong" in asked[2].text, "what the core answered reached the model"
