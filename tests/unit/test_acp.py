"""The client of the Agent Client Protocol, message by message."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from quarterdeck.run.adapters.acp import Acp, AcpReader
from quarterdeck.run.adapters.base import Assignment, Conversation, Step, Usage

TOKEN = "mcp_a-token-of-this-job-alone"
URL = "http://127.0.0.1:7411/mcp"
ALL = {
    "loadSession": True,
    "mcpCapabilities": {"http": True},
    "sessionCapabilities": {"resume": {}, "fork": {}},
}


class Agent:
    """The agent's side of one run."""

    def __init__(self, **wanted: Any) -> None:
        given = {"prompt": "Do it.", "cwd": Path("/tree"), "home": Path("/home"), "mcp_url": URL, **wanted}
        self.reader = AcpReader(Assignment(token=TOKEN, **given))
        self.steps: list[Step] = []

    def says(self, **message: Any) -> list[dict[str, Any]]:
        """What the client answers to this."""
        self.steps += self.reader.feed(json.dumps({"jsonrpc": "2.0", **message}).encode())
        return [json.loads(line) for line in self.reader.outgoing().splitlines()]

    def greets(self, capabilities: dict[str, Any] | None = None, **more: Any) -> dict[str, Any]:
        [asked] = self.says(
            id=1, result={"agentCapabilities": ALL if capabilities is None else capabilities, **more}
        )
        return asked

    def opens(self, **more: Any) -> dict[str, Any]:
        """Open the session; what is asked next."""
        self.greets()
        [asked] = self.says(id=2, result={"sessionId": "s1", **more})
        return asked

    def updates(self, kind: str, **more: Any) -> None:
        self.says(method="session/update", params={"update": {"sessionUpdate": kind, **more}})

    def asks(self, **call: Any) -> Any:
        options = [{"optionId": kind, "kind": kind} for kind in ("allow_always", "allow_once", "reject_once")]
        params = {"toolCall": {"toolCallId": "t1", **call}, "options": options}
        [answer] = self.says(id="ask", method="session/request_permission", params=params)
        return answer["result"]["outcome"]["optionId"]


def test_a_launch_greets_and_stays_open(tmp_path: Path) -> None:
    assignment = Assignment("Do it.", tmp_path, tmp_path / "home", token=TOKEN)
    started = Acp().launch(["/opt/agent", "--acp"], {}, assignment)
    assert started.argv == ("/opt/agent", "--acp")
    assert started.interactive
    asked = json.loads(started.stdin)
    assert (asked["id"], asked["method"], asked["params"]["protocolVersion"]) == (1, "initialize", 1)
    assert asked["params"]["clientCapabilities"]["terminal"] is False


def test_one_prompt_from_the_greeting_to_the_answer() -> None:
    agent = Agent()
    opened = agent.greets()
    assert opened["method"] == "session/new"
    [server] = opened["params"]["mcpServers"]
    assert (server["name"], server["url"]) == ("quarterdeck", URL)
    assert server["headers"] == [{"name": "Authorization", "value": f"Bearer {TOKEN}"}]
    [asked] = agent.says(id=2, result={"sessionId": "s1"})
    assert asked["method"] == "session/prompt"
    assert asked["params"] == {"sessionId": "s1", "prompt": [{"type": "text", "text": "Do it."}]}
    agent.updates("agent_message_chunk", content={"type": "text", "text": "I look"})
    agent.updates("agent_message_chunk", content={"type": "text", "text": " first.\n"})
    agent.updates("tool_call", toolCallId="t1", title="quarterdeck ping", rawInput={"a": 1})
    agent.updates("tool_call_update", toolCallId="t1", status="completed", content=[])
    agent.updates("usage_update", cost={"amount": 0.25, "currency": "USD"})
    agent.updates("agent_message_chunk", content={"type": "text", "text": "Done."})
    assert not agent.reader.finished
    usage = {"inputTokens": 100, "outputTokens": 20, "cachedReadTokens": 7}
    assert agent.says(id=3, result={"stopReason": "end_turn", "usage": usage}) == []
    assert agent.reader.finished
    ended = agent.reader.finish(None, "")
    assert (ended.ok, ended.stop_reason, ended.session_id) == (True, "completed", "s1")
    assert (ended.final_text, ended.mcp_status) == ("Done.", "connected")
    assert (ended.usage, ended.cost_usd) == (Usage(100, 20, 7), 0.25)
    assert [step.kind for step in agent.steps] == ["session", "text", "tool", "tool_result", "text"]


@pytest.mark.parametrize(
    ("how", "capabilities", "method"),
    [
        ("resume", ALL, "session/resume"),
        ("resume", {"loadSession": True}, "session/load"),
        ("fork", ALL, "session/fork"),
    ],
)
def test_a_session_is_taken_up_as_the_agent_can(how: Any, capabilities: dict[str, Any], method: str) -> None:
    asked = Agent(conversation=Conversation(how, "s0")).greets(capabilities)
    assert (asked["method"], asked["params"]["sessionId"]) == (method, "s0")


@pytest.mark.parametrize("how", ["resume", "fork"])
def test_an_agent_that_cannot_take_up_a_session_says_so(how: Any) -> None:
    agent = Agent(conversation=Conversation(how, "s0"))
    assert agent.says(id=1, result={"agentCapabilities": {}}) == []
    ended = agent.reader.finish(0, "")
    assert (ended.ok, ended.stop_reason) == (False, "unsupported")
    assert ended.error == f"This agent cannot {how} a session."


def test_what_is_told_again_of_an_old_session_is_not_the_answer() -> None:
    agent = Agent(conversation=Conversation("resume", "s0"))
    agent.greets({"loadSession": True})
    agent.updates("agent_message_chunk", content={"type": "text", "text": "Old words."})
    agent.says(id=2, result={})
    agent.updates("usage_update", cost={"amount": 3.0, "currency": "USD"})
    agent.updates("agent_message_chunk", content={"type": "text", "text": "New words."})
    agent.says(id=3, result={"stopReason": "end_turn"})
    ended = agent.reader.finish(0, "")
    assert (ended.session_id, ended.final_text) == ("s0", "New words.")
    assert (ended.cost_usd, ended.session_cost_usd, ended.usage) == (None, 3.0, None)


def test_permissions_are_given_for_editing() -> None:
    agent = Agent()
    agent.opens()
    assert agent.asks(title="Write a.py", kind="edit") == "allow_once"
    assert agent.asks(title="rm -r build", kind="execute") == "allow_once"


def test_for_reading_only_what_reads_and_our_own_tools_are_allowed() -> None:
    agent = Agent(mode="read")
    agent.opens()
    assert agent.asks(title="Read a.py", kind="read") == "allow_once"
    assert agent.asks(title="mcp__quarterdeck__ping", kind="other") == "allow_once"
    assert agent.asks(title="Write a.py", kind="edit") == "reject_once"
    assert agent.asks(title="rm -r build", kind="execute") == "reject_once"
    assert agent.asks(title="something new") == "reject_once"
    assert agent.reader.finish(0, "").denials == ("Write a.py", "rm -r build", "something new")


@pytest.mark.parametrize(
    ("offered", "chosen"),
    [(["auto", "read-only"], "read-only"), (["default", "plan"], "default"), (["build", "plan"], "plan")],
)
def test_for_reading_a_careful_mode_is_chosen(offered: list[str], chosen: str) -> None:
    agent = Agent(mode="read")
    asked = agent.opens(modes={"availableModes": [{"id": mode} for mode in offered]})
    assert (asked["method"], asked["params"]["modeId"]) == ("session/set_mode", chosen)
    [then] = agent.says(id=3, error={"code": -32601, "message": "no"})
    assert then["method"] == "session/prompt"


def test_a_careful_mode_may_be_an_option() -> None:
    agent = Agent(mode="read")
    options = [{"value": "build"}, {"value": "plan"}]
    asked = agent.opens(configOptions=[{"id": "mode", "category": "mode", "options": options}])
    assert asked["params"] == {"sessionId": "s1", "configId": "mode", "value": "plan"}


def test_a_model_is_chosen_before_the_prompt_or_the_run_fails() -> None:
    agent = Agent(model="big")
    asked = agent.opens(configOptions=[{"id": "m", "category": "model"}])
    assert asked["params"] == {"sessionId": "s1", "configId": "m", "value": "big"}
    [then] = agent.says(id=3, result={})
    assert then["method"] == "session/prompt"

    older = Agent(model="big")
    assert older.opens(models={"availableModels": []})["method"] == "session/set_model"
    assert older.says(id=3, error={"code": -32602, "message": "no such model"}) == []
    assert older.reader.finish(0, "").stop_reason == "unsupported"

    without = Agent(model="big")
    without.greets()
    assert without.says(id=2, result={"sessionId": "s1"}) == []
    assert "does not offer the model big" in (without.reader.finish(0, "").error or "")


def test_a_login_is_tried_once_with_a_key() -> None:
    agent = Agent()
    agent.greets(authMethods=[{"id": "oauth"}, {"id": "api-key"}])
    refusal = {"code": -32000, "message": "Authentication required"}
    [asked] = agent.says(id=2, error=refusal)
    assert (asked["method"], asked["params"]) == ("authenticate", {"methodId": "api-key"})
    [again] = agent.says(id=3, result={})
    assert again["method"] == "session/new"
    assert agent.says(id=4, error=refusal) == []
    ended = agent.reader.finish(0, "")
    assert (ended.ok, ended.error) == (False, "session/new: Authentication required")


def test_without_http_an_agent_has_no_server_of_ours() -> None:
    agent = Agent()
    assert agent.greets({})["params"]["mcpServers"] == []
    assert agent.reader.finish(0, "").mcp_status == "unsupported"


@pytest.mark.parametrize(
    ("stop", "reason"),
    [("cancelled", "cancelled"), ("refusal", "refused"), ("max_turn_requests", "max_turns")],
)
def test_another_end_than_the_turns_is_no_success(stop: str, reason: str) -> None:
    agent = Agent()
    agent.opens()
    agent.says(id=3, result={"stopReason": stop})
    ended = agent.reader.finish(0, "")
    assert (ended.ok, ended.stop_reason) == (False, reason)


def test_a_turn_can_be_cancelled() -> None:
    agent = Agent()
    agent.opens()
    agent.reader.cancel()
    [sent] = [json.loads(line) for line in agent.reader.outgoing().splitlines()]
    assert sent == {"jsonrpc": "2.0", "method": "session/cancel", "params": {"sessionId": "s1"}}


def test_an_error_of_the_model_is_told() -> None:
    agent = Agent()
    agent.opens()
    agent.says(id=3, error={"code": -32603, "message": "Internal error", "data": {"details": "overloaded"}})
    ended = agent.reader.finish(0, "")
    assert (ended.ok, ended.stop_reason) == (False, "api_error")
    assert ended.error == "session/prompt: Internal error: overloaded"


def test_a_tool_that_only_failed_stands_between_two_messages_for_who_listens_too() -> None:
    agent = Agent(live=True)
    agent.opens()
    agent.updates("agent_message_chunk", content={"type": "text", "text": "I wr"})
    agent.updates("agent_message_chunk", content={"type": "text", "text": "ite."})
    agent.updates("tool_call_update", toolCallId="t1", status="failed", content=[])
    agent.updates("agent_message_chunk", content={"type": "text", "text": "Done."})
    agent.says(id=3, result={"stopReason": "end_turn"})
    heard = [step.text for step in agent.steps if step.kind == "delta"]
    assert heard == ["I wr", "ite.", "\n\nDone."]
    kinds = [step.kind for step in agent.steps if step.kind != "delta"]
    assert kinds == ["session", "text", "tool", "tool_result", "text"]
    assert agent.reader.finish(0, "").final_text == "Done."


def test_files_and_terminals_are_not_offered() -> None:
    agent = Agent()
    agent.opens()
    [answer] = agent.says(id=9, method="fs/read_text_file", params={"path": "/etc/passwd"})
    assert (answer["id"], answer["error"]["code"]) == (9, -32601)


def test_gemini_counts_in_its_own_place() -> None:
    agent = Agent()
    agent.opens()
    tokens = {"quota": {"token_count": {"input_tokens": 30, "output_tokens": 4}}}
    agent.says(id=3, result={"stopReason": "end_turn", "_meta": tokens})
    assert agent.reader.finish(0, "").usage == Usage(30, 4)


def test_a_recorded_stream_gives_the_same_record() -> None:
    lines = [
        {"id": 1, "result": {"agentCapabilities": ALL}},
        {"id": 2, "result": {"sessionId": "s1"}},
        {
            "method": "session/update",
            "params": {"update": {"sessionUpdate": "agent_message_chunk", "content": {"text": "Hi"}}},
        },
        {"id": 3, "result": {"stopReason": "end_turn"}},
    ]
    agent = Agent()
    for line in lines:
        agent.reader.feed(json.dumps(line).encode())
    assert agent.reader.finish(0, "").final_text == "Hi"
