"""Workers and supervisors that are stopped or killed: nothing of an agent survives, and its end is known."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from quarterdeck.run.attempts import Attempt, Containment, Recovered, probe, recover, transcript
from tests.attempts import (
    LIMIT_SECONDS,
    UNRULY,
    UNRULY_PROCESSES,
    Worker,
    carriers,
    python,
    run,
    said,
    token,
    until,
)
from tests.attempts import spec as described


@pytest.fixture(scope="module")
def containment() -> Containment:
    return run(probe)


@pytest.fixture(params=["best", "plain"])
def namespace(request: pytest.FixtureRequest, containment: Containment) -> bool:
    """Both ways to contain an agent; where there are no namespaces the best is the plain one."""
    return request.param == "best" and containment.namespace


@pytest.fixture(autouse=True)
def nothing_is_left_below_us() -> Iterator[None]:
    """No child of ours stays, not even as a zombie."""
    before = set(psutil.Process().children())
    yield
    until(lambda: set(psutil.Process().children()) <= before)


def recovered(root: Path) -> list[Recovered]:
    return run(lambda: recover(root))


def reason(worker: Worker) -> str | None:
    record = worker.record("exit")
    return record["reason"] if record else None


def test_killed_worker_takes_everything_along(tmp_path: Path, namespace: bool) -> None:
    mark = token()
    with Worker(tmp_path / "a", python(UNRULY, mark), namespace=namespace) as worker:
        worker.says(b"ready")
        until(lambda: len(carriers(mark)) == UNRULY_PROCESSES)
        worker.signal(signal.SIGKILL)
        until(lambda: not carriers(mark))
        until(lambda: reason(worker))
    assert reason(worker) == "lifeline"
    [found] = recovered(tmp_path)
    assert (found.folder.name, found.outcome) == ("a", "stopped")
    assert found.exit is not None
    assert (found.exit.reason, found.exit.signal) == ("lifeline", signal.SIGTERM)


def test_stopped_worker_loses_its_lease_and_with_it_the_agent(tmp_path: Path, namespace: bool) -> None:
    mark = token()
    with Worker(tmp_path / "a", python(UNRULY, mark), lease_seconds=1.0, namespace=namespace) as worker:
        worker.says(b"ready")
        worker.signal(signal.SIGSTOP)
        until(lambda: not carriers(mark), 1.0 + LIMIT_SECONDS)
        until(lambda: reason(worker))
        worker.signal(signal.SIGCONT)
        assert json.loads(worker.line())["reason"] == reason(worker) == "lease"


def test_killed_supervisor_takes_everything_along_and_the_worker_knows(
    tmp_path: Path, namespace: bool
) -> None:
    mark = token()
    with Worker(tmp_path / "a", python(UNRULY, mark), namespace=namespace) as worker:
        worker.says(b"ready")
        os.kill(worker.supervisor, signal.SIGKILL)
        # Without a namespace it is the worker that ends the leftovers.
        until(lambda: not carriers(mark))
        assert json.loads(worker.line())["reason"] == reason(worker) == "lost"


def test_leftovers_of_a_killed_supervisor_are_found_at_the_next_start(
    tmp_path: Path, namespace: bool
) -> None:
    mark = token()
    with Worker(tmp_path / "a", python(UNRULY, mark), namespace=namespace) as worker:
        worker.says(b"ready")
        worker.signal(signal.SIGSTOP)
        os.kill(worker.supervisor, signal.SIGKILL)
        worker.signal(signal.SIGKILL)
        worker.process.wait()
        if namespace:
            until(lambda: not carriers(mark))
        else:
            until(lambda: len(carriers(mark)) == UNRULY_PROCESSES)
    stranger = subprocess.Popen(["sleep", mark])
    try:
        began = time.monotonic()
        [found] = recovered(tmp_path)
        assert time.monotonic() - began < LIMIT_SECONDS
        # The same program with the same arguments, but not of this attempt: names prove nothing.
        assert carriers(mark) == [stranger.pid]
    finally:
        stranger.kill()
        stranger.wait()
    assert found.outcome == "lost"
    assert found.exit is not None
    assert (found.exit.reason, found.exit.left) == ("lost", False)
    assert recovered(tmp_path) == [found]


def test_supervisor_that_hangs_is_ended_at_the_next_start(tmp_path: Path, namespace: bool) -> None:
    mark = token()
    with Worker(tmp_path / "a", ["sleep", mark], namespace=namespace) as worker:
        until(lambda: carriers(mark))
        supervisor = psutil.Process(worker.supervisor)
        supervisor.suspend()
    try:
        assert len(carriers(mark)) == 1
        [found] = recovered(tmp_path)
    finally:
        with contextlib.suppress(psutil.NoSuchProcess):
            supervisor.resume()
    assert found.outcome == "stopped"
    assert carriers(mark) == []


def test_supervisor_told_to_stop_ends_its_agent(tmp_path: Path, namespace: bool) -> None:
    mark = token()
    with Worker(tmp_path / "a", ["sleep", mark], namespace=namespace) as worker:
        os.kill(worker.supervisor, signal.SIGTERM)
        assert json.loads(worker.line())["reason"] == "terminated"
    assert carriers(mark) == []


def test_agent_that_ended_by_itself_while_the_worker_was_away_is_not_lost(
    tmp_path: Path, namespace: bool
) -> None:
    fifo = tmp_path / "stdin"
    os.mkfifo(fifo)
    code = "print('ready', flush=True); print('done', input()); raise SystemExit(4)"
    feed = os.open(fifo, os.O_RDWR)
    try:
        with Worker(tmp_path / "a", python(code), stdin=str(fifo), namespace=namespace) as worker:
            worker.says(b"ready")
            worker.signal(signal.SIGSTOP)
            os.write(feed, b"well\n")
            until(lambda: reason(worker))
    finally:
        os.close(feed)
    [found] = recovered(tmp_path)
    assert found.outcome == "exited"
    assert found.exit is not None
    assert (found.exit.reason, found.exit.code) == ("exited", 4)
    assert transcript(found.folder) == b"ready\ndone well\n"


def test_worker_that_dies_while_leftovers_are_ended_changes_nothing(tmp_path: Path, namespace: bool) -> None:
    mark = token()
    with Worker(tmp_path / "a", python(UNRULY, mark, "6"), namespace=namespace) as worker:
        worker.says(b"ready")
        # Only the child that is deaf to SIGTERM is left: the agent has ended, its grace runs.
        until(lambda: len(carriers(mark)) == 1)
        assert reason(worker) is None
    [found] = recovered(tmp_path)
    assert carriers(mark) == []
    assert found.outcome == "exited"
    assert found.exit is not None
    assert found.exit.code == 6


def test_attempt_of_a_living_worker_is_left_alone(tmp_path: Path, namespace: bool) -> None:
    mark = token()
    with Worker(tmp_path / "a", ["sleep", mark], namespace=namespace):
        until(lambda: carriers(mark))
        assert recovered(tmp_path) == [Recovered(tmp_path / "a", "running", None)]
        assert len(carriers(mark)) == 1
    [found] = recovered(tmp_path)
    assert found.outcome == "stopped"
    assert carriers(mark) == []


def test_attempt_that_never_came_to_run_is_lost(tmp_path: Path) -> None:
    assert recovered(tmp_path / "nowhere") == []
    with Worker(tmp_path / "a", ["true"]) as worker:
        assert json.loads(worker.line())["code"] == 0
        identity = worker.record("identity")
    assert identity is not None
    (tmp_path / "empty").mkdir()
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "attempt.json").write_text(json.dumps({"worker": identity["worker"]}))
    assert [(each.folder.name, each.outcome) for each in recovered(tmp_path)] == [
        ("a", "exited"),
        ("b", "lost"),
    ]
    assert not (tmp_path / "b" / "attempt.json").exists()


def test_process_that_only_reuses_the_number_is_spared(tmp_path: Path) -> None:
    stranger = subprocess.Popen(["sleep", "300"])
    try:
        with Worker(tmp_path / "a", ["true"]) as worker:
            worker.line()
        identity = json.loads((tmp_path / "a" / "identity.json").read_text())
        for pid_of in (identity["supervisor"], identity["worker"]):
            pid_of[0] = stranger.pid
        (tmp_path / "a" / "identity.json").write_text(json.dumps({**identity, "pid": stranger.pid}))
        (tmp_path / "a" / "exit.json").unlink()
        [found] = recovered(tmp_path)
        assert found.outcome == "lost"
        assert stranger.poll() is None
    finally:
        stranger.kill()
        stranger.wait()


def test_exit_record_is_complete_or_absent_whenever_the_supervisor_is_killed(
    tmp_path: Path, namespace: bool
) -> None:
    async def once(number: int) -> None:
        folder = tmp_path / str(number)
        attempt = await Attempt.start(folder, described(["true"], tmp_path, namespace=namespace))
        assert attempt.identity is not None
        # By turns after some time, and in the midst of writing the record.
        end = time.monotonic() + (number * 0.002 if number % 2 else 5)
        while time.monotonic() < end and not any(folder.glob("*exit.json*")):
            await asyncio.sleep(0)
        with contextlib.suppress(ProcessLookupError):
            os.kill(attempt.identity.supervisor.pid, signal.SIGKILL)
        written = (folder / "exit.json").read_text() if (folder / "exit.json").exists() else None
        ended = await attempt.wait()
        if written is not None:
            assert json.loads(written)["reason"] == ended.reason == "exited"
        assert ended.reason in {"exited", "lost"}

    async def body() -> None:
        for number in range(16):
            await once(number)

    run(body)


def test_terminals_that_the_worker_started_are_not_the_agents(tmp_path: Path, namespace: bool) -> None:
    """A tmux server becomes nobody's child, as what agents leave behind does."""
    tmux = ["tmux", "-S", str(tmp_path / "tmux"), "-f", "/dev/null"]
    subprocess.run([*tmux, "new-session", "-d", "sleep 300"], check=True, env={"PATH": os.environ["PATH"]})
    try:
        mark = token()

        async def body() -> None:
            attempt = await Attempt.start(
                tmp_path / "a", described(python(UNRULY, mark), tmp_path, namespace=namespace)
            )
            await said(attempt, b"ready")
            assert attempt.identity is not None
            os.kill(attempt.identity.supervisor.pid, signal.SIGKILL)
            assert (await attempt.wait()).reason == "lost"

        run(body)
        assert carriers(mark) == []
        assert recovered(tmp_path)[0].outcome == "lost"
        assert subprocess.run([*tmux, "has-session"], check=False).returncode == 0
    finally:
        subprocess.run([*tmux, "kill-server"], check=True)
