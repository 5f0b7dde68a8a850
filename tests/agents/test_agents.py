"""Other agents than Claude Code, as npm installs them: they work, call our server, take their sessions up."""

from __future__ import annotations

from uuid import uuid4

import pytest

from quarterdeck.run.adapters.base import Conversation
from tests.agents.conftest import Stage
from tests.fake_model import FakeModel

EVERY = ("codex", "gemini", "opencode", "gemini-acp", "claude-acp")
# Gemini's sessions cannot be taken up over the protocol, see docs/running.md.
RESUMING = ("codex", "gemini", "opencode", "claude-acp")
FORKING = ("codex", "opencode", "claude-acp")


@pytest.mark.parametrize("stage", EVERY, indirect=True)
def test_it_edits_a_file_calls_our_server_and_takes_its_session_up(stage: Stage, model: FakeModel) -> None:
    name, word = stage.kind.agent.id, f"word-{uuid4()}"
    made = stage.bench.cwd / "made.txt"
    first = stage.run(stage.kind.write(made), stage.kind.server_tool, {"text": "Done."}, prompt=word)
    ended = first.outcome
    assert (ended.ok, ended.stop_reason, ended.final_text) == (True, "completed", "Done."), (
        ended,
        first.stderr,
    )
    assert made.read_text() == "hello\n"
    assert any("pong" in step.text for step in first.steps if step.kind == "tool_result"), first.steps
    assert ended.mcp_status == "connected"
    assert ended.usage is not None
    assert ended.usage.input_tokens >= 300
    assert ended.session_id
    asked = model.about(word)[0]
    assert stage.token not in asked.text

    for how in ("resume", "fork"):
        if name not in (RESUMING if how == "resume" else FORKING):
            continue
        conversation = Conversation(how, ended.session_id)
        again = stage.run({"text": f"{how}d."}, conversation=conversation, mcp_url=None, token=None)
        assert (again.outcome.ok, again.outcome.final_text) == (True, f"{how}d."), (
            again.outcome,
            again.stderr,
        )
        assert (again.outcome.session_id == ended.session_id) == (how == "resume")
        assert word in model.about(f"{how}d.")[-1].text, "the earlier prompt is still there"
        assert again.outcome.usage is not None
        assert again.outcome.usage.input_tokens == 100, "this run's part alone"


@pytest.mark.parametrize("stage", EVERY, indirect=True)
def test_for_reading_it_changes_nothing_and_still_calls_our_server(stage: Stage) -> None:
    run = stage.run(
        stage.kind.write(stage.bench.cwd / "new.txt"), stage.kind.server_tool, {"text": "Read."}, mode="read"
    )
    assert (run.outcome.ok, run.outcome.final_text) == (True, "Read."), (run.outcome, run.stderr)
    assert [path.name for path in stage.bench.cwd.iterdir()] == [".git"]
    assert run.outcome.mcp_status == "connected"


@pytest.mark.parametrize("stage", ["codex", "gemini"], indirect=True)
def test_a_refused_key_is_an_error_of_the_model(stage: Stage) -> None:
    ended = stage.run(*[{"status": 401, "message": "the key is refused"}] * 8).outcome
    assert (ended.ok, ended.stop_reason) == (False, "api_error")
    assert "the key is refused" in (ended.error or "")


@pytest.mark.parametrize("stage", ["codex", "gemini"], indirect=True)
def test_a_server_that_refuses_the_token_is_told(stage: Stage) -> None:
    ended = stage.run({"text": "Without."}, token="mcp_wrong").outcome
    assert ended.mcp_status == "failed"


@pytest.mark.parametrize("stage", ["codex"], indirect=True)
def test_codex_gives_structured_output(stage: Stage) -> None:
    properties = {"name": {"type": "string"}}
    schema = {
        "type": "object",
        "properties": properties,
        "required": ["name"],
        "additionalProperties": False,
    }
    kept = stage.run({"text": '{"name": "Ada"}'}, json_schema=schema, effort="low").outcome
    assert (kept.ok, kept.structured) == (True, {"name": "Ada"}), kept
    missed = stage.run({"text": "No."}, json_schema=schema).outcome
    assert (missed.ok, missed.stop_reason) == (False, "schema_missed")
