"""AUTO while the core is killed: whatever step it was at, the task ends in review and nothing is left."""

from __future__ import annotations

import fcntl
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.auto_core import Board, config, until
from tests.integration.own_core import Core


@pytest.fixture(scope="module")
def board(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Board]:
    folder = tmp_path_factory.mktemp("kill")
    config(folder / "data")
    with Core(folder / "data") as core:
        yield Board(core, folder)


def is_free(lock: Path) -> bool:
    """Whether whoever held this lock has ended."""
    with lock.open() as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
    return True


def ends_in_review(board: Board, task: str, job: str) -> None:
    ended = board.ended(task, job)
    assert ended["success"], (ended["message"], ended["result"], board.core.log[-3000:])
    assert board.state(task) == "review"
    data = board.core.data_dir
    until(lambda: not list((data / "attempts").iterdir()), "its scratch folder removed")
    assert not list((data / "checks").glob("*"))


def test_killed_while_the_agent_works_the_next_attempt_does_it(board: Board, tmp_path: Path) -> None:
    began = tmp_path / "began"
    steps = ("append count.txt once", f"hold {began}", f"wait {tmp_path / 'go'}", "write done.txt yes")
    task = board.task(board.project(board.repo()), *steps)
    job = board.start(task)
    until(began.exists, "begun")
    board.core.kill9()
    (tmp_path / "go").touch()
    until(lambda: is_free(began), "ended with its worker")
    board.core.start()
    ends_in_review(board, task, job)
    events = board.done("jobs_events", job_id=job, task_id=task, limit=100)["events"]
    assert "JOB_RECOVERED_INTERRUPTED" in [event["code"] for event in events]
    assert board.done("jobs_get", job_id=job, task_id=task)["attempt"] == 2
    # What the first attempt had written was still there for the second.
    assert (board.worktree(task) / "count.txt").read_text() == "once\nonce\n"


def test_killed_while_the_check_runs_the_agent_is_not_run_again(board: Board, tmp_path: Path) -> None:
    began, go = tmp_path / "began", tmp_path / "go"
    check = f"exec 9> {began}; flock 9; while [ ! -e {go} ]; do sleep 0.05; done; test -e once.txt"
    task = board.task(
        board.project(board.repo(), acceptance_command=check), f"once {tmp_path / 'ran'}", "write once.txt 1"
    )
    job = board.start(task)
    until(lambda: began.exists() and not is_free(began), "checking")
    board.core.kill9()
    until(lambda: is_free(began), "the check ended with its worker")
    go.touch()
    board.core.start()
    ends_in_review(board, task, job)


def test_killed_while_the_worktree_is_made_it_is_made_anew(board: Board, tmp_path: Path) -> None:
    repo, began = board.repo(), tmp_path / "began"
    repo.commit({".gitattributes": "slow.txt filter=slow\n", "slow.txt": "content\n", "z.txt": "last\n"})
    hang = (
        f"if [ ! -e {began} ]; then echo $$ > {began}.part; mv {began}.part {began}; exec sleep 600; fi; cat"
    )
    repo.git("config", "filter.slow.smudge", f"sh -c '{hang}'")
    task = board.task(board.project(repo), "append slow.txt more")
    job = board.start(task)
    until(began.exists, "checking out")
    board.core.kill9()
    # The host went down with it: git, too, is gone in the middle of its work.
    os.killpg(os.getpgid(int(began.read_text())), signal.SIGKILL)
    board.core.start()
    ends_in_review(board, task, job)
    assert repo.git("show", f"quarterdeck/{task}:slow.txt") == "content\nmore"
    assert repo.git("show", f"quarterdeck/{task}:z.txt") == "last"


def test_a_stopped_core_gives_the_job_back_and_the_next_one_goes_on(board: Board, tmp_path: Path) -> None:
    began = tmp_path / "began"
    steps = (f"hold {began}", f"wait {tmp_path / 'go'}", "write done.txt yes")
    task = board.task(board.project(board.repo()), *steps)
    job = board.start(task)
    until(began.exists, "begun")
    board.core.stop()
    assert is_free(began)
    (tmp_path / "go").touch()
    board.core.start()
    ends_in_review(board, task, job)
    assert board.done("jobs_get", job_id=job, task_id=task)["attempt"] == 1


def test_killed_right_after_a_cancel_nothing_of_the_run_is_left(board: Board, tmp_path: Path) -> None:
    began = tmp_path / "began"
    task = board.task(
        board.project(board.repo()), f"hold {began}", f"wait {tmp_path / 'go'}", "write a.txt b"
    )
    job = board.start(task)
    until(began.exists, "begun")
    board.done("jobs_cancel", job_id=job, task_id=task)
    board.core.kill9()
    until(lambda: is_free(began), "ended")
    board.core.start()
    assert board.state(task) == "pending"
    (tmp_path / "go").touch()
    ends_in_review(board, task, board.start(task))
