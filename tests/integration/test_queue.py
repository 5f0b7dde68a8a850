"""The queue on both databases: who gets which job, who may write to it, and that an ended job stays ended."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text

from quarterdeck.core import queue
from quarterdeck.core.queue import Ending, File
from quarterdeck.domain.callers import Caller
from quarterdeck.domain.errors import Conflict, Invalid, NotFound, RateLimited
from quarterdeck.domain.jobs import Waiting
from quarterdeck.domain.records import Job, WorkerRow
from quarterdeck.store import artifacts, jobs
from quarterdeck.store.admission import waiting_for
from quarterdeck.store.tx import Tx
from tests.jobs import ANN, BOB, DONE, KINDS, OnAQueue, Queue, a_queue, put, run_on_a_queue
from tests.store import ask


@pytest.fixture
def on_a_queue(tmp_path: Path, database_url: str) -> OnAQueue:
    return lambda body: run_on_a_queue(tmp_path, database_url, body)


def test_the_urgent_come_first_and_of_these_the_oldest(on_a_queue: OnAQueue) -> None:
    async def body(it: Queue) -> None:
        low, normal, later, urgent = [await it.put(priority=n) for n in (2, 1, 1, 0)]
        order = [(await it.take()).id for _ in range(4)]
        assert order == [urgent.id, normal.id, later.id, low.id]
        assert await it.claim() is None

    on_a_queue(body)


def test_what_a_job_waits_for_is_known_and_whether_any_worker_would_take_it(on_a_queue: OnAQueue) -> None:
    async def body(it: Queue) -> None:
        job = await it.put(place="here")

        async def waiting(minutes: int = 60) -> Any:
            return await it.do(waiting_for, job, minutes * 60_000_000)

        async def arrive(name: str, place: str, room: int) -> None:
            await it.do(queue.arrive, WorkerRow(name, place, "host", 1, KINDS, room, 0, 0))

        nobody = Waiting("no worker runs jobs where it belongs", missing=True)
        assert await waiting() == nobody
        await arrive("elsewhere", "there", 3)
        await arrive("resting", "here", 0)
        assert await waiting() == nobody
        await arrive("w", "here", 1)
        assert await waiting() is None
        assert await waiting(-1) == nobody, "a worker that was not heard of is none"
        await it.put(place="here", priority=0)
        await it.take("w", place="here")
        assert await waiting() == Waiting("all 1 places for jobs are taken")

    on_a_queue(body)


def test_a_lost_job_keeps_its_place_among_the_waiting(on_a_queue: OnAQueue) -> None:
    async def body(it: Queue) -> None:
        first, second = await it.put(), await it.put()
        lost = await it.take(lease=-1)
        assert lost.id == first.id
        await it.tidy()
        assert (await it.get(first)).state == "STALE"
        again = await it.take()
        assert (again.id, again.attempt) == (first.id, 2)
        assert (await it.take()).id == second.id

    on_a_queue(body)


def test_an_agent_never_has_more_jobs_than_its_limit_however_many_workers_claim(on_a_queue: OnAQueue) -> None:
    async def body(it: Queue) -> None:
        for _ in range(6):
            await it.put(agent="double")
        other = await it.put(agent="sh", priority=2)
        workers = [f"w{n % 2}" for n in range(8)]
        claimed = await asyncio.gather(*(it.claim(worker) for worker in workers))
        taken = [each.job for each in claimed if each is not None]
        by_agent = sorted(job.agent or "" for job in taken)
        assert by_agent == ["double", "double", "sh"], "the agent's limit holds nobody else up"
        assert other.id in {job.id for job in taken}
        assert await it.claim() is None
        await it.do(queue.finish, next(job for job in taken if job.agent == "double"), DONE)
        assert (await it.take()).agent == "double"
        assert await it.claim() is None

    on_a_queue(body)


def test_an_agent_without_a_limit_takes_as_many_jobs_as_a_worker(on_a_queue: OnAQueue) -> None:
    async def body(it: Queue) -> None:
        limits = await it.do(lambda tx: dict(tx.all(text("select id, max_concurrent from agents"))))
        assert (limits["usual"], limits["single"]) == (3, 1)
        for _ in range(4):
            await it.put(agent="usual")
        assert len([await it.take() for _ in range(3)]) == 3
        assert await it.claim() is None

    on_a_queue(body)


def test_prompts_run_one_at_a_time_for_each_user_and_no_limit_counts_them(on_a_queue: OnAQueue) -> None:
    async def body(it: Queue) -> None:
        await it.put(agent="single")
        first = await it.put(kind="prompt", agent="single")
        second = await it.put(kind="prompt", agent="single")
        of_bob = await it.put(BOB, kind="prompt", agent="single")
        claimed = await asyncio.gather(*(it.claim(f"w{n}") for n in range(6)))
        taken = {each.job.id: each.job for each in claimed if each is not None}
        assert len(taken) == 3
        assert {first.id, of_bob.id} < taken.keys()
        await it.do(queue.finish, taken[first.id], DONE)
        assert (await it.take()).id == second.id
        assert await it.claim() is None

    on_a_queue(body)


def test_a_job_of_a_place_goes_to_a_worker_of_that_place(on_a_queue: OnAQueue) -> None:
    async def body(it: Queue) -> None:
        job = await it.put(place="here")
        assert await it.claim(place="there") is None
        assert await it.claim() is None
        assert await it.claim(kinds=["auto"], place="here") is None
        assert (await it.take(place="here")).id == job.id

    on_a_queue(body)


def test_a_job_that_waited_too_long_expires_and_never_runs(on_a_queue: OnAQueue) -> None:
    async def body(it: Queue) -> None:
        late, patient = await it.put(ttl_s=0), await it.put(ttl_s=600)
        assert (await it.take(lease=-1)).id == patient.id
        assert await it.claim() is None
        await it.tidy()
        expired = await it.get(late)
        assert (expired.state, expired.attempt, expired.reason_code) == ("EXPIRED", 0, None)
        assert expired.finished_at is not None
        assert (await it.get(patient)).state == "STALE"
        await it.do(jobs.change, await it.get(patient), {"expires_at": 1})
        assert await it.claim() is None
        await it.tidy()
        assert (await it.get(patient)).state == "EXPIRED", "one that lost its worker waits as others do"

    on_a_queue(body)


def test_a_worker_that_wakes_up_late_is_refused_in_all_it_writes(on_a_queue: OnAQueue) -> None:
    async def body(it: Queue) -> None:
        await it.put()
        late = await it.take("late", lease=-1)
        await it.tidy()
        fresh = await it.take("fresh")
        assert (fresh.id, fresh.attempt) == (late.id, 2)
        for write, *args in (
            (queue.finish, DONE),
            (queue.progress,),
            (queue.give_back,),
            (queue.lose, 3),
            (queue.take_over, "late", 60.0),
        ):
            with pytest.raises(Conflict):
                await it.do(write, late, *args)
        assert await it.do(queue.beat, "late", 60.0) == set()
        assert await it.do(queue.beat, "fresh", 60.0) == {(fresh.id, 2)}
        assert (await it.get(fresh)).state_version == fresh.state_version, "no refused call changed anything"
        await it.do(queue.finish, fresh, DONE)

    on_a_queue(body)


def test_an_ended_job_never_changes_and_its_version_rose_with_every_change(on_a_queue: OnAQueue) -> None:
    async def body(it: Queue) -> None:
        job = await it.put()
        running = await it.take()
        cancelled = await it.do(queue.cancel, job, "no more", caller=ANN)
        assert (cancelled.state, cancelled.summary) == ("CANCELED", "no more")
        for write, *args in ((queue.finish, DONE), (queue.give_back,), (queue.lose, 3)):
            with pytest.raises(Conflict):
                await it.do(write, running, *args)
        assert await it.do(queue.cancel, job, "again", caller=ANN) is None
        await it.tidy()
        assert await it.get(job) == cancelled
        assert [job.state_version, running.state_version, cancelled.state_version] == [1, 2, 3]
        told = [(e.kind, e.data["state"], e.data["state_version"]) for e in await it.told(job)]
        assert told[-1] == ("job.finished", "CANCELED", 3)
        assert [kind for kind, *_ in told].count("job.finished") == 1

    on_a_queue(body)


def test_nobody_cancels_the_job_of_another(on_a_queue: OnAQueue) -> None:
    async def body(it: Queue) -> None:
        job = await it.put()
        assert await it.do(queue.cancel, job, "mine", caller=BOB) is None
        assert (await it.get(job)).state == "QUEUED"
        with pytest.raises(NotFound):
            await queue.get(it.core, BOB, job.id)

    on_a_queue(body)


def test_a_job_that_loses_its_workers_is_run_again_and_then_given_up(on_a_queue: OnAQueue) -> None:
    async def body(it: Queue) -> None:
        job = await it.put()
        for attempt in (1, 2, 3):
            assert (await it.take(f"w{attempt}", lease=-1)).attempt == attempt
            await it.tidy(max_attempts=3)
        failed = await it.get(job)
        assert (failed.state, failed.reason_code) == ("FAILED", "INTERNAL_ERROR")
        assert failed.summary == "It lost its worker 3 times."
        kinds = [event.kind for event in await it.told(job)]
        assert kinds[-3:] == ["job.stale", "job.started", "job.finished"]

    on_a_queue(body)


def test_a_job_that_is_given_back_counts_no_attempt(on_a_queue: OnAQueue) -> None:
    async def body(it: Queue) -> None:
        await it.put()
        for _ in range(5):
            job = await it.take()
            assert job.attempt == 1
            assert (await it.do(queue.give_back, job)).state == "QUEUED"

    on_a_queue(body)


def test_a_key_stands_for_one_job_until_it_failed_or_a_day_has_passed(on_a_queue: OnAQueue) -> None:
    def known(tx: Tx, script: str, kind: str = "relay") -> str | None:
        found = queue.known(tx, kind, "key", {"script": script})
        return found.id if found else None

    async def body(it: Queue) -> None:
        async def ask_for(script: str, caller: Caller = ANN, **options: Any) -> str | None:
            found: str | None = await it.core.db.tx(caller, known, script, **options)
            return found

        assert await ask_for("a") is None
        for ending in (Ending("FAILED", "x", reason="TIMEOUT"), None, DONE):
            job = await it.put(script="a", key="key")
            assert await ask_for("other") == job.id, "a live job is returned whatever the specification"
            assert await ask_for("a", BOB) is None
            assert await ask_for("a", kind="auto") is None
            if ending is None:
                await it.do(queue.cancel, job, "no", caller=ANN)
            else:
                await it.do(queue.finish, await it.take(), ending)
            if ending is not DONE:
                assert await ask_for("a") is None, "after a failure or a cancel the key makes a new job"
        assert await ask_for("a") == job.id
        with pytest.raises(Invalid, match="another specification") as refused:
            await ask_for("other")
        assert refused.value.field == "idempotencyKey"
        yesterday = (job.created_at // 1_000_000 - 24 * 3600) * 1_000_000
        await it.do(jobs.change, await it.get(job), {"finished_at": yesterday})
        assert await ask_for("other") is None

    on_a_queue(body)


def test_a_user_whose_queue_is_full_is_refused_and_nobody_else(on_a_queue: OnAQueue) -> None:
    def guarded(tx: Tx) -> Job:
        queue.check_room(tx, "relay", 3)
        return put(tx)

    async def body(it: Queue) -> None:
        await it.put(kind="auto")  # not counted
        results = await asyncio.gather(
            *(it.do(guarded, caller=ANN) for _ in range(6)), return_exceptions=True
        )
        assert sum(isinstance(each, RateLimited) for each in results) == 3
        await it.do(guarded, caller=BOB)
        await it.do(lambda tx: queue.check_room(tx, "relay", 0), caller=ANN)
        await it.do(queue.finish, await it.take(kinds=["relay"]), DONE)
        await it.do(guarded, caller=ANN)
        with pytest.raises(RateLimited):
            await it.do(guarded, caller=ANN)

    on_a_queue(body)


def test_what_a_job_leaves_is_kept_with_its_digest_in_the_breath_that_ends_it(on_a_queue: OnAQueue) -> None:
    async def body(it: Queue) -> None:
        job = await it.put()
        files = [File("out.md", "text/markdown", b"# fine\n"), File("logs.txt", "text/plain", b"\0\xff")]
        ending = Ending("SUCCEEDED", "fi\0ne", result={"a": 1}, files=files, cost_usd=0.5, output_tokens=7)
        done = await it.do(queue.finish, await it.take(), ending)
        assert (done.summary, done.result, done.cost_usd, done.output_tokens) == ("fine", {"a": 1}, 0.5, 7)
        kept = await it.do(artifacts.get, job.id, "logs.txt")
        assert (kept.content, kept.size, kept.media_type) == (b"\0\xff", 2, "text/plain")
        assert kept.sha256 == hashlib.sha256(b"\0\xff").hexdigest()
        assert [*await it.do(artifacts.names_of, job.id)] == ["logs.txt", "out.md"]
        assert await it.do(artifacts.names_of, job.id, caller=BOB) == {}

    on_a_queue(body)


def test_the_log_of_a_cancelled_job_can_still_be_kept_but_not_over_another(on_a_queue: OnAQueue) -> None:
    async def body(it: Queue) -> None:
        job = await it.put()
        running = await it.take()
        log = File("logs.txt", "text/plain", b"said")
        await it.do(queue.add_files, running, [log])
        assert await it.do(artifacts.names_of, job.id) == {}, "while it runs its end is to come"
        cancelled = await it.do(queue.cancel, job, "no", caller=ANN)
        await it.do(queue.add_files, running, [log])
        await it.do(queue.add_files, running, [File("logs.txt", "text/plain", b"later")])
        assert (await it.do(artifacts.get, job.id, "logs.txt")).content == b"said"
        after = await it.get(job)
        assert (after.state, after.state_version) == ("CANCELED", cancelled.state_version + 1)

    on_a_queue(body)


def test_the_hooks_of_a_kind_run_in_the_transactions_that_start_and_end_it(
    on_a_queue: OnAQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[tuple[str, str, str]] = []

    def hook(name: str) -> Callable[[Tx, Job], None]:
        return lambda tx, job: seen.append((name, job.id, job.state))

    monkeypatch.setitem(queue.STARTING, "auto", hook("start"))
    monkeypatch.setitem(queue.ENDING, "auto", hook("end"))

    async def body(it: Queue) -> None:
        done, lost, late = [await it.put(kind="auto", ttl_s=ttl) for ttl in (None, None, 0)]
        cancelled = await it.put(kind="auto", priority=2)
        await it.do(queue.finish, await it.take(), DONE)
        await it.take(lease=-1)
        await it.tidy(max_attempts=1)
        await it.do(queue.cancel, cancelled, "no", caller=ANN)
        assert set(seen) == {
            ("start", done.id, "RUNNING"),
            ("end", done.id, "SUCCEEDED"),
            ("start", lost.id, "RUNNING"),
            ("end", lost.id, "FAILED"),
            ("end", late.id, "EXPIRED"),
            ("end", cancelled.id, "CANCELED"),
        }

    on_a_queue(body)


def test_a_job_whose_start_is_refused_fails_and_holds_up_nobody(
    on_a_queue: OnAQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(tx: Tx, job: Job) -> None:
        raise Invalid("its task is gone")

    monkeypatch.setitem(queue.STARTING, "auto", refuse)

    async def body(it: Queue) -> None:
        refused, waiting = await it.put(kind="auto"), await it.put()
        assert (await it.take()).id == waiting.id
        failed = await it.get(refused)
        assert (failed.state, failed.summary) == ("FAILED", "its task is gone")

    on_a_queue(body)


def test_who_waits_for_a_jobs_end_is_woken_by_it(on_a_queue: OnAQueue) -> None:
    async def body(it: Queue) -> None:
        job = await it.put()
        waiting = asyncio.create_task(queue.wait_for_end(it.core, ANN, job.id, 3600))
        running = await it.take()
        await it.do(queue.progress, running)
        await it.do(queue.finish, running, DONE)
        assert (await waiting).state == "SUCCEEDED"
        assert (await queue.wait_for_end(it.core, ANN, (await it.put()).id, 0)).state == "QUEUED"

    on_a_queue(body)


def test_claiming_looks_at_waiting_jobs_only_and_sorts_none(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'quarterdeck.db'}"

    async def body() -> None:
        async with a_queue(tmp_path, url) as it:
            await it.put()

    asyncio.run(body())
    for statement in (
        jobs._waiting("QUEUED", KINDS, "here", 1, ["single"], ["ann"]),
        jobs._count_live("relay", "ann"),
    ):
        shown = str(statement.compile(compile_kwargs={"literal_binds": True}))
        plan = [row[3] for row in ask(url, f"explain query plan {shown}")]
        index = "USING INDEX ix_jobs_state_priority_created_at_id (state=?)"
        assert any(step.startswith("SEARCH jobs") and step.endswith(index) for step in plan), plan
        assert not any("TEMP B-TREE" in step or "SCAN" in step for step in plan), plan
