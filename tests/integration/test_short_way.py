"""A plain `tools/call` takes a short way past the SDK; its answers are the SDK's own."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx2
import pytest

from tests.integration.own_core import Core
from tests.mcp_client import MODERN

VERSION = "io.modelcontextprotocol/protocolVersion"
META = {
    VERSION: MODERN,
    "io.modelcontextprotocol/clientCapabilities": {},
}


@pytest.fixture(scope="module")
def core(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Core]:
    with Core(tmp_path_factory.mktemp("short") / "data") as running:
        yield running


def post(core: Core, body: Any, tool: str, accept: str) -> httpx2.Response:
    headers = {
        "Authorization": f"Bearer {core.token}",
        "Content-Type": "application/json",
        "Accept": accept,
        "MCP-Protocol-Version": MODERN,
        "Mcp-Method": "tools/call",
        "Mcp-Name": tool,
    }
    return core.request("POST", "/mcp/orchestrator", headers=headers, content=json.dumps(body))


def both(core: Core, body: Any, tool: str) -> tuple[httpx2.Response, httpx2.Response]:
    """The answers of the short way, which wants plain words in Accept, and of the SDK, which takes any."""
    return post(core, body, tool, "application/json, text/event-stream"), post(core, body, tool, "*/*")


def message(tool: str, arguments: Any, **more: Any) -> dict[str, Any]:
    params = {"name": tool, "arguments": arguments, "_meta": META}
    return {"jsonrpc": "2.0", "id": 7, "method": "tools/call", "params": params, **more}


@pytest.mark.parametrize("number", [0, -3, 2**70, "", 'an "id" with \\ and ü'])
@pytest.mark.parametrize(
    ("tool", "arguments"),
    [
        ("list_agents", {}),
        ("list_agents", None),
        ("get_agent", {"agent_id": "claude-code"}),
        ("task_list", {"status": "completed"}),
        ("task_get", {"task_id": 'no "such" task \\ ü \u2028'}),
        ("task_get", {}),
        ("task_get", {"task_id": "x", "more": [1, {"a": None}]}),
    ],
)
def test_answer_is_the_same_on_both_ways(core: Core, tool: str, arguments: Any, number: Any) -> None:
    short, whole = both(core, message(tool, arguments, id=number), tool)
    assert (short.status_code, whole.status_code) == (200, 200)
    assert short.json() == whole.json()
    assert short.json()["id"] == number
    assert short.headers["content-type"] == whole.headers["content-type"]


@pytest.mark.parametrize(
    "body",
    [
        message("task_list", {}, id=None),
        message("task_list", {}, id=True),
        message("task_list", {}, id=1.5),
        message("task_list", {}, jsonrpc="1.0"),
        message("task_list", {}, method="tools/list"),
        message("task_get", {}),
        message("task_list", {}, params={"name": "task_list", "arguments": {}}),
        message("task_list", {}, params={"name": "task_list", "_meta": {**META, VERSION: "2027-01-01"}}),
        message("task_list", {}, params=[]),
        message("task_list", [1]),
        [message("task_list", {})],
        "task_list",
    ],
)
def test_malformed_request_is_refused_on_both_ways_alike(core: Core, body: Any) -> None:
    short, whole = both(core, body, "task_list")
    assert short.status_code == whole.status_code == 400
    assert short.json() == whole.json()
    assert "error" in short.json()
