"""Workers with real processes: woken, cancelled, stopped, killed; what they leave, and what they take up."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from quarterdeck.core import queue
from quarterdeck.core.context import Core
from quarterdeck.core.queue import SYSTEM, Ending
from quarterdeck.domain.records import Job
from quarterdeck.events import Event
from quarterdeck.run.adapters.base import Assignment
from quarterdeck.run.worker import Failed, JobRun, Worker
from quarterdeck.store import artifacts, workers
from quarterdeck.store import jobs as rows
from tests.attempts import carriers, token
from tests.attempts import until as wait_until
from tests.core_process import clean_environment
from tests.integration.own_core import command, quarterdeck
from tests.jobs import ANN, RUNNERS, WorkerProcess, a_core, ended, put, reaches, working
from tests.store import ask, until


def run(body: Callable[[], Coroutine[Any, Any, None]]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(120):
            await body()

    asyncio.run(bounded())


def queue_job(core: Core, script: str = "true", **fields: Any) -> Coroutine[Any, Any, Job]:
    return core.db.tx(ANN, put, script, **fields)


async def nothing_left(core: Core, mark: str | None = None) -> None:
    """No process with this in its command line, and no folder of an attempt."""
    root = core.data_dir / "attempts"
    await until(lambda: not (root.is_dir() and any(root.iterdir())))
    if mark is not None:
        await until(lambda: carriers(mark) == [])


async def file_of(core: Core, job: Job, name: str) -> bytes:
    found = await core.db.read(ANN, artifacts.get, job.id, name)
    assert found is not None, f"{job.id} has left no {name}"
    return found.content


def sleeper(mark: str) -> str:
    """A script that says so when it sleeps, and has a child that left its session."""
    return f"echo up; setsid sleep {mark} & exec sleep {mark}"


async def slept(core: Core, job: Job, mark: str) -> None:
    """Wait until both of them run."""
    await reaches(core, job, "RUNNING")
    await until(lambda: len(carriers(f"sleep\0{mark}")) == 2)


def test_jobs_are_picked_up_as_they_come_and_leave_nothing_but_their_result(tmp_path: Path) -> None:
    async def body() -> None:
        async with a_core(tmp_path, heartbeat_seconds=300.0, lease_seconds=3600.0) as core:
            async with working(core):
                for number in range(3):
                    # No timer of this worker rings within the hour: only the event can wake it.
                    job = await queue_job(core, f"cat; echo $QUARTERDECK_JOB_ID {number}; echo woe >&2")
                    done = await ended(core, job)
                    assert (done.state, done.summary) == ("SUCCEEDED", f"{job.id} {number}")
                    assert await file_of(core, job, "logs.txt") == f"{job.id} {number}\nwoe\n".encode()
                await nothing_left(core)
                [row] = await core.db.read(SYSTEM, workers.listing)
                assert (row.place, row.kinds, row.concurrency) == (core.place, list(RUNNERS), 3)
            assert await core.db.read(SYSTEM, workers.listing) == []

    run(body)


def test_an_agents_own_failure_is_final(tmp_path: Path) -> None:
    async def body() -> None:
        async with a_core(tmp_path) as core, working(core):
            failed = await ended(core, await queue_job(core, "echo why >&2; exit 3"))
            assert (failed.state, failed.reason_code, failed.attempt) == ("FAILED", "EXECUTOR_ERROR", 1)
            assert "exit code 3" in (failed.summary or "")
            for agent in ("away", "nobody", "research-agent"):
                unable = await ended(core, await queue_job(core, agent=agent))
                assert (unable.state, unable.reason_code) == ("FAILED", "EXECUTOR_ERROR")
                assert agent in (unable.summary or "")
            await nothing_left(core)

    run(body)


def test_a_runner_that_breaks_fails_its_job_and_the_worker_goes_on(tmp_path: Path) -> None:
    async def breaking(job: JobRun) -> Ending:
        if job.job.spec["script"] == "refuse":
            raise Failed("POLICY", "not allowed", files=[queue.File("out.md", "text/markdown", b"why")])
        raise RuntimeError("sk-not-for-anybody")

    async def body() -> None:
        async with a_core(tmp_path) as core:
            worker = Worker(core, {"relay": breaking})
            worker.start()
            broken = await ended(core, await queue_job(core))
            assert (broken.state, broken.reason_code) == ("FAILED", "INTERNAL_ERROR")
            assert broken.summary == "Something broke on our side (RuntimeError)."
            refused = await ended(core, await queue_job(core, "refuse"))
            assert (refused.reason_code, refused.summary) == ("POLICY", "not allowed")
            assert await file_of(core, refused, "out.md") == b"why"
            await worker.close()
            await nothing_left(core)

    run(body)


def test_a_cancel_ends_the_process_at_once_keeps_its_log_and_the_worker_goes_on(tmp_path: Path) -> None:
    async def body() -> None:
        async with a_core(tmp_path) as core, working(core, concurrency=1):
            mark = token()
            job = await queue_job(core, sleeper(mark))
            await slept(core, job, mark)
            cancelled = await core.db.tx(ANN, queue.cancel, job, "enough")
            assert cancelled is not None
            await nothing_left(core, mark)
            after = await queue.get(core, ANN, job.id)
            assert (after.state, after.summary) == ("CANCELED", "enough")
            assert await file_of(core, job, "logs.txt") == b"up\n"
            assert (await ended(core, await queue_job(core))).state == "SUCCEEDED"

    run(body)


def test_jobs_cancelled_at_any_moment_of_their_launch_leave_nothing(
    tmp_path: Path, database_url: str
) -> None:
    async def body() -> None:
        async with a_core(tmp_path, database_url) as core, working(core, concurrency=4):
            mark = token()

            async def one(number: int) -> None:
                job = await queue_job(core, f"exec sleep {mark}")
                # From before the claim until the process runs.
                await asyncio.sleep(number * 0.007)
                assert await core.db.tx(ANN, queue.cancel, job, "changed my mind") is not None
                assert (await ended(core, job)).state == "CANCELED"

            await asyncio.gather(*(one(number) for number in range(16)))
            await nothing_left(core, mark)
            assert (await ended(core, await queue_job(core))).state == "SUCCEEDED"

    run(body)


def test_a_job_that_takes_too_long_fails_with_a_timeout(tmp_path: Path) -> None:
    async def body() -> None:
        async with a_core(tmp_path) as core, working(core):
            mark = token()
            late = await ended(core, await queue_job(core, sleeper(mark), timeout_s=1))
            assert (late.state, late.reason_code) == ("FAILED", "TIMEOUT")
            assert await file_of(core, late, "logs.txt") == b"up\n"
            await nothing_left(core, mark)

    run(body)


def test_secrets_of_the_environment_are_neither_in_the_log_nor_in_events(tmp_path: Path) -> None:
    async def body() -> None:
        async with a_core(tmp_path) as core, working(core):
            told: list[Event] = []
            core.bus.on("job.progress", told.append)
            script = "echo $API_KEY; echo $QUARTERDECK_TOKEN; echo $QUARTERDECK_TOKEN >&2; env | cut -d= -f1"
            done = await ended(core, await queue_job(core, script, agent="secretive"))
            log = (await file_of(core, done, "logs.txt")).decode()
            assert log.count("[secret]") == 3
            shown = log + repr(told)
            assert "hush" not in shown
            assert "mcp_" not in shown
            assert "PYTHONPATH" not in log, "the core's own environment is not the agent's"

    run(body)


def test_steps_are_told_now_and_then_and_counted_all(tmp_path: Path) -> None:
    async def body() -> None:
        async with a_core(tmp_path) as core, working(core):
            told: list[Event] = []
            core.bus.on("job.progress", told.append)
            job = await queue_job(core, "for n in $(seq 400); do echo line $n; done; echo " + "x" * 900)
            await ended(core, job)
            assert 1 <= len(told) <= 20, "of hundreds of lines in a moment"
            assert told[-1].data["messages"] == 401
            assert len(told[-1].data["text"]) <= 500
            assert {event.entity_id for event in told} == {job.id}

    run(body)


def test_a_worker_that_stops_gives_its_jobs_back_and_ends_their_processes(tmp_path: Path) -> None:
    async def body() -> None:
        async with a_core(tmp_path) as core:
            mark = token()
            async with working(core):
                job = await queue_job(core, f"test -e {tmp_path / 'again'} || {{ {sleeper(mark)}; }}")
                await slept(core, job, mark)
            assert carriers(f"sleep\0{mark}") == []
            back = await queue.get(core, ANN, job.id)
            assert (back.state, back.attempt, back.worker) == ("QUEUED", 0, None)
            await nothing_left(core)
            (tmp_path / "again").touch()
            async with working(core):
                done = await ended(core, job)
            assert (done.state, done.attempt) == ("SUCCEEDED", 1)

    run(body)


def test_a_job_whose_lease_was_taken_is_ended_where_it_ran_and_run_elsewhere(tmp_path: Path) -> None:
    async def body() -> None:
        async with a_core(tmp_path) as core, working(core):
            mark = token()
            job = await queue_job(core, f"test -e {tmp_path / 'again'} || {{ {sleeper(mark)}; }}")
            await slept(core, job, mark)
            (tmp_path / "again").touch()
            running = await queue.get(core, ANN, job.id)
            await core.db.tx(SYSTEM, rows.change, running, {"lease_until": 1})
            await core.db.tx(SYSTEM, queue.tidy, 3)
            done = await ended(core, job)
            assert (done.state, done.attempt) == ("SUCCEEDED", 2)
            await nothing_left(core, mark)

    run(body)


def test_an_agent_whose_supervisor_is_killed_is_run_again(tmp_path: Path) -> None:
    async def body() -> None:
        async with a_core(tmp_path) as core, working(core):
            mark = token()
            job = await queue_job(core, f"test -e {tmp_path / 'again'} || {{ {sleeper(mark)}; }}")
            await slept(core, job, mark)
            (tmp_path / "again").touch()
            identity = core.data_dir / "attempts" / f"{job.id}-1" / "agent" / "identity.json"
            os.kill(json.loads(identity.read_text())["supervisor"][0], signal.SIGKILL)
            done = await ended(core, job)
            assert (done.state, done.attempt) == ("SUCCEEDED", 2)
            await nothing_left(core, mark)

    run(body)


def test_waiting_jobs_expire_by_themselves_while_the_worker_is_busy(tmp_path: Path) -> None:
    async def body() -> None:
        async with a_core(tmp_path) as core, working(core, concurrency=1):
            mark = token()
            busy = await queue_job(core, sleeper(mark))
            await slept(core, busy, mark)
            late = await ended(core, await queue_job(core, ttl_s=0.2))
            assert (late.state, late.attempt) == ("EXPIRED", 0)
            await core.db.tx(ANN, queue.cancel, busy, "enough")

    run(body)


def test_prompts_run_beside_a_worker_that_is_full(tmp_path: Path) -> None:
    async def body() -> None:
        async with a_core(tmp_path) as core, working(core, concurrency=1):
            mark = token()
            busy = await queue_job(core, sleeper(mark))
            await slept(core, busy, mark)
            assert (await ended(core, await queue_job(core, kind="prompt"))).state == "SUCCEEDED"
            await core.db.tx(ANN, queue.cancel, busy, "enough")

    run(body)


def test_what_a_killed_worker_ran_is_run_again_by_the_next_without_waiting_for_its_lease(
    tmp_path: Path, postgres: Any, postgres_template: str
) -> None:
    async def body(url: str) -> None:
        mark, again = token(), tmp_path / "again"
        worker = WorkerProcess(tmp_path / "worker", url, lease_seconds=3600.0)
        async with a_core(tmp_path / "core", url) as core:
            with worker.running():
                job = await queue_job(core, f"test -e {again} || {{ {sleeper(mark)}; }}")
                await slept(core, job, mark)
                lost = await queue.get(core, ANN, job.id)
            again.touch()
            await until(lambda: carriers(f"sleep\0{mark}") == [])
            with worker.running():
                done = await ended(core, job)
                assert (done.state, done.attempt) == ("SUCCEEDED", 2)
                assert done.worker != lost.worker
                mark = token()
                other = await queue_job(core, sleeper(mark))
                await slept(core, other, mark)
                # From another process: the event ends it there.
                await core.db.tx(ANN, queue.cancel, other, "enough")
                await until(lambda: carriers(f"sleep\0{mark}") == [])
                attempts = tmp_path / "worker" / "attempts"
                await until(lambda: not any(attempts.iterdir()))
                worker.end(signal.SIGTERM)
            assert await core.db.read(SYSTEM, workers.listing) == []

    with _database(postgres, postgres_template) as url:
        run(lambda: body(url))


def test_a_worker_that_was_stopped_and_wakes_up_late_has_lost_its_job_and_its_agent(
    tmp_path: Path, postgres: Any, postgres_template: str
) -> None:
    async def body(url: str) -> None:
        mark, again = token(), tmp_path / "again"
        worker = WorkerProcess(tmp_path / "worker", url, lease_seconds=6.0, heartbeat_seconds=1.0)
        async with a_core(tmp_path / "core", url) as core:
            with worker.running():
                # It says nothing: who is stopped while it writes that down holds up everybody for a while.
                silent = sleeper(mark).removeprefix("echo up; ")
                job = await queue_job(core, f"test -e {again} || {{ {silent}; }}")
                await slept(core, job, mark)
                again.touch()
                worker.send(signal.SIGSTOP)
                async with working(core) as other:
                    done = await ended(core, job)
                    assert (done.state, done.worker) == ("SUCCEEDED", other.id)
                    # Its supervisor saw that nobody renewed the lease.
                    await until(lambda: carriers(f"sleep\0{mark}") == [])
                worker.send(signal.SIGCONT)
                attempts = tmp_path / "worker" / "attempts"
                await until(lambda: not any(attempts.iterdir()))
                assert await queue.get(core, ANN, job.id) == done, "what it brings late changes nothing"
                assert (await ended(core, await queue_job(core))).state == "SUCCEEDED", "and it goes on"
                worker.end(signal.SIGTERM)

    with _database(postgres, postgres_template) as url:
        run(lambda: body(url))


def test_an_agent_that_had_ended_when_its_worker_was_killed_is_not_run_again(
    tmp_path: Path, postgres: Any, postgres_template: str
) -> None:
    async def body(url: str) -> None:
        ledger, gate = tmp_path / "ledger", tmp_path / "gate"
        worker = WorkerProcess(tmp_path / "worker", url, lease_seconds=3600.0)
        async with a_core(tmp_path / "core", url) as core:
            with worker.running():
                job = await queue_job(core, f"echo once | tee -a {ledger}", spec={"gate": str(gate)})
                await until(lambda: Path(f"{gate}.reached").exists())
            gate.touch()
            with worker.running():
                done = await ended(core, job)
                worker.end(signal.SIGTERM)
            assert (done.state, done.attempt, done.summary) == ("SUCCEEDED", 1, "once")
            assert ledger.read_text() == "once\n"
            assert await file_of(core, job, "logs.txt") == b"once\n"
            assert list((tmp_path / "worker" / "attempts").iterdir()) == []

    with _database(postgres, postgres_template) as url:
        run(lambda: body(url))


def test_folders_of_jobs_that_ended_meanwhile_are_removed_at_the_start(
    tmp_path: Path, postgres: Any, postgres_template: str
) -> None:
    async def body(url: str) -> None:
        mark = token()
        attempts = tmp_path / "worker" / "attempts"
        worker = WorkerProcess(tmp_path / "worker", url, lease_seconds=3600.0)
        async with a_core(tmp_path / "core", url) as core:
            with worker.running():
                job = await queue_job(core, sleeper(mark))
                await slept(core, job, mark)
            assert [folder.name for folder in attempts.iterdir()] == [f"{job.id}-1"]
            await core.db.tx(ANN, queue.cancel, job, "enough")
            with worker.running():
                await until(lambda: not any(attempts.iterdir()))
                assert (await ended(core, await queue_job(core))).state == "SUCCEEDED"
                worker.end(signal.SIGTERM)
            assert (await queue.get(core, ANN, job.id)).state == "CANCELED"

    with _database(postgres, postgres_template) as url:
        run(lambda: body(url))


def test_several_agents_of_one_attempt_have_a_folder_and_a_log_each(tmp_path: Path) -> None:
    async def twice(job: JobRun) -> Ending:
        said = [
            await job.run_agent(Assignment(f"echo {word}", job.folder, job.folder / "home"))
            for word in ("first", "second")
        ]
        names = sorted(each.name for each in job.folder.iterdir() if (each / "exit.json").exists())
        return Ending("SUCCEEDED", " ".join([*(each.final_text for each in said), *names]))

    async def body() -> None:
        async with a_core(tmp_path) as core:
            worker = Worker(core, {"relay": twice})
            worker.start()
            done = await ended(core, await queue_job(core))
            assert done.summary == "first second agent agent-2"
            assert await file_of(core, done, "logs.txt") == b"first\nsecond\n"
            await worker.close()

    run(body)


def test_an_agent_that_is_spoken_to_gets_long_words_whole_and_is_ended_when_all_is_said(
    tmp_path: Path,
) -> None:
    async def body() -> None:
        async with a_core(tmp_path) as core, working(core):
            # More than a pipe holds.
            done = await ended(core, await queue_job(core, "x" * 300_000, agent="talker"))
            assert (done.state, done.summary) == ("SUCCEEDED", "heard 300000")
            await nothing_left(core, str(tmp_path / "attempts"))

    run(body)


def test_what_an_embedded_core_ran_when_it_was_killed_is_run_again_at_the_next_start(tmp_path: Path) -> None:
    mark, again = token(), tmp_path / "again"
    url = f"sqlite:///{tmp_path / 'quarterdeck.db'}"

    async def begin() -> Job:
        async with a_core(tmp_path, url) as core:
            return await queue_job(core, f"test -e {again} && touch {again}.done || {{ {sleeper(mark)}; }}")

    async def check(job: Job) -> None:
        async with a_core(tmp_path, url) as core:
            done = await queue.get(core, ANN, job.id)
            assert (done.state, done.attempt) == ("SUCCEEDED", 2)

    job = asyncio.run(begin())
    core = WorkerProcess(tmp_path, url, serving=True, lease_seconds=3600.0)
    with core.running():
        wait_until(lambda: len(carriers(f"sleep\0{mark}")) == 2, 60)
    again.touch()
    with core.running():
        wait_until(lambda: Path(f"{again}.done").exists(), 60)
        wait_until(lambda: not any((tmp_path / "attempts").iterdir()), 60)
        core.end(signal.SIGTERM)
    asyncio.run(check(job))
    assert carriers(f"sleep\0{mark}") == []


@pytest.mark.parametrize("given", [[], ["--database", "sqlite:///quarterdeck.db"]])
def test_a_worker_on_an_embedded_database_is_refused(tmp_path: Path, given: list[str]) -> None:
    refused = quarterdeck("worker", "--data-dir", str(tmp_path), *given)
    assert refused.returncode == 1
    assert "a worker needs the PostgreSQL database of its core" in refused.stderr


def test_the_worker_command_comes_tells_of_itself_and_leaves_in_order(
    tmp_path: Path, postgres: Any, postgres_template: str
) -> None:
    with _database(postgres, postgres_template) as url:
        given = ("worker", "--database", url, "--data-dir", str(tmp_path), "--mcp-url", "http://127.0.0.1:1")
        with subprocess.Popen(command(*given), env=clean_environment(), stderr=subprocess.DEVNULL) as worker:
            try:
                wait_until(lambda: ask(url, "select 1 from workers") == [(1,)], 60)
                second = quarterdeck(*given)
                assert second.returncode == 1
                assert "already owns" in second.stderr
                worker.send_signal(signal.SIGTERM)
                assert worker.wait(60) == 0
            finally:
                worker.kill()
        assert ask(url, "select 1 from workers") == []


@contextlib.contextmanager
def _database(postgres: Any, template: str) -> Any:
    url = postgres.create_database(template)
    yield url
    postgres.drop_database(url)
