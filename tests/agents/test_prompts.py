"""The agent surface with other agents than Claude Code: `model` or `agent` names one; it is heard live."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from openai import OpenAI

from tests.agents.conftest import kinds
from tests.fake_model import FakeModel, script
from tests.integration.own_core import Core

EVERY = ("codex", "gemini", "opencode", "gemini-acp")


@pytest.fixture(scope="module")
def core(model: FakeModel, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Core]:
    rows = {
        name: {
            **{"adapter": kind.agent.adapter, "command": kind.agent.command, "env": dict(kind.agent.env)},
            **({"model": kind.model} if kind.model else {}),
        }
        for name, kind in kinds(model).items()
    }
    with Core(tmp_path_factory.mktemp("prompts") / "data", QUARTERDECK_AGENTS=json.dumps(rows)) as core:
        yield core


@pytest.mark.parametrize("name", EVERY)
def test_it_is_heard_while_it_works(core: Core, model: FakeModel, name: str, tmp_path: Path) -> None:
    token = core.minted(user_id=f"a user of {name}")["token"]
    work = kinds(model)[name].write(tmp_path / "made.txt")
    steps = ({"text": "I write it.", **work}, {"text": "It is done.", "hold": f"{name} was heard"})
    said = ""
    with OpenAI(base_url=f"{core.url}/v1", api_key=token) as client:
        message: str = f"Do it. {script(*steps)}"
        chunks = client.chat.completions.create(
            model=name, messages=[{"role": "user", "content": message}], stream=True
        )
        for chunk in chunks:
            said += chunk.choices[0].delta.content or ""
            if "write it." in said:
                model.release(f"{name} was heard")
    assert said.strip() == "I write it.\n\nIt is done."
    whole = core.modern(token, "/mcp/agent").done("result")
    assert (whole["agent"], whole["result_text"], whole["tool_call_count"]) == (name, "It is done.", 1)


def test_a_prompt_names_it_and_goes_on_with_its_session(core: Core, model: FakeModel) -> None:
    agent = core.modern(core.minted(user_id="a user of both ways")["token"], "/mcp/agent")
    first = agent.done("prompt", message=f"Hello. {script({'text': 'Hi.'})}", agent="codex", blocking=True)
    again = agent.done(
        "prompt",
        message=f"Again. {script({'text': 'Hi again.'})}",
        resume=first["session_id"],
        agent="codex",
        blocking=True,
    )
    assert (again["result"], again["session_id"]) == ("Hi again.", first["session_id"])
    refused = agent.refused("prompt", message="Hello.", agent="codex", max_budget_usd=1)
    assert "budget" in refused["error"]
