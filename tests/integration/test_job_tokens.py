"""The token that each attempt of a job has for itself: what it opens, and when it ends."""

from __future__ import annotations

from pathlib import Path

import pytest

from quarterdeck.core import queue, tokens
from quarterdeck.core.limits import RateLimit
from quarterdeck.domain.errors import Denied, NotFound
from quarterdeck.store import tasks as task_rows
from quarterdeck.store import tokens as token_rows
from quarterdeck.surfaces.all import UNION
from quarterdeck.surfaces.table import Desk
from tests.jobs import ANN, DONE, OnAQueue, Queue, run_on_a_queue
from tests.store import new_task, until


@pytest.fixture
def on_a_queue(tmp_path: Path, database_url: str) -> OnAQueue:
    return lambda body: run_on_a_queue(tmp_path, database_url, body)


def test_a_jobs_token_works_for_its_attempt_alone(on_a_queue: OnAQueue) -> None:
    async def body(it: Queue) -> None:
        core = it.core
        gatekeeper = tokens.Gatekeeper(core)

        async def refused(token: str) -> bool:
            return await gatekeeper.caller(token) is None

        await core.db.tx(ANN, task_rows.add, new_task(id="task"))
        first = await it.put(task_id="task")
        claimed = await it.claim("w1", lease=-1)
        assert claimed is not None
        caller = await gatekeeper.caller(claimed.token)
        assert caller is not None
        assert (caller.user_id, caller.profile, caller.task_id) == ("ann", "pair_worker", "task")
        assert claimed.token not in repr(claimed)
        with pytest.raises(Denied):
            await tokens.mint(core, caller, name="another", profile="viewer")
        [listed] = await tokens.listing(core, ANN)
        assert (listed.name, listed.job_id, listed.attempt) == (f"job {first.id}", first.id, 1)
        await it.tidy()
        await until(lambda: refused(claimed.token))
        again = await it.claim("w2")
        assert again is not None
        assert await gatekeeper.caller(again.token) is not None
        await it.do(queue.finish, again.job, DONE)
        await until(lambda: refused(again.token))
        assert await tokens.listing(core, ANN) == []

    on_a_queue(body)


def test_a_job_without_a_task_has_a_token_bound_to_itself(on_a_queue: OnAQueue) -> None:
    async def body(it: Queue) -> None:
        own, other = await it.put(), await it.put(agent="single")
        claimed = await it.claim()
        assert claimed is not None
        caller = await tokens.Gatekeeper(it.core).caller(claimed.token)
        assert caller is not None
        assert (caller.job_id, caller.task_id, caller.bound) == (own.id, own.id, True)
        assert (await queue.get(it.core, caller, own.id)).id == own.id
        with pytest.raises(NotFound):
            await queue.get(it.core, caller, other.id)
        with pytest.raises(Denied):
            await tokens.mint(it.core, caller, name="another", profile="viewer")
        await it.do(queue.cancel, own, "no", caller=ANN)
        assert await it.do(token_rows.live_of_job, own.id) == []

    on_a_queue(body)


def test_a_jobs_token_opens_the_catalogs_and_its_own_rows_alone(on_a_queue: OnAQueue) -> None:
    async def body(it: Queue) -> None:
        for name in ("own", "other"):
            await it.do(task_rows.add, new_task(id=name), caller=ANN)
        await it.put(task_id="own")
        claimed = await it.claim()
        assert claimed is not None
        caller = await tokens.Gatekeeper(it.core).caller(claimed.token)
        assert caller is not None
        desk = Desk(it.core, UNION, RateLimit(0), lambda *_: None)
        for name, arguments, refused in (
            ("list_agents", {}, False),
            ("task_get", {"task_id": "own"}, False),
            ("task_get", {"task_id": "other"}, True),
            ("task_create", {"title": "more"}, True),
            ("task_list", {}, True),
        ):
            answer = await desk.call(caller, name, arguments)
            assert answer["isError"] is refused, (name, answer)
        await it.core.settle()

    on_a_queue(body)
