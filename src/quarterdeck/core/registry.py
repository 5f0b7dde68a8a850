"""The agents that work can be routed to."""

from quarterdeck.core.context import Core
from quarterdeck.domain import agents
from quarterdeck.domain.agents import Agent
from quarterdeck.domain.errors import NotFound


def listing(core: Core) -> list[Agent]:
    return list(core.agents.values())


def get(core: Core, agent_id: str) -> Agent:
    agent = core.agents.get(agent_id)
    if agent is None:
        known = ", ".join(core.agents)
        raise NotFound(f"there is no agent {agent_id!r}", field="agent_id", hint=f"one of {known}")
    return agent


def named(core: Core, name: str) -> Agent | None:
    """The agent that a name means, as `domain.agents` says."""
    return agents.named(core.agents, name)


def limits(core: Core, usual: int) -> dict[str, int]:
    """How many jobs each agent takes at once; one that says nothing takes as many as a worker."""
    usual = usual or type(core.settings.worker)().concurrency
    return {agent.id: agent.max_concurrent or usual for agent in core.agents.values()}
