"""A project's own commands, acceptance and gate: where they run, what they see, and what they leave."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx2
import pytest

from quarterdeck.run.checks import TAIL, check
from tests.attempts import carriers, token
from tests.auto_core import Board, config, until
from tests.integration.own_core import Core
from tests.integration.review_core import review_core


def daemon(mark: str, there: Path) -> str:
    """A command that leaves a process in a session of its own, which nobody is the parent of."""
    inner = f"sleep {mark} >/dev/null 2>&1 & echo $! > {there}.part; mv {there}.part {there}"
    return f"setsid sh -c '{inner}'; while ! test -e {there}; do sleep 0.02; done; echo left"


@pytest.fixture(scope="module")
def board(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Board]:
    folder = tmp_path_factory.mktemp("checks")
    config(folder / "data")
    with Core(folder / "data") as core:
        yield Board(core, folder)


def reviewed(board: Board, project: str, *steps: str) -> tuple[str, dict[str, Any]]:
    """A task whose work is in review, and the result of its job."""
    task = board.task(project, *steps)
    job = board.run(task)
    assert job["success"], job
    return task, job["result"]


def test_a_command_ends_with_all_that_it_started(tmp_path: Path) -> None:
    async def run() -> None:
        async with review_core(tmp_path / "core") as desk:
            mark = token()
            quick = await check(desk.core, daemon(mark, tmp_path / "quick"), tmp_path, 60)
            assert (quick.passed, quick.code, quick.output) == (True, 0, "left\n")
            assert not carriers(mark)
            slow = await check(desk.core, daemon(mark, tmp_path / "slow") + "; sleep 1000", tmp_path, 4)
            assert (slow.passed, slow.code, slow.how) == (False, None, "took longer than 4 seconds")
            assert slow.output == "left\n"
            assert not carriers(mark)
            command = daemon(mark, tmp_path / "ended") + "; sleep 1000"
            ended = asyncio.create_task(check(desk.core, command, tmp_path, 60))
            while not (tmp_path / "ended").exists():
                await asyncio.sleep(0.02)
            ended.cancel()
            with pytest.raises(asyncio.CancelledError):
                await ended
            assert not carriers(mark)
            assert list((desk.core.data_dir / "checks").iterdir()) == []

    asyncio.run(run())


def test_the_end_of_what_a_command_said_is_told_and_how_it_ended(tmp_path: Path) -> None:
    async def run() -> None:
        async with review_core(tmp_path / "core") as desk:
            long = await check(desk.core, "yes | head -c 1000000; printf '\\0end'; exit 3", tmp_path, 60)
            assert (long.code, long.how) == (3, "ended with exit code 3")
            assert len(long.output) == TAIL - 1 and long.output.endswith("y\nend")
            killed = await check(desk.core, "kill -KILL $$", tmp_path, 60)
            assert (killed.passed, killed.code, killed.how) == (False, None, "was ended by signal 9")
            nowhere = await check(desk.core, "true", tmp_path / "nowhere", 60)
            assert (nowhere.code, nowhere.how) == (None, "could not be started")
            assert "nowhere" in nowhere.output

    asyncio.run(run())


def test_a_command_sees_a_clean_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def run() -> None:
        monkeypatch.setenv("QUARTERDECK_ADMIN_SECRET", "never-told")
        async with review_core(tmp_path / "core") as desk:
            seen = (await check(desk.core, "env; cat", tmp_path, 60)).output.splitlines()
        assert {"CI=true", "GIT_TERMINAL_PROMPT=0", f"HOME={Path.home()}"} <= set(seen)
        kept = {line.partition("=")[0] for line in seen if "never-told" not in line}
        assert len(kept) == len(seen)
        assert not kept & {"VIRTUAL_ENV", "PYTHONPATH", "PYTEST_CURRENT_TEST", "QUARTERDECK_TOKEN"}

    asyncio.run(run())


def test_an_acceptance_command_that_leaves_a_daemon_leaves_nothing(board: Board, tmp_path: Path) -> None:
    mark = token()
    project = board.project(board.repo(), acceptance_command=daemon(mark, tmp_path / "there"))
    _, result = reviewed(board, project, "write a.txt b")
    assert (result["acceptance"]["passed"], result["acceptance"]["output_tail"]) == (True, "left\n")
    assert (tmp_path / "there").exists() and not carriers(mark)


@pytest.mark.parametrize("count", [1, 2])
def test_both_commands_run_where_the_agent_works(board: Board, count: int) -> None:
    repos = [board.repo() for _ in range(count)]
    # In the checkout of a single repository; of several in the folder around them, each below its name.
    names = [f"{repo.path.name}/" if count > 1 else "" for repo in repos]
    command = f"pwd; test -f {names[0]}new.txt && test -f {names[-1]}README.md && ls {names[0] or '.'}"
    project = board.project(*repos, acceptance_command=command, gate_command=f"{command}; exit 7")
    task, result = reviewed(board, project, f"write {names[0]}new.txt 1")
    where, *listed = result["acceptance"]["output_tail"].splitlines()
    worktrees = board.core.data_dir / "worktrees" / task
    assert Path(where) == (worktrees / repos[0].path.name if count == 1 else worktrees)
    refused = board.refused("review", task_id=task, action="merge")
    assert (refused["code"], refused["gate_output"].splitlines()[1:]) == ("MERGE_FAILED", listed)
    assert refused["message"] == "the gate of the project ended with exit code 7"
    there = Path(refused["gate_output"].splitlines()[0])
    gates = board.core.data_dir / "gates"
    assert there.relative_to(gates).parts[1:] == (() if count > 1 else (repos[0].path.name,))
    assert listed == ["README.md", "new.txt"] and list(gates.iterdir()) == []
    for repo in repos:
        assert repo.git("worktree", "list").count("gates") == 0


def test_who_moves_a_task_out_of_review_ends_its_gate(board: Board, tmp_path: Path) -> None:
    mark, repo = token(), board.repo()
    gate = f"{daemon(mark, tmp_path / 'there')}; sleep 1000"
    task, _ = reviewed(board, board.project(repo, gate_command=gate), "write a.txt b")
    with ThreadPoolExecutor() as pool:
        merging = pool.submit(board.refused, "review", task_id=task, action="merge")
        until((tmp_path / "there").exists, "at the gate")
        assert board.refused("review", task_id=task, action="merge")["code"] == "ACTION_NOT_ALLOWED"
        board.done("update_scratchpad", task_id=task, content="a change that leaves it in review")
        assert board.done("review", task_id=task, action="reject", feedback="no")["code"] == "REJECTED"
        refused = merging.result()
    assert (refused["code"], refused["hint"]) == ("ACTION_NOT_ALLOWED", "nothing was merged")
    assert not carriers(mark) and left(board) == []
    assert repo.git("log", "--format=%s", "main") == "Begin" and board.state(task) == "in_progress"


def test_a_gate_ends_with_a_core_that_is_killed(board: Board, tmp_path: Path) -> None:
    mark, repo, go = token(), board.repo(), tmp_path / "go"
    gate = f"{daemon(mark, tmp_path / 'there')}; test -e {go} || sleep 1000"
    task, _ = reviewed(board, board.project(repo, gate_command=gate), "write a.txt b")
    with ThreadPoolExecutor() as pool:
        merging = pool.submit(board.done, "review", task_id=task, action="merge")
        until((tmp_path / "there").exists, "at the gate")
        assert carriers(mark)
        board.core.kill9()
        with pytest.raises((httpx2.HTTPError, OSError)):
            merging.result()
    until(lambda: not carriers(mark), "gone")
    board.core.start()
    go.touch()
    until(lambda: left(board) == [], "cleaned up")
    (tmp_path / "there").unlink()
    assert board.done("review", task_id=task, action="merge")["code"] == "MERGED"
    assert repo.git("show", "main:a.txt") == "b" and not carriers(mark)


def left(board: Board) -> list[str]:
    """What gates and commands have left on disk."""
    folders = [board.core.data_dir / name for name in ("gates", "checks")]
    return [each.path for folder in folders if folder.exists() for each in os.scandir(folder)]
