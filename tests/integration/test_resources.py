"""Resources as a client of either era lists and reads them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.integration.own_core import ADMIN, Core
from tests.mcp_client import MODERN, OLDER, Client, Deck, ProtocolError

NOT_FOUND = {MODERN: -32602, OLDER: -32002}
STRANGE = [
    "mcp://tasks/",
    "mcp://tasks/nope",
    "mcp://tasks/../tasks",
    "mcp://jobs/x",
    "file:///etc/passwd",
    "",
    "mcp://tasks/é",
    "mcp://tasks/a\x00b",
    "mcp://tasks/" + "x" * 5000,
    "mcp://tasks/' OR 1=1 --",
]


@pytest.fixture(scope="module")
def deck(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deck]:
    with Core(tmp_path_factory.mktemp("resources") / "data") as core, Deck(core.url, ADMIN) as running:
        yield running


@pytest.fixture(params=[MODERN, OLDER])
def era(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def read(client: Client, uri: str) -> dict[str, Any]:
    held: list[dict[str, Any]] = client.request("resources/read", json.dumps({"uri": uri}), uri)["contents"]
    assert [(each["uri"], each["mimeType"]) for each in held] == [(uri, "application/json")]
    found: dict[str, Any] = json.loads(held[0]["text"])
    return found


def refused(client: Client, uri: str) -> dict[str, Any]:
    with pytest.raises(ProtocolError) as refusal:
        read(client, uri)
    error: dict[str, Any] = refusal.value.error
    return error


@pytest.mark.parametrize("surface", ["orchestrator", ""])
def test_task_is_read_as_it_stands(deck: Deck, era: str, surface: str) -> None:
    client = deck.connect(version=era, surface=surface)
    task = client.done("task_create", title="näht")
    uri = f"mcp://tasks/{task['id']}"
    assert read(client, uri) == {**task, "valid_actions": ["approve", "cancel"]}
    client.done("task_update", task_id=task["id"], action="approve")
    assert read(client, uri)["status"] == "approved"


def test_templates_say_what_can_be_read_and_nothing_is_listed_one_by_one(deck: Deck, era: str) -> None:
    client = deck.connect(version=era)
    client.done("task_create", title="t")
    assert client.request("resources/list", "{}")["resources"] == []
    assert client.request("resources/templates/list", "{}")["resourceTemplates"] == [
        {
            "uriTemplate": "mcp://tasks/{id}",
            "name": "task",
            "description": "A task and the actions valid next",
            "mimeType": "application/json",
        }
    ]


@pytest.mark.parametrize("uri", STRANGE)
def test_what_does_not_exist_is_refused_with_its_code(deck: Deck, era: str, uri: str) -> None:
    error = refused(deck.connect(version=era), uri)
    assert error["code"] == NOT_FOUND[era]
    assert (error["data"]["code"], error["data"]["uri"]) == ("RESOURCE_NOT_FOUND", uri)
    assert error["data"]["hint"]


def test_task_of_another_user_looks_like_none(deck: Deck, era: str) -> None:
    owner, other = deck.connect(), deck.connect(version=era)
    uri = f"mcp://tasks/{owner.done('task_create', title='t')['id']}"
    foreign, missing = refused(other, uri), refused(other, "mcp://tasks/none")
    missing["message"] = missing["message"].replace("none", uri.rpartition("/")[2])
    missing["data"]["uri"] = uri
    assert foreign == missing


def test_bound_token_reads_its_own_task_only(deck: Deck, era: str) -> None:
    user = deck.mint()["user_id"]
    owner = deck.connect(deck.mint(user)["token"])
    own, other = (owner.done("task_create", title="t")["id"] for _ in range(2))
    client = deck.connect(deck.mint(user, "pair_worker", task_id=own)["token"], era)
    assert read(client, f"mcp://tasks/{own}")["id"] == own
    assert refused(client, f"mcp://tasks/{other}")["data"]["code"] == "RESOURCE_NOT_FOUND"


def test_capabilities_promise_what_is_served(deck: Deck, era: str) -> None:
    def capabilities(surface: str) -> dict[str, Any]:
        client = deck.connect(version=era, surface=surface)
        if era == MODERN:
            found: dict[str, Any] = client.request("server/discover", "{}")["capabilities"]
            return found
        greeting: dict[str, Any] = client.greeting["capabilities"]  # type: ignore[attr-defined]
        return greeting

    for surface in ("", "orchestrator"):
        assert capabilities(surface)["resources"] == {"subscribe": True, "listChanged": False}
        assert capabilities(surface)["tools"] == {"listChanged": False}
    assert "resources" not in capabilities("plans")


def test_surface_without_resources_serves_no_method_of_theirs(deck: Deck, era: str) -> None:
    client = deck.connect(version=era, surface="plans")
    for method in ("resources/list", "resources/templates/list"):
        with pytest.raises(ProtocolError) as refusal:
            client.request(method, "{}")
        assert refusal.value.error["code"] == -32601


def test_reads_of_resources_count_against_the_rate_limit(tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.mktemp("limited") / "data"
    with Core(folder, QUARTERDECK_SERVER__RATE_LIMIT_PER_MINUTE="3") as core, Deck(core.url, ADMIN) as deck:
        client = deck.connect()
        errors = [refused(client, "mcp://tasks/nope") for _ in range(4)]
        assert [error["data"]["code"] for error in errors[:3]] == ["RESOURCE_NOT_FOUND"] * 3
        assert (errors[3]["code"], errors[3]["data"]["code"]) == (-32000, "rate_limited")
        assert errors[3]["data"]["retry_after"] > 0
