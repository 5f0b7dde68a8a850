"""PAIR sessions with other agents than Claude Code, in a real tmux: a person, AUTO, and the person again."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from tests.agents.conftest import Kind, kinds, table
from tests.auto_core import Board, config, until
from tests.fake_model import Asked, FakeModel, script
from tests.integration.own_core import Core

EVERY = ("codex", "gemini", "opencode")
# A session of these that is resumed begins with a message. OpenCode shows it, and waits for the person.
TOLD = ("codex", "gemini")
# OpenCode takes ten seconds of a CPU to begin.
TIMEOUT = 150.0


@pytest.fixture(scope="module")
def board(model: FakeModel, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Board]:
    folder = tmp_path_factory.mktemp("pair")
    config(folder / "data", "\n".join(table(kinds(model)[name]) for name in EVERY))
    with Core(folder / "data") as core:
        yield Board(core, folder)
        subprocess.run(
            ["tmux", "-S", str(core.data_dir / "tmux.sock"), "kill-server"], capture_output=True, check=False
        )


class Seat:
    """The terminal of one task, as a person sits at it."""

    def __init__(self, board: Board, model: FakeModel, task: str) -> None:
        self._words = ["tmux", "-S", str(board.core.data_dir / "tmux.sock")]
        self._model = model
        self.session: dict[str, Any] = board.done("sessions_create", task_id=task)
        self._target = f"={self.session['session_name']}:"

    def tmux(self, command: str, *words: str) -> str:
        done = subprocess.run(
            [*self._words, command, "-t", self._target, *words], capture_output=True, text=True, check=False
        )
        return done.stdout

    @property
    def screen(self) -> str:
        return self.tmux("capture-pane", "-p", "-J")

    def seen(self, words: str, times: int = 1) -> None:
        """Wait until the screen shows these words."""
        try:
            until(lambda: self.screen.count(words) >= times, f"shown: {words}", TIMEOUT)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.screen}") from None

    def asked(self, words: str) -> Asked:
        """The first request of the agent at work with these words, as soon as it has come."""

        def found() -> Asked | None:
            having = (each for each in self._model.requests if each.body.get("tools"))
            return next((each for each in having if words in each.text), None)

        try:
            asked: Asked = until(found, f"asked: {words}", TIMEOUT)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.screen}") from None
        return asked

    def say(self, line: str, word: str) -> None:
        """Type a line, of which this word is, and send it."""
        self.tmux("send-keys", "-l", line)
        self.seen("SCRIPT>>")
        # What is typed fast may count as pasted, and the first Enter as a part of it.
        until(lambda: self.tmux("send-keys", "Enter") or self._sent(word), "sent", TIMEOUT)

    def _sent(self, word: str) -> bool:
        try:
            self._model.wait_for(word, 2.0)
        except AssertionError:
            return False
        return True


def processes(home: Path) -> list[str]:
    """What runs with this home."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            variables = (folder / "environ").read_bytes().split(b"\0")
        except OSError:
            continue
        if f"HOME={home}".encode() in variables:
            found.append((folder / "cmdline").read_bytes().decode("utf-8", "replace"))
    return found


def changed(path: str) -> str:
    return subprocess.check_output(["git", "status", "--porcelain"], cwd=path, text=True)


@pytest.fixture(params=EVERY)
def kind(request: pytest.FixtureRequest, model: FakeModel) -> Kind:
    return kinds(model)[request.param]


def test_a_person_pairs_in_tmux_auto_goes_on_with_what_was_said_and_the_person_again(
    kind: Kind, board: Board, model: FakeModel
) -> None:
    name, word, result = kind.agent.id, f"ahoy-{uuid4().hex[:8]}", f"made-{uuid4().hex[:8]}"
    options = {"task_type": "PAIR", "agent_backend": name, "title": f"Pair with {name}"}
    task = board.task(board.project(board.repo()), **options)
    # It begins without a question, in the checkout, with a first message and our server.
    seat = Seat(board, model, task)
    path = seat.session["worktree_path"]
    first = seat.asked(seat.session["prompt_path"])
    assert kind.model is None or kind.model.rpartition("/")[2] in first.text + first.path
    assert seat.tmux("display-message", "-p", "#{pane_current_path}").strip() == path
    seat.seen("a plain answer")
    seat.say(script(kind.server_tool, {"text": word}), word)
    seat.seen(word, times=2)
    assert any("pong" in each.text for each in model.about(word))
    assert changed(path) == "", "our files stay out of the branch"
    # Headless, it knows what was said in the terminal.
    steps = script(kind.write(Path(path, "made.txt")), {"text": result})
    board.done("tasks_update", task_id=task, task_type="AUTO", description=steps)
    job = board.ended(task, board.start(task), TIMEOUT)
    assert (job["success"], job["result"]["conversation"]) == (True, "resume"), (job["message"], job)
    assert word in model.about(result)[0].text
    assert not board.done("sessions_exists", task_id=task)["exists"]
    assert processes(board.home(task)) == []
    assert changed(path) == ""
    if name in TOLD:
        # And in the terminal it knows what it did by itself.
        board.done("tasks_update", task_id=task, task_type="PAIR")
        again = Seat(board, model, task)
        resumed = again.asked(f"Go on. {again.session['prompt_path']}")
        assert word in resumed.text
        assert result in resumed.text
        assert processes(board.home(task))
        board.done("sessions_kill", task_id=task)
        assert processes(board.home(task)) == []
        assert changed(path) == ""
