"""The official Inspector, as a person would use it on the command line, in both eras."""

from __future__ import annotations

import json
import subprocess
from typing import Any

import pytest

from tests.conformance.conftest import Node
from tests.integration.own_core import Core

INSPECTOR = ".bin/mcp-inspector"
NO_AUTHORIZATION, TOOL_FAILED = 3, 5


def inspect(node: Node, core: Core, era: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return node.run(
        INSPECTOR,
        *("--cli", f"{core.url}/mcp", "--transport", "http", "--protocol-era", era, "--format", "json", "-q"),
        *arguments,
    )


def result(ran: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    assert ran.returncode == 0, ran.stdout + ran.stderr
    found: dict[str, Any] = json.loads(ran.stdout)["result"]
    return found


@pytest.mark.parametrize("era", ["modern", "legacy"])
def test_inspector_lists_tools_and_calls_them(node: Node, core: Core, era: str) -> None:
    bearer = ("--header", f"Authorization: Bearer {core.token}")
    listed = result(inspect(node, core, era, *bearer, "--method", "tools/list"))
    assert [tool["name"] for tool in listed["tools"]] == [tool["name"] for tool in core.modern().tools()]
    call = (*bearer, "--method", "tools/call", "--tool-name")
    created = result(inspect(node, core, era, *call, "task_create", "--tool-arg", f"title=by {era}"))
    assert created["isError"] is False
    task = created["structuredContent"]
    assert core.modern().call("task_get", task_id=task["id"]).body["task"]["title"] == f"by {era}"
    refused = inspect(node, core, era, *call, "task_get", "--tool-arg", "task_id=nope")
    assert refused.returncode == TOOL_FAILED
    assert json.loads(refused.stdout)["result"]["structuredContent"]["code"] == "not_found"


def test_inspector_without_a_token_is_told_that_one_is_needed(node: Node, core: Core) -> None:
    ran = inspect(node, core, "modern", "--method", "tools/list")
    assert (ran.returncode, ran.stdout) == (NO_AUTHORIZATION, "")
