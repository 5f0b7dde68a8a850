"""Routing, models, the registry and classification of the orchestrator surface."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest

from tests.core_process import CoreProcess
from tests.integration.orchestrator_contract import AGENT, TIME
from tests.mcp_client import Client, Deck

ADMIN = "the admin secret of these tests"
ENVIRONMENT = {"QUARTERDECK_ADMIN_SECRET": ADMIN}
CONFIG = """
[agents.my-bot]
name = "My bot"
description = "Sings"
adapter = "command"
command = ["./bot", "--fast"]
env = { KEY = "hidden value" }
capabilities = ["singing"]
cost_tier = "low"

[agents.api-agent]
max_concurrent = 7
"""
Row = dict[str, Any]


@pytest.fixture(scope="module")
def deck(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deck]:
    folder = tmp_path_factory.mktemp("core")
    (folder / "quarterdeck.toml").write_text(CONFIG)
    with CoreProcess(folder, ENVIRONMENT) as core, Deck(core.url, ADMIN) as deck:
        yield deck


@pytest.fixture
def me(deck: Deck) -> Client:
    """A maintainer whom nobody else shares rows with."""
    return deck.connect()


def test_recommendation_changes_nothing(me: Client) -> None:
    task = me.done(
        "task_create",
        title="Fix stage-2 retrieval regression in the API",
        description="The endpoint is slow",
        priority="high",
        source_channel="chat",
    )
    before = me.done("context_for_task", task_id=task["id"])
    for arguments in ({}, {"assign": False}):
        answer = me.done("route_task", task_id=task["id"], **arguments)
        assert list(answer) == ["routing", "task", "action"]
        assert answer["action"] == "recommendation_only"
        assert answer["task"] == {"id": task["id"], "title": task["title"], "status": "pending"}
    assert me.done("context_for_task", task_id=task["id"]) == before
    routing = answer["routing"]
    assert list(routing) == ["agent", "model", "confidence", "reasoning", "alternates"]
    assert routing["agent"] == me.done("get_agent", agent_id="claude-code")
    assert routing["model"] == "claude-opus-4-7"
    assert 0 < routing["confidence"] <= 1
    assert re.fullmatch(
        r"Detected capabilities: api\(2\), code\(2\)\. Best match: Claude Code \(score \d+\)\. "
        r"Model: claude-opus-4-7\. Priority: high\. Source: chat",
        routing["reasoning"],
    )
    (alternate,) = routing["alternates"]
    assert list(alternate) == ["agent_id", "confidence", "reason"]
    assert alternate["agent_id"] == "api-agent"
    assert 0 < alternate["confidence"] < routing["confidence"]
    assert re.fullmatch(r"Score \d+: api", alternate["reason"])


def test_there_are_at_most_three_alternates_best_first(me: Client) -> None:
    text = (
        "Fix the code, research the market, triage the inbox, call the API, announce it on Discord, singing"
    )
    task = me.done("task_create", title=text)["id"]
    alternates = me.done("route_task", task_id=task)["routing"]["alternates"]
    confidences = [each["confidence"] for each in alternates]
    assert len(alternates) == 3
    assert confidences == sorted(confidences, reverse=True)


def test_assigning_writes_the_task_and_a_tagged_decision(me: Client) -> None:
    made = me.done("task_create", title="Fix the crash in the parser", metadata={"kept": 1, "routing": "old"})
    answer = me.done("route_task", task_id=made["id"], assign=True)
    routing, task = answer["routing"], answer["task"]
    assert answer["action"] == "assigned"
    assert task.keys() == made.keys()
    assert task["assigned_agent"] == routing["agent"]["id"] == "claude-code"
    block = task["metadata"]["routing"]
    assert list(block) == ["agent_id", "model", "confidence", "reasoning", "routed_at"]
    assert TIME.fullmatch(block["routed_at"])
    assert block["agent_id"] == "claude-code"
    assert all(block[key] == routing[key] for key in ("model", "confidence", "reasoning"))
    assert task["metadata"]["kept"] == 1
    assert task["updated_at"] > made["updated_at"]
    assert me.done("task_get", task_id=made["id"])["task"] == task
    assert len(me.done("task_get", task_id=made["id"])["transitions"]) == 1
    (decision,) = me.done("context_for_task", task_id=made["id"])["related_decisions"]
    assert decision["tags"] == ["routing", "auto-assign", "claude-code"]
    assert decision["confidence"] == routing["confidence"]
    assert decision["user_id"] == made["user_id"]


@pytest.mark.parametrize(
    ("tier", "model"),
    [("fast", "claude-haiku-4-5"), ("balanced", "claude-sonnet-4-6"), ("powerful", "claude-opus-4-7")],
)
def test_tier_has_its_model(me: Client, tier: str, model: str) -> None:
    answer = me.done("select_model", tier=tier, context="summarize a research run")
    assert list(answer) == ["tier", "model", "context", "guidance"]
    assert answer["guidance"].startswith("Best for: ")
    assert answer | {"guidance": ""} == {
        "tier": tier,
        "model": model,
        "context": "summarize a research run",
        "guidance": "",
    }
    assert me.done("select_model", tier=tier)["context"] is None


def test_unknown_tier_is_refused_with_the_known_ones(me: Client) -> None:
    body = me.refused("select_model", tier="cheapest")
    assert (body["code"], body["field"]) == ("validation_error", "tier")
    assert body["hint"] == "Use one of: fast, balanced, powerful"


def test_agents_are_the_five_of_the_document_and_those_of_the_config(me: Client) -> None:
    listed = me.done("list_agents")
    assert [row["id"] for row in listed] == [
        *("claude-code", "research-agent", "triage-agent", "api-agent", "openclaw-discord", "my-bot"),
    ]
    assert all(list(row) == AGENT for row in listed)
    assert listed[0] == {
        "id": "claude-code",
        "name": "Claude Code",
        "description": "Full-featured coding agent — builds features, fixes bugs, manages repos",
        "capabilities": ["code", "git", "testing", "deployment", "refactoring", "architecture"],
        "model": "claude-opus-4-7",
        "transport": "mcp-stdio",
        "max_concurrent": 1,
        "cost_tier": "high",
    }
    assert listed[3]["max_concurrent"] == 7
    assert listed[5]["name"] == "My bot"
    assert listed[5]["capabilities"] == ["singing"]
    assert "hidden value" not in json.dumps(listed)
    for row in listed:
        assert me.done("get_agent", agent_id=row["id"]) == row


def test_work_is_routed_to_an_agent_of_the_config(me: Client) -> None:
    task = me.done("task_create", title="Do some singing")["id"]
    assert me.done("route_task", task_id=task)["routing"]["agent"]["id"] == "my-bot"


def test_unknown_agent_is_refused_with_the_known_ones(me: Client) -> None:
    body = me.refused("get_agent", agent_id="no-such-agent")
    assert (body["code"], body["field"]) == ("not_found", "agent_id")
    assert "my-bot" in body["hint"]


@pytest.mark.parametrize(
    ("title", "category", "actionability"),
    [
        ("Fix the crash in the parser", "engineering", "agent"),
        ("Research competitors and compare pricing", "research", "agent"),
        ("Integrate the Stripe webhook API", "integration", "agent"),
        ("Buy groceries", "personal", "human"),
        ("Write a blog post about our launch", "content", "hybrid"),
        ("Read the article on consensus", "read", "hybrid"),
        ("zzz qqq", "unknown", "hybrid"),
        ("Long-term goal: become fluent in Spanish", "goal", "defer"),
    ],
)
def test_text_is_classified_and_no_task_is_made(
    me: Client, title: str, category: str, actionability: str
) -> None:
    answer = me.done("orchestrator_classify", title=title)
    assert list(answer) == ["category", "actionability", "confidence", "reason"]
    assert (answer["category"], answer["actionability"]) == (category, actionability)
    assert 0 <= answer["confidence"] <= 1
    assert category == "unknown" or re.match(rf"{category}\(\d+\)", answer["reason"])
    assert me.done("task_list") == []


@pytest.mark.parametrize("arguments", [{"description": "a long-term goal"}, {"project": "Goals of the year"}])
def test_description_and_project_take_part_in_classification(me: Client, arguments: Row) -> None:
    assert me.done("orchestrator_classify", title="zzz qqq")["category"] == "unknown"
    assert me.done("orchestrator_classify", title="zzz qqq", **arguments)["category"] == "goal"
