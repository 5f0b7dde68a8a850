"""The registry: the five documented agents, and configuration rows over them."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quarterdeck.domain.agents import ADAPTERS, BUILTIN, COST_TIERS, TRANSPORTS, Agent, as_row, registry
from quarterdeck.domain.errors import Invalid

CLAUDE_CODE = {
    "id": "claude-code",
    "name": "Claude Code",
    "description": "Full-featured coding agent — builds features, fixes bugs, manages repos",
    "capabilities": ["code", "git", "testing", "deployment", "refactoring", "architecture"],
    "model": "claude-opus-4-7",
    "transport": "mcp-stdio",
    "max_concurrent": 1,
    "cost_tier": "high",
}
RESEARCH_AGENT = {
    "id": "research-agent",
    "name": "Research Agent",
    "description": "Fast agent for web research, documentation lookup, and data gathering",
    "capabilities": ["research", "web-search", "summarization", "data-extraction"],
    "model": "claude-sonnet-4-6",
    "transport": "mcp-http",
    "max_concurrent": 3,
    "cost_tier": "medium",
}
KEYS = [
    "name",
    "description",
    "capabilities",
    "model",
    "transport",
    "max_concurrent",
    "cost_tier",
    "adapter",
    "command",
    "env",
]


def test_the_registry_holds_the_five_documented_agents_in_order() -> None:
    assert list(registry({})) == [
        "claude-code",
        "research-agent",
        "triage-agent",
        "api-agent",
        "openclaw-discord",
    ]


@pytest.mark.parametrize("row", [CLAUDE_CODE, RESEARCH_AGENT], ids=["claude-code", "research-agent"])
def test_the_two_agents_that_the_document_shows_are_exact(row: dict[str, Any]) -> None:
    assert as_row(registry({})[row["id"]]) == row


@pytest.mark.parametrize("agent", BUILTIN, ids=lambda agent: agent.id)
def test_every_builtin_row_keeps_to_the_documented_values(agent: Agent) -> None:
    row = as_row(agent)
    assert list(row) == list(CLAUDE_CODE)
    assert row["model"] in {"claude-haiku-4-5", "claude-sonnet-4-6", "claude-opus-4-7"}
    assert row["transport"] in TRANSPORTS
    assert row["cost_tier"] in COST_TIERS
    assert row["max_concurrent"] >= 1
    assert row["name"] and row["description"] and row["capabilities"]


def test_the_documented_example_capabilities_are_all_offered() -> None:
    offered = {capability for agent in BUILTIN for capability in agent.capabilities}
    assert offered >= {"code", "research", "triage", "api", "discord", "conversation"}


def test_only_claude_code_can_be_run_without_configuration() -> None:
    assert {agent.id: agent.adapter for agent in BUILTIN if agent.adapter} == {"claude-code": "claude"}


def test_a_full_row_adds_an_agent_and_its_run_fields_stay_out_of_the_public_row() -> None:
    agent = registry(
        {
            "my-bot": {
                "name": "My bot",
                "adapter": "command",
                "command": ["./bot", "--fast"],
                "env": {"KEY": "value"},
                "capabilities": ["code", "git"],
                "model": "claude-sonnet-4-6",
                "transport": "mcp-stdio",
                "max_concurrent": 1,
                "cost_tier": "low",
            }
        }
    )["my-bot"]
    assert (agent.adapter, agent.command, dict(agent.env)) == (
        "command",
        ("./bot", "--fast"),
        {"KEY": "value"},
    )
    assert as_row(agent) == {
        "id": "my-bot",
        "name": "My bot",
        "description": "",
        "capabilities": ["code", "git"],
        "model": "claude-sonnet-4-6",
        "transport": "mcp-stdio",
        "max_concurrent": 1,
        "cost_tier": "low",
    }


def test_a_new_row_defaults_what_it_omits() -> None:
    agents = registry({"helper": {}})
    assert list(agents)[-1] == "helper"
    assert agents["helper"] == Agent(
        id="helper",
        name="helper",
        description="",
        capabilities=(),
        model="claude-sonnet-4-6",
        transport="mcp-stdio",
        max_concurrent=None,
        cost_tier="medium",
        adapter=None,
        command=(),
        env={},
    )


def test_an_omitted_concurrency_shows_the_workers_own() -> None:
    helper = registry({"helper": {}})["helper"]
    assert as_row(helper)["max_concurrent"] == 3
    assert as_row(helper, default_concurrency=8)["max_concurrent"] == 8
    assert as_row(registry({})["claude-code"], default_concurrency=8)["max_concurrent"] == 1


def test_overriding_a_builtin_keeps_its_other_fields_and_its_place() -> None:
    agents = registry({"claude-code": {"model": "claude-sonnet-4-6", "max_concurrent": 4}})
    assert as_row(agents["claude-code"]) == CLAUDE_CODE | {"model": "claude-sonnet-4-6", "max_concurrent": 4}
    assert agents["claude-code"].adapter == "claude"
    assert next(iter(agents)) == "claude-code"
    assert as_row(registry({})["claude-code"]) == CLAUDE_CODE


def test_a_model_of_any_name_is_accepted_because_other_agents_run_other_models() -> None:
    assert registry({"gemini": {"adapter": "gemini", "model": "gemini-pro"}})["gemini"].model == "gemini-pro"


@pytest.mark.parametrize("adapter", ADAPTERS)
def test_each_documented_adapter_is_accepted(adapter: str) -> None:
    assert registry({"bot": {"adapter": adapter}})["bot"].adapter == adapter


@pytest.mark.parametrize(
    ("key", "value", "expected"),
    [
        ("name", 3, "a non-empty string"),
        ("name", "  ", "a non-empty string"),
        ("description", None, "a string"),
        ("capabilities", "code", "a list of strings"),
        ("capabilities", ["code", 1], "a list of strings"),
        ("model", "", "a non-empty string"),
        ("transport", "carrier-pigeon", "one of mcp-stdio | mcp-http | openclaw-agent"),
        ("max_concurrent", 0, "a whole number from 1"),
        ("max_concurrent", 1.5, "a whole number from 1"),
        ("max_concurrent", True, "a whole number from 1"),
        ("max_concurrent", "2", "a whole number from 1"),
        ("cost_tier", "free", "one of low | medium | high"),
        ("cost_tier", ["low"], "one of low | medium | high"),
        ("adapter", "cursor", "one of claude | codex | gemini | opencode | acp | command"),
        ("command", "./bot --fast", "a list of strings"),
        ("env", ["KEY=value"], "a table of strings"),
        ("env", {"KEY": 1}, "a table of strings"),
        ("env", {"": "value"}, "a table of strings"),
    ],
)
def test_an_ill_typed_field_is_refused_by_its_path_with_what_it_must_be(
    key: str, value: Any, expected: str
) -> None:
    with pytest.raises(Invalid) as refusal:
        registry({"my-bot": {key: value}})
    assert refusal.value.field == f"agents.my-bot.{key}"
    assert refusal.value.message == f"agents.my-bot.{key} must be {expected}"
    assert refusal.value.hint == f"Allowed keys: {', '.join(KEYS)}"


@given(st.text().filter(lambda key: key not in KEYS))
def test_an_unknown_field_is_refused_by_its_path_with_the_allowed_keys(key: str) -> None:
    with pytest.raises(Invalid) as refusal:
        registry({"claude-code": {key: "x"}})
    assert refusal.value.field == f"agents.claude-code.{key}"
    assert refusal.value.hint == f"Allowed keys: {', '.join(KEYS)}"


def test_a_row_that_is_no_table_is_refused_by_its_path() -> None:
    rows: Any = {"my-bot": "claude"}
    with pytest.raises(Invalid) as refusal:
        registry(rows)
    assert refusal.value.field == "agents.my-bot"


def test_the_repr_of_an_agent_does_not_show_its_environment() -> None:
    agent = registry({"bot": {"env": {"API_KEY": "hunter2"}}})["bot"]
    assert "hunter2" not in repr(agent)
