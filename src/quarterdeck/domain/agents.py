"""The agent registry: five built-in agents, and the configuration's rows over them."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from quarterdeck.domain.errors import Invalid
from quarterdeck.domain.models import HAIKU, OPUS, SONNET

ADAPTERS: Final = ("claude", "codex", "gemini", "opencode", "acp", "command")
TRANSPORTS: Final = ("mcp-stdio", "mcp-http", "openclaw-agent")
COST_TIERS: Final = ("low", "medium", "high")


@dataclass(frozen=True, slots=True)
class Agent:
    """One agent: the fields of its public row, then how it is run, which only the configuration sets.

    `max_concurrent` None means the worker's concurrency; `adapter` None means that it cannot be run here.
    """

    id: str
    name: str
    description: str = ""
    capabilities: tuple[str, ...] = ()
    model: str = SONNET
    transport: str = "mcp-stdio"
    max_concurrent: int | None = None
    cost_tier: str = "medium"
    adapter: str | None = None
    command: tuple[str, ...] = ()
    # Out of repr: it may hold keys, and a repr ends up in logs.
    env: Mapping[str, str] = field(default_factory=dict, hash=False, repr=False)


BUILTIN: Final[tuple[Agent, ...]] = (
    Agent(
        id="claude-code",
        name="Claude Code",
        description="Full-featured coding agent — builds features, fixes bugs, manages repos",
        capabilities=("code", "git", "testing", "deployment", "refactoring", "architecture"),
        model=OPUS,
        transport="mcp-stdio",
        max_concurrent=1,
        cost_tier="high",
        adapter="claude",
    ),
    Agent(
        id="research-agent",
        name="Research Agent",
        description="Fast agent for web research, documentation lookup, and data gathering",
        capabilities=("research", "web-search", "summarization", "data-extraction"),
        model=SONNET,
        transport="mcp-http",
        max_concurrent=3,
        cost_tier="medium",
    ),
    Agent(
        id="triage-agent",
        name="Triage Agent",
        description="Lightweight agent that sorts, labels, and prioritizes incoming work",
        capabilities=("triage", "classification", "prioritization"),
        model=HAIKU,
        transport="mcp-http",
        max_concurrent=5,
        cost_tier="low",
    ),
    Agent(
        id="api-agent",
        name="API Agent",
        description="Integration agent — calls APIs, wires webhooks, keeps services in sync",
        capabilities=("api", "integration", "webhooks"),
        model=SONNET,
        transport="mcp-http",
        max_concurrent=3,
        cost_tier="medium",
    ),
    Agent(
        id="openclaw-discord",
        name="OpenClaw Discord",
        description="Conversational agent for Discord — answers questions, posts announcements",
        capabilities=("discord", "conversation", "announcements"),
        model=SONNET,
        transport="openclaw-agent",
        max_concurrent=2,
        cost_tier="medium",
    ),
)


def as_row(agent: Agent, default_concurrency: int = 3) -> dict[str, Any]:
    """The public row: the eight documented fields and nothing of how the agent is run."""
    return {
        "id": agent.id,
        "name": agent.name,
        "description": agent.description,
        "capabilities": list(agent.capabilities),
        "model": agent.model,
        "transport": agent.transport,
        "max_concurrent": default_concurrency if agent.max_concurrent is None else agent.max_concurrent,
        "cost_tier": agent.cost_tier,
    }


def registry(overrides: Mapping[str, Mapping[str, Any]]) -> dict[str, Agent]:
    """The agents by id: the five built-in ones, then the configuration's own, in their order.

    A row overrides only the fields it names; an unknown or ill-typed one raises `Invalid`.
    """
    agents = {agent.id: agent for agent in BUILTIN}
    for agent_id, row in overrides.items():
        base = agents.get(agent_id) or Agent(id=agent_id, name=agent_id)
        agents[agent_id] = replace(base, **_checked(agent_id, row))
    return agents


def named(agents: Mapping[str, Agent], name: str) -> Agent | None:
    """The agent of that id; the name of an adapter, such as `claude`, means the first agent with it."""
    if name in agents:
        return agents[name]
    return next((agent for agent in agents.values() if agent.adapter == name), None)


def _checked(agent_id: str, row: Mapping[str, Any]) -> dict[str, Any]:
    if not isinstance(row, Mapping):
        raise Invalid(f"agents.{agent_id} must be a table", hint=_HINT, field=f"agents.{agent_id}")
    fields = {}
    for key, value in row.items():
        path = f"agents.{agent_id}.{key}"
        if key not in _FIELDS:
            raise Invalid(f"{path} is not a field of an agent", hint=_HINT, field=path)
        expected, check = _FIELDS[key]
        try:
            fields[key] = check(value)
        except TypeError:
            raise Invalid(f"{path} must be {expected}", hint=_HINT, field=path) from None
    return fields


def _string(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError
    return value


def _word(value: Any) -> str:
    if not _string(value).strip():
        raise TypeError
    return str(value)


def _strings(value: Any) -> tuple[str, ...]:
    if not isinstance(value, list | tuple):
        raise TypeError
    return tuple(_string(item) for item in value)


def _environment(value: Any) -> Mapping[str, str]:
    if not isinstance(value, Mapping):
        raise TypeError
    return {_word(name): _string(item) for name, item in value.items()}


def _count(value: Any) -> int:
    if type(value) is not int or value < 1:
        raise TypeError
    return value


def _choice(*allowed: str) -> tuple[str, Callable[[Any], str]]:
    def check(value: Any) -> str:
        if value not in allowed:
            raise TypeError
        return str(value)

    return f"one of {' | '.join(allowed)}", check


_FIELDS: Final[dict[str, tuple[str, Callable[[Any], Any]]]] = {
    "name": ("a non-empty string", _word),
    "description": ("a string", _string),
    "capabilities": ("a list of strings", _strings),
    "model": ("a non-empty string", _word),
    "transport": _choice(*TRANSPORTS),
    "max_concurrent": ("a whole number from 1", _count),
    "cost_tier": _choice(*COST_TIERS),
    "adapter": _choice(*ADAPTERS),
    "command": ("a list of strings", _strings),
    "env": ("a table of strings", _environment),
}
_HINT: Final = "Allowed keys: " + ", ".join(_FIELDS)
