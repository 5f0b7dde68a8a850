"""An agent of one's own, as the documentation shows it; and what `quarterdeck agents` says of agents."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

from quarterdeck.domain.agents import Agent
from tests.agent_harness import CLAUDE, Bench
from tests.integration.own_core import quarterdeck

PAGE = Path(__file__).parents[2] / "docs" / "running.md"


def test_the_agent_that_is_shown_works(tmp_path: Path) -> None:
    [shown] = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    program = tmp_path / "note-taker"
    program.write_text(shown)
    agent = Agent("note-taker", "n", adapter="command", command=(sys.executable, str(program)))
    bench = Bench(agent, tmp_path)
    run = bench.run("Remember this.", job_id="job_1")
    assert run.outcome.ok, run.stderr
    assert run.outcome.final_text == "Wrote 14 characters down, as job_1 asked."
    assert (bench.cwd / "NOTES.md").read_text() == "Remember this.\n"


def test_a_command_that_fails_or_hangs_on_to_nothing_is_told(tmp_path: Path) -> None:
    code = "import os, sys; print(sorted(os.environ)); sys.exit('no: ' + os.environ['QUARTERDECK_TOKEN'])"
    agent = Agent("bot", "b", adapter="command", command=(sys.executable, "-c", code), env={"MINE": "1"})
    run = Bench(agent, tmp_path).run("Do it.", token="mcp_very-secret")
    assert (run.outcome.ok, run.outcome.stop_reason) == (False, "exit_code")
    assert run.outcome.error == "It ended with exit code 1. no: [token]"
    assert "'MINE'" in run.outcome.final_text
    assert "PYTEST" not in run.outcome.final_text


def listed(tmp_path: Path, agents: dict[str, Any], *flags: str) -> dict[str, dict[str, Any]]:
    shown = quarterdeck(
        "agents", "--json", "--data-dir", str(tmp_path), *flags, QUARTERDECK_AGENTS=json.dumps(agents)
    )
    assert shown.returncode == 0, shown.stderr
    return {row["id"]: row for row in json.loads(shown.stdout)}


def test_agents_are_listed_without_a_core(tmp_path: Path) -> None:
    agents = {
        "claude-code": {"command": [str(CLAUDE)]},
        "bot": {"adapter": "command", "command": [sys.executable]},
        "gone": {"adapter": "codex", "command": ["no-such-program"]},
        "broken": {"adapter": "gemini", "command": ["false"], "max_concurrent": 7},
    }
    rows = listed(tmp_path, agents)
    claude = rows["claude-code"]
    assert (claude["installed"], claude["answers"], claude["adapter"]) == (True, True, "claude")
    assert re.fullmatch(r"\d+\.\d+\.\d+", claude["version"])
    assert claude["max_concurrent"] == 1
    assert "budget" in claude["features"]
    assert (rows["bot"]["installed"], rows["bot"]["answers"]) == (True, None)
    assert (rows["gone"]["installed"], rows["gone"]["hint"] is None) == (False, False)
    assert (rows["broken"]["installed"], rows["broken"]["answers"]) == (True, False)
    assert rows["broken"]["max_concurrent"] == 7
    assert (rows["triage-agent"]["adapter"], rows["triage-agent"]["installed"]) == (None, False)

    unasked = listed(tmp_path, agents, "--no-probe")["claude-code"]
    assert (unasked["installed"], unasked["answers"], unasked["version"]) == (True, None, None)


def test_agents_are_shown_as_a_table(tmp_path: Path) -> None:
    shown = quarterdeck("agents", "--no-probe", "--data-dir", str(tmp_path))
    lines = shown.stdout.splitlines()
    assert lines[0].split()[:4] == ["id", "name", "adapter", "installed"]
    assert len(lines) == 6


def test_a_configuration_elsewhere_is_read(tmp_path: Path) -> None:
    file = tmp_path / "else.toml"
    file.write_text('[agents.mine]\nadapter = "command"\ncommand = ["cat"]\n')
    shown = quarterdeck("agents", "--no-probe", "--json", "--data-dir", str(tmp_path), "--config", str(file))
    assert "mine" in [row["id"] for row in json.loads(shown.stdout)]
