"""What stands before every route: who comes in, from where, with how much; what the server says of itself."""

from __future__ import annotations

import json
import socket
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from quarterdeck import __version__
from tests.integration.own_core import ADMIN, TOKENS, Core
from tests.mcp_client import MODERN, ProtocolError, eventually
from tests.postgres import Postgres

LARGEST = 65_536
MCP = ("/mcp", "/mcp/", "/mcp/orchestrator", "/mcp/orchestrator/")
GATED = (*MCP, "/mcp/nope", "/mcp/orchestrator/nope", TOKENS, f"{TOKENS}/some-id")
UNKNOWN = "mcp_" + "x" * 48


@pytest.fixture(scope="module")
def core(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Core]:
    with Core(
        tmp_path_factory.mktemp("server") / "data",
        QUARTERDECK_SERVER__MAX_BODY_BYTES=str(LARGEST),
        QUARTERDECK_SERVER__ALLOWED_HOSTS="deck.example",
        QUARTERDECK_SERVER__ALLOWED_ORIGINS="https://board.example",
    ) as running:
        yield running


@pytest.mark.parametrize("path", GATED)
@pytest.mark.parametrize("method", ["POST", "GET", "DELETE"])
def test_request_without_a_bearer_is_401(core: Core, method: str, path: str) -> None:
    assert core.request(method, path).status_code == 401
    for given in ("", "Bearer", "Basic YTpi", f"bearer {core.token}", f"Token {ADMIN}", core.token):
        response = core.request(method, path, headers={"Authorization": given})
        assert response.status_code == 401
        assert response.headers["www-authenticate"].startswith("Bearer")
        assert response.json() == {"detail": "a bearer token is required"}


@pytest.mark.parametrize("path", GATED)
@pytest.mark.parametrize("method", ["POST", "GET", "DELETE"])
def test_request_with_an_unknown_token_is_403(core: Core, method: str, path: str) -> None:
    for token in (UNKNOWN, "?", f"{ADMIN}x", ADMIN[:-1], f"{core.token}x", core.token.upper(), "mcp_ünknöwn"):
        given = f"Bearer {token}".encode("latin-1")
        response = core.request(method, path, headers={"Authorization": given})
        assert response.status_code == 403
        assert 'error="invalid_token"' in response.headers["www-authenticate"]
        assert token not in response.text


@pytest.mark.parametrize("path", MCP)
def test_revoked_token_is_403(core: Core, path: str) -> None:
    minted = core.minted()
    assert core.modern(minted["token"], path).call("ping").body["pong"]
    assert core.request("DELETE", f"{TOKENS}/{minted['id']}", ADMIN).status_code == 200
    assert core.request("POST", path, minted["token"]).status_code == 403


def test_expired_token_is_403_although_it_was_seen_a_moment_before(core: Core) -> None:
    token = core.minted(expires_in_s=2)["token"]
    assert core.modern(token).call("ping").body["pong"]
    eventually(lambda: core.request("GET", TOKENS, token).status_code == 403, 5)
    assert core.request("POST", "/mcp", token).status_code == 403


@pytest.mark.parametrize("path", MCP)
def test_every_spelling_of_an_endpoint_answers_both_eras_without_a_redirect(core: Core, path: str) -> None:
    for token in (core.token, ADMIN, core.minted()["token"]):
        assert core.modern(token, path).call("ping").body["pong"]
        assert core.older(token, path).call("ping").body["pong"]


@pytest.mark.parametrize("path", ["/mcp/nope", "/mcp/nope/", "/mcp/orchestrator/nope"])
def test_unknown_sub_path_is_404_only_behind_the_gate(core: Core, path: str) -> None:
    statuses = [core.request("POST", path, token).status_code for token in (None, UNKNOWN, core.token)]
    assert statuses == [401, 403, 404]
    assert "/mcp/orchestrator" in core.request("POST", path, core.token).json()["detail"]


@pytest.mark.parametrize("path", ["/mcpx", "/nope", "/profile", "/profile/mcp/tokensx"])
def test_unknown_path_is_404(core: Core, path: str) -> None:
    assert core.request("GET", path).status_code == 404


@pytest.mark.parametrize("number", ["-1", "x", "%C2%B2", "9" * 20])
def test_what_is_no_whole_number_is_422(core: Core, number: str) -> None:
    assert core.request("GET", f"/api/jobs?limit={number}", core.token).status_code == 422


@pytest.mark.parametrize("path", ["/api/jobs/%00", "/api/jobs?task_id=%00", "/tasks/%00", "/?text=a%00b"])
def test_nul_in_an_address_is_400(core: Core, path: str) -> None:
    assert core.request("GET", path).status_code == 400


ROUTES = (*MCP, "/mcp/nope", TOKENS, f"{TOKENS}/some-id", "/readyz", "/metrics", "/", "/nope")


@pytest.mark.parametrize("path", ROUTES)
def test_foreign_host_is_421_whoever_asks(core: Core, path: str) -> None:
    for host in (
        "evil.example",
        "evil.example:7411",
        "127.0.0.1.evil.example",
        "localhost.evil:80",
        "127.0.0.2",
    ):
        for token in (None, core.token):
            response = core.request("GET", path, token, headers={"Host": host})
            assert response.status_code == 421
            assert "server.allowed_hosts" in response.json()["detail"]


@pytest.mark.parametrize("path", ROUTES)
def test_foreign_origin_is_403_whoever_asks(core: Core, path: str) -> None:
    for origin in (
        "http://evil.example",
        "https://evil.example:443",
        "null",
        "http://localhost.evil",
        "deck",
    ):
        for token in (None, core.token):
            response = core.request("GET", path, token, headers={"Origin": origin})
            assert response.status_code == 403
            assert "server.allowed_origins" in response.json()["detail"]


@pytest.mark.parametrize(
    "headers",
    [
        {"Host": "127.0.0.1"},
        {"Host": "localhost:9999"},
        {"Host": "LocalHost"},
        {"Host": "[::1]:7411"},
        {"Host": "deck.example"},
        {"Host": "Deck.Example:8443"},
        {"Origin": "http://127.0.0.1:7411"},
        {"Origin": "http://localhost:3000"},
        {"Origin": "https://board.example"},
        {"Host": "deck.example", "Origin": "https://deck.example"},
    ],
)
def test_own_and_allowed_names_pass(core: Core, headers: dict[str, str]) -> None:
    assert core.request("GET", "/readyz", headers=headers).status_code == 200
    assert core.request("GET", TOKENS, core.token, headers=headers).status_code == 200


def test_health_answers_any_probe(core: Core) -> None:
    for headers in ({}, {"Host": "10.0.0.7:7411"}, {"Origin": "http://evil.example"}):
        response = core.request("GET", "/healthz", headers=headers)
        assert (response.status_code, response.json()) == (200, {"status": "ok"})


def call_of(arguments: dict[str, Any], modern: bool) -> str:
    meta = {
        "io.modelcontextprotocol/protocolVersion": MODERN,
        "io.modelcontextprotocol/clientInfo": {"name": "tests", "version": "1"},
        "io.modelcontextprotocol/clientCapabilities": {},
    }
    params = {"name": "task_create", "arguments": arguments, **({"_meta": meta} if modern else {})}
    return json.dumps({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params})


@pytest.mark.parametrize("era", ["modern", "older"])
def test_body_above_the_limit_is_413_and_one_below_is_served(core: Core, era: str) -> None:
    client = core.modern() if era == "modern" else core.older()
    before = len(client.call("task_list", limit=200).body)
    empty = len(call_of({"title": "t", "description": ""}, era == "modern"))
    for size, status in ((LARGEST, 200), (LARGEST + 1, 413), (LARGEST * 40, 413)):
        body = call_of({"title": "t", "description": "d" * (size - empty)}, era == "modern")
        assert len(body) == size
        response = client.post(body, "tools/call", "task_create")
        assert response.status_code == status, response.text[:200]
    assert len(client.call("task_list", limit=200).body) == before + 1


def test_body_without_a_length_is_counted_as_it_comes(core: Core) -> None:
    def endless() -> Iterator[bytes]:
        for _ in range(LARGEST // 1024 + 1):
            yield b" " * 1024

    for path, headers in (
        ("/mcp", {"MCP-Protocol-Version": MODERN, "Content-Type": "application/json", "Accept": "*/*"}),
        ("/mcp", {"Content-Type": "application/json", "Accept": "*/*"}),
        (TOKENS, {"Content-Type": "application/json"}),
    ):
        response = core.request("POST", path, core.token, headers=headers, content=endless())
        assert response.status_code == 413, path


def raw_post(core: Core, path: str, lines: list[str], body: str) -> tuple[int, str]:
    """Post with header lines exactly as given; the status and the body of the answer."""
    host = urlsplit(core.url)
    head = "\r\n".join([f"POST {path} HTTP/1.1", f"Host: {host.netloc}", "Connection: close", *lines])
    with socket.create_connection((str(host.hostname), int(host.port or 0)), timeout=10) as wire:
        wire.sendall(f"{head}\r\nContent-Length: {len(body)}\r\n\r\n{body}".encode())
        answer = b"".join(iter(lambda: wire.recv(65_536), b"")).decode()
    status, _, rest = answer.partition("\r\n")
    return int(status.split()[1]), rest.partition("\r\n\r\n")[2]


@pytest.mark.parametrize("space", [" ", "\t", "  \t "])
def test_white_space_after_a_header_value_changes_nothing(core: Core, space: str) -> None:
    title = f"title {uuid.uuid4()}"
    headers = [
        ("Authorization", f"Bearer {core.token}"),
        ("Content-Type", "application/json"),
        ("Accept", "application/json, text/event-stream"),
        ("MCP-Protocol-Version", MODERN),
        ("Mcp-Method", "tools/call"),
        ("Mcp-Name", "task_create"),
        ("Origin", core.url),
    ]
    lines = [f"{name}:{space}{value}{space}" for name, value in headers]
    status, body = raw_post(core, "/mcp", lines, call_of({"title": title}, modern=True))
    assert status == 200, body
    assert json.loads(body)["result"]["structuredContent"]["title"] == title


def test_readiness_names_version_database_and_why_search_is_not_semantic(core: Core) -> None:
    response = core.request("GET", "/readyz")
    assert response.status_code == 200
    assert response.json() == {
        "status": "ready",
        "version": __version__,
        "database": "ok",
        "search": {"mode": "fallback", "reason": "semantic search is off"},
    }


def numbers(core: Core) -> dict[str, float]:
    """Every sample of `/metrics` by its name and labels."""
    response = core.request("GET", "/metrics")
    assert response.status_code == 200
    assert response.headers["content-type"].startswith("text/plain; version=0.0.4")
    lines = [line for line in response.text.splitlines() if not line.startswith("#")]
    return {name: float(value) for name, _, value in (line.rpartition(" ") for line in lines)}


def test_metrics_count_calls_by_tool_and_result(core: Core) -> None:
    def calls(tool: str, result: str, surface: str = "all") -> float:
        sample = f'quarterdeck_calls_total{{result="{result}",surface="{surface}",tool="{tool}"}}'
        return numbers(core).get(sample, 0.0)

    client = core.modern()
    seen = [("ping", "ok"), ("task_get", "not_found"), ("task_create", "validation_error")]
    before = [calls(*key) for key in seen]
    other = calls("ping", "ok", "orchestrator")
    for _ in range(3):
        client.call("ping")
    for _ in range(2):
        assert client.call("task_get", task_id=str(uuid.uuid4())).is_error
    assert client.call("task_create", title=7).is_error
    assert client.call("no_such_tool").is_error
    assert [calls(*key) - count for key, count in zip(seen, before, strict=True)] == [3, 2, 1]
    assert calls("ping", "ok", "orchestrator") == other
    assert core.older(path="/mcp/orchestrator").call("ping").body["pong"]
    assert calls("ping", "ok", "orchestrator") == other + 1
    # A name that a client made up must not become a label.
    assert not any("no_such_tool" in name for name in numbers(core))
    assert numbers(core)["quarterdeck_search_semantic"] == 0


def test_metrics_from_another_machine_need_a_token(core: Core) -> None:
    elsewhere = {"X-Forwarded-For": "203.0.113.9"}  # a reverse proxy on this machine says so
    statuses = [
        core.request("GET", "/metrics", t, headers=elsewhere).status_code for t in (None, UNKNOWN, ADMIN)
    ]
    assert statuses == [401, 403, 200]


def test_database_away_is_503_to_a_stranger_and_a_tool_error_to_a_token_seen_lately(tmp_path: Path) -> None:
    with Postgres() as server:
        url = server.create_database()
        with Core(tmp_path / "data", "--database", url) as core:
            known, unseen = core.minted()["token"], core.minted()["token"]
            modern, older = core.modern(known), core.older(known, "/mcp/orchestrator")
            title = modern.call("task_create", title="before").body["title"]
            server.stop()
            for path in MCP:
                assert core.request("POST", path).status_code == 401
                for token in (UNKNOWN, unseen):
                    response = core.request("POST", path, token)
                    assert response.status_code == 503
                    assert int(response.headers["retry-after"]) > 0
            for client in (modern, older):
                for refused in (client.call("task_create", title="lost"), client.call("task_list")):
                    assert refused.is_error
                    assert refused.body["code"] == "service_unavailable"
                    assert refused.body["hint"]
                assert not client.call("ping").is_error
            with pytest.raises(
                ProtocolError, match="HTTP 503"
            ):  # a session that could not be kept is not opened
                core.older(known)
            assert core.request("GET", TOKENS, known).status_code == 503
            ready = core.request("GET", "/readyz")
            assert (ready.status_code, ready.json()["status"]) == (503, "unavailable")
            assert core.request("GET", "/healthz").status_code == 200
            server.start()
            eventually(lambda: core.request("GET", "/readyz").status_code == 200)
            for client in (modern, older):
                assert [task["title"] for task in client.call("task_list").body] == [title]
            assert core.modern(unseen).call("ping").body["pong"]
            assert core.request("POST", "/mcp", UNKNOWN).status_code == 403
            began = time.monotonic()
            assert core.leave() == 0
            assert time.monotonic() - began < 5
