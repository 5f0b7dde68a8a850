"""Subscriptions over HTTP in both eras: who is told, of what, in which order, and what survives a crash."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import anyio
import httpx2
import pytest
from mcp.client.client import Client as OfficialClient
from mcp.client.streamable_http import streamable_http_client
from mcp.client.subscriptions import ResourceUpdated
from mcp.shared.exceptions import MCPDeprecationWarning
from mcp_types import ResourceUpdatedNotification

from tests.integration.own_core import Core
from tests.listening import PATIENCE, Frame, Listening, events, hear, listen
from tests.mcp_client import MODERN, OLDER, Client, Older, ProtocolError, eventually
from tests.postgres import Postgres

UPDATED = "notifications/resources/updated"
PATH = "/mcp/orchestrator"
NEWER = "2025-11-25"


@pytest.fixture(scope="module")
def core(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Core]:
    with Core(tmp_path_factory.mktemp("subscriptions") / "data") as running:
        yield running


@pytest.fixture
def opened() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


@pytest.fixture(params=[MODERN, OLDER])
def era(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def connect(core: Core, era: str, token: str) -> Client:
    return core.modern(token, PATH) if era == MODERN else core.older(token, PATH, era)


def subscribe(client: Client, *uris: str) -> Listening:
    """A stream that tells of these, in the way of the client's era."""
    if not isinstance(client, Older):
        stream = listen(client, *uris)
        assert stream.frame().params["notifications"].get("resourceSubscriptions", []) == list(uris)
        return stream
    for uri in uris:
        ask(client, "resources/subscribe", uri)
    return hear(client)


def ask(client: Client, method: str, uri: str) -> None:
    assert client.request(method, json.dumps({"uri": uri})) == {}


def new_task(client: Client) -> tuple[str, str]:
    """The id of a new task and its URI."""
    task_id: str = client.done("task_create", title="t")["id"]
    return task_id, f"mcp://tasks/{task_id}"


def touch(client: Client, task_id: str, title: str = "changed") -> str:
    """Change a task; when that was, as the task shows it."""
    updated: str = client.done("task_update", task_id=task_id, title=title)["updated_at"]
    return updated


def told(frames: list[Frame]) -> list[tuple[str, str]]:
    """The URI and time of each, which must be an update."""
    assert {frame.data["method"] for frame in frames} <= {UPDATED}
    return [(frame.params["uri"], frame.params["updatedAt"]) for frame in frames]


def test_subscriber_is_told_of_a_change_to_what_it_named_and_of_nothing_else(
    core: Core, era: str, opened: ExitStack
) -> None:
    client = connect(core, era, core.token)
    (first, first_uri), (other, _), (second, second_uri) = (new_task(client) for _ in range(3))
    stream = opened.enter_context(subscribe(client, first_uri, second_uri))
    times = [touch(client, task_id) for task_id in (first, other, second, first)]
    assert told(stream.frames(3)) == [(first_uri, times[0]), (second_uri, times[2]), (first_uri, times[3])]


def test_burst_arrives_whole_and_in_order_at_every_subscriber(core: Core, opened: ExitStack) -> None:
    token = core.minted()["token"]
    writers = [core.modern(token, PATH) for _ in range(4)]
    tasks = [new_task(writers[0]) for _ in range(4)]
    uris = [uri for _, uri in tasks]
    streams = [opened.enter_context(subscribe(connect(core, era, token), *uris)) for era in (MODERN, OLDER)]
    with ThreadPoolExecutor(4) as pool:

        def write(n: int) -> list[tuple[str, str]]:
            task_id, uri = tasks[n]
            return [(uri, touch(writers[n], task_id, f"title {k}")) for k in range(50)]

        written = list(pool.map(write, range(4)))
    heard = [told(stream.frames(200)) for stream in streams]
    assert heard[0] == heard[1]
    for mine in written:
        assert [each for each in heard[0] if each[0] == mine[0][0]] == mine


def test_user_is_not_told_of_anothers_task(core: Core, era: str, opened: ExitStack) -> None:
    ann, bob = core.modern(core.minted(user_id="ann")["token"], PATH), core.minted(user_id="bob")["token"]
    foreign, foreign_uri = new_task(ann)
    client = connect(core, era, bob)
    own, own_uri = new_task(client)
    if era == MODERN:
        stream = opened.enter_context(listen(client, foreign_uri, own_uri))
        assert stream.frame().params["notifications"]["resourceSubscriptions"] == [own_uri]
    else:
        with pytest.raises(ProtocolError) as refusal:
            ask(client, "resources/subscribe", foreign_uri)
        assert refusal.value.error["code"] == -32002
        assert refusal.value.error["data"]["code"] == "RESOURCE_NOT_FOUND"
        stream = opened.enter_context(subscribe(client, own_uri))
    touch(ann, foreign)
    at = touch(client, own)
    assert told([stream.frame()]) == [(own_uri, at)]


def test_open_streams_are_counted_and_closed_ones_are_not(core: Core) -> None:
    def counted() -> float:
        numbers = core.request("GET", "/metrics").text
        return float(numbers.partition("\nquarterdeck_streams ")[2].partition("\n")[0])

    eventually(lambda: counted() == 0)
    with hear(core.older(path=PATH)), listen(core.modern(path=PATH)), events(core.url, core.token):
        eventually(lambda: counted() == 3)
    eventually(lambda: counted() == 0)


def test_what_no_surface_serves_is_not_accepted(core: Core, opened: ExitStack) -> None:
    strange = [
        "mcp://nothing/here",
        "http://example.org",
        "",
        "mcp://tasks/\u00e9",
        "mcp://tasks/" + "x" * 500,
    ]
    future = "mcp://tasks/one-that-is-not-there-yet"
    stream = opened.enter_context(listen(core.modern(path=PATH), *strange, future))
    accepted = {"resourceSubscriptions": [future], "quarterdeck/notices": True}
    assert stream.frame().params["notifications"] == accepted
    client = core.older(path=PATH)
    ask(client, "resources/subscribe", future)
    for uri in strange:
        with pytest.raises(ProtocolError):
            ask(client, "resources/subscribe", uri)


def test_bound_token_is_told_of_its_own_task_only(core: Core, era: str, opened: ExitStack) -> None:
    owner = core.modern(core.minted(user_id="cy")["token"], PATH)
    (own, own_uri), (_, other_uri) = new_task(owner), new_task(owner)
    bound = core.minted(user_id="cy", profile="pair_worker", task_id=own)["token"]
    client = connect(core, era, bound)
    if era == MODERN:
        stream = opened.enter_context(listen(client, own_uri, other_uri))
        assert stream.frame().params["notifications"]["resourceSubscriptions"] == [own_uri]
    else:
        with pytest.raises(ProtocolError):
            ask(client, "resources/subscribe", other_uri)
        stream = opened.enter_context(subscribe(client, own_uri))
    at = touch(owner, own)
    assert told([stream.frame()]) == [(own_uri, at)]


def test_stream_ends_with_its_token_and_another_goes_on(core: Core, era: str, opened: ExitStack) -> None:
    minted, kept = core.minted(user_id="dee"), core.minted(user_id="dee")["token"]
    client = connect(core, era, minted["token"])
    task_id, uri = new_task(client)
    ending, staying = (
        opened.enter_context(subscribe(connect(core, era, token), uri)) for token in (minted["token"], kept)
    )
    touch(client, task_id)
    assert ending.frame().params["uri"] == staying.frame().params["uri"] == uri
    assert core.request("DELETE", f"/profile/mcp/tokens/{minted['id']}", kept).status_code == 200
    last = [frame.data for frame in ending.rest() if frame.data is not None]
    if era == MODERN:
        assert [message["result"]["_meta"]["quarterdeck/reason"] for message in last] == ["revoked"]
    else:
        assert last == []
    at = touch(core.modern(kept, PATH), task_id)
    assert told([staying.frame()]) == [(uri, at)]


def test_unsubscribed_resource_is_not_told_of_any_more(core: Core, opened: ExitStack) -> None:
    client = core.older(path=PATH)
    (first, first_uri), (second, second_uri) = new_task(client), new_task(client)
    stream = opened.enter_context(subscribe(client, first_uri, second_uri, first_uri))
    ask(client, "resources/unsubscribe", first_uri)
    ask(client, "resources/unsubscribe", first_uri)
    touch(client, first)
    at = touch(client, second)
    assert told([stream.frame()]) == [(second_uri, at)]


def test_stream_that_is_open_already_tells_of_a_later_subscription(core: Core, opened: ExitStack) -> None:
    client = core.older(path=PATH)
    task_id, uri = new_task(client)
    stream = opened.enter_context(hear(client))
    touch(client, task_id, "before it subscribed")
    ask(client, "resources/subscribe", uri)
    at = touch(client, task_id)
    assert told([stream.frame()]) == [(uri, at)]


def test_session_that_is_deleted_ends_its_stream(core: Core, opened: ExitStack) -> None:
    client = core.older(path=PATH)
    stream = opened.enter_context(hear(client))
    headers = {"mcp-session-id": client.session}
    assert core.request("DELETE", PATH, core.token, headers=headers).status_code == 200
    assert stream.rest() == []


def test_subscription_goes_on_after_kill_9_without_a_gap(core: Core, opened: ExitStack) -> None:
    clients = [core.older(path=PATH), core.older(path=PATH, version=NEWER)]
    task_id, uri = new_task(clients[0])
    streams = [opened.enter_context(subscribe(client, uri)) for client in clients]
    touch(clients[0], task_id)
    seen = [stream.frame().id for stream in streams]
    core.kill9()
    for stream in streams:
        stream.rest()
    core.restart()
    for client in clients:
        client.url = core.url + PATH
    missed = [touch(core.modern(path=PATH), task_id) for _ in range(3)]
    for client, last in zip(clients, seen, strict=True):
        stream = opened.enter_context(hear(client, last))
        assert told(stream.frames(len(missed))) == [(uri, at) for at in missed]
        later = touch(clients[0], task_id)
        assert told([stream.frame()]) == [(uri, later)]
        missed.append(later)


def test_client_that_does_not_know_where_it_was_is_told_what_it_missed(core: Core, opened: ExitStack) -> None:
    client = core.older(path=PATH)
    task_id, uri = new_task(client)
    ask(client, "resources/subscribe", uri)
    missed = [touch(client, task_id) for _ in range(2)]
    with hear(client) as stream:
        assert told(stream.frames(2)) == [(uri, at) for at in missed]
    later = touch(client, task_id)
    # What was told just before it was cut off may be told again, for nobody knows that it arrived.
    again = opened.enter_context(hear(client))
    while told([again.frame()]) != [(uri, later)]:
        pass


def test_newest_of_the_older_clients_knows_where_to_go_on_before_the_first_news(
    core: Core, opened: ExitStack
) -> None:
    client = core.older(path=PATH, version=NEWER)
    task_id, uri = new_task(client)
    with subscribe(client, uri) as stream:
        primed = stream.first()
        assert (primed.data, str(primed.id).isdigit()) == (None, True)
    at = touch(client, task_id)
    assert told([opened.enter_context(hear(client, primed.id)).frame()]) == [(uri, at)]


def test_client_that_comes_again_takes_the_stream_over(core: Core, opened: ExitStack) -> None:
    client = core.older(path=PATH)
    task_id, uri = new_task(client)
    lost = opened.enter_context(subscribe(client, uri))
    touch(client, task_id)
    last = lost.frame().id
    assert opened.enter_context(hear(client)).status == 409
    again = opened.enter_context(hear(client, last))
    assert (again.status, lost.rest()) == (200, [])
    at = touch(client, task_id)
    assert told([again.frame()]) == [(uri, at)]


@pytest.mark.parametrize("last", ["nonsense", "-1", "9" * 30, "999999999999", "1.5", ""])
def test_number_that_is_none_of_ours_does_no_harm(core: Core, opened: ExitStack, last: str) -> None:
    client = core.older(path=PATH)
    task_id, uri = new_task(client)
    ask(client, "resources/subscribe", uri)
    stream = opened.enter_context(hear(client, last))
    at = touch(client, task_id)
    assert told([stream.frame()]) == [(uri, at)]


def test_2026_client_goes_on_where_it_was_cut_off(core: Core, opened: ExitStack) -> None:
    client = core.modern(path=PATH)
    task_id, uri = new_task(client)
    with listen(client, uri) as stream:
        start = stream.frame().params["_meta"]["quarterdeck/seq"]
        touch(client, task_id)
        last = stream.frame().params["_meta"]["quarterdeck/seq"]
    assert last > start
    missed = [touch(client, task_id) for _ in range(3)]
    again = opened.enter_context(listen(client, uri, after=last))
    assert again.frame().data["method"] == "notifications/subscriptions/acknowledged"
    assert told(again.frames(3)) == [(uri, at) for at in missed]


def test_session_goes_on_at_another_core(
    postgres: Postgres, postgres_template: str, tmp_path: Path, opened: ExitStack
) -> None:
    url = postgres.create_database(postgres_template)
    with (
        Core(tmp_path / "one", "--database", url) as one,
        Core(tmp_path / "two", "--database", url) as two,
    ):
        token = one.token
        client, writer = one.older(path=PATH), two.modern(token, PATH)
        task_id, uri = new_task(client)
        stream = opened.enter_context(hear(client))
        client.url = two.url + PATH
        ask(client, "resources/subscribe", uri)
        times = [touch(writer, task_id) for _ in range(3)]
        frames = stream.frames(3)
        assert told(frames) == [(uri, at) for at in times]
        one.kill9()
        times = [touch(writer, task_id) for _ in range(3)]
        stream = opened.enter_context(hear(client, frames[-1].id))
        assert told(stream.frames(3)) == [(uri, at) for at in times]


def test_calls_are_answered_while_streams_are_open(core: Core, opened: ExitStack) -> None:
    client = core.older(path=PATH)
    task_id, uri = new_task(client)
    stream = opened.enter_context(subscribe(client, uri))
    with ThreadPoolExecutor(4) as pool:
        times = list(pool.map(lambda n: touch(client, task_id, f"title {n}"), range(12)))
    assert sorted(told(stream.frames(12))) == sorted((uri, at) for at in times)


def test_official_client_of_2026_is_told(core: Core) -> None:
    writer = core.modern(path=PATH)
    task_id, uri = new_task(writer)

    async def run(client: OfficialClient) -> None:
        async with client.listen(resource_subscriptions=[uri]) as subscription:
            await anyio.to_thread.run_sync(touch, writer, task_id)
            assert await anext(aiter(subscription)) == ResourceUpdated(uri=uri)
            read = await client.read_resource(uri)
            assert json.loads(getattr(read.contents[0], "text"))["title"] == "changed"  # noqa: B009

    official(core, "auto", run)


def test_official_client_of_an_older_era_is_told(core: Core) -> None:
    writer = core.modern(path=PATH)
    task_id, uri = new_task(writer)
    heard: list[Any] = []
    arrived = anyio.Event()

    async def take(message: Any) -> None:
        if isinstance(message, ResourceUpdatedNotification):
            heard.append(message.params.uri)
            arrived.set()

    async def run(client: OfficialClient) -> None:
        with pytest.warns(MCPDeprecationWarning):
            await client.subscribe_resource(uri)
        await anyio.to_thread.run_sync(touch, writer, task_id)
        await arrived.wait()
        assert heard == [uri]

    official(core, "legacy", run, message_handler=take)


def official(core: Core, mode: Any, run: Callable[[OfficialClient], Any], **options: Any) -> None:
    """Let the official client do something, within a time that no healthy run needs."""

    async def main() -> None:
        with anyio.fail_after(PATIENCE):
            headers = {"Authorization": f"Bearer {core.token}"}
            async with httpx2.AsyncClient(headers=headers, trust_env=False, timeout=PATIENCE) as http:
                transport = streamable_http_client(core.url + PATH, http_client=http)
                async with OfficialClient(transport, mode=mode, **options) as client:
                    await run(client)

    anyio.run(main)
