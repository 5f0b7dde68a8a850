"""The resident agent behind OpenAI's chat completions, with the official client."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest
from openai import OpenAI

from tests.integration.own_core import Core
from tests.integration.test_agent import agents

USER = [{"role": "user", "content": "say good evening"}]
BODY = {"messages": USER}


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


def heard(chunk: Any) -> str:
    return chunk.choices[0].delta.content or "" if chunk.choices else ""


def test_each_line_is_streamed_before_the_run_has_ended(client: OpenAI, tmp_path: Path) -> None:
    go_on = tmp_path / "heard"
    message = [{"role": "user", "content": f"begin {go_on}"}]
    said = ""
    for chunk in asked(client, message, stream=True):
        said += heard(chunk)
        if "first" in said and not go_on.exists():
            assert "second" not in said
            go_on.touch()
    assert said == asked(client, message).choices[0].message.content == "first\n\nsecond"


def test_secrets_are_not_streamed(core: Core, client: OpenAI) -> None:
    said = "".join(map(heard, asked(client, [{"role": "user", "content": "secrets"}], stream=True)))
    assert said.strip() == "[token] [secret]"


def test_a_failed_run_is_not_run_once_more_by_the_clients_own_retries(core: Core) -> None:
    token = core.minted(user_id="tries again")["token"]
    with OpenAI(base_url=f"{core.url}/v1", api_key=token) as client:
        assert client.max_retries > 0
        with pytest.raises(openai.InternalServerError, match="it broke"):
            asked(client, [{"role": "user", "content": "fail now"}])
    assert len(core.request("GET", "/api/jobs?kind=prompt", token).json()["jobs"]) == 1


def test_the_agents_of_the_registry_are_the_models(core: Core, client: OpenAI) -> None:
    names = [model.id for model in client.models.list()]
    assert names[0] == "quarterdeck"
    assert {"bot", "other", "claude-code"} <= set(names)
    assert asked(client, model="other").model == "other"
    assert client.models.retrieve("other").id == "other"
    with pytest.raises(openai.NotFoundError, match="no model 'nobody'"):
        client.models.retrieve("nobody")


def test_a_conversation_reaches_the_agent_with_who_said_what(core: Core, client: OpenAI) -> None:
    called = {
        "id": "call_1",
        "type": "function",
        "function": {"name": "count", "arguments": '{"to": 2}'},
    }
    talk = [
        {"role": "system", "content": "be brief"},
        {"role": "user", "content": [{"type": "text", "text": "say one"}]},
        {"role": "assistant", "content": "one", "refusal": None, "tool_calls": [called]},
        {"role": "tool", "tool_call_id": "call_1", "content": "two"},
        {"role": "user", "name": "ann", "content": [{"type": "text", "text": each} for each in "ab"]},
    ]
    asked(client, talk)
    whole = core.modern(client.api_key, "/mcp/agent").done("result")
    assert whole["messages"][0]["content"] == (
        "[system]\nbe brief\n\n[user]\nsay one\n\n"
        '[assistant]\none\n(called count call_1 with {"to": 2})\n\n'
        "[tool call_1]\ntwo\n\n[user ann]\na\nb"
    )


def test_what_clients_send_unasked_is_taken(client: OpenAI) -> None:
    sampling = {"temperature": 0.7, "top_p": 1, "max_tokens": 100, "seed": 1, "presence_penalty": 0}
    bookkeeping = {"user": "ann", "metadata": {"a": "b"}, "store": False, "parallel_tool_calls": True}
    nothing = {"n": 1, "tools": [], "tool_choice": "auto", "stop": None, "logprobs": False}
    answer = asked(client, **sampling, **bookkeeping, **nothing)
    assert answer.choices[0].message.content.strip() == "good evening"


def test_a_long_answer_is_not_cut(core: Core, client: OpenAI) -> None:
    whole = asked(client, [{"role": "user", "content": "repeat 30000"}])
    assert len(whole.choices[0].message.content.strip()) == 150_000 - 1
    agent = core.modern(client.api_key, "/mcp/agent")
    assert agent.done("prompt", message="repeat 30000", blocking=True)["result"].count("word") == 30_000
    assert agent.done("status")["result_cut"] is True


def test_busy_is_429_and_a_failed_run_502(core: Core, client: OpenAI) -> None:
    agent = core.modern(client.api_key, "/mcp/agent")
    agent.done("prompt", message="hang 7311.5")
    for stream in (False, True):
        with pytest.raises(openai.RateLimitError, match="already busy"):
            asked(client, stream=stream)
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
        ({"reasoning_effort": "high"}, "reasoning_effort"),
        ({"reasoning_effort": "utmost"}, "reasoning_effort"),
        ({"stop": ["now"]}, "stop"),
        ({"logprobs": True}, "logprobs"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"modalities": ["text", "audio"]}, "modalities"),
        ({"stream": True, "stream_options": {"include_jokes": True}}, "stream_options.include_jokes"),
        ({"extra_body": {"thinking": {"type": "enabled"}}}, "thinking"),
        ({"model": "none"}, "model"),
        ({"model": "x" * 201}, "model"),
        ({"model": ""}, "model"),
        ({"model": "codex"}, "model"),
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


def test_the_first_that_is_not_honoured_is_named_in_plain_words(client: OpenAI) -> None:
    tools = [{"type": "function", "function": {"name": "f"}}]
    with pytest.raises(openai.BadRequestError, match="tools: the agent cannot honour it"):
        asked(client, tools=tools, tool_choice="required")


def test_every_refusal_has_the_shape_that_openai_clients_show(core: Core) -> None:
    path = "/v1/chat/completions"
    viewer = core.minted(user_id="looker", profile="viewer")["token"]
    refused: list[tuple[int, str, str, dict[str, Any]]] = [
        (401, "invalid_api_key", path, {"token": None}),
        (403, "invalid_api_key", path, {"token": "mcp_nobody"}),
        (403, "permission_denied", path, {"token": viewer}),
        (400, "validation_error", path, {"headers": {"Quarterdeck-Profile": "king"}}),
        (421, "not_served_here", path, {"headers": {"Host": "elsewhere.example"}}),
        (403, "not_served_here", path, {"headers": {"Origin": "https://elsewhere.example"}}),
        (404, "not_found", "/v1/embeddings", {}),
        (404, "not_found", "/v1", {}),
        (400, "validation_error", path, {"content": b"[1]"}),
        (400, "validation_error", path, {"content": b"{"}),
        (413, "too_large", path, {"content": b" " * (4 * 1024 * 1024 + 1)}),
    ]
    for status, code, where, more in refused:
        response = core.request("POST", where, more.pop("token", core.token), **({"json": BODY} | more))
        assert (response.status_code, response.json()["error"]["code"]) == (status, code), response.text
        assert response.json()["error"].keys() == {"message", "type", "code", "param"}
    wrong_method = core.request("GET", path, core.token)
    assert (wrong_method.status_code, wrong_method.headers["allow"]) == (405, "POST")
    assert core.request("GET", "/events", "mcp_nobody").json().keys() == {"detail"}


def test_the_official_client_shows_why_it_was_refused(core: Core) -> None:
    ways = {
        "Bearer mcp_nobody": (openai.PermissionDeniedError, "the token is unknown"),
        "Basic YW5u": (openai.AuthenticationError, "a bearer token is required"),
    }
    for header, (kind, words) in ways.items():
        given = {"Authorization": header}
        with OpenAI(base_url=f"{core.url}/v1", api_key="-", default_headers=given) as client:
            with pytest.raises(kind, match=words) as refused:
                asked(client)
            assert refused.value.code == "invalid_api_key"
