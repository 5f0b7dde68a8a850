"""The orchestrator surface over real HTTP: its tools in every era, creating tasks and reading them."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import httpx2
import pytest
from mcp.client.client import Client as OfficialClient
from mcp.client.streamable_http import streamable_http_client

from tests.core_process import CoreProcess
from tests.integration.orchestrator_contract import ANSWERS, ARGUMENTS, TASK, TIME, TRANSITION, WRITES
from tests.mcp_client import MODERN, Client, Deck, Older

ADMIN = "the admin secret of these tests"
ENVIRONMENT = {"QUARTERDECK_ADMIN_SECRET": ADMIN}
ERAS = [MODERN, "2025-11-25", "2025-06-18", "2025-03-26", "2024-11-05"]

Row = dict[str, Any]


@pytest.fixture(scope="module")
def deck(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deck]:
    folder = tmp_path_factory.mktemp("core")
    with CoreProcess(folder, ENVIRONMENT) as core, Deck(core.url, ADMIN) as deck:
        yield deck


@pytest.fixture
def me(deck: Deck) -> Client:
    """A maintainer whom nobody else shares rows with."""
    return deck.connect()


@pytest.fixture(scope="module")
def crowd(deck: Deck) -> tuple[Client, str, list[str]]:
    """A client, a task of it and that task's 205 subtasks, oldest first; the user has no other task."""
    client = deck.connect()
    parent = client.done("task_create", title="the parent")["id"]
    children = [
        client.done("task_create", title=f"child {n}", parent_task_id=parent)["id"] for n in range(205)
    ]
    return client, parent, children


def ids(rows: list[Row]) -> list[str]:
    return [row["id"] for row in rows]


# The surface as a whole


def test_tools_are_the_documented_ones_and_two_additions_in_the_documents_order(me: Client) -> None:
    assert [tool["name"] for tool in me.tools()] == list(ARGUMENTS)


def test_arguments_of_every_tool_are_the_documented_ones(me: Client) -> None:
    schemas = {tool["name"]: tool["inputSchema"] for tool in me.tools()}
    shown = {
        name: (set(schema.get("required", ())), set(schema["properties"]) - set(schema.get("required", ())))
        for name, schema in schemas.items()
    }
    assert shown == ARGUMENTS


def test_documented_defaults_and_choices_are_in_the_schemas(me: Client) -> None:
    shown = {
        (tool["name"], name): (schema["type"], schema.get("default"), len(schema.get("enum", ())))
        for tool in me.tools()
        for name, schema in tool["inputSchema"]["properties"].items()
        if "default" in schema or "enum" in schema
    }
    assert shown == {
        ("decision_search", "limit"): ("integer", 10, 0),
        ("pattern_match", "limit"): ("integer", 10, 0),
        ("task_create", "priority"): ("string", "medium", 4),
        ("task_update", "status"): ("string", None, 8),
        ("task_update", "action"): ("string", None, 9),
        ("task_update", "priority"): ("string", None, 4),
        ("task_list", "status"): ("string", None, 8),
        ("task_list", "priority"): ("string", None, 4),
        ("task_list", "limit"): ("integer", 50, 0),
        ("route_task", "assign"): ("boolean", False, 0),
    }


def test_reads_are_marked_as_such_and_no_write_is_called_destructive(me: Client) -> None:
    hints = {tool["name"]: tool["annotations"] for tool in me.tools()}
    assert {name for name, hint in hints.items() if not hint["readOnlyHint"]} == WRITES
    assert all(hints[name]["destructiveHint"] is False for name in WRITES)


@pytest.mark.parametrize("version", ERAS)
def test_every_era_tells_the_same_story(deck: Deck, version: str) -> None:
    client = deck.connect(version=version)
    if isinstance(client, Older):
        assert client.greeting["protocolVersion"] == version
        assert client.greeting["serverInfo"]["name"] == "manticscore-orchestrator"
    assert [tool["name"] for tool in client.tools()] == list(ARGUMENTS)
    made = client.done("task_create", title="Ünïcode 🙂", metadata={"a": None})
    assert list(made) == TASK
    client.done("task_update", task_id=made["id"], action="approve", actor="me")
    seen = client.done("task_get", task_id=made["id"])
    assert seen["task"]["title"] == "Ünïcode 🙂"
    assert seen["task"]["metadata"] == {"a": None}
    assert [row["to_status"] for row in seen["transitions"]] == ["pending", "approved"]
    assert client.done("task_list") == [seen["task"]]
    assert client.refused("task_update", task_id=made["id"], action="submit")["code"] == "invalid_transition"
    assert client.refused("task_get")["field"] == "task_id"
    assert client.refused("no_such_tool")["code"] == "unknown_tool"


@pytest.mark.parametrize(("mode", "version"), [("legacy", "2025-11-25"), (MODERN, MODERN), ("auto", MODERN)])
def test_official_client_works_in_both_eras(deck: Deck, mode: str, version: str) -> None:
    bearer = {"Authorization": f"Bearer {deck.mint()['token']}"}

    async def story() -> None:
        async with httpx2.AsyncClient(headers=bearer, timeout=30) as http:
            transport = streamable_http_client(f"{deck.url}/mcp/orchestrator", http_client=http)
            async with OfficialClient(transport, mode=mode) as client:
                assert client.protocol_version == version
                assert [tool.name for tool in (await client.list_tools()).tools] == list(ARGUMENTS)
                made = await client.call_tool("task_create", {"title": "from the official client"})
                assert made.structured_content is not None
                assert made.structured_content["status"] == "pending"
                listed = await client.call_tool("task_list", {"limit": 5})
                assert listed.structured_content == {"result": [made.structured_content]}
                wrong = await client.call_tool("task_get", {"task_id": "nowhere"})
                assert wrong.is_error
                assert wrong.structured_content is not None
                assert wrong.structured_content["code"] == "not_found"

    asyncio.run(story())


@pytest.mark.parametrize("path", ["/mcp", "/mcp/", "/mcp/orchestrator", "/mcp/orchestrator/"])
def test_surface_answers_with_and_without_a_closing_slash_and_in_the_union(deck: Deck, path: str) -> None:
    client = deck.connect(surface=path.removeprefix("/mcp").removeprefix("/"))
    client.url = deck.url + path
    assert client.done("ping")["pong"] is True


def test_ping_names_the_server_and_tells_the_time_in_utc(me: Client) -> None:
    before = datetime.now(UTC)
    answer = me.done("ping")
    assert list(answer) == ["pong", "server", "ts"]
    assert answer["pong"] is True
    assert answer["server"] == "manticscore-orchestrator"
    assert TIME.fullmatch(answer["ts"])
    assert before <= datetime.fromisoformat(answer["ts"]) <= datetime.now(UTC)


# Creating, listing and reading tasks


def test_new_task_has_the_documented_defaults(me: Client) -> None:
    made = me.done("task_create", title="Just a title")
    assert list(made) == TASK
    assert str(uuid.UUID(made["id"])) == made["id"]
    assert TIME.fullmatch(made["created_at"])
    assert made["updated_at"] == made["created_at"]
    assert made["user_id"].startswith("user-")
    assert {key: made[key] for key in TASK if key not in {"id", "user_id", "created_at", "updated_at"}} == {
        "title": "Just a title",
        "description": None,
        "status": "pending",
        "priority": "medium",
        "source_channel": None,
        "assigned_agent": None,
        "parent_task_id": None,
        "metadata": {},
        "completed_at": None,
    }


def test_new_task_keeps_every_field_as_given(me: Client) -> None:
    parent = me.done("task_create", title="parent")["id"]
    given = {
        "title": "All of it",
        "description": "  spaces,\nlines and 漢字 stay  ",
        "priority": "urgent",
        "source_channel": "chat",
        "assigned_agent": "nobody.we.know",
        "parent_task_id": parent,
        "metadata": {"z": 1, "a": {"deep": [1, 2.5, None, True, "x"]}, "null": None, "": "empty name"},
    }
    made = me.done("task_create", **given)
    assert {key: made[key] for key in given} == given
    assert me.done("task_get", task_id=made["id"])["task"] == made
    assert list(made["metadata"]) == ["z", "a", "null", ""]


@pytest.mark.parametrize(("channel", "actor"), [("inngest", "inngest"), (None, "mcp")])
def test_creation_is_the_first_transition_with_the_channel_as_its_actor(
    me: Client, channel: str | None, actor: str
) -> None:
    made = me.done("task_create", title="x", **({"source_channel": channel} if channel else {}))
    (first,) = me.done("task_get", task_id=made["id"])["transitions"]
    assert list(first) == TRANSITION
    assert str(uuid.UUID(first.pop("id")))
    assert first == {
        "task_id": made["id"],
        "from_status": None,
        "to_status": "pending",
        "reason": None,
        "actor": actor,
        "created_at": made["created_at"],
    }


def test_parent_must_exist_and_a_refused_creation_leaves_no_task(me: Client) -> None:
    body = me.refused("task_create", title="orphan", parent_task_id=str(uuid.uuid4()))
    assert (body["code"], body["field"]) == ("not_found", "parent_task_id")
    assert me.done("task_list") == []


@pytest.mark.parametrize(
    ("arguments", "field", "sentence"),
    [
        ({}, "title", "title is required"),
        ({"title": ""}, "title", "title must not be empty"),
        ({"title": 7}, "title", "title must be a string"),
        ({"title": "x" * 501}, "title", "title is longer than 500 characters"),
        (
            {"title": "x", "priority": "asap"},
            "priority",
            "priority must be one of 'low', 'medium', 'high', 'urgent'",
        ),
        ({"title": "x", "metadata": []}, "metadata", "metadata must be an object"),
        ({"title": "x", "titel": "y"}, "titel", "titel is not an argument of this tool"),
    ],
)
def test_wrong_argument_is_named_in_the_refusal(
    me: Client, arguments: Row, field: str, sentence: str
) -> None:
    body = me.refused("task_create", **arguments)
    assert list(body) == ["error", "code", "field", "hint"]
    assert (body["error"], body["code"], body["field"]) == (sentence, "validation_error", field)
    assert me.done("task_list") == []


def test_list_is_newest_first_and_50_long_by_default(crowd: tuple[Client, str, list[str]]) -> None:
    client, _, children = crowd
    listed = client.done("task_list")
    assert all(list(row) == TASK for row in listed)
    assert ids(listed) == children[:-51:-1]


@pytest.mark.parametrize(("limit", "count"), [(0, 1), (-5, 1), (1, 1), (7, 7), (200, 200), (1000, 200)])
def test_list_limit_is_clamped(crowd: tuple[Client, str, list[str]], limit: int, count: int) -> None:
    client, _, children = crowd
    assert ids(client.done("task_list", limit=limit)) == children[: -count - 1 : -1]


def test_list_filters_by_status_priority_and_agent_alone_and_together(me: Client) -> None:
    a = me.done("task_create", title="a", priority="high", assigned_agent="x")["id"]
    b = me.done("task_create", title="b", priority="high")["id"]
    c = me.done("task_create", title="c", assigned_agent="x")["id"]
    me.done("task_update", task_id=b, action="approve")
    assert ids(me.done("task_list", status="pending")) == [c, a]
    assert ids(me.done("task_list", status="approved")) == [b]
    assert ids(me.done("task_list", priority="high")) == [b, a]
    assert ids(me.done("task_list", assigned_agent="x")) == [c, a]
    assert ids(me.done("task_list", assigned_agent="x", priority="high", status="pending")) == [a]
    assert me.done("task_list", assigned_agent="y") == []
    assert me.refused("task_list", status="done")["field"] == "status"


def test_context_gathers_what_the_single_tools_say(me: Client) -> None:
    task = me.done("task_create", title="Rotate the keys")["id"]
    me.done("task_update", task_id=task, action="approve")
    older = me.done("task_create", title="child", parent_task_id=task)
    newer = me.done("task_create", title="child", parent_task_id=task)
    me.done("task_create", title="grandchild", parent_task_id=newer["id"])
    mine = me.done("decision_log", context="keys", decision="rotate weekly", task_id=task)
    me.done("decision_log", context="keys", decision="of no task")
    pattern = me.done("pattern_store", name="When to rotate the keys", trigger_conditions={}, actions={})
    me.done("pattern_store", name="When to water the plants", trigger_conditions={}, actions={})
    context = me.done("context_for_task", task_id=task)
    history = me.done("task_get", task_id=task)
    assert list(context) == ANSWERS["context_for_task"]
    assert {key: context[key] for key in history} == history
    assert context["related_decisions"] == [mine]
    assert context["subtasks"] == [newer, older]
    assert context["matching_patterns"] == [pattern]


def test_context_shows_the_200_newest_subtasks(crowd: tuple[Client, str, list[str]]) -> None:
    client, parent, children = crowd
    assert ids(client.done("context_for_task", task_id=parent)["subtasks"]) == children[:-201:-1]


# The admin secret


def test_admin_secret_makes_rows_of_nobody_and_sees_all(deck: Deck, me: Client) -> None:
    admin = deck.connect(ADMIN)
    mine = me.done("task_create", title="mine")
    of_nobody = admin.done("task_create", title="nobody's")
    assert of_nobody["user_id"] is None
    assert admin.done("decision_log", context="c", decision="d")["user_id"] is None
    stored = admin.done("pattern_store", name="n", trigger_conditions={}, actions={})
    assert stored["user_id"] is None
    assert {mine["id"], of_nobody["id"]} <= set(ids(admin.done("task_list", limit=200)))
    assert admin.done("task_get", task_id=mine["id"])["task"] == mine
    changed = admin.done("task_update", task_id=mine["id"], title="changed by the admin")
    assert (changed["user_id"], changed["title"]) == (mine["user_id"], "changed by the admin")
    assert me.done("task_list") == [changed]
