"""The resident agent over MCP, with a program of its own as the agent."""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.integration.own_core import Core
from tests.listening import hear, listen
from tests.mcp_client import Modern, Older, ProtocolError

# Does what its prompt says: the first word is the deed.
BOT = """
import os, subprocess, sys, time
deed, _, rest = sys.stdin.read().partition(" ")
if deed == "say":
    print(rest)
elif deed == "fail":
    print(rest)
    print("it broke", file=sys.stderr)
    sys.exit(3)
elif deed == "where":
    print(os.getcwd())
elif deed == "leave":
    open("left.txt", "w").write(rest)
    print(sorted(os.listdir(".")))
elif deed == "env":
    print(sorted(name for name in os.environ))
elif deed == "repeat":
    print("word " * int(rest))
elif deed == "secrets":
    print(os.environ["QUARTERDECK_TOKEN"], os.environ["BOT_KEY"])
elif deed == "begin":
    print("first\\n", flush=True)
    while not os.path.exists(rest):
        time.sleep(0.02)
    print("second")
elif deed == "hang":
    subprocess.Popen(["sleep", rest], start_new_session=True)
    print("hanging", flush=True)
    time.sleep(600)
"""


def agents(folder: Path) -> str:
    script = folder / "bot.py"
    script.write_text(BOT)
    row: dict[str, Any] = {
        "adapter": "command",
        "command": [sys.executable, str(script)],
        "max_concurrent": 1,
    }
    row["env"] = {"BOT_KEY": "key-of-the-bot"}
    return json.dumps({"bot": row, "other": row, "none": {"name": "n"}})


@pytest.fixture(scope="module")
def core(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Core]:
    folder = tmp_path_factory.mktemp("agent")
    variables = {"QUARTERDECK_AGENTS": agents(folder), "QUARTERDECK_DEFAULTS__PROMPT_AGENT": "bot"}
    with Core(folder / "data", **variables) as core:
        yield core


@pytest.fixture
def ann(core: Core, request: pytest.FixtureRequest) -> Modern:
    """A user of this test's own, so that no test meets another's agent."""
    return core.modern(core.minted(user_id=request.node.name[:100])["token"], "/mcp/agent")


def until(condition: Callable[[], Any]) -> Any:
    deadline = time.monotonic() + 60
    while not (found := condition()):
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.02)
    return found


def ended(client: Modern) -> dict[str, Any]:
    """The status once nothing runs any more."""
    found: dict[str, Any] = until(lambda: (s := client.done("status"))["status"] != "busy" and s)
    return found


def is_running(mark: str) -> bool:
    """Whether some process has this word in its command line."""
    return any(mark in (process.info["cmdline"] or ()) for process in psutil.process_iter(["cmdline"]))


def test_nothing_was_asked_yet(ann: Modern) -> None:
    status = ann.done("status")
    counts = {"message_count": 0, "tool_call_count": 0}
    unknown = ("last_tool_name", "last_message", "total_cost_usd", "run_cost_usd", "token_usage")
    nobody = ("session_id", "run_id", "agent")
    assert status == {"status": "idle", **counts, **dict.fromkeys((*unknown, *nobody))}
    assert ann.done("result")["messages"] == []
    assert ann.done("stop") == {"status": "idle", "stopped": False, "message": "nothing is running"}


def test_a_blocking_prompt_answers_with_the_result(ann: Modern) -> None:
    answer = ann.done("prompt", message="say good morning", blocking=True)
    assert answer["result"].strip() == "good morning"
    assert answer["message_count"] == 2, "the question counts, as in the history"
    assert answer["total_cost_usd"] is None, "a program's cost is unknown, not nothing"
    status = ann.done("status")
    assert (status["status"], status["result"].strip()) == ("completed", "good morning")
    assert status["session_id"] == answer["session_id"]
    whole = ann.done("result")
    assert whole["result_text"].strip() == "good morning"
    assert [row["role"] for row in whole["messages"]] == ["user", "assistant"]
    assert whole["message_count"] == status["message_count"] == 2
    assert ann.done("stop") == {"status": "completed", "stopped": False, "message": "nothing is running"}


def test_a_prompt_answers_at_once_and_is_followed_by_status(ann: Modern) -> None:
    started = ann.done("prompt", message="say hello")
    assert started["status"] == "started"
    assert ended(ann)["session_id"] == started["session_id"]


def test_a_second_prompt_while_busy_is_refused_and_another_user_is_not(core: Core, ann: Modern) -> None:
    ann.done("prompt", message="hang 7301.5")
    refused = ann.refused("prompt", message="say no")
    assert refused["error"] == "claude process is already busy"
    assert refused["code"] == "busy"
    bob = core.modern(core.minted(user_id="bob of the busy")["token"], "/mcp/agent")
    assert bob.done("prompt", message="say yes", blocking=True)["result"].strip() == "yes"
    ann.done("stop")
    assert ann.done("prompt", message="say again", blocking=True)["result"].strip() == "again"


def test_of_many_prompts_at_once_one_is_taken(core: Core, ann: Modern) -> None:
    token = core.minted(user_id="many at once")["token"]
    answers: list[bool] = []

    def ask() -> None:
        with core.modern(token, "/mcp/agent") as client:
            answers.append(client.call("prompt", message="hang 7302.5").is_error)

    threads = [threading.Thread(target=ask) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert sorted(answers) == [False] + [True] * 7
    core.modern(token, "/mcp/agent").done("stop")


def test_stop_ends_every_process_and_keeps_what_was_said(ann: Modern) -> None:
    ann.done("prompt", message="hang 7303.5")
    until(lambda: ann.done("status")["last_message"] == "hanging")
    stopped = ann.done("stop")
    assert (stopped["status"], stopped["stopped"]) == ("stopped", True)
    until(lambda: not is_running("7303.5"))
    assert ann.done("result")["messages"][1]["content"] == "hanging"
    status = ann.done("status")
    assert (status["status"], status["message_count"], status["last_message"]) == ("stopped", 2, "hanging")


def test_a_failed_run_is_an_error_that_says_why(ann: Modern) -> None:
    refused = ann.refused("prompt", message="fail half of it", blocking=True)
    assert refused["code"] == "run_failed"
    assert "it broke" in refused["error"]
    status = ann.done("status")
    assert status["status"] == "error"
    assert "exit code 3" in status["error"]
    assert "half of it" in json.dumps(ann.done("result")["messages"])


def test_every_run_stays_readable_by_its_id(ann: Modern) -> None:
    first = ann.done("prompt", message="say one", blocking=True)["run_id"]
    ann.done("prompt", message="say two", blocking=True)
    assert ann.done("result", run_id=first)["result_text"].strip() == "one"
    assert ann.done("result")["result_text"].strip() == "two"
    assert ann.refused("result", run_id="job_nothing")["code"] == "not_found"


def test_another_users_run_does_not_exist(core: Core, ann: Modern) -> None:
    run = ann.done("prompt", message="say secret", blocking=True)
    eve = core.modern(core.minted(user_id="eve")["token"], "/mcp/agent")
    assert eve.refused("result", run_id=run["run_id"])["code"] == "not_found"
    assert eve.done("status")["status"] == "idle"
    assert eve.refused("prompt", message="say x", session_id=run["session_id"], resume=True)


@pytest.mark.parametrize(
    ("arguments", "field"),
    [
        ({"message": " \n"}, "message"),
        ({"effort": "high"}, "effort"),
        ({"max_budget_usd": 1.5}, "max_budget_usd"),
        ({"json_schema": '{"type": "object"}'}, "json_schema"),
        ({"agent": "reviewer"}, "agent"),
        ({"agent": "none"}, "agent"),
        ({"agent": "codex"}, "agent"),
        ({"session_id": "0198c2f0-1111-4222-8333-444455556666"}, "session_id"),
        ({"resume": True}, "session_id"),
        ({"fork_session": True}, "fork_session"),
        ({"continue": True, "session_id": "x"}, "continue"),
        ({"continue": True}, "continue"),
        ({"session_id": "no-such", "resume": True}, "session_id"),
        ({"project_id": "no-such"}, "project_id"),
        ({"effort": "extreme"}, "effort"),
        ({"max_budget_usd": 0}, "max_budget_usd"),
        ({"json_schema": "{"}, "json_schema"),
    ],
)
def test_what_cannot_be_honoured_is_refused_by_name(
    core: Core, arguments: dict[str, Any], field: str
) -> None:
    client = core.modern(core.minted(user_id="refused")["token"], "/mcp/agent")
    refused = client.refused("prompt", **{"message": "say never", **arguments})
    assert refused["field"] == field
    assert client.done("status")["status"] == "idle", "a refused prompt changes nothing"


def test_the_agent_keeps_its_folder_and_sees_a_clean_environment(ann: Modern) -> None:
    ann.done("prompt", message="leave this", blocking=True)
    where = ann.done("prompt", message="where", blocking=True)["result"].strip()
    assert (Path(where) / "left.txt").read_text() == "this"
    names = ann.done("prompt", message="env", blocking=True)["result"]
    assert "QUARTERDECK_TOKEN" in names
    assert "QUARTERDECK_ADMIN_SECRET" not in names
    assert "PYTEST_CURRENT_TEST" not in names


def test_a_named_agent_of_the_registry_answers(ann: Modern) -> None:
    assert ann.done("prompt", message="say hi", agent="other", blocking=True)["result"].strip() == "hi"
    assert ann.done("status")["agent"] == "other"
    ann.done("prompt", message="say hi", agent="command", blocking=True)
    assert ann.done("status")["agent"] == "bot", "the name of an adapter means the first agent with it"


def test_the_token_and_keys_of_a_run_are_in_nothing_that_is_kept_of_it(ann: Modern) -> None:
    answer = ann.done("prompt", message="secrets", blocking=True)
    kept = json.dumps([answer, ann.done("status"), ann.done("result")])
    assert "[secret]" in answer["result"]
    assert "mcp_" not in kept
    assert "key-of-the-bot" not in kept


def test_the_resource_tells_of_every_step_and_of_the_end(core: Core, ann: Modern) -> None:
    with listen(ann, "mcp://agent/status") as stream:
        stream.frame()
        run = ann.done("prompt", message="hang 7305.5")["run_id"]
        until(lambda: ann.done("status")["last_message"] == "hanging")
        ann.done("stop")
        told: list[dict[str, Any]] = []
        while not told or told[-1]["message"] != "Transcript kept":
            told.append(stream.frame().params)
    assert {(params["uri"], params["runId"]) for params in told} == {("mcp://agent/status", run)}
    said = [(params["state"], params["message"]) for params in told]
    assert said == [
        ("QUEUED", "Queued"),
        ("RUNNING", "Started"),
        ("RUNNING", "Assistant: hanging"),
        ("CANCELED", "Task ended: stopped"),
        ("CANCELED", "Transcript kept"),
    ]


def test_an_older_client_hears_of_a_prompt_that_it_does_not_wait_for(core: Core) -> None:
    token = core.minted(user_id="older")["token"]
    with Older(f"{core.url}/mcp/agent", token) as client, hear(client) as stream:
        call = {"name": "prompt", "arguments": {"message": "say hello"}, "_meta": {"progressToken": "p7"}}
        answer = client.request("tools/call", json.dumps(call))
        assert answer["structuredContent"]["status"] == "started"
        told: list[dict[str, Any]] = []
        while not told or told[-1]["message"] != "Task completed":
            frame = stream.frame()
            assert frame.data["method"] == "notifications/progress"
            told.append(frame.params)
    assert {params["progressToken"] for params in told} == {"p7"}
    assert [params["progress"] for params in told] == list(range(1, len(told) + 1))
    assert "Assistant: hello" in [params["message"] for params in told]


def test_a_viewer_sees_and_does_not_ask(core: Core) -> None:
    viewer = core.modern(core.minted(user_id="looker", profile="viewer")["token"], "/mcp/agent")
    assert {tool["name"] for tool in viewer.tools()} == {"status", "result"}
    assert viewer.refused("prompt", message="say x")["code"] == "permission_denied"


def test_a_killed_core_reports_the_run_as_failed_with_what_it_said(tmp_path: Path) -> None:
    variables = {"QUARTERDECK_AGENTS": agents(tmp_path), "QUARTERDECK_DEFAULTS__PROMPT_AGENT": "bot"}
    with Core(tmp_path / "data", **variables) as core:
        client = core.modern(core.token, "/mcp/agent")
        client.done("prompt", message="hang 7304.5")
        until(lambda: client.done("status")["last_message"] == "hanging")
        core.kill9()
        core.start()
        client = core.modern(core.token, "/mcp/agent")
        status = ended(client)
        assert status["status"] == "error"
        assert "stopped while the agent was at work" in status["error"]
        assert "hanging" in json.dumps(client.done("result")["messages"])
        assert client.done("prompt", message="say back", blocking=True)["result"].strip() == "back"
        until(lambda: not is_running("7304.5"))


def test_a_bound_token_reads_nothing_of_the_resident_agent(core: Core) -> None:
    board = core.modern(core.token, "/mcp/board")
    project = board.done("projects_create", name="bound")["project_id"]
    wanted = {"user_id": "local", "profile": "pair_worker", "project_id": project}
    bound = core.modern(core.minted(**wanted)["token"], "/mcp/agent")
    assert bound.refused("status")["code"] == "permission_denied"
    with pytest.raises(ProtocolError) as refused:
        bound.request("resources/read", '{"uri": "mcp://agent/status"}', "mcp://agent/status")
    assert refused.value.error["data"]["code"] == "RESOURCE_NOT_FOUND"
