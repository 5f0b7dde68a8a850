"""The kinds of agents that can be run, by the name that the configuration gives them."""

from collections.abc import Mapping
from pathlib import Path
from typing import Final

from quarterdeck.domain.agents import Agent
from quarterdeck.run.adapters.acp import Acp
from quarterdeck.run.adapters.base import Adapter, Assignment, Reader
from quarterdeck.run.adapters.claude import Claude
from quarterdeck.run.adapters.codex import Codex
from quarterdeck.run.adapters.command import Command
from quarterdeck.run.adapters.gemini import Gemini
from quarterdeck.run.adapters.opencode import OpenCode

_ALL: Final[tuple[Adapter, ...]] = (Claude(), Codex(), Gemini(), OpenCode(), Acp(), Command())
ADAPTERS: Final[Mapping[str, Adapter]] = {adapter.name: adapter for adapter in _ALL}


def adapter_of(agent: Agent) -> Adapter | None:
    """The adapter that runs it; None for an agent that cannot be run here."""
    return ADAPTERS.get(agent.adapter) if agent.adapter else None


def reader_of(adapter: str | None) -> Reader | None:
    """What reads the stream of an agent; None where it speaks plain text."""
    found = None if adapter == "command" else ADAPTERS.get(adapter or "")
    return None if found is None else found.reader(Assignment("", Path(), Path()))


def model_of(agent: Agent, asked: str | None = None) -> str | None:
    """The model to run it with: the one asked for, else its row's where its program could know it.

    A row that names none has a Claude model, which means nothing to the others.
    """
    if asked or agent.adapter in (None, "claude"):
        return asked or agent.model
    return None if agent.model.startswith("claude-") else agent.model
