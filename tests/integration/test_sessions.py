"""Older clients' sessions: any core goes on with one, after any restart; nobody else gets in."""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx2
import pytest
from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS

from tests.integration.own_core import ADMIN, Core
from tests.mcp_client import Older, eventually
from tests.postgres import Postgres
from tests.store import ask

SESSION = "mcp-session-id"
PING = '{"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "ping", "arguments": {}}}'
NOT_FOUND = {"jsonrpc": "2.0", "id": None, "error": {"code": -32600, "message": "Session not found"}}


@pytest.fixture(scope="module")
def core(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Core]:
    with Core(tmp_path_factory.mktemp("sessions") / "data") as running:
        yield running


def send(
    core: Core, method: str, session: str | None, token: str, path: str = "/mcp", body: str = PING
) -> httpx2.Response:
    """One request under a session id."""
    headers = {"Accept": "application/json, text/event-stream", "Content-Type": "application/json"}
    if session is not None:
        headers[SESSION] = session
    return core.request(method, path, token, headers=headers, content=body if method == "POST" else None)


@contextlib.contextmanager
def stream(core: Core, session: str, token: str, path: str = "/mcp") -> Iterator[httpx2.Response]:
    """The GET stream of a session, open for the time of the block."""
    headers = {"Authorization": f"Bearer {token}", "Accept": "text/event-stream", SESSION: session}
    with httpx2.stream("GET", core.url + path, headers=headers, trust_env=False, timeout=30) as response:
        yield response


def kept(core: Core) -> set[str]:
    """The sessions that a core would find after a restart."""
    return {
        str(row[0])
        for row in ask(f"sqlite:///{core.data_dir / 'quarterdeck.db'}", "SELECT id FROM mcp_sessions")
    }


def session_of(client: Older) -> str:
    assert client.session is not None
    return client.session


@pytest.mark.parametrize("version", ["2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25"])
def test_every_handshake_version_gets_a_session_of_its_own(core: Core, version: str) -> None:
    first, second = core.older(version=version), core.older(version=version)
    for client in (first, second):
        assert client.greeting["protocolVersion"] == version
        assert client.greeting["serverInfo"]["name"] == "quarterdeck"
        assert re.fullmatch("[0-9a-f]{32}", session_of(client))
        assert client.call("ping").body["pong"]
        assert "task_create" in [tool["name"] for tool in client.tools()]
    assert first.session != second.session


def test_version_from_the_future_is_answered_with_one_that_is_known(core: Core) -> None:
    client = core.older(version="2099-01-01")
    assert client.greeting["protocolVersion"] in HANDSHAKE_PROTOCOL_VERSIONS
    assert client.call("ping").body["pong"]


def test_session_survives_kill_9_with_the_same_id(core: Core) -> None:
    client = core.older()
    core.kill9()
    core.restart()
    client.url = f"{core.url}/mcp"
    with stream(core, session_of(client), core.token) as response:
        assert (response.status_code, response.headers[SESSION]) == (200, client.session)
        assert response.headers["content-type"].startswith("text/event-stream")
        answer = client.post(PING, "tools/call", "ping")
        assert (answer.status_code, answer.headers[SESSION]) == (200, client.session)
    task = client.call("task_create", title="after the crash").body
    assert client.call("task_get", task_id=task["id"]).body["task"] == task


def test_concurrent_first_calls_after_a_restart_adopt_a_session_once(core: Core) -> None:
    client = core.older()
    core.kill9()
    core.restart()
    client.url = f"{core.url}/mcp"
    with ThreadPoolExecutor(20) as pool:
        results = list(pool.map(lambda n: client.call("task_create", title=f"task {n}"), range(20)))
    assert sorted(result.body["title"] for result in results) == sorted(f"task {n}" for n in range(20))
    assert "\nquarterdeck_sessions_adopted_total 1.0\n" in core.request("GET", "/metrics").text


@pytest.mark.parametrize("method", ["POST", "GET", "DELETE"])
@pytest.mark.parametrize("session", ["nope", "0" * 32, "x" * 5000, "' OR 1=1 --", "é".encode("latin-1")])
def test_unknown_session_is_404(core: Core, method: str, session: str) -> None:
    answer = send(core, method, session, core.token)
    assert (answer.status_code, answer.json()) == (404, NOT_FOUND)


def test_session_of_another_user_is_404_and_goes_on_undisturbed(core: Core) -> None:
    own, other = core.minted(user_id="ada")["token"], core.minted(user_id="bob")["token"]
    client = core.older(own)
    for token in (other, core.token, ADMIN):
        for method in ("POST", "GET", "DELETE"):
            answer = send(core, method, client.session, token)
            assert (answer.status_code, answer.json()) == (404, NOT_FOUND)
    assert client.call("ping").body["pong"]
    of_admin = core.older(ADMIN)
    assert send(core, "POST", of_admin.session, own).status_code == 404
    # The session belongs to the user: a token that replaces an older one goes on with it.
    assert send(core, "POST", client.session, core.minted(user_id="ada")["token"]).status_code == 200


def test_session_shows_each_caller_only_what_the_token_of_the_call_allows(core: Core) -> None:
    client = core.older(core.minted(user_id="eve", profile="operator")["token"])
    viewer = core.minted(user_id="eve", profile="viewer")["token"]
    body = PING.replace('"ping"', '"task_create"').replace("{}", '{"title": "t"}')
    assert "permission_denied" in send(core, "POST", client.session, viewer, body=body).text
    assert client.call("task_create", title="t").body["title"] == "t"


def test_deleted_session_is_404_also_after_a_restart(core: Core) -> None:
    client, other = core.older(), core.older()
    assert send(core, "DELETE", client.session, core.token).status_code == 200
    for method in ("POST", "GET", "DELETE"):
        assert send(core, method, client.session, core.token).status_code == 404
    assert other.call("ping").body["pong"]
    core.kill9()
    core.restart()
    assert send(core, "POST", client.session, core.token).status_code == 404
    assert send(core, "DELETE", other.session, core.token).status_code == 200  # known from the store alone
    assert send(core, "POST", other.session, core.token).status_code == 404


def test_session_of_one_surface_is_not_valid_on_another(core: Core) -> None:
    union, orchestrator = core.older(), core.older(path="/mcp/orchestrator")
    for method in ("POST", "GET", "DELETE"):
        assert send(core, method, union.session, core.token, "/mcp/orchestrator").status_code == 404
        assert send(core, method, orchestrator.session, core.token, "/mcp").status_code == 404
    assert send(core, "POST", union.session, core.token, "/mcp/").status_code == 200
    assert send(core, "POST", orchestrator.session, core.token, "/mcp/orchestrator/").status_code == 200


def test_refused_opening_gives_no_session_id_away(core: Core) -> None:
    opening = '{"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": {}}'
    answers = [
        send(core, "POST", None, core.token),
        send(core, "POST", None, core.token, body="{broken"),
        send(core, "POST", None, core.token, body="[]"),
        send(core, "GET", None, core.token),
        send(core, "DELETE", None, core.token),
        send(core, "PUT", None, core.token),
        core.request("POST", "/mcp", core.token, content=opening, headers={"Accept": "application/json"}),
        core.request("POST", "/mcp", core.token, content=opening, headers={"Accept": "*/*"}),
    ]
    assert all(400 <= answer.status_code < 500 for answer in answers), answers
    assert [answer.headers.get(SESSION) for answer in answers] == [None] * len(answers)


def test_open_session_answers_under_the_id_that_its_client_knows(core: Core) -> None:
    client = core.older()
    session = session_of(client)
    initialized = '{"jsonrpc": "2.0", "method": "notifications/initialized"}'
    with stream(core, session, core.token):
        answers = {
            "call": send(core, "POST", session, core.token),
            "notification": send(core, "POST", session, core.token, body=initialized),
            "second stream": send(core, "GET", session, core.token),
            "broken": send(core, "POST", session, core.token, body="{broken"),
            "unsupported": send(core, "PUT", session, core.token),
        }
    assert {name: answer.status_code for name, answer in answers.items()} == {
        "call": 200,
        "notification": 202,
        "second stream": 409,
        "broken": 400,
        "unsupported": 405,
    }
    assert {answer.headers[SESSION] for answer in answers.values()} == {session}


def test_idle_session_expires_and_one_with_an_open_stream_or_calls_does_not(tmp_path: Path) -> None:
    with Core(tmp_path / "data", QUARTERDECK_SERVER__SESSION_IDLE_SECONDS="2") as core:
        idle, busy, listening = core.older(), core.older(), core.older()
        with stream(core, session_of(listening), core.token) as response:
            assert response.status_code == 200
            for _ in range(10):
                time.sleep(0.25)  # time is the point here: asking for the idle one would be a use of it
                assert busy.call("ping").body["pong"]
            eventually(lambda: idle.session not in kept(core))
            assert {busy.session, listening.session} <= kept(core)
            assert listening.call("ping").body["pong"]
            assert send(core, "POST", idle.session, core.token).status_code == 404
            assert send(core, "GET", idle.session, core.token).status_code == 404


def test_two_cores_on_one_database_go_on_with_each_others_sessions(
    postgres: Postgres, postgres_template: str, tmp_path: Path
) -> None:
    url = postgres.create_database(postgres_template)
    with (
        Core(tmp_path / "one", "--database", url) as one,
        Core(tmp_path / "two", "--database", url) as two,
    ):
        client, token = one.older(), one.token
        for core in (two, one, two, one):
            client.url = f"{core.url}/mcp"
            assert client.call("task_create", title="t").body["title"] == "t"
        with stream(two, session_of(client), token) as response:
            assert (response.status_code, response.headers[SESSION]) == (200, client.session)
        gone = two.older(token)
        assert send(one, "POST", gone.session, token).status_code == 200
        assert send(one, "DELETE", gone.session, token).status_code == 200
        eventually(lambda: send(two, "POST", gone.session, token).status_code == 404, 3)
        one.kill9()
        client.url = f"{two.url}/mcp"
        assert len(client.call("task_list").body) == 4
