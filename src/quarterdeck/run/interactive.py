"""Agents at a terminal: how each is started for a person, and where it keeps its own sessions."""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from quarterdeck.domain.agents import Agent
from quarterdeck.paths import write_private
from quarterdeck.run.adapters.base import Assignment, Launch

_UUID: Final = re.compile(r"[0-9a-f]{8}-(?:[0-9a-f]{4}-){3}[0-9a-f]{12}")
# Words of a headless run, by what follows them: how many values belong to each.
_HEADLESS: Final[dict[str, dict[str, int]]] = {
    "claude": {"-p": 0, "--output-format": 1, "--input-format": 1, "--verbose": 0, "--permission-mode": 1},
    "codex": {
        "exec": 0,
        "resume": 1,
        "fork": 1,
        "--json": 0,
        "--skip-git-repo-check": 0,
        "--ignore-user-config": 0,
        "--output-schema": 1,
        "-": 0,
    },
    "gemini": {"-p": 1, "--prompt": 1, "-o": 1, "--output-format": 1, "--approval-mode": 1},
    "opencode": {"run": 0, "--format": 1, "--auto": 0, "--fork": 0, "--title": 1},
}


@dataclass(frozen=True, slots=True)
class Start:
    """How a person's session begins: the words and all of the environment."""

    argv: Sequence[str]
    env: dict[str, str]


def start(agent: Agent, program: Sequence[str], launch: Launch, assignment: Assignment, prompt: str) -> Start:
    """The interactive form of a headless launch: the same program, home, server and session, with a person.

    An adapter that is not known here is started as it is, with the path of the prompt in its environment.
    """
    env = {**launch.env, "TERM": "xterm-256color"}
    rest = _without(list(launch.argv[len(program) :]), _HEADLESS.get(agent.adapter or "", {}))
    conversation = assignment.conversation
    match agent.adapter:
        case "claude":
            # The prompt first: a flag with several values would swallow it at the end.
            return Start([*program, prompt, *rest, "--permission-mode", "acceptEdits"], env)
        case "codex":
            again = ["resume", str(conversation.id)] if conversation.how == "resume" else []
            rest = [word.replace('approval_policy="never"', 'approval_policy="on-request"') for word in rest]
            return Start([*program, *again, *rest, *([] if again else [prompt])], env)
        case "gemini":
            return Start([*program, *rest, "--prompt-interactive", prompt], env)
        case "opencode":
            return Start([*program, *rest, "--prompt", prompt], env)
    return Start([*program, *rest], env)


def _without(words: list[str], headless: dict[str, int]) -> list[str]:
    kept = []
    skip = 0
    for word in words:
        if skip:
            skip -= 1
        elif word in headless:
            skip = headless[word]
        elif word.partition("=")[0] not in headless or "=" not in word:
            kept.append(word)
    return kept


def prepare(agent: Agent, home: Path, cwd: Path, env: dict[str, str]) -> None:
    """Answer what an agent asks in a fresh home, so that it begins at once."""
    if agent.adapter == "claude":
        _prepare_claude(home / ".claude.json", cwd, env.get("ANTHROPIC_API_KEY"))


def _prepare_claude(file: Path, cwd: Path, key: str | None) -> None:
    try:
        known = json.loads(file.read_text())
    except (OSError, ValueError):
        known = {}
    seeded: dict[str, Any] = known if isinstance(known, dict) else {}
    seeded["hasCompletedOnboarding"] = True
    seeded.setdefault("theme", "dark")
    if key:
        answers = seeded.setdefault("customApiKeyResponses", {})
        approved = answers.setdefault("approved", [])
        if key[-20:] not in approved:
            approved.append(key[-20:])
    seeded.setdefault("projects", {}).setdefault(str(cwd), {})["hasTrustDialogAccepted"] = True
    write_private(file, json.dumps(seeded))


def known_session(agent: Agent, home: Path, session_id: str | None) -> str | None:
    """An agent's own session in a home that can be resumed: the one given when it is there, else the last.

    Only an agent whose ids we choose is never given another than the one asked for.
    """
    match agent.adapter:
        case "claude":
            found = session_id and any((home / ".claude" / "projects").glob(f"*/{session_id}.jsonl"))
            return session_id if found else None
        case "codex":
            files = sorted((home / ".codex" / "sessions").rglob("rollout-*.jsonl"), key=_written)
            ids = [ids[-1] for each in files if (ids := _UUID.findall(each.name))]
            return session_id if session_id in ids else (ids or [None])[-1]
        case None | "command":
            return None
    return session_id


def _written(path: Path) -> float:
    return path.stat().st_mtime
