"""AUTO and PAIR, and the one after the other, with the real Claude Code and a scripted model."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.agent_harness import CLAUDE
from tests.auto_core import Board, config, until
from tests.fake_model import FakeModel, Step, script
from tests.integration.own_core import Core


@pytest.fixture(scope="module")
def model() -> Iterator[FakeModel]:
    with FakeModel() as model:
        yield model


@pytest.fixture(scope="module")
def board(model: FakeModel, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Board]:
    folder = tmp_path_factory.mktemp("claude")
    agent = f"""
[agents.claude-code]
command = [{json.dumps(str(CLAUDE))}]
env = {{ ANTHROPIC_BASE_URL = {json.dumps(model.url)}, ANTHROPIC_API_KEY = "dummy-key-of-twenty-characters" }}
max_concurrent = 2
"""
    config(folder / "data", agent)
    with Core(folder / "data") as core:
        yield Board(core, folder)
        subprocess.run(
            ["tmux", "-S", str(core.data_dir / "tmux.sock"), "kill-server"], capture_output=True, check=False
        )


def told(board: Board, task: str, *steps: Step) -> None:
    """Make these steps the task's description, in which the model finds them."""
    board.done("tasks_update", task_id=task, description=script(*steps))


def seen_by(model: FakeModel, after: int) -> str:
    return "\n".join(each.text for each in model.requests[after:])


def test_an_agent_edits_notes_and_ends_in_review_then_goes_on_with_the_feedback_and_is_merged(
    board: Board, model: FakeModel
) -> None:
    repo = board.repo()
    project = board.project(repo, acceptance_command="test -f hello.txt && test -f ran.txt")
    task = board.task(project, title="Greet", agent_backend="claude-code", acceptance_criteria=["it greets"])
    note = {"task_id": task, "content": "I chose plain words"}
    told(
        board,
        task,
        {
            "tool": "Write",
            "input": {"file_path": str(_checkout(board, task, repo) / "hello.txt"), "content": "hi\n"},
        },
        {"tool": "Bash", "input": {"command": "echo ran > ran.txt", "description": "run"}},
        {"tool": "mcp__quarterdeck__update_scratchpad", "input": note},
        {"text": "Greeted.", "usage": {"input": 1000, "output": 100}},
    )
    job = board.run(task)
    assert job["success"], (job["message"], job["result"], board.core.log[-2000:])
    assert job["result"]["acceptance"]["passed"] and job["result"]["files"] == 2
    assert job["cost_usd"] > 0 and job["output_tokens"] >= 100
    assert board.state(task) == "review"
    full = board.done("get_task", task_id=task, include_scratchpad=True, mode="full")
    assert "I chose plain words" in full["scratchpad"]
    assert repo.git("show", f"quarterdeck/{task}:hello.txt") == "hi"
    # Rejected with words and a remark on a line: the next run resumes the agent's own session with them.
    board.done("review", task_id=task, action="reject", feedback="Greet more warmly")
    told(
        board,
        task,
        {"tool": "Bash", "input": {"command": "echo 'hello, dear' > hello.txt", "description": "greet"}},
        {"text": "Warmer now."},
    )
    before = len(model.requests)
    again = board.run(task)
    assert again["success"], (again["message"], again["result"])
    assert again["result"]["conversation"] == "resume"
    assert again["result"]["agent_session_id"] == job["result"]["agent_session_id"]
    asked = seen_by(model, before)
    assert "Greet more warmly" in asked and "I chose plain words" in asked
    assert "Greeted." in asked, "the earlier conversation is there"
    assert board.state(task) == "review"
    merged = board.done("review", task_id=task, action="merge")
    assert merged["code"] == "MERGED", merged
    assert repo.git("show", "main:hello.txt") == "hello, dear"
    assert board.state(task) == "completed"
    assert not (board.core.data_dir / "worktrees" / task).exists()


def _checkout(board: Board, task: str, repo: Any) -> Path:
    """Where the task's checkout will be."""
    return Path(board.core.data_dir, "worktrees", task, repo.path.name)


def test_a_person_pairs_in_tmux_auto_takes_over_and_resumes_the_same_session(
    board: Board, model: FakeModel, tmp_path: Path
) -> None:
    repo = board.repo()
    options = {"task_type": "PAIR", "agent_backend": "claude-code"}
    task = board.task(board.project(repo), title="Pair", **options)
    paired = script({"text": "Reading is done; hello, person."})
    board.done("tasks_update", task_id=task, description=paired)
    before = len(model.requests)
    session = board.done("sessions_create", task_id=task)
    # The first message names the prompt's file; what the model says to it does not matter here.
    until(lambda: session["prompt_path"] in seen_by(model, before), "asked")
    words = ["tmux", "-S", str(board.core.data_dir / "tmux.sock")]
    target = f"={session['session_name']}:"
    said = script({"text": "An answer for the person."})
    subprocess.run([*words, "send-keys", "-t", target, "-l", said], check=True)
    until(lambda: "SCRIPT>>" in _screen(words, target), "typed")
    subprocess.run([*words, "send-keys", "-t", target, "Enter"], check=True)
    # Not on the screen, where the words were typed as well: in what the agent itself remembers.
    until(lambda: _answered(board.home(task), "An answer for the person."), "answered")
    steps = (
        {"tool": "Bash", "input": {"command": "echo auto > auto.txt", "description": "w"}},
        {"text": "Done."},
    )
    board.done("tasks_update", task_id=task, task_type="AUTO", description=script(*steps))
    before = len(model.requests)
    job = board.run(task)
    assert job["success"], (job["message"], job["result"])
    assert job["result"]["conversation"] == "resume"
    assert "An answer for the person." in seen_by(model, before)
    assert not board.done("sessions_exists", task_id=task)["exists"]
    assert board.state(task) == "review"


def _answered(home: Path, words: str) -> bool:
    """Whether a transcript of the agent holds an answer with these words."""
    lines = (line for file in home.rglob("*.jsonl") for line in file.read_text().splitlines())
    return any('"type":"assistant"' in line and words in line for line in lines)


def _screen(words: list[str], target: str) -> str:
    shown = subprocess.run(
        [*words, "capture-pane", "-p", "-J", "-S", "-500", "-t", target],
        capture_output=True,
        text=True,
        check=False,
    )
    return shown.stdout
