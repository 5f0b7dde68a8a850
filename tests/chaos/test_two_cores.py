"""Two whole cores on one PostgreSQL: each sees what the other does, and touches nothing of it."""

from __future__ import annotations

import json
import socket
import subprocess
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.auto_core import Board, config, until
from tests.chaos.test_auto_kill import is_free
from tests.integration.own_core import Core
from tests.integration.relay_core import RelayCore, running
from tests.listening import events
from tests.postgres import Postgres

TOGETHER = {
    "QUARTERDECK_SERVER__WEB_SECRET": "a secret that both cores have, and long enough",
    "QUARTERDECK_DEFAULTS__PROMPT_AGENT": "shell",
    "QUARTERDECK_DEFAULTS__RELAY_AGENT": "scripted",
}


@pytest.fixture(scope="module")
def boards(tmp_path_factory: pytest.TempPathFactory, postgres: Postgres) -> Iterator[tuple[Board, Board]]:
    """Two cores that made their database at the same time, and a board at each."""
    folder = tmp_path_factory.mktemp("two")
    shared = {**TOGETHER, "QUARTERDECK_DATABASE_URL": postgres.create_database()}
    cores = [Core(folder / name, **shared) for name in ("a", "b")]
    for core in cores:
        config(core.data_dir, '[agents.shell]\nadapter = "command"\ncommand = ["sh"]\n')
    with ExitStack() as stack:
        for core in cores:
            stack.push(core)
        both(*(core.start for core in cores))
        yield Board(cores[0], folder), Board(cores[1], folder)
        tmux(cores[0], "kill-server")


def both(*calls: Callable[[], Any]) -> list[Any]:
    """The answers of calls that are made at the same time."""
    with ThreadPoolExecutor(len(calls)) as pool:
        return [future.result() for future in [pool.submit(call) for call in calls]]


def tmux(core: Core, *words: str) -> int:
    """The exit code of a command to the core's own tmux."""
    command = ["tmux", "-S", str(core.data_dir / "tmux.sock"), *words]
    return subprocess.run(command, capture_output=True, check=False).returncode


def test_what_one_core_runs_the_other_sees_cancels_and_starts_but_does_not_merge(
    boards: tuple[Board, Board], tmp_path: Path
) -> None:
    a, b = boards
    began, go = tmp_path / "began", tmp_path / "go"
    repo = a.repo()
    task = a.task(a.project(repo), f"hold {began}", f"wait {go}", "write a.txt yes")
    with events(b.core.url, b.core.token) as stream, ThreadPoolExecutor(1) as pool:
        wanted = {"wait_for_status": ["IN_PROGRESS"], "timeout_seconds": 60}
        waiting = pool.submit(b.done, "tasks_wait", task_id=task, **wanted)
        job = a.start(task)
        assert waiting.result()["changed"]
        while (frame := stream.frame()).event != "job.started":
            pass
        assert frame.data["entity_id"] == job
    until(began.exists, "begun")
    assert b.done("jobs_cancel", job_id=job, task_id=task)["status"] == "cancelled"
    until(lambda: is_free(began), "ended at its core")
    began.unlink()
    again = b.start(task)
    until(began.exists, "begun where its worktree is")
    go.touch()
    assert b.ended(task, again)["success"]
    assert (a.worktree(task) / "a.txt").exists()
    refuses_what_needs_the_worktree(b, task)
    assert b.done("review", task_id=task, action="reject", feedback="once more")["status"] == "IN_PROGRESS"
    b.done("tasks_move", task_id=task, status="REVIEW")
    assert a.done("review", task_id=task, action="merge")["status"] == "DONE"
    assert (repo.path / "a.txt").exists()


def refuses_what_needs_the_worktree(board: Board, task: str) -> None:
    """It says where to ask, changes nothing, and has nothing of it to mend."""
    assert not (board.core.data_dir / "worktrees" / task).exists()
    for action in ("approve", "rebase", "merge"):
        refused = board.refused("review", task_id=task, action=action)
        where = f"ask the core on {socket.gethostname()}"
        assert (refused["code"], refused["hint"]) == ("ACTION_NOT_ALLOWED", where)
    assert board.refused("tasks_delete", task_id=task)["code"] == "ACTION_NOT_ALLOWED"
    mended = board.core.request("POST", "/api/doctor", board.core.token).json()
    assert (mended["mended"], mended["drift"]) == ([], [])
    assert board.state(task) == "review"


def test_a_terminal_ends_with_its_task_whichever_core_ended_that(boards: tuple[Board, Board]) -> None:
    a, b = boards
    task = a.task(a.project(a.repo()), task_type="PAIR", agent_backend="terminal")
    a.done("sessions_create", task_id=task)
    until((a.home(task) / "given.json").exists, "begun")
    assert b.refused("sessions_create", task_id=task)["code"] == "ACTION_NOT_ALLOWED"
    assert b.done("sessions_exists", task_id=task)["hint"] == "it belongs to another core"
    b.done("tasks_move", task_id=task, status="DONE")
    until(lambda: tmux(a.core, "list-sessions") != 0, "ended")
    until(lambda: not (a.home(task) / "pair.sh").exists(), "cleared away")


def test_a_user_has_one_prompt_over_both_cores_and_stops_it_at_either(boards: tuple[Board, Board]) -> None:
    here, there = (board.core.modern(path="/mcp/agent") for board in boards)
    asked = both(
        *(partial(client.call, "prompt", message="echo begun; sleep 600") for client in (here, there))
    )
    assert sorted(each.is_error for each in asked) == [False, True]
    [busy] = [each.body for each in asked if each.is_error]
    assert "busy" in json.dumps(busy)
    idle = there if asked[1].is_error else here
    until(lambda: idle.done("status")["message_count"], "at work")
    assert idle.done("stop")["stopped"]
    assert idle.done("prompt", message="echo good morning", blocking=True)["result"].strip() == "good morning"


def test_merges_of_both_cores_into_one_repository_wait_for_each_other(
    boards: tuple[Board, Board], tmp_path: Path
) -> None:
    a, b = boards
    repo, gate = a.repo(), tmp_path / "gate"
    # Two gates at once fail.
    project = a.project(repo, gate_command=f"mkdir {gate} && ls >> {tmp_path / 'seen'} && rmdir {gate}")
    tasks = [board.task(project, f"write {name}.txt yes") for board, name in ((a, "one"), (b, "two"))]
    jobs = [board.start(task) for board, task in zip(boards, tasks, strict=True)]
    for board, task, job in zip(boards, tasks, jobs, strict=True):
        assert board.ended(task, job)["success"]

    def merged(board: Board, task: str) -> Any:
        return board.done("review", task_id=task, action="merge")["status"]

    assert both(*(partial(merged, *each) for each in zip(boards, tasks, strict=True))) == ["DONE", "DONE"]
    assert {"one.txt", "two.txt"} <= {path.name for path in repo.path.iterdir()}
    # One gate a merge: nobody had to begin anew.
    assert (tmp_path / "seen").read_text().split().count("README.md") == 2


def test_who_signed_in_at_one_core_is_known_at_the_other(boards: tuple[Board, Board]) -> None:
    a, b = (board.core for board in boards)
    entered = a.request("POST", "/signin", data={"token": a.token}, headers={"Origin": a.url})
    cookie = {"Cookie": entered.headers["set-cookie"].partition(";")[0], "Accept": "text/html"}
    assert b.request("GET", "/jobs", headers=cookie).status_code == 200
    assert b.request("GET", "/jobs", headers={"Accept": "text/html"}).status_code == 303


def test_of_a_killed_core_the_other_takes_relay_jobs_and_leaves_what_needs_its_worktrees(
    boards: tuple[Board, Board], tmp_path: Path
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:  # a fetch from it takes for ever
        url = f"git://127.0.0.1:{silent.getsockname()[1]}/app.git"
        remote = {"type": "git", "url": url, "baseBranch": "main", "baselineCommit": "0" * 40}
        asked = boards[0].core.modern(path="/mcp/relay")
        relayed = asked.done("jobs_submit", spec=RelayCore.spec_of("", "", "key", repo=remote))["jobId"]

        def has_it(board: Board, attempt: int) -> bool:
            return (board.core.data_dir / "attempts" / f"{relayed}-{attempt}").exists()

        until(lambda: any(has_it(board, 1) for board in boards), "taken")
        killed, other = sorted(boards, key=lambda board: has_it(board, 1), reverse=True)
        began, go = tmp_path / "began", tmp_path / "go"
        task = killed.task(killed.project(killed.repo()), f"hold {began}", f"wait {go}", "write a.txt yes")
        job = killed.start(task)
        until(began.exists, "begun")
        killed.core.kill9()
        until(lambda: is_free(began), "ended with its worker")
        until(lambda: has_it(other, 2), "taken over")
        client = other.core.modern(path="/mcp/relay")
        assert running(client, relayed)["attempt"] == 2
        until(lambda: other.done("jobs_get", job_id=job, task_id=task)["state"] == "STALE", "lost")
        assert client.done("jobs_cancel", jobId=relayed)["ok"]
    go.touch()
    killed.core.start()
    assert other.ended(task, job)["success"]
    assert other.done("jobs_get", job_id=job, task_id=task)["attempt"] == 2
    assert killed.worktree(task).is_dir()
