"""A plan's whole life, from a template to the archive, through the official client over each transport."""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import anyio
import httpx2
import pytest
from mcp import Client, StdioServerParameters
from mcp.client.stdio import stdio_client
from mcp.client.streamable_http import streamable_http_client

from tests.core_process import CoreProcess, clean_environment

Call = Callable[..., Awaitable[dict[str, Any]]]


@contextlib.asynccontextmanager
async def over_http(core: CoreProcess, mode: Any) -> AsyncIterator[Client]:
    bearer = {"Authorization": f"Bearer {core.token}"}
    async with (
        httpx2.AsyncClient(headers=bearer, timeout=30) as http,
        Client(streamable_http_client(f"{core.url}/mcp/plans", http_client=http), mode=mode) as client,
    ):
        yield client


@contextlib.asynccontextmanager
async def over_stdio(core: CoreProcess, mode: Any) -> AsyncIterator[Client]:
    bridge = StdioServerParameters(
        command=sys.executable,
        args=["-m", "quarterdeck", "mcp", "--surface", "plans", "--data-dir", str(core.data_dir)],
        env=clean_environment(),
    )
    async with Client(stdio_client(bridge), mode=mode) as client:
        yield client


async def walk(call: Call) -> None:
    """Everything a plan goes through; each answer is the next call's ground."""
    template = next(
        row for row in (await call("template_list"))["templates"] if row["slug"] == "feature-development"
    )
    assert template["phases_count"] == 5
    assert {"name": "FEATURE_NAME", "required": True}.items() <= template["variables"][0].items()
    values = {"FEATURE_NAME": 'Sign-in with "passkeys" {and more}'}
    preview = (await call("template_preview", slug="feature-development", variables=values))["preview"]
    assert values["FEATURE_NAME"] in preview["title"] and len(preview["phases"]) == 5
    made = await call(
        "template_create_plan", template_slug="feature-development", variables=values, activate=True
    )
    slug = made["plan"]["slug"]
    assert (made["plan"]["status"], made["plan"]["phases"]) == ("active", 5)

    first = (await call("session_start", agent_type="opus", plan_slug=slug))["session"]["session_id"]
    await call("session_log", session_id=first, message="Passkeys first", type="decision")
    await call("session_artifact", session_id=first, path="src/auth.py", action="created")
    await call("state_set", plan_slug=slug, key="branch", value={"name": "passkeys", "pushed": False})
    await call("session_handoff", session_id=first, summary="Designed", next_steps=["Build it"])
    went_on = await call("session_continue", session_id=first, agent_type="sonnet")
    assert went_on["handoff_context"]["next_steps"] == ["Build it"]
    assert [entry["message"] for entry in went_on["replay_context"]["decisions"]] == ["Passkeys first"]
    second = went_on["session"]["session_id"]

    plan = (await call("plan_get", slug=slug))["plan"]
    for phase in plan["phases"]:
        where = {"plan_slug": slug, "phase_order": phase["order"]}
        for task in phase["tasks"]:
            await call("task_toggle", **where, task_identifier=task["index"])
        await call("phase_add_checkpoint", **where, note=f"{phase['name']} is done")
    done = (await call("plan_get", slug=slug))["plan"]
    assert done["status"] == "completed" and done["progress"]["percentage"] == 100
    assert {phase["status"] for phase in done["phases"]} == {"completed"}
    assert (await call("state_get", plan_slug=slug, key="branch"))["state"]["value"]["name"] == "passkeys"

    await call("session_end", session_id=second, status="completed", summary="Shipped")
    archived = (await call("plan_archive", slug=slug, reason="shipped"))["plan"]
    assert (archived["status"], archived["archive_reason"]) == ("archived", "shipped")
    assert slug not in {row["slug"] for row in (await call("plan_list"))["plans"]}


@pytest.mark.parametrize("mode", ["auto", "legacy"])
@pytest.mark.parametrize("transport", [over_http, over_stdio])
def test_a_plan_walks_from_a_template_to_the_archive(tmp_path: Path, transport: Any, mode: str) -> None:
    async def main(core: CoreProcess) -> None:
        async with transport(core, mode) as client:

            async def call(name: str, **arguments: Any) -> dict[str, Any]:
                result = await client.call_tool(name, arguments)
                body: dict[str, Any] = json.loads(result.content[0].text)
                assert not result.is_error, body
                assert body["success"] is True
                return body

            await walk(call)

    with CoreProcess(tmp_path / "data") as core:
        anyio.run(main, core)
