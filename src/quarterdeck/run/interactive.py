"""Agents at a terminal: how each is started for a person, and where it keeps its own sessions."""

import asyncio
import json
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from quarterdeck.config import Settings
from quarterdeck.domain.agents import Agent
from quarterdeck.domain.errors import Unavailable
from quarterdeck.paths import write_private
from quarterdeck.run.adapters import programs
from quarterdeck.run.adapters.base import Assignment, Launch
from quarterdeck.run.adapters.opencode import QUIET

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


def start(
    agent: Agent,
    program: Sequence[str],
    launch: Launch,
    assignment: Assignment,
    prompt: str,
    answered: Sequence[str] = (),
) -> Start:
    """The interactive form of a headless launch: the same program, home, server and session, with a person.

    `answered` are the words of `answers`. An adapter that is not known here is started as it is, with the
    path of the prompt in its environment.
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
            return Start([*program, *again, *rest, *answered, prompt], env)
        case "gemini":
            return Start([*program, *rest, "--prompt-interactive", prompt], env)
        case "opencode":
            # A resumed session is shown, and waits for the person: it takes no first message.
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


async def answers(
    agent: Agent, settings: Settings, program: Sequence[str], assignment: Assignment, roots: Sequence[Path]
) -> list[str]:
    """Words that answer what an agent would ask before it begins. `roots` are the repositories' folders."""
    if agent.adapter != "codex":
        return []
    # Whether a folder is trusted, it asks for the repository behind a checkout.
    folders = [folder for each in (assignment.cwd, *roots) for folder in (each, each.resolve())]
    trusted = dict.fromkeys(map(str, folders), '{trust_level="trusted"}')
    words = ["-c", f"projects={_table(trusted)}"]
    if assignment.model:
        # Whether a newer model would not be better: the one that was chosen stays.
        said = await programs.ask(
            agent, settings, (*program, "debug", "models", "--bundled"), assignment.home
        )
        newer = {old: json.dumps(new) for old, new in _newer(said).items()}
        words += ["-c", f"notice.model_migrations={_table(newer)}"]
    return words


def _table(entries: Mapping[str, str]) -> str:
    """A TOML table in one line."""
    names = {name: json.dumps(name, ensure_ascii=False) for name in entries}
    return "{" + ",".join(f"{names[name]}={value}" for name, value in entries.items()) + "}"


def _newer(catalog: str) -> dict[str, str]:
    """The model that each older one is to be changed for, as Codex's list of its models names it."""
    found = {}
    with suppress(ValueError, TypeError, KeyError, AttributeError):
        for model in json.loads(catalog)["models"]:
            if model.get("upgrade"):
                found[str(model["slug"])] = str(model["upgrade"]["model"])
    return found


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


async def known_session(
    agent: Agent, settings: Settings, home: Path, cwd: Path, session_id: str | None
) -> str | None:
    """An agent's own session in a home that can be resumed: the one given when it is there, else the last.

    Only an agent whose ids we choose is never given another than the one asked for.
    """
    match agent.adapter:
        case "claude":
            kept = f".claude/projects/*/{session_id}.jsonl"
            return await asyncio.to_thread(_kept, home, kept, session_id)
        case "gemini":
            kept = f".gemini/tmp/*/chats/session-*-{(session_id or '')[:8]}.json*"
            return await asyncio.to_thread(_kept, home, kept, session_id)
        case "codex":
            return await asyncio.to_thread(_last_of_codex, home, session_id)
        case "opencode" if session_id is None:
            return await _last_of_opencode(agent, settings, home, cwd)
        case None | "command":
            return None
    return session_id


def _kept(home: Path, pattern: str, session_id: str | None) -> str | None:
    return session_id if session_id and any(home.glob(pattern)) else None


def _last_of_codex(home: Path, session_id: str | None) -> str | None:
    files = sorted((home / ".codex" / "sessions").rglob("rollout-*.jsonl"), key=_written)
    ids = [ids[-1] for each in files if (ids := _UUID.findall(each.name))]
    return session_id if session_id in ids else (ids or [None])[-1]


async def _last_of_opencode(agent: Agent, settings: Settings, home: Path, cwd: Path) -> str | None:
    """It keeps its sessions in a database of its own, and lists those of a folder, the newest first."""
    if not await asyncio.to_thread((home / ".local" / "share" / "opencode").exists):
        return None
    words = ("session", "list", "--pure", "--format", "json", "--max-count", "1")
    try:
        program = (await programs.find(agent, settings)).argv
    except Unavailable:
        return None
    quiet = replace(agent, env={**QUIET, **agent.env})
    said = await programs.ask(quiet, settings, (*program, *words), home, cwd)
    try:
        return str(json.loads(said)[0]["id"])
    except (ValueError, TypeError, KeyError, IndexError):
        return None


def _written(path: Path) -> float:
    return path.stat().st_mtime
