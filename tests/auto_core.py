"""A core with an agent that does what its tasks say, and the calls that the tests of AUTO and PAIR make."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

from tests.git_repo import GitRepo
from tests.integration.own_core import Core
from tests.mcp_client import Modern

ROOT = Path(__file__).parents[1]
TIMEOUT = 60.0


def config(data_dir: Path, more: str = "") -> None:
    """The configuration of a core whose agent `scripted` is the default."""
    data_dir.mkdir(parents=True, exist_ok=True)
    command = json.dumps([sys.executable, "-m", "tests.scripted_agent"])
    terminal = json.dumps([sys.executable, "-m", "tests.terminal_agent"])
    env = f'{{ PYTHONPATH = "{ROOT}:{ROOT / "src"}" }}'
    (data_dir / "quarterdeck.toml").write_text(
        f"""
[defaults]
worker_agent = "scripted"
[worker]
heartbeat_seconds = 0.5
lease_seconds = 5
[agents.scripted]
adapter = "command"
command = {command}
env = {env}
max_concurrent = 3
[agents.lonely]
adapter = "command"
command = {command}
env = {env}
max_concurrent = 1
[agents.terminal]
adapter = "command"
command = {terminal}
env = {env}
[agents.missing]
adapter = "command"
command = ["no-such-program-anywhere"]
{more}
"""
    )


class Board:
    """One user's view of a board, with shortcuts."""

    def __init__(self, core: Core, folder: Path) -> None:
        self.core = core
        self.folder = folder
        self._count = 0

    @property
    def client(self) -> Modern:
        return self.core.modern(path="/mcp/board")

    def done(self, tool: str, /, **arguments: Any) -> Any:
        with Modern(self.core.url + "/mcp/board", self.core.token) as client:
            return client.done(tool, **arguments)

    def refused(self, tool: str, /, **arguments: Any) -> dict[str, Any]:
        with Modern(self.core.url + "/mcp/board", self.core.token) as client:
            return client.refused(tool, **arguments)

    def repo(self) -> GitRepo:
        self._count += 1
        repo = GitRepo(self.folder / f"repo-{self._count}-{time.monotonic_ns()}")
        repo.commit({"README.md": "hello\n"}, "Begin")
        return repo

    def project(self, *repos: GitRepo, **options: Any) -> str:
        made = self.done(
            "projects_create", name="p", repo_paths=[str(repo.path) for repo in repos], **options
        )
        return str(made["project_id"])

    def task(self, project_id: str | None, *steps: str, **options: Any) -> str:
        """A task whose agent takes these steps."""
        told = "\n".join(f"DO {step}" for step in steps)
        given = {
            "task_type": "AUTO",
            "title": "Do it",
            "description": told,
            "project_id": project_id,
            **options,
        }
        return str(self.done("tasks_create", **{k: v for k, v in given.items() if v is not None})["task_id"])

    def start(self, task_id: str, **arguments: Any) -> str:
        answer = self.done("jobs_submit", task_id=task_id, action="start_agent", arguments=arguments)
        return str(answer["job_id"])

    def ended(self, task_id: str, job_id: str, seconds: float = TIMEOUT) -> dict[str, Any]:
        """The job once it has ended."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            answer: dict[str, Any] = self.done(
                "jobs_wait", job_id=job_id, task_id=task_id, timeout_seconds=20
            )
            if answer["status"] not in ("queued", "running"):
                return answer
        raise AssertionError(f"{job_id} did not end: {answer}\n{self.core.log[-3000:]}")

    def run(self, task_id: str, **arguments: Any) -> dict[str, Any]:
        return self.ended(task_id, self.start(task_id, **arguments))

    def state(self, task_id: str) -> str:
        with Modern(self.core.url + "/mcp/orchestrator", self.core.token) as client:
            return str(client.done("task_get", task_id=task_id)["task"]["status"])

    def worktree(self, task_id: str) -> Path:
        """The one checkout of a task."""
        [path] = (self.core.data_dir / "worktrees" / task_id).iterdir()
        return path

    def home(self, task_id: str) -> Path:
        return self.core.data_dir / "homes" / f"task-{task_id}"


def until(condition: Any, what: str, seconds: float = TIMEOUT) -> Any:
    """What a condition gives as soon as it is true."""
    deadline = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < deadline, f"in {seconds:g} s: not {what}"
        time.sleep(0.05)
    return found
