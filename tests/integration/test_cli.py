"""The command line as a person and a script use it, against a real core with a scripted agent."""

from __future__ import annotations

import json
import subprocess
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.auto_core import Board, config
from tests.integration.own_core import Core, quarterdeck


@pytest.fixture(scope="module")
def board(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Board]:
    folder = tmp_path_factory.mktemp("cli")
    config(folder / "data")
    with Core(folder / "data") as core:
        yield Board(core, folder)


class Shell:
    """Runs commands on the core of this module."""

    def __init__(self, data_dir: Path) -> None:
        self._data_dir = str(data_dir)

    def run(self, *words: str) -> subprocess.CompletedProcess[str]:
        return quarterdeck(*words, "--data-dir", self._data_dir)

    def text(self, *words: str) -> str:
        """What a command that must succeed prints."""
        ran = self.run(*words)
        assert ran.returncode == 0, ran.stderr
        return ran.stdout.strip()

    def json(self, *words: str) -> Any:
        return json.loads(self.text(*words, "--json"))


@pytest.fixture
def shell(board: Board) -> Shell:
    return Shell(board.core.data_dir)


def test_a_task_goes_from_its_creation_to_the_merge(board: Board, shell: Shell) -> None:
    repo = board.repo()
    project = shell.text("project", "create", "Harbour", "--repo", str(repo.path))
    assert project in shell.text("project", "list")
    assert str(repo.path) in shell.text("project", "repos", project)
    task = shell.text("task", "create", "Write it", "--type", "AUTO", "--description", "DO write new.txt hi")
    assert shell.json("task", "show", task)["project_id"] == project, "a created project is open"
    job = shell.text("task", "start", task)
    followed = shell.run("logs", "-f", job)
    assert followed.returncode == 0, followed.stderr
    assert shell.text("wait", job) == "SUCCEEDED"
    assert shell.text("wait", task, "--status", "REVIEW") == "REVIEW"
    assert "new.txt" in shell.text("review", "diff", task)
    assert "new.txt" in shell.text("review", "diff", task, "--stat")
    assert shell.json("review", "diff", task)["files"] == 1
    shell.text("review", "approve", task)
    shell.text("review", "merge", task)
    assert (repo.path / "new.txt").exists()
    assert shell.json("task", "show", task)["status"] == "DONE"
    files = {each["name"] for each in shell.json("job", "show", job)["files"]}
    assert "logs.txt" in files
    assert shell.run("job", "file", job, "logs.txt").returncode == 0
    assert job in shell.text("job", "list", "--kind", "auto")


def test_tasks_are_listed_changed_moved_noted_and_deleted(shell: Shell) -> None:
    task = shell.text("task", "create", "Look at it", "--priority", "high", "--criterion", "it is seen")
    shell.text("task", "update", task, "--title", "Look twice")
    shell.text("task", "move", task, "in_progress")
    shell.text("task", "note", task, "seen once")
    shown = shell.text("task", "show", task)
    assert "Look twice" in shown
    assert "seen once" in shown
    assert "it is seen" in shown
    listed = shell.json("task", "list", "--status", "IN_PROGRESS")
    assert task in {each["task_id"] for each in listed["tasks"]}
    assert "Look twice" in shell.text("task", "list", "--text", "twice")
    shell.text("task", "delete", task)
    gone = shell.run("task", "show", task)
    assert gone.returncode == 1
    assert "TASK_NOT_FOUND" in gone.stderr


def test_a_running_job_is_stopped_and_retried(board: Board, shell: Shell) -> None:
    project = board.project(board.repo())
    task = board.task(project, f"wait {board.folder / 'never'}")
    job = shell.text("task", "start", task)
    assert shell.run("wait", job, "--timeout", "0.2").returncode == 2
    assert shell.text("job", "cancel", job).endswith("CANCELED")
    assert shell.run("job", "cancel", job).returncode == 1
    assert shell.run("wait", job).returncode == 1
    again = shell.text("job", "retry", job).split()[0]
    assert again != job
    shell.text("task", "stop", task)
    ended = shell.run("logs", "-f", again)
    assert ended.returncode == 1
    assert "CANCELED" in ended.stderr


def test_plans_begin_from_templates(shell: Shell) -> None:
    assert "bug-fix" in shell.text("plan", "templates")
    slug = shell.text("plan", "new", "bug-fix", "--var", "BUG=It sinks", "--activate")
    assert slug in shell.text("plan", "list")
    assert "It sinks" in shell.text("plan", "show", slug)
    assert shell.json("plan", "show", slug)
    assert "NAME=VALUE" in shell.run("plan", "new", "bug-fix", "--var", "BUG").stderr
    assert shell.run("plan", "proposals").returncode == 0
    assert shell.run("session", "list").returncode == 0


def test_an_error_is_one_line_with_a_next_step(shell: Shell, tmp_path: Path) -> None:
    refused = shell.run("task", "move", "no-such-task", "DONE")
    assert refused.returncode == 1
    assert refused.stderr.startswith("error: ")
    assert "Traceback" not in refused.stderr
    for words in (("task", "list"), ("logs", "job_x"), ("job", "list"), ("review", "diff", "x")):
        alone = quarterdeck(*words, "--data-dir", str(tmp_path / "empty"))
        assert alone.returncode == 1
        assert "quarterdeck up" in alone.stderr


@pytest.mark.parametrize(
    ("client", "file", "key"),
    [
        ("claude", ".claude.json", "mcpServers"),
        ("codex", ".codex/config.toml", "mcp_servers"),
        ("gemini", ".gemini/settings.json", "mcpServers"),
        ("opencode", ".config/opencode/opencode.json", "mcp"),
        ("cursor", ".cursor/mcp.json", "mcpServers"),
        ("vscode", ".config/Code/User/mcp.json", "servers"),
    ],
)
def test_connect_writes_each_clients_configuration_and_keeps_the_rest(
    board: Board, tmp_path: Path, client: str, file: str, key: str
) -> None:
    path = tmp_path / file
    path.parent.mkdir(parents=True, exist_ok=True)
    is_toml = path.suffix == ".toml"
    path.write_text('model = "x"\n\n[other]\na = 1\n' if is_toml else '{"model": "x"}')
    words = ("connect", client, "--data-dir", str(board.core.data_dir))

    def run(*more: str) -> subprocess.CompletedProcess[str]:
        ran = quarterdeck(*words, *more, HOME=str(tmp_path), XDG_CONFIG_HOME=str(tmp_path / ".config"))
        assert ran.returncode == 0, ran.stderr
        return ran

    def written() -> dict[str, Any]:
        text = path.read_text()
        found: dict[str, Any] = tomllib.loads(text) if is_toml else json.loads(text)
        return found

    before = path.read_text()
    assert "quarterdeck" in run("--print").stdout
    assert path.read_text() == before, "--print writes nothing"
    run()
    assert written()["model"] == "x"
    assert "mcp" in json.dumps(written()[key]["quarterdeck"])
    assert board.core.token not in path.read_text(), "the bridge finds the token by itself"
    run("--http", "--surface", "board")
    assert f"{board.core.url}/mcp/board" in path.read_text()
    assert board.core.token in path.read_text()
    once = path.read_text()
    assert "connected already" in run("--http", "--surface", "board").stderr
    assert path.read_text() == once


def test_connect_leaves_a_file_alone_that_it_cannot_read(tmp_path: Path) -> None:
    file = tmp_path / "mcp.json"
    file.write_text("{ // a comment\n}")
    refused = quarterdeck("connect", "cursor", "--file", str(file), "--data-dir", str(tmp_path))
    assert refused.returncode == 1
    assert "--print" in refused.stderr
    assert file.read_text() == "{ // a comment\n}"
