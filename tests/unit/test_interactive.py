"""Agents at a terminal: what is left of a headless command line, and which sessions can be resumed."""

from __future__ import annotations

import json
import os
from pathlib import Path
from uuid import uuid4

import pytest

from quarterdeck.domain.agents import Agent
from quarterdeck.run.adapters.base import Assignment, Conversation
from quarterdeck.run.adapters.registry import ADAPTERS
from quarterdeck.run.interactive import Start, known_session, prepare, start

TOKEN = "mcp_the-token-of-a-session"
FIRST = "Read /tree/.quarterdeck/prompt.md and begin."
ID = str(uuid4())
HEADLESS = {
    "claude": {"-p", "--output-format", "stream-json", "--verbose", "bypassPermissions"},
    "codex": {"exec", "--json", "-", 'approval_policy="never"'},
    "gemini": {"--output-format", "stream-json", "--prompt", "yolo", " "},
    "opencode": {"run", "--format", "json", "--auto"},
}


def begun(name: str, home: Path, conversation: Conversation) -> Start:
    agent = Agent(id=name, name=name, adapter=name, model="a-model")
    assignment = Assignment(
        prompt="the whole prompt",
        cwd=Path("/tree"),
        home=home,
        model="a-model",
        conversation=conversation,
        mcp_url="http://127.0.0.1:1/mcp",
        token=TOKEN,
        task_id="task",
    )
    env = {"HOME": str(home), "ANTHROPIC_API_KEY": "a-key-of-more-than-twenty-characters"}
    launch = ADAPTERS[name].launch(["/bin/agent"], env, assignment)
    return start(agent, ["/bin/agent"], launch, assignment, FIRST)


@pytest.mark.parametrize("name", HEADLESS)
def test_nothing_of_a_headless_run_is_left_and_the_first_message_is_there(name: str, tmp_path: Path) -> None:
    begin = begun(name, tmp_path, Conversation())
    assert begin.argv[0] == "/bin/agent"
    assert HEADLESS[name].isdisjoint(begin.argv)
    assert begin.argv.count(FIRST) == 1
    assert not any(TOKEN in word or "the whole prompt" in word for word in begin.argv)
    assert begin.env["QUARTERDECK_TOKEN"] == TOKEN


@pytest.mark.parametrize("name", HEADLESS)
def test_a_session_is_resumed_by_its_id(name: str, tmp_path: Path) -> None:
    begin = begun(name, tmp_path, Conversation("resume", ID))
    flag = {"claude": "--resume", "codex": "resume", "gemini": "--resume", "opencode": "--session"}[name]
    assert list(begin.argv)[begin.argv.index(flag) + 1] == ID
    assert begin.argv.count(ID) == 1


def test_any_other_program_is_started_as_it_is(tmp_path: Path) -> None:
    begin = begun("command", tmp_path, Conversation())
    assert list(begin.argv) == ["/bin/agent"]
    assert begin.env["QUARTERDECK_TASK_ID"] == "task"


def test_claude_code_begins_without_questions_and_keeps_what_it_knew(tmp_path: Path) -> None:
    agent = Agent(id="claude-code", name="c", adapter="claude")
    kept = tmp_path / ".claude.json"
    kept.write_text(json.dumps({"theme": "light", "projects": {"/other": {"x": 1}}}))
    for _ in range(2):
        prepare(agent, tmp_path, Path("/tree"), {"ANTHROPIC_API_KEY": "a-key-of-more-than-twenty-characters"})
    seeded = json.loads(kept.read_text())
    assert seeded["hasCompletedOnboarding"] and seeded["theme"] == "light"
    assert seeded["projects"] == {"/other": {"x": 1}, "/tree": {"hasTrustDialogAccepted": True}}
    assert seeded["customApiKeyResponses"]["approved"] == ["han-twenty-characters"[-20:]]
    assert kept.stat().st_mode & 0o777 == 0o600


def test_only_a_session_that_is_there_can_be_resumed(tmp_path: Path) -> None:
    claude = Agent(id="c", name="c", adapter="claude")
    assert known_session(claude, tmp_path, ID) is None
    folder = tmp_path / ".claude" / "projects" / "-tree"
    folder.mkdir(parents=True)
    (folder / f"{ID}.jsonl").touch()
    assert known_session(claude, tmp_path, ID) == ID
    assert known_session(claude, tmp_path, None) is None
    assert known_session(Agent(id="x", name="x", adapter="command"), tmp_path, ID) is None


def test_the_last_session_of_codex_is_found_in_its_home(tmp_path: Path) -> None:
    codex = Agent(id="c", name="c", adapter="codex")
    assert known_session(codex, tmp_path, None) is None
    folder = tmp_path / ".codex" / "sessions" / "2026" / "11" / "15"
    folder.mkdir(parents=True)
    ids = [str(uuid4()), str(uuid4())]
    for number, each in enumerate(ids):
        file = folder / f"rollout-2026-11-15T10-00-0{number}-{each}.jsonl"
        file.touch()
        os.utime(file, (number, number))
    assert known_session(codex, tmp_path, None) == ids[1]
    assert known_session(codex, tmp_path, ids[0]) == ids[0]
    assert known_session(codex, tmp_path, str(uuid4())) == ids[1]
