"""Agents at a terminal: what is left of a headless command line, and which sessions can be resumed."""

from __future__ import annotations

import asyncio
import json
import os
import shlex
import tomllib
from collections.abc import Sequence
from pathlib import Path
from uuid import uuid4

import pytest

from quarterdeck.config import Settings
from quarterdeck.domain.agents import Agent
from quarterdeck.run.adapters.base import Assignment, Conversation
from quarterdeck.run.adapters.registry import ADAPTERS
from quarterdeck.run.interactive import Start, answers, known_session, prepare, start

TOKEN = "mcp_the-token-of-a-session"
FIRST = "Read /tree/.quarterdeck/prompt.md and begin."
ID = str(uuid4())
HEADLESS = {
    "claude": {"-p", "--output-format", "stream-json", "--verbose", "bypassPermissions"},
    "codex": {"exec", "--json", "-", 'approval_policy="never"'},
    "gemini": {"--output-format", "stream-json", "--prompt", "yolo", " "},
    "opencode": {"run", "--format", "json", "--auto"},
}


def begun(name: str, home: Path, conversation: Conversation, answered: Sequence[str] = ()) -> Start:
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
    return start(agent, ["/bin/agent"], launch, assignment, FIRST, answered)


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


def known(adapter: str, home: Path, session_id: str | None) -> str | None:
    agent = Agent(id="a", name="a", adapter=adapter, command=(str(home / "opencode"),))
    return asyncio.run(known_session(agent, Settings(), home, home, session_id))


def test_only_a_session_that_is_there_can_be_resumed(tmp_path: Path) -> None:
    for adapter, name in (
        ("claude", f".claude/projects/-tree/{ID}.jsonl"),
        ("gemini", f".gemini/tmp/tree/chats/session-2026-11-15T10-00-{ID[:8]}.jsonl"),
    ):
        assert known(adapter, tmp_path, ID) is None
        file = tmp_path / name
        file.parent.mkdir(parents=True)
        file.touch()
        assert known(adapter, tmp_path, ID) == ID
        assert known(adapter, tmp_path, None) is None
    assert known("command", tmp_path, ID) is None


def test_the_last_session_of_codex_is_found_in_its_home(tmp_path: Path) -> None:
    assert known("codex", tmp_path, None) is None
    folder = tmp_path / ".codex" / "sessions" / "2026" / "11" / "15"
    folder.mkdir(parents=True)
    ids = [str(uuid4()), str(uuid4())]
    for number, each in enumerate(ids):
        file = folder / f"rollout-2026-11-15T10-00-0{number}-{each}.jsonl"
        file.touch()
        os.utime(file, (number, number))
    assert known("codex", tmp_path, None) == ids[1]
    assert known("codex", tmp_path, ids[0]) == ids[0]
    assert known("codex", tmp_path, str(uuid4())) == ids[1]


def program(path: Path, *lines: str) -> None:
    """A program that answers what an adapter asks, and prints these lines to any other question."""
    said = "\n".join(f"  *) echo {shlex.quote(line)} ;;" for line in lines)
    path.write_text(f'#!/bin/sh\ncase "$*" in\n  *--version|*--help) echo 1.0 ;;\n{said}\nesac\n')
    path.chmod(0o700)


def test_the_last_session_of_opencode_is_the_first_that_it_lists(tmp_path: Path) -> None:
    assert known("opencode", tmp_path, None) is None, "nothing was said in this home yet"
    (tmp_path / ".local" / "share" / "opencode").mkdir(parents=True)
    assert known("opencode", tmp_path, None) is None, "there is no program"
    program(tmp_path / "opencode", '[{"id": "ses_last", "title": "t"}]')
    assert known("opencode", tmp_path, None) == "ses_last"
    assert known("opencode", tmp_path, "ses_given") == "ses_given"
    for said in ("", "[]", "{}", "not JSON", '["a"]'):
        program(tmp_path / "opencode", said)
        assert known("opencode", tmp_path, None) is None


def test_codex_is_told_which_folders_are_trusted_and_that_its_model_stays(tmp_path: Path) -> None:
    catalog = {"models": [{"slug": "new"}, {"slug": "old.1", "upgrade": {"model": "new"}}]}
    program(tmp_path / "codex", json.dumps(catalog))
    agent = Agent(id="codex", name="codex", adapter="codex")
    assignment = Assignment(prompt="", cwd=Path("/tree"), home=tmp_path, model="old.1")
    roots, words = [Path('/re"po 🚢.git')], [str(tmp_path / "codex")]
    said = asyncio.run(answers(agent, Settings(), words, assignment, roots))
    told = tomllib.loads("\n".join(said[1::2]))
    assert said[::2] == ["-c", "-c"]
    assert told["projects"] == {
        "/tree": {"trust_level": "trusted"},
        '/re"po 🚢.git': {"trust_level": "trusted"},
    }
    assert told["notice"]["model_migrations"] == {"old.1": "new"}
    program(tmp_path / "codex", "no catalog")
    said = asyncio.run(answers(agent, Settings(), words, assignment, roots))
    assert tomllib.loads(said[-1]) == {"notice": {"model_migrations": {}}}
    begin = begun("codex", tmp_path, Conversation("resume", ID), said)
    assert list(begin.argv)[-5:] == [*said, FIRST]
