"""Resources and subscriptions over stdio: the bridge carries them, also over the end of its core."""

from __future__ import annotations

import contextlib
import json
import sqlite3
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.integration.own_core import Core
from tests.integration.test_bridge import MODERN, OLDER, Client, Message
from tests.mcp_client import Modern

UPDATED = "notifications/resources/updated"


@pytest.fixture(scope="module")
def core(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Core]:
    with Core(tmp_path_factory.mktemp("streams") / "data") as running:
        yield running


class Listener(Client):
    """A client that keeps what it is told."""

    def told(self) -> Message:
        """The next notification."""
        while True:
            message: Message = json.loads(self._heard.get(timeout=60))
            if "method" in message:
                return message
            self._answers[message["id"]] = message

    def subscribe(self, *uris: str) -> int | None:
        """Subscribe in the way of the era; the id of a request that stays open."""
        if self.era == OLDER:
            for uri in uris:
                assert self.answer(self.start("resources/subscribe", {"uri": uri}))["result"] == {}
            return None
        wanted = {"notifications": {"resourceSubscriptions": list(uris)}}
        number = self.start("subscriptions/listen", wanted)
        acknowledged = self.told()
        assert acknowledged["method"] == "notifications/subscriptions/acknowledged"
        assert acknowledged["params"]["notifications"]["resourceSubscriptions"] == list(uris)
        return number


@pytest.fixture
def listeners(core: Core) -> Iterator[list[Listener]]:
    """One of each era, on the core's directory."""
    with ExitStack() as stack:
        flags = ("--surface", "orchestrator", "--data-dir", core.data_dir)
        yield [stack.enter_context(Listener(era, *flags)) for era in (MODERN, OLDER)]


def touch(client: Modern, task_id: str) -> tuple[str, str, str]:
    """Change a task; what a subscriber should be told of it."""
    at: str = client.done("task_update", task_id=task_id, title="changed")["updated_at"]
    return UPDATED, f"mcp://tasks/{task_id}", at


def news(message: Message) -> tuple[str, str, str]:
    params: dict[str, Any] = message["params"]
    return message["method"], params["uri"], params["updatedAt"]


def test_resources_are_listed_and_read_over_stdio(core: Core, listeners: list[Listener]) -> None:
    task_id = core.modern().done("task_create", title="t")["id"]
    for client in listeners:
        templates = client.answer(client.start("resources/templates/list"))["result"]["resourceTemplates"]
        assert [template["uriTemplate"] for template in templates] == ["mcp://tasks/{id}"]
        read = client.answer(client.start("resources/read", {"uri": f"mcp://tasks/{task_id}"}))
        assert json.loads(read["result"]["contents"][0]["text"])["id"] == task_id
        missing = client.answer(client.start("resources/read", {"uri": "mcp://tasks/none"}))
        assert missing["error"]["data"]["code"] == "RESOURCE_NOT_FOUND"


def test_subscription_goes_on_when_the_core_is_killed_or_stopped(
    core: Core, listeners: list[Listener]
) -> None:
    writer = core.modern()
    task_id = writer.done("task_create", title="t")["id"]
    for client in listeners:
        client.subscribe(f"mcp://tasks/{task_id}")
    expected = touch(writer, task_id)
    assert [news(client.told()) for client in listeners] == [expected] * 2
    for end in (core.kill9, core.stop):
        end()
        core.start()
        writer = core.modern()
        changes = [touch(writer, task_id) for _ in range(3)]  # perhaps before the bridges are back
        for client in listeners:
            assert [news(client.told()) for _ in changes] == changes


def test_session_that_the_core_forgot_is_opened_again_with_its_subscriptions(
    core: Core, listeners: list[Listener]
) -> None:
    writer, client = core.modern(), listeners[1]
    kept, dropped = (writer.done("task_create", title="t")["id"] for _ in range(2))
    client.subscribe(f"mcp://tasks/{kept}", f"mcp://tasks/{dropped}")
    client.answer(client.start("resources/unsubscribe", {"uri": f"mcp://tasks/{dropped}"}))
    touch(writer, kept)
    client.told()
    core.stop()
    forget(core.data_dir)
    core.start()
    writer = core.modern()
    touch(writer, dropped)
    change = touch(writer, kept)
    assert news(client.told()) == change


def test_cancelled_subscription_ends_and_says_nothing_more(core: Core, listeners: list[Listener]) -> None:
    writer, client = core.modern(), listeners[0]
    first, second = (writer.done("task_create", title="t")["id"] for _ in range(2))
    number = client.subscribe(f"mcp://tasks/{first}")
    client.tell("notifications/cancelled", params={"requestId": number})
    client.subscribe(f"mcp://tasks/{second}")
    touch(writer, first)
    change = touch(writer, second)
    assert news(client.told()) == change


def test_subscription_ends_with_its_token(core: Core) -> None:
    minted = core.minted(user_id="sam")
    env = {"QUARTERDECK_TOKEN": minted["token"], "QUARTERDECK_MCP_URL": f"{core.url}/mcp/orchestrator"}
    with Listener(MODERN, env=env) as client:
        number = client.subscribe("mcp://tasks/future")
        assert (
            core.request("DELETE", f"/profile/mcp/tokens/{minted['id']}", minted["token"]).status_code == 200
        )
        result = client.answer(number)["result"]
        assert result["_meta"]["quarterdeck/reason"] == "revoked"


def forget(data_dir: Path) -> None:
    """Take every session of an older client away from under its core, which must not run."""
    with contextlib.closing(sqlite3.connect(data_dir / "quarterdeck.db")) as database, database:
        database.execute("PRAGMA foreign_keys=ON")
        database.execute("DELETE FROM mcp_sessions")
