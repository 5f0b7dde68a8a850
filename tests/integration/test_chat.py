"""The resident agent behind OpenAI's chat completions, with the official client."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest
from openai import OpenAI

from tests.integration.own_core import Core
from tests.integration.test_agent import agents

USER = [{"role": "user", "content": "say good evening"}]


@pytest.fixture(scope="module")
def core(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Core]:
    folder = tmp_path_factory.mktemp("chat")
    variables = {"QUARTERDECK_AGENTS": agents(folder), "QUARTERDECK_DEFAULTS__PROMPT_AGENT": "bot"}
    with Core(folder / "data", **variables) as core:
        yield core


@pytest.fixture
def client(core: Core, request: pytest.FixtureRequest) -> Iterator[OpenAI]:
    token = core.minted(user_id=request.node.name[:100])["token"]
    with OpenAI(base_url=f"{core.url}/v1", api_key=token, max_retries=0) as client:
        yield client


def asked(client: OpenAI, messages: Any = USER, **more: Any) -> Any:
    return client.chat.completions.create(**{"model": "quarterdeck", "messages": messages, **more})


def test_a_completion_is_the_agents_answer(client: OpenAI) -> None:
    answer = asked(client)
    assert answer.object == "chat.completion"
    assert answer.choices[0].message.content.strip() == "good evening"
    assert answer.choices[0].finish_reason == "stop"
    assert answer.usage.total_tokens == 0


def test_a_stream_brings_the_same_in_pieces(client: OpenAI) -> None:
    chunks = list(asked(client, stream=True, stream_options={"include_usage": True}))
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert text.strip() == "good evening"
    assert [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices][-1] == "stop"
    assert chunks[-1].usage is not None


def test_the_agents_of_the_registry_are_the_models(core: Core, client: OpenAI) -> None:
    names = [model.id for model in client.models.list()]
    assert names[0] == "quarterdeck"
    assert {"bot", "other", "claude-code"} <= set(names)
    assert asked(client, model="other").model == "other"


def test_a_conversation_reaches_the_agent_with_who_said_what(core: Core, client: OpenAI) -> None:
    talk = [
        {"role": "system", "content": "be brief"},
        {"role": "user", "content": [{"type": "text", "text": "say one"}]},
        {"role": "assistant", "content": "one"},
        {"role": "user", "content": "where"},
    ]
    asked(client, talk)
    whole = core.modern(client.api_key, "/mcp/agent").done("result")
    assert whole["messages"][0]["content"].startswith("[system]\nbe brief\n\n[user]\nsay one")


def test_a_long_answer_is_not_cut(core: Core, client: OpenAI) -> None:
    whole = asked(client, [{"role": "user", "content": "repeat 30000"}])
    assert len(whole.choices[0].message.content.strip()) == 150_000 - 1
    agent = core.modern(client.api_key, "/mcp/agent")
    assert agent.done("prompt", message="repeat 30000", blocking=True)["result"].count("word") == 30_000
    assert agent.done("status")["result_cut"] is True


def test_busy_is_429_and_a_failed_run_502(core: Core, client: OpenAI) -> None:
    agent = core.modern(client.api_key, "/mcp/agent")
    agent.done("prompt", message="hang 7311.5")
    with pytest.raises(openai.RateLimitError, match="already busy"):
        asked(client)
    agent.done("stop")
    with pytest.raises(openai.InternalServerError, match="it broke"):
        asked(client, [{"role": "user", "content": "fail now"}])
    with pytest.raises(openai.APIError, match="it broke"):
        list(asked(client, [{"role": "user", "content": "fail now"}], stream=True))


@pytest.mark.parametrize(
    ("more", "named"),
    [
        ({"n": 2}, "n"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "messages.0.content.0"),
        ({"response_format": {"type": "poem"}}, "response_format.type"),
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema"),
        ({"response_format": {"type": "json_schema", "json_schema": "x"}}, "response_format.json_schema"),
        ({"response_format": {"type": "json_object"}}, "json_schema"),
        ({"tools": [{"type": "function", "function": {"name": "f"}}]}, "tools"),
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "user", "content": " "}]}, "messages"),
        ({"messages": [{"role": "king", "content": "x"}]}, "messages"),
        ({"reasoning_effort": "high"}, "effort"),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": {}}}},
            "json_schema",
        ),
    ],
)
def test_what_is_not_honoured_is_400_and_named(client: OpenAI, more: dict[str, Any], named: str) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        asked(client, **more)
    assert named in str(refused.value.param)


def test_without_a_token_or_with_too_little_nothing_is_asked(core: Core, tmp_path: Path) -> None:
    path, body = "/v1/chat/completions", {"messages": USER}
    assert core.request("POST", path, json=body).status_code == 401
    viewer = core.minted(user_id="looker", profile="viewer")["token"]
    assert core.request("POST", path, viewer, json=body).status_code == 403
    assert core.request("GET", path, core.token).status_code == 405
    assert core.request("POST", path, core.token, content=b"[1]").status_code == 400
    assert json.loads(core.request("POST", path, core.token, content=b"{").text)["error"]["code"]
