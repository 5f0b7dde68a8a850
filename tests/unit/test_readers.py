"""From what an agent prints to one record of the run, on lines as the real programs print them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from quarterdeck.run.adapters.base import Assignment, Conversation, Outcome, Reader, Step, Usage
from quarterdeck.run.adapters.registry import ADAPTERS

TOKEN = "mcp_a-token-of-this-job-alone"
SESSION = "11111111-1111-4111-8111-111111111111"


def reader(name: str, home: Path = Path("/nonexistent"), **wanted: Any) -> Reader:
    given = {"prompt": "Do it.", "cwd": Path("/tree"), "home": home, "token": TOKEN, **wanted}
    return ADAPTERS[name].reader(Assignment(**given))


def feed(follower: Reader, *messages: Any) -> list[Step]:
    steps = []
    for message in messages:
        line = message if isinstance(message, bytes) else json.dumps(message).encode()
        steps += follower.feed(line)
    return steps


def read(name: str, *messages: Any, code: int | None = 0, stderr: str = "", **wanted: Any) -> Outcome:
    follower = reader(name, **wanted)
    feed(follower, *messages)
    return follower.finish(code, stderr)


@pytest.mark.parametrize("name", ADAPTERS)
@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"\xff\xfe not text",
        b"{",
        b"[]",
        b"null",
        b'"text"',
        b"{}",
        b'{"type": "assistant", "message": 7}',
        b'{"type": "result", "permission_denials": [7]}',
        b'{"type": "item.completed", "item": null}',
        b'{"type": "tool_use", "part": [1]}',
        b'{"type": "system", "subtype": "init", "mcp_servers": [1]}',
        b'{"method": 3, "id": {}}',
        b'{"id": 1, "result": 5}',
        b'{"id": [], "result": {}}',
        b'{"jsonrpc": "2.0", "id": 1, "error": "no"}',
        b"[" * 100_000,
    ],
)
def test_nothing_that_an_agent_prints_raises(name: str, line: bytes) -> None:
    follower = reader(name)
    follower.feed(line)
    assert not follower.finish(1, "").ok


@pytest.mark.parametrize("name", ADAPTERS)
def test_the_token_is_taken_out_of_what_an_agent_says(name: str) -> None:
    follower = reader(name)
    steps = feed(follower, f"look: {TOKEN}".encode())
    ended = follower.finish(1, f"curl -H 'Bearer {TOKEN}' failed")
    assert TOKEN not in repr(steps) + repr(ended)
    assert "[token]" in repr(ended)


@pytest.mark.parametrize("name", ADAPTERS)
def test_a_run_that_was_stopped_did_not_succeed(name: str) -> None:
    ended = read(name, code=None)
    assert (ended.ok, ended.stop_reason) == (False, "stopped")


def said_live(name: str, *messages: Any) -> str:
    """What somebody who listens hears."""
    heard = feed(reader(name, live=True), *messages)
    assert not any(each.kind == "delta" for each in feed(reader(name), *messages)), "nobody listens"
    return "".join(each.text for each in heard if each.kind == "delta")


# Claude Code.


def init(**more: Any) -> dict[str, Any]:
    return {"type": "system", "subtype": "init", "session_id": SESSION, "mcp_servers": [], **more}


def spent(tokens: int, cost: float) -> dict[str, Any]:
    return {
        "claude-opus-5-5": {
            "inputTokens": tokens,
            "outputTokens": 20,
            "cacheReadInputTokens": 7,
            "cacheCreationInputTokens": 3,
            "costUSD": cost,
        }
    }


def result(**more: Any) -> dict[str, Any]:
    return {
        "type": "result",
        "subtype": "success",
        "is_error": False,
        "num_turns": 1,
        "result": "done",
        "session_id": SESSION,
        "total_cost_usd": 0.5,
        "usage": {"input_tokens": 100, "output_tokens": 20},
        "model_usage_since_last_result": spent(100, 0.1),
        "permission_denials": [],
        "terminal_reason": "completed",
        **more,
    }


def test_claude_a_good_run_is_one_record() -> None:
    ended = read("claude", init(), result())
    assert ended == Outcome(
        True,
        "completed",
        SESSION,
        "done",
        usage=Usage(100, 20, 7, 3),
        cost_usd=0.1,
        session_cost_usd=0.5,
        turns=1,
    )


def test_claude_success_with_an_error_in_it_is_no_success() -> None:
    refused = result(
        is_error=True, terminal_reason="api_error", api_error_status=401, result="API Error: 401"
    )
    ended = read("claude", init(), refused, code=1)
    assert (ended.ok, ended.stop_reason, ended.error) == (False, "api_error", "API Error: 401")


@pytest.mark.parametrize(
    ("more", "reason"),
    [
        ({"subtype": "error_max_budget_usd", "terminal_reason": "budget_exhausted"}, "budget_exhausted"),
        ({"subtype": "error_max_turns", "terminal_reason": None}, "max_turns"),
        ({"subtype": "success", "terminal_reason": "prompt_too_long"}, "prompt_too_long"),
        ({"subtype": "success", "terminal_reason": None, "api_error_status": 529}, "api_error"),
        ({"subtype": "error_during_execution", "terminal_reason": None}, "error"),
    ],
)
def test_claude_says_why_it_ended(more: dict[str, Any], reason: str) -> None:
    ended = read("claude", result(is_error=True, errors=["Because."], **more), code=1)
    assert (ended.ok, ended.stop_reason, ended.error) == (False, reason, "Because.")


def test_claude_denied_tools_are_told_though_the_run_succeeds() -> None:
    denied = {"type": "system", "subtype": "permission_denied", "tool_name": "Bash"}
    ended = read("claude", denied, result(permission_denials=[{"tool_name": "Write"}, {"tool_name": "Bash"}]))
    assert ended.ok
    assert ended.denials == ("Bash", "Write")


def test_claude_what_a_resumed_session_had_cost_before_is_not_counted_again() -> None:
    resumed = Conversation("resume", SESSION)
    ended = read("claude", init(), result(total_cost_usd=9.0), conversation=resumed)
    assert (ended.cost_usd, ended.session_cost_usd) == (0.1, 9.0)
    old = result(total_cost_usd=9.0)
    del old["model_usage_since_last_result"]
    unknown = read("claude", init(), old, conversation=resumed)
    assert (unknown.cost_usd, unknown.usage) == (None, Usage(100, 20))
    assert read("claude", init(), old).cost_usd == 9.0


def test_claude_of_two_results_the_last_counts_and_both_are_paid_for() -> None:
    first = result(result="waiting", model_usage_since_last_result=spent(400, 0.4), total_cost_usd=0.4)
    follower = reader("claude")
    steps = feed(follower, {"type": "system", "subtype": "status"}, init(), first, init(), result())
    ended = follower.finish(0, "")
    assert (ended.final_text, ended.turns, ended.usage) == ("done", 2, Usage(500, 40, 14, 6))
    assert ended.cost_usd == pytest.approx(0.5)
    assert [step.kind for step in steps] == ["session"]


def test_claude_missed_schema_is_no_success() -> None:
    schema: dict[str, Any] = {"json_schema": {"type": "object"}}
    missed = read("claude", result(), **schema)
    assert (missed.ok, missed.stop_reason) == (False, "schema_missed")
    kept = read("claude", result(structured_output={"a": 1}), **schema)
    assert (kept.ok, kept.structured) == (True, {"a": 1})


def test_claude_tells_that_our_server_was_not_reached() -> None:
    follower = reader("claude")
    steps = feed(follower, init(mcp_servers=[{"name": "quarterdeck", "status": "failed"}]), result())
    assert follower.finish(0, "").mcp_status == "failed"
    assert any("failed" in step.text for step in steps if step.kind == "notice")


def test_claude_steps_are_told_as_they_come() -> None:
    use = {"type": "tool_use", "id": "t1", "name": "Bash", "input": {"command": "ls"}}
    said = {"type": "assistant", "message": {"content": [{"type": "text", "text": "Hi"}, use]}}
    back = {"type": "tool_result", "tool_use_id": "t1", "content": [{"type": "text", "text": "a.py"}]}
    inner = {"type": "user", "parent_tool_use_id": "t0", "message": {"content": [back]}}
    retry = {"type": "system", "subtype": "api_retry", "attempt": 1, "max_retries": 4, "error": "overloaded"}
    steps = feed(reader("claude"), said, inner, retry)
    assert [(step.kind, step.tool, step.text) for step in steps] == [
        ("text", None, "Hi"),
        ("tool", "Bash", '{"command": "ls"}'),
        ("tool_result", None, "a.py"),
        ("notice", None, "the model did not answer, attempt 1 of 4: overloaded"),
    ]
    assert steps[2].data == {"parent": "t0", "id": "t1", "ok": True}


def part(kind: str, parent: str | None = None, **more: Any) -> dict[str, Any]:
    return {"type": "stream_event", "event": {"type": kind, **more}, "parent_tool_use_id": parent}


def spoken(text: str, number: str = "msg_1", **more: Any) -> dict[str, Any]:
    said = {"id": number, "model": "claude", "content": [{"type": "text", "text": text}]}
    return {"type": "assistant", "message": {**said, **more}, "parent_tool_use_id": None}


def test_claude_words_are_heard_once_as_they_come_or_whole() -> None:
    begun = part("message_start", message={"id": "msg_1"})
    block = part("content_block_start", index=0, content_block={"type": "text", "text": ""})
    deltas = [
        part("content_block_delta", delta={"type": "text_delta", "text": text}) for text in ("One ", "two.")
    ]
    other = part("content_block_delta", delta={"type": "input_json_delta", "partial_json": "{}"})
    inner = part("content_block_delta", "toolu_1", delta={"type": "text_delta", "text": "a sub-agent"})
    messages = (begun, block, *deltas, spoken("One two."), other, inner, block, deltas[0])
    assert said_live("claude", *messages) == "One two.\n\nOne "
    assert said_live("claude", spoken("One."), spoken("Two.", "msg_2")) == "One.\n\nTwo."
    assert said_live("claude", spoken("API Error: 401", model="<synthetic>")) == ""
    assert said_live("claude", {**spoken("inner"), "parent_tool_use_id": "toolu_1"}) == ""


def test_the_others_are_heard_as_their_answer_comes() -> None:
    assert said_live("codex", message("One."), message("Two.")) == "One.\n\nTwo."
    pieces = [{"type": "message", "role": "assistant", "content": text} for text in ("One ", "two.", "End.")]
    used = {"type": "tool_use", "tool_name": "ls", "tool_id": "1"}
    assert said_live("gemini", *pieces[:2], used, pieces[2]) == "One two.\n\nEnd."
    texts = [{"type": "text", "part": {"text": text}} for text in ("One.", "Two.", "End.")]
    ran = tool("ls", "completed")
    assert said_live("opencode", *texts[:2], ran, texts[2]) == "One.\nTwo.\n\nEnd."
    assert said_live("command", b"one\n", b"\n", b"two\r\n", b"end") == "one\n\ntwo\r\nend"


def test_claude_without_a_result_says_what_stderr_says() -> None:
    ended = read("claude", code=1, stderr="\x1b[31mError: Session ID is already in use.\x1b[0m")
    assert (ended.ok, ended.stop_reason) == (False, "no_result")
    assert ended.error == "It ended with exit code 1 and no result. Error: Session ID is already in use."


# Codex.

STARTED = {"type": "thread.started", "thread_id": SESSION}


def turn(tokens: int, cached: int = 0) -> dict[str, Any]:
    usage = {"input_tokens": tokens, "cached_input_tokens": cached, "output_tokens": tokens // 10}
    return {"type": "turn.completed", "usage": usage}


def message(text: str) -> dict[str, Any]:
    return {"type": "item.completed", "item": {"id": "i", "type": "agent_message", "text": text}}


def test_codex_counts_only_its_own_part_of_a_thread(tmp_path: Path) -> None:
    resumed = Conversation("resume", SESSION)
    first = read("codex", STARTED, message("one"), turn(100), home=tmp_path, job_id="job_1")
    again = read("codex", STARTED, turn(250, 50), home=tmp_path, job_id="job_2", conversation=resumed)
    assert first.usage == Usage(100, 10)
    assert again.usage == Usage(100, 15, 50)
    # Read a second time, after the worker was killed.
    once_more = read("codex", STARTED, turn(250, 50), home=tmp_path, job_id="job_2", conversation=resumed)
    assert once_more.usage == again.usage
    fork = {"type": "thread.started", "thread_id": "another"}
    forked = read("codex", fork, turn(300, 50), home=tmp_path, conversation=Conversation("fork", SESSION))
    assert forked.usage == Usage(50, 5)
    assert forked.cost_usd is None


def test_codex_does_not_know_what_a_thread_of_another_home_had_used(tmp_path: Path) -> None:
    ended = read("codex", STARTED, turn(100), home=tmp_path, conversation=Conversation("resume", SESSION))
    assert (ended.ok, ended.usage) == (True, None)


def test_codex_reconnecting_is_no_failure(tmp_path: Path) -> None:
    trouble = {"type": "error", "message": "Reconnecting... 1/5"}
    ended = read("codex", STARTED, trouble, message("done"), turn(1), home=tmp_path)
    assert (ended.ok, ended.final_text) == (True, "done")


def test_codex_a_failed_turn_is_a_failure(tmp_path: Path) -> None:
    failed = {"type": "turn.failed", "error": {"message": "unexpected status 401"}}
    ended = read("codex", STARTED, failed, code=1, home=tmp_path)
    assert (ended.ok, ended.stop_reason, ended.error) == (False, "api_error", "unexpected status 401")


def test_codex_that_does_not_reach_our_server_says_so() -> None:
    said = (
        "noise\nError: thread/start failed: required MCP servers failed to initialize: quarterdeck: HTTP 403"
    )
    ended = read("codex", code=1, stderr=said, mcp_url="http://127.0.0.1/mcp")
    assert (ended.ok, ended.stop_reason, ended.mcp_status) == (False, "mcp_failed", "failed")
    assert ended.error == said.partition("\n")[2]


def test_codex_structured_output_is_its_last_message(tmp_path: Path) -> None:
    schema: dict[str, Any] = {"json_schema": {"type": "object"}, "home": tmp_path}
    assert read("codex", STARTED, message('{"a": 1}'), turn(1), **schema).structured == {"a": 1}
    assert read("codex", STARTED, message("No."), turn(1), **schema).stop_reason == "schema_missed"


# Gemini CLI.


def test_gemini_says_how_it_ended() -> None:
    stats = {"input_tokens": 400, "output_tokens": 80, "cached": 100}
    call = {"type": "tool_use", "tool_name": "write_file", "tool_id": "t1", "parameters": {}}
    back = {"type": "tool_result", "tool_id": "t1", "status": "success"}
    ended = read(
        "gemini",
        b"YOLO mode is enabled.",
        {"type": "init", "session_id": SESSION, "model": "gemini-2.5-flash"},
        {"type": "message", "role": "user", "content": "Do it."},
        {"type": "message", "role": "assistant", "content": "I write.", "delta": True},
        *(call, back),
        {"type": "message", "role": "assistant", "content": "do", "delta": True},
        {"type": "message", "role": "assistant", "content": "ne", "delta": True},
        {"type": "result", "status": "success", "stats": stats},
    )
    assert ended == Outcome(True, "completed", SESSION, "done", usage=Usage(300, 80, 100))


def test_gemini_a_refused_key_is_an_error() -> None:
    problem = {"type": "_ApiError", "message": "[API Error: 401]"}
    failed = {"type": "result", "status": "error", "error": problem, "stats": {}}
    ended = read("gemini", failed, code=145)
    assert (ended.ok, ended.stop_reason, ended.error) == (False, "api_error", "[API Error: 401]")


def test_gemini_tells_of_our_server_on_stderr_alone() -> None:
    done = {"type": "result", "status": "success", "stats": {}}
    ended = read("gemini", done, stderr="MCP issues detected. Run /mcp list", mcp_url="http://127.0.0.1/mcp")
    assert (ended.ok, ended.mcp_status) == (True, "failed")


# OpenCode.


def step(reason: str, cost: float = 0.1) -> dict[str, Any]:
    tokens = {"input": 100, "output": 20, "reasoning": 5, "cache": {"read": 7, "write": 3}}
    return {
        "type": "step_finish",
        "sessionID": "ses_1",
        "part": {"reason": reason, "tokens": tokens, "cost": cost},
    }


def tool(name: str, status: str, **more: Any) -> dict[str, Any]:
    state = {"status": status, "input": {}, **more}
    return {"type": "tool_use", "sessionID": "ses_1", "part": {"tool": name, "callID": "c", "state": state}}


def test_opencode_is_the_sum_of_its_steps() -> None:
    said = {"type": "text", "sessionID": "ses_1", "part": {"text": "done"}}
    ended = read("opencode", tool("quarterdeck_ping", "completed"), step("tool-calls"), said, step("stop"))
    assert (ended.ok, ended.session_id, ended.final_text, ended.turns) == (True, "ses_1", "done", 2)
    assert ended.usage == Usage(200, 50, 14, 6)
    assert ended.cost_usd == pytest.approx(0.2)
    assert ended.mcp_status == "connected"


def test_opencode_that_was_refused_something_did_not_succeed_with_exit_code_0() -> None:
    refused = tool("write", "error", error="The user rejected permission to use this specific tool call.")
    ended = read("opencode", refused, step("tool-calls"))
    assert (ended.ok, ended.stop_reason, ended.denials) == (False, "denied", ("write",))


def test_opencode_an_error_is_an_error() -> None:
    failed = {
        "type": "error",
        "sessionID": "ses_1",
        "error": {"name": "APIError", "data": {"message": "401"}},
    }
    ended = read("opencode", failed, code=1)
    assert (ended.ok, ended.stop_reason, ended.error) == (False, "api_error", "401")


# Any command.


def test_a_command_is_what_it_prints_and_how_it_exits() -> None:
    assert read("command", b"one\r\n", b"two\n") == Outcome(True, "completed", final_text="one\r\ntwo")
    failed = read("command", b"half\n", code=3, stderr="it broke")
    assert (failed.ok, failed.stop_reason, failed.final_text) == (False, "exit_code", "half")
    assert failed.error == "It ended with exit code 3. it broke"
