"""The agent surface with the real Claude Code and a scripted model: every argument, and every bad end."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import openai
import psutil
import pytest
from openai import OpenAI
from openai.types.chat import ChatCompletionChunk

from quarterdeck.domain.models import HAIKU, OPUS
from tests.agent_harness import CLAUDE
from tests.fake_model import FakeModel, script
from tests.git_repo import GitRepo
from tests.integration.own_core import ADMIN, Core
from tests.listening import hear
from tests.mcp_client import Modern, Older

WRITTEN = {"file_path": "port.txt", "content": "7411" * 2_000}
SCHEMA = {"type": "object", "properties": {"port": {"type": "integer"}}, "required": ["port"]}


@pytest.fixture(scope="module")
def model() -> Iterator[FakeModel]:
    with FakeModel() as model:
        yield model


@pytest.fixture(scope="module")
def core(model: FakeModel, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Core]:
    env = {
        "ANTHROPIC_BASE_URL": model.url,
        "ANTHROPIC_API_KEY": "a-key-of-no-use",
        "CLAUDE_CODE_MAX_RETRIES": "0",
    }
    agents = {"claude-code": {"command": [str(CLAUDE)], "env": env}}
    with Core(tmp_path_factory.mktemp("agent") / "data", QUARTERDECK_AGENTS=json.dumps(agents)) as core:
        yield core


@pytest.fixture
def ann(core: Core, request: pytest.FixtureRequest) -> Modern:
    return core.modern(core.minted(user_id=request.node.name[:100])["token"], "/mcp/agent")


def until(condition: Callable[[], Any]) -> Any:
    deadline = time.monotonic() + 90
    while not (found := condition()):
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.05)
    return found


def ended(client: Modern) -> dict[str, Any]:
    found: dict[str, Any] = until(lambda: (s := client.done("status"))["status"] != "busy" and s)
    return found


def asked_for(model: FakeModel, words: str) -> list[Any]:
    return [asked for asked in model.requests if words in asked.text]


def test_a_prompt_runs_its_tools_and_reports_cost_and_messages(ann: Modern) -> None:
    steps = (
        {"text": "I write it down.", "tool": "Write", "input": WRITTEN},
        {"text": "The port is 7411.", "usage": {"input": 100, "output": 20}},
    )
    answer = ann.done("prompt", message=f"Which port? {script(*steps)}", blocking=True)
    assert answer["result"] == "The port is 7411."
    assert answer["total_cost_usd"] == pytest.approx(answer["run_cost_usd"])
    assert answer["token_usage"]["output_tokens"] > 0
    status = ann.done("status")
    assert (status["status"], status["tool_call_count"]) == ("completed", 1)
    assert status["last_tool_name"] == "Write"
    whole = ann.done("result")
    assert [row["role"] for row in whole["messages"]] == [
        "user",
        "assistant",
        "assistant",
        "tool",
        "assistant",
    ]
    assert whole["message_count"] == status["message_count"] == answer["message_count"] == 5
    (call,) = whole["messages"][2]["tool_calls"]
    assert (call["name"], call["arguments"]) == ("Write", WRITTEN), "what the tool was given is there, whole"
    assert whole["messages"][3]["name"] == "Write"


def test_every_tool_of_a_run_is_told_on_the_way(core: Core) -> None:
    token = core.minted(user_id="the tools")["token"]
    with Older(f"{core.url}/mcp/agent", token) as client, hear(client) as stream:
        message = (
            f"Write it. {script({'text': 'Now.', 'tool': 'Write', 'input': WRITTEN}, {'text': 'Done.'})}"
        )
        call = {"name": "prompt", "arguments": {"message": message}, "_meta": {"progressToken": 7}}
        client.request("tools/call", json.dumps(call))
        told: list[str] = []
        while "Task completed" not in told:
            told.append(stream.frame().params["message"])
    mine = [line for line in told if line.startswith(("Using", "Assistant"))]
    assert mine == ["Assistant: Now.", "Using tool: Write", "Assistant: Done."]


def test_a_session_that_never_began_is_begun_by_the_next_prompt(ann: Modern) -> None:
    hello = f"Hello. {script({'text': 'Hi.'})}"
    failed = ann.refused("prompt", message=hello, agent="nobody-knows", blocking=True)
    answer = ann.done("prompt", message=hello, blocking=True, **{"continue": True})
    assert (answer["result"], answer["session_id"]) == ("Hi.", failed["session_id"])
    older = ann.done("prompt", message=hello, blocking=True)["session_id"]
    ann.done("prompt", message=hello, blocking=True)
    ann.done("prompt", message=hello, blocking=True, resume=older)
    latest = ann.done("prompt", message=hello, blocking=True, **{"continue": True})
    assert latest["session_id"] == older, "the most recent session is the one last used"


def test_the_id_of_a_prompt_is_real_and_resume_continue_and_fork_find_it(
    ann: Modern, model: FakeModel
) -> None:
    first = ann.done("prompt", message=f"Remember the word heron. {script({'text': 'Noted.'})}")
    assert ended(ann)["session_id"] == first["session_id"]

    def ask(number: int, **more: Any) -> dict[str, Any]:
        answer: dict[str, Any] = ann.done(
            "prompt", message=f"Question {number}. {script({'text': 'heron'})}", blocking=True, **more
        )
        sent = asked_for(model, f"Question {number}.")
        assert any("Remember the word heron" in asked.text for asked in sent), "the history came along"
        return answer

    resumed = ask(1, session_id=first["session_id"], resume=True)
    assert resumed["session_id"] == first["session_id"]
    assert resumed["total_cost_usd"] > resumed["run_cost_usd"], (
        "the session's cost adds up, the run's does not"
    )
    assert ask(2, resume=first["session_id"])["session_id"] == first["session_id"]
    assert ask(3, **{"continue": True})["session_id"] == first["session_id"]
    forked = ask(4, session_id=first["session_id"], resume=True, fork_session=True)
    assert forked["session_id"] != first["session_id"]


def test_a_new_session_takes_the_id_it_is_given(ann: Modern) -> None:
    chosen = "0198c2f0-1111-4222-8333-444455556666"
    started = ann.done("prompt", message=f"Hello. {script({'text': 'Hi.'})}", session_id=chosen)
    assert started["session_id"] == chosen
    assert ended(ann)["status"] == "completed"


def test_effort_and_a_sub_agent_reach_the_model(ann: Modern, model: FakeModel) -> None:
    ann.done("prompt", message=f"Think of effort. {script({'text': 'Done.'})}", effort="low", blocking=True)
    assert any('"effort": "low"' in asked.text for asked in asked_for(model, "Think of effort."))
    ann.refused("prompt", message=f"As whom? {script({'text': 'x'})}", agent="nobody-knows", blocking=True)
    assert ann.done("status")["status"] == "error"


def test_the_model_is_that_of_the_agents_row_or_the_one_that_a_chat_names(
    client: OpenAI, ann: Modern, model: FakeModel
) -> None:
    ann.done("prompt", message=f"On the usual one. {script({'text': 'Done.'})}", blocking=True)
    assert model.about("On the usual one.")[0].body["model"] == OPUS
    message: Any = {"role": "user", "content": f"On this one. {script({'text': 'Done.'})}"}
    client.chat.completions.create(model=HAIKU, messages=[message])
    assert model.about("On this one.")[0].body["model"] == HAIKU


def test_a_sub_agent_of_the_project_answers_with_its_own_words_and_model(
    core: Core, model: FakeModel, tmp_path: Path
) -> None:
    repo = GitRepo(tmp_path / "quay")
    row = f"---\nname: pilot\ndescription: steers\nmodel: {HAIKU}\n---\nYou are the pilot of this quay.\n"
    repo.commit({".claude/agents/pilot.md": row})
    project = core.modern(path="/mcp").done("projects_create", name="Quay", repo_paths=[str(repo.path)])
    core.modern(path="/mcp/agent").done(
        "prompt",
        message=f"Whose quay? {script({'text': 'Mine.'})}",
        agent="pilot",
        project_id=project["project_id"],
        blocking=True,
    )
    asked = model.about("Whose quay?")[0]
    assert "You are the pilot of this quay." in asked.text
    assert asked.body["model"] == HAIKU


def test_a_schema_is_checked_before_the_run_and_the_answer_after_it(ann: Modern) -> None:
    refused = ann.refused("prompt", message="x", json_schema='{"type": "nonsense"}')
    assert refused["field"] == "json_schema"
    outside = '{"properties": {"a": {"$ref": "http://127.0.0.1:1/schema"}}}'
    assert "outside of itself" in ann.refused("prompt", message="x", json_schema=outside)["error"]
    fits = script({"tool": "StructuredOutput", "input": {"port": 7411}}, {"text": "Done."})
    answer = ann.done("prompt", message=f"Which? {fits}", json_schema=json.dumps(SCHEMA), blocking=True)
    assert answer["structured_output"] == {"port": 7411}
    missed = script({"text": "No structure."}, {"text": "Still none."}, {"text": "None."})
    failed = ann.refused("prompt", message=f"Which? {missed}", json_schema=json.dumps(SCHEMA), blocking=True)
    assert "structured output" in failed["error"]


def test_a_budget_ends_the_run(ann: Modern) -> None:
    dear = {"usage": {"input": 400_000, "output": 100_000}}
    steps = ({"tool": "Bash", "input": {"command": "true"}, **dear}, {"text": "Done.", **dear})
    failed = ann.refused("prompt", message=f"Spend. {script(*steps)}", max_budget_usd=0.01, blocking=True)
    assert "budget" in failed["error"].lower()


def test_an_error_of_the_api_is_an_error_of_the_run(ann: Modern) -> None:
    broken = script({"status": 401, "message": "no such key"})
    failed = ann.refused("prompt", message=f"Hello. {broken}", blocking=True)
    assert failed["code"] == "run_failed"
    assert ann.done("status")["status"] == "error"
    assert "a-key-of-no-use" not in json.dumps(ann.done("result"))


def test_stop_in_the_middle_of_a_tool_leaves_nothing_running(ann: Modern) -> None:
    command = {"command": "python3 -c 'import time; time.sleep(7321.5)'", "timeout": 600_000}
    ann.done("prompt", message=f"Sleep. {script({'text': 'I wait.', 'tool': 'Bash', 'input': command})}")

    def sleeping() -> bool:
        lines = (process.info["cmdline"] or [] for process in psutil.process_iter(["cmdline"]))
        return any(any("7321.5" in word and "sleep" in word for word in line) for line in lines)

    until(sleeping)
    assert ann.done("stop")["status"] == "stopped"
    until(lambda: not sleeping())
    whole = ann.done("result")
    assert whole["result_text"] == "I wait.", "the agent's own last words, not those of its tool"
    assert whole["messages"][2]["tool_calls"][0]["arguments"] == command


def test_the_agent_reaches_quarterdeck_with_a_token_of_its_run_alone(
    core: Core, ann: Modern, model: FakeModel
) -> None:
    steps = ({"tool": "mcp__quarterdeck__ping", "input": {}}, {"text": "It answered."})
    ann.done("prompt", message=f"Ping it. {script(*steps)}", blocking=True)
    rows = ann.done("result")["messages"]
    assert any(row["role"] == "tool" and "pong" in str(row["content"]) for row in rows)


def test_a_tool_that_the_projects_own_settings_deny_is_denied(core: Core, tmp_path: Path) -> None:
    repo = GitRepo(tmp_path / "guarded")
    repo.commit({".claude/settings.json": json.dumps({"permissions": {"deny": ["Bash(touch:*)"]}})})
    project = core.modern(path="/mcp").done("projects_create", name="Guarded", repo_paths=[str(repo.path)])
    steps = ({"tool": "Bash", "input": {"command": "touch it"}}, {"text": "It was denied."})
    agent = core.modern(path="/mcp/agent")
    agent.done(
        "prompt", message=f"Touch it. {script(*steps)}", project_id=project["project_id"], blocking=True
    )
    whole = agent.done("result")
    (answer,) = [row["content"] for row in whole["messages"] if row["role"] == "tool"]
    assert "denied" in answer
    assert whole["denials"] == ["Bash"]


def test_an_agent_that_crashes_is_an_error_with_what_it_had_said(ann: Modern) -> None:
    crash = {"tool": "Bash", "input": {"command": "kill -9 $CLAUDE_PID"}}
    failed = ann.refused("prompt", message=f"Go. {script({'text': 'I go.', **crash})}", blocking=True)
    assert "137" in failed["error"]
    assert (ann.done("status")["status"], ann.done("result")["result_text"]) == ("error", "I go.")
    assert ann.done("prompt", message=f"Again. {script({'text': 'Hi.'})}", blocking=True)["result"] == "Hi."


def test_a_project_is_worked_on_in_a_worktree_of_its_own(core: Core, tmp_path: Path) -> None:
    repo = GitRepo(tmp_path / "harbour")
    repo.commit({"ship.txt": "aurora\n"})
    me = core.modern(path="/mcp")
    project = me.done("projects_create", name="Harbour", repo_paths=[str(repo.path)])["project_id"]
    steps = ({"tool": "Bash", "input": {"command": "pwd && cat ship.txt"}}, {"text": "Seen."})
    agent = core.modern(path="/mcp/agent")
    agent.done("prompt", message=f"Look. {script(*steps)}", project_id=project, blocking=True)
    seen = json.dumps(agent.done("result")["messages"])
    assert "aurora" in seen
    assert str(repo.path) not in seen, "not in the person's own checkout"


def test_any_openai_client_talks_to_it(core: Core) -> None:
    token = core.minted(user_id="an OpenAI client")["token"]
    hello = {"text": "Hello!", "usage": {"input": 100, "output": 20, "cache_read": 300}}
    with OpenAI(base_url=f"{core.url}/v1", api_key=token, max_retries=0) as client:
        answer = client.chat.completions.create(
            model="claude-code", messages=[{"role": "user", "content": f"Hi. {script(hello)}"}]
        )
    assert answer.choices[0].message.content == "Hello!"
    assert answer.usage is not None
    counted = (answer.usage.prompt_tokens, answer.usage.completion_tokens, answer.usage.total_tokens)
    assert counted == (400, 20, 420)
    assert answer.usage.prompt_tokens_details is not None
    assert answer.usage.prompt_tokens_details.cached_tokens == 300


@pytest.fixture
def client(core: Core, request: pytest.FixtureRequest) -> Iterator[OpenAI]:
    token = core.minted(user_id=request.node.name[:100])["token"]
    with OpenAI(base_url=f"{core.url}/v1", api_key=token) as client:
        yield client


def streamed(client: OpenAI, *steps: dict[str, Any], **more: Any) -> Iterator[ChatCompletionChunk]:
    message: Any = {"role": "user", "content": f"Hello. {script(*steps)}"}
    return iter(client.chat.completions.create(model="quarterdeck", messages=[message], stream=True, **more))


def words(chunks: Iterator[ChatCompletionChunk], until: str | None = None) -> str:
    """What is said up to a word, or to the end."""
    said = ""
    for chunk in chunks:
        said += (chunk.choices[0].delta.content or "") if chunk.choices else ""
        if until is not None and until in said:
            break
    return said


def test_an_openai_client_hears_each_word_while_the_agent_speaks(client: OpenAI, model: FakeModel) -> None:
    # The model says the second half, and its second message, only when the test has heard what is before it.
    steps = (
        {"text": "I look it up.", "pause": "heard half", "tool": "Bash", "input": {"command": "true"}},
        {"text": "The port is 7411.", "hold": "heard the first"},
    )
    chunks = streamed(client, *steps, stream_options={"include_usage": True})
    first = words(chunks, until="I look")
    assert "up" not in first
    model.release("heard half")
    first += words(chunks, until="up.")
    model.release("heard the first")
    rest = list(chunks)
    assert first + words(iter(rest)) == "I look it up.\n\nThe port is 7411."
    assert rest[-2].choices[0].finish_reason == "stop"
    assert rest[-1].usage is not None
    assert rest[-1].usage.completion_tokens > 0


def test_a_stream_is_heard_once_and_its_pieces_are_not_kept(core: Core) -> None:
    token = core.minted(user_id="a quiet log")["token"]
    with OpenAI(base_url=f"{core.url}/v1", api_key=token) as client:
        assert words(streamed(client, {"text": "Said once."})) == "Said once."
    agent = core.modern(token, "/mcp/agent")
    whole = agent.done("result")
    assert [row["content"] for row in whole["messages"][1:]] == ["Said once."]
    assert agent.done("status")["message_count"] == 2
    kept = core.request("GET", "/api/audit?limit=200", ADMIN).json()["events"]
    mine = [event["data"].get("step") for event in kept if event["entity_id"] == whole["run_id"]]
    assert mine.count("text") == 1
    assert "delta" not in mine


def test_an_answer_to_a_schema_is_its_json_alone_in_both_modes(client: OpenAI) -> None:
    steps = ({"text": "I think.", "tool": "StructuredOutput", "input": {"port": 7411}}, {"text": "Done."})
    wanted: Any = {"type": "json_schema", "json_schema": {"name": "port", "schema": SCHEMA}}
    assert json.loads(words(streamed(client, *steps, response_format=wanted))) == {"port": 7411}
    message: Any = {"role": "user", "content": f"Which? {script(*steps)}"}
    answer = client.chat.completions.create(model="claude-code", messages=[message], response_format=wanted)
    assert json.loads(answer.choices[0].message.content or "") == {"port": 7411}


def test_an_error_in_the_middle_of_a_stream_is_raised_by_the_client(client: OpenAI, model: FakeModel) -> None:
    steps = (
        {"text": "I try.", "tool": "Bash", "input": {"command": "true"}},
        {"status": 401, "message": "no such key"},
    )
    heard = []
    with pytest.raises(openai.APIError, match="no such key"):
        for chunk in streamed(client, *steps):
            heard.append(chunk.choices[0].delta.content or "")
    assert "".join(heard) == "I try.", "the agent's words on the error are no answer"


def test_a_client_that_leaves_a_stream_does_not_end_the_run(
    core: Core, client: OpenAI, model: FakeModel
) -> None:
    steps = (
        {"text": "I begin.", "tool": "Bash", "input": {"command": "true"}},
        {"text": "I end.", "hold": "the client has left"},
    )

    def logged(offset: int = 0) -> dict[str, Any]:
        path = f"/api/jobs/{agent.done('status')['run_id']}/log?offset={offset}"
        page: dict[str, Any] = core.request("GET", path, client.api_key).json()
        return page

    with client.chat.completions.create(
        model="quarterdeck",
        messages=[{"role": "user", "content": f"Go on. {script(*steps)}"}],
        stream=True,
    ) as chunks:
        words(iter(chunks), until="I begin.")
    agent = core.modern(client.api_key, "/mcp/agent")
    assert agent.done("status")["status"] == "busy"
    first = logged()
    assert "I begin." in first["text"]
    model.release("the client has left")
    assert ended(agent)["result"] == "I end."
    whole = first["text"] + logged(first["offset"])["text"]
    assert whole == logged()["text"], "who follows the log misses nothing"
    assert "stream_event" not in whole
