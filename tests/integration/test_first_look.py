"""Another agent's first look at what an agent did."""

from __future__ import annotations

import sys
from pathlib import Path

from tests.auto_core import Board, config
from tests.integration.own_core import Core

LOOKER = "import sys; print('Seen: ' + str('new.txt' in sys.stdin.read()))"


def test_a_reviewing_agent_remarks_and_decides_nothing(tmp_path: Path) -> None:
    looker = f'[agents.looker]\nadapter = "command"\ncommand = ["{sys.executable}", "-c", "{LOOKER}"]\n'
    config(tmp_path / "data", looker)
    with Core(tmp_path / "data", QUARTERDECK_DEFAULTS__REVIEW_AGENT="looker") as core:
        board = Board(core, tmp_path)
        project = board.project(board.repo())

        def remarks(file: str) -> list[str]:
            task = board.task(project, f"write {file} hi")
            assert board.run(task)["status"] == "succeeded"
            assert board.state(task) == "review"
            reviews = board.done("get_task", task_id=task, include_review=True)["reviews"]
            return [each["text"] for each in reviews if each["kind"] == "remarked"]

        assert remarks("new.txt") == ["Seen: True"]
        board.done("settings_update", auto_review=False)
        assert remarks("other.txt") == []
