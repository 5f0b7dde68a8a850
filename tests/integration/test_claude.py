"""The real Claude Code, run by its adapter as a worker runs it, with a scripted model."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from quarterdeck.run.adapters.base import Conversation, Usage
from tests.agent_harness import Bench, claude
from tests.fake_model import FakeModel, script
from tests.integration.own_core import Core

SCHEMA = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}


@pytest.fixture(scope="module")
def model() -> Iterator[FakeModel]:
    with FakeModel() as serving:
        yield serving


@pytest.fixture(scope="module")
def core(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Core]:
    with Core(tmp_path_factory.mktemp("core") / "data") as running:
        yield running


@pytest.fixture
def bench(model: FakeModel, tmp_path: Path) -> Bench:
    return Bench(claude({"ANTHROPIC_BASE_URL": model.url, "ANTHROPIC_API_KEY": "none", **FAST}), tmp_path)


FAST = {"CLAUDE_CODE_MAX_RETRIES": "1"}


def write(path: Path, content: str = "hello\n") -> dict[str, Any]:
    return {"tool": "Write", "input": {"file_path": str(path), "content": content}}


def test_it_edits_calls_our_server_and_takes_its_session_up(
    bench: Bench, model: FakeModel, core: Core
) -> None:
    server = {"mcp_url": f"{core.url}/mcp/orchestrator", "token": core.minted()["token"]}
    chosen, word = str(uuid4()), f"word-{uuid4()}"
    create = {"tool": "mcp__quarterdeck__task_create", "input": {"title": word}}
    first = bench.run(
        f"{word} " + script(write(bench.cwd / "a.txt"), create, {"text": "Done."}),
        conversation=Conversation("new", chosen),
        model="claude-sonnet-4-6",
        effort="low",
        **server,
    )
    ended = first.outcome
    assert (ended.ok, ended.stop_reason, ended.final_text) == (True, "completed", "Done."), ended
    assert (ended.session_id, ended.mcp_status, ended.denials) == (chosen, "connected", ())
    assert ended.usage == Usage(300, 60)
    assert ended.cost_usd == ended.session_cost_usd
    assert (bench.cwd / "a.txt").read_text() == "hello\n"
    assert first.tools() == ["Write", "mcp__quarterdeck__task_create"]
    asked = model.about(word)[0]
    assert (asked.body["model"], asked.body["output_config"]["effort"]) == ("claude-sonnet-4-6", "low")
    tasks = core.modern(server["token"], "/mcp/orchestrator").done("task_list")
    assert word in json.dumps(tasks), "the agent's call reached the core"
    assert server["token"] not in first.stdout + " ".join(first.launch.argv)

    again = bench.run(script({"text": "Again."}), conversation=Conversation("resume", chosen)).outcome
    assert (again.ok, again.session_id, again.final_text) == (True, chosen, "Again.")
    assert model.requests[-1].text.count(word) >= 1, "the earlier prompt is still there"
    assert again.usage == Usage(100, 20)
    assert again.cost_usd is not None and again.session_cost_usd is not None
    assert again.cost_usd < again.session_cost_usd

    forked = bench.run(script({"text": "Else."}), conversation=Conversation("fork", chosen)).outcome
    assert forked.ok
    assert forked.session_id not in (None, chosen)
    latest = bench.run(script({"text": "On."}), conversation=Conversation("continue")).outcome
    assert (latest.ok, latest.final_text) == (True, "On.")


def test_for_reading_it_can_change_nothing(bench: Bench) -> None:
    (bench.cwd / "here.txt").write_text("kept\n")
    steps = [
        write(bench.cwd / "new.txt"),
        {"tool": "Bash", "input": {"command": "touch by-shell.txt"}},
        {"tool": "Read", "input": {"file_path": str(bench.cwd / "here.txt")}},
        {"text": "Read."},
    ]
    # The repository's own word does not count.
    (bench.cwd / ".claude").mkdir()
    allow = {"permissions": {"allow": ["Write", "Bash(*)"]}}
    (bench.cwd / ".claude" / "settings.json").write_text(json.dumps(allow))
    run = bench.run(script(*steps), mode="read")
    assert run.outcome.ok
    assert run.outcome.denials == ("Write", "Bash")
    assert {path.name for path in bench.cwd.iterdir()} == {".git", ".claude", "here.txt"}
    assert any("kept" in step.text for step in run.steps if step.kind == "tool_result")


def test_a_sub_agent_is_counted_and_the_last_result_is_the_answer(bench: Bench, model: FakeModel) -> None:
    word = f"word-{uuid4()}"
    inner = f"{word} " + script(write(bench.cwd / "inner.txt"), {"text": "Inner done."})
    task = {"description": "d", "prompt": inner, "subagent_type": "general-purpose"}
    steps = ({"tool": "Agent", "input": task}, {"text": "Waiting."}, {"text": "After."})
    run = bench.run(f"{word} " + script(*steps))
    assert run.outcome.ok
    assert (bench.cwd / "inner.txt").exists()
    assert run.outcome.final_text in ("Waiting.", "After.")
    results = [json.loads(line) for line in run.stdout.splitlines() if '"type":"result"' in line]
    assert run.outcome.final_text == results[-1]["result"]
    answers = len(model.about(word))
    assert answers >= 4
    assert run.outcome.usage == Usage(100 * answers, 20 * answers)
    assert any(step.data.get("parent") for step in run.steps)


def test_structured_output_is_kept_and_missed(bench: Bench) -> None:
    give = {"tool": "StructuredOutput", "input": {"name": "Ada"}}
    kept = bench.run(script(give, {"text": "So."}), json_schema=SCHEMA).outcome
    assert (kept.ok, kept.structured) == (True, {"name": "Ada"})
    missed = bench.run(script(*[{"text": "No."}] * 4), json_schema=SCHEMA).outcome
    assert (missed.ok, missed.stop_reason, missed.structured) == (False, "schema_missed", None)


def test_a_budget_ends_the_run(bench: Bench) -> None:
    dear = {"tool": "Bash", "input": {"command": "true"}, "usage": {"input": 2_000_000, "output": 10}}
    ended = bench.run(script(dear, {"text": "On."}), max_budget_usd=0.01).outcome
    assert (ended.ok, ended.stop_reason) == (False, "budget_exhausted")
    assert ended.cost_usd is not None
    assert ended.cost_usd > 0.01


@pytest.mark.parametrize(("status", "word"), [(401, "401"), (529, "529")])
def test_an_error_of_the_model_is_told(bench: Bench, status: int, word: str) -> None:
    run = bench.run(script(*[{"status": status}] * 3))
    assert (run.outcome.ok, run.outcome.stop_reason) == (False, "api_error")
    assert word in (run.outcome.error or "")
    assert any(step.kind == "notice" and "did not answer" in step.text for step in run.steps)


def test_a_refused_token_of_our_server_is_told(bench: Bench, core: Core) -> None:
    url = f"{core.url}/mcp/orchestrator"
    ended = bench.run(script({"text": "Without."}), mcp_url=url, token="mcp_wrong").outcome
    assert (ended.ok, ended.mcp_status) == (True, "failed")


def test_a_server_that_never_answers_does_not_hold_it_up(model: FakeModel, tmp_path: Path) -> None:
    env = {"ANTHROPIC_BASE_URL": model.url, "ANTHROPIC_API_KEY": "none", "MCP_TIMEOUT": "1000"}
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}/mcp"
        ended = Bench(claude(env), tmp_path).run(script({"text": "Without."}), mcp_url=url).outcome
    assert (ended.ok, ended.mcp_status, ended.final_text) == (True, "failed", "Without.")


def test_what_it_cannot_find_is_told(bench: Bench) -> None:
    unknown = bench.run("Hi.", conversation=Conversation("resume", str(uuid4()))).outcome
    assert (unknown.ok, unknown.stop_reason) == (False, "error")
    assert "No conversation found" in (unknown.error or "")
    nobody = bench.run("Hi.", subagent="nobody").outcome
    assert not nobody.ok
    assert "nobody" in (nobody.error or "")


def test_two_at_once_keep_to_themselves(model: FakeModel, tmp_path: Path) -> None:
    env = {"ANTHROPIC_BASE_URL": model.url, "ANTHROPIC_API_KEY": "none"}
    benches = [Bench(claude(env), tmp_path / name) for name in ("one", "two")]

    def work(bench: Bench) -> str:
        return bench.run(
            script(write(bench.cwd / "a.txt", bench.root.name), {"text": bench.root.name})
        ).outcome.final_text

    with ThreadPoolExecutor() as pool:
        assert list(pool.map(work, benches)) == ["one", "two"]
    assert [(bench.cwd / "a.txt").read_text() for bench in benches] == ["one", "two"]
