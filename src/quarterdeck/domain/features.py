"""What each kind of agent can be asked for. A prompt that asks for more is refused before it runs."""

from typing import Final, Literal, get_args

from quarterdeck.domain.agents import Agent
from quarterdeck.domain.errors import Invalid

Feature = Literal[
    "resume", "continue", "fork", "new_id", "effort", "budget", "schema", "subagent", "model", "mcp", "cost"
]

FEATURES: Final[dict[str, frozenset[Feature]]] = {
    "claude": frozenset(get_args(Feature)),
    "codex": frozenset({"resume", "continue", "fork", "effort", "schema", "model", "mcp"}),
    "gemini": frozenset({"resume", "continue", "new_id", "model", "mcp"}),
    "opencode": frozenset({"resume", "continue", "fork", "subagent", "model", "mcp", "cost"}),
    "acp": frozenset({"resume", "fork", "model", "mcp", "cost"}),
    "command": frozenset({"model", "mcp"}),
}

# The argument of a prompt that needs a feature, for the words of a refusal.
_ARGUMENTS: Final[dict[Feature, str]] = {
    "resume": "resume",
    "new_id": "session_id",
    "fork": "fork_session",
    "effort": "effort",
    "budget": "max_budget_usd",
    "schema": "json_schema",
    "subagent": "agent",
}


def require(agent: Agent, feature: Feature) -> None:
    """Refuse what the agent's adapter cannot do, by the argument that asks for it."""
    if feature not in FEATURES.get(agent.adapter or "", frozenset()):
        argument = _ARGUMENTS.get(feature, feature)
        able = sorted(name for name, features in FEATURES.items() if feature in features)
        raise Invalid(
            f"{agent.id} runs by the adapter {agent.adapter}, which does not take {argument}",
            field=argument,
            hint=f"leave it out, or use an agent of the adapter {' or '.join(able)}",
        )
