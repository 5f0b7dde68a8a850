"""`tasks_wait`: every code, the cursor, several at once, and what becomes of waiters."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import uuid
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from quarterdeck.config import Settings
from quarterdeck.core import board as core_board
from quarterdeck.core import life, queue, settings, waits
from quarterdeck.core.context import Core as OwnCore
from quarterdeck.domain.callers import Caller
from quarterdeck.domain.records import Job
from tests.core_process import CoreProcess
from tests.mcp_client import MODERN, OLDER, Client, Deck, eventually

ADMIN = "the admin secret of these tests"
FIELDS = {
    *("changed", "timed_out", "task_id", "previous_status", "current_status", "changed_at", "task", "code"),
}
ANN = Caller("ann", "maintainer")

Row = dict[str, Any]


@pytest.fixture(scope="module")
def deck(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deck]:
    folder = tmp_path_factory.mktemp("core")
    with CoreProcess(folder, {"QUARTERDECK_ADMIN_SECRET": ADMIN}) as core, Deck(core.url, ADMIN) as deck:
        yield deck


@pytest.fixture(scope="module")
def token(deck: Deck) -> str:
    minted: str = deck.mint()["token"]
    return minted


@pytest.fixture(scope="module", params=[MODERN, OLDER])
def board(request: pytest.FixtureRequest, deck: Deck, token: str) -> Client:
    return deck.connect(token, version=request.param, surface="board")


@pytest.fixture(scope="module")
def mover(deck: Deck, token: str) -> Client:
    return deck.connect(token, surface="board")


@pytest.fixture(scope="module")
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(4) as pool:
        yield pool


def made(client: Client, **fields: Any) -> str:
    task_id: str = client.done("tasks_create", **{"title": "A task", **fields})["task_id"]
    return task_id


def waiting(deck: Deck, pool: ThreadPoolExecutor, client: Client, **arguments: Any) -> Future[Any]:
    """A wait in another thread, once it has begun."""
    before = in_flight(deck)
    future = pool.submit(client.done, "tasks_wait", **arguments)
    assert eventually(lambda: in_flight(deck) > before or future.done())
    return future


def test_a_change_of_column_wakes(deck: Deck, board: Client, mover: Client, pool: ThreadPoolExecutor) -> None:
    task_id = made(mover)
    cursor = mover.done("get_task", task_id=task_id)["updated_at"]
    answer = waiting(deck, pool, board, task_id=task_id, from_updated_at=cursor)
    mover.done("tasks_move", task_id=task_id, status="IN_PROGRESS")
    found = answer.result(60)
    assert (found["code"], found["previous_status"]) == ("TASK_CHANGED", "BACKLOG")
    assert found.keys() >= FIELDS
    assert (found["changed"], found["timed_out"], found["success"]) == (True, False, True)
    assert found["current_status"] == found["task"]["status"] == "IN_PROGRESS"
    assert found["changed_at"] == found["task"]["updated_at"]
    assert found["task"].keys() == {
        *("id", "title", "status", "state", "priority", "task_type", "project_id"),
        *("updated_at", "created_at"),
    }


def test_a_task_that_is_there_already_is_told_at_once(board: Client) -> None:
    task_id = made(board)
    forms: list[Any] = [["BACKLOG", "DONE"], ["pending"], "backlog,DONE", '["BACKLOG"]']
    for statuses in forms:
        found = board.done("tasks_wait", task_id=task_id, wait_for_status=statuses)
        assert (found["code"], found["changed"], found["timed_out"]) == ("ALREADY_AT_STATUS", True, False)
        assert found["current_status"] == found["previous_status"] == "BACKLOG"


def test_a_cursor_catches_up_with_what_was_missed(board: Client) -> None:
    task_id = made(board)
    cursor = board.done("get_task", task_id=task_id)["updated_at"]
    board.done("tasks_update", task_id=task_id, title="Missed")
    found = board.done("tasks_wait", task_id=task_id, from_updated_at=cursor)
    assert (found["code"], found["changed"]) == ("CHANGED_SINCE_CURSOR", True)
    again = board.done(
        "tasks_wait", task_id=task_id, from_updated_at=found["task"]["updated_at"], timeout_seconds=0.1
    )
    assert again["code"] == "WAIT_TIMEOUT"


def test_with_cursor_and_filter_only_a_target_returns(board: Client) -> None:
    task_id, long_ago = made(board), "2020-01-01T00:00:00Z"
    wait = {"task_id": task_id, "from_updated_at": long_ago}
    assert (
        board.done("tasks_wait", **wait, wait_for_status=["DONE"], timeout_seconds=0.1)["code"]
        == "WAIT_TIMEOUT"
    )
    assert board.done("tasks_wait", **wait, wait_for_status=["BACKLOG"])["code"] == "CHANGED_SINCE_CURSOR"
    now = board.done("get_task", task_id=task_id)["updated_at"]
    found = board.done("tasks_wait", task_id=task_id, from_updated_at=now, wait_for_status=["BACKLOG"])
    assert found["code"] == "ALREADY_AT_STATUS"


def test_a_timeout_says_how_to_go_on(board: Client) -> None:
    task_id = made(board)
    for given in (0.05, "0.05"):
        found = board.done("tasks_wait", task_id=task_id, timeout_seconds=given, wait_for_status=["DONE"])
        assert (found["code"], found["changed"], found["timed_out"]) == ("WAIT_TIMEOUT", False, True)
        assert (found["success"], found["next_tool"]) == (False, "tasks_wait")
        assert found["next_arguments"]["from_updated_at"] == found["task"]["updated_at"]
        assert found["next_arguments"]["wait_for_status"] == ["DONE"]
        assert found["changed_at"] is None


@pytest.mark.parametrize("given", ["0", "-1", "true", '"soon"', "[]", "1e999", "NaN"])
def test_what_is_no_time_is_refused(board: Client, given: str) -> None:
    task_id = made(board)
    result = board.call_json("tasks_wait", f'{{"task_id": "{task_id}", "timeout_seconds": {given}}}')
    assert result.is_error
    assert (result.body["code"], result.body["success"]) == ("INVALID_TIMEOUT", False)


def test_wrong_arguments_are_refused(board: Client) -> None:
    task_id = made(board)
    assert board.refused("tasks_wait", task_id="nowhere")["code"] == "TASK_NOT_FOUND"
    assert board.refused("tasks_wait")["code"] == "INVALID_TASK_ID"
    assert board.refused("tasks_wait", task_ids=[task_id, "nowhere"])["code"] == "TASK_NOT_FOUND"
    assert board.refused("tasks_wait", job_ids=["job_nowhere"])["code"] == "JOB_NOT_FOUND"
    wrong: list[Row] = [
        {"wait_for_status": ["NOWHERE"]},
        {"wait_for_status": 123},
        {"wait_for_status": "[broken"},
        {"from_updated_at": "yesterday"},
        {"mode": "some"},
    ]
    for arguments in wrong:
        assert board.refused("tasks_wait", task_id=task_id, **arguments)["code"] == "INVALID_PARAMS"


def test_a_longer_wait_than_allowed_is_capped_and_says_so(board: Client) -> None:
    task_id = made(board)
    found = board.done("tasks_wait", task_id=task_id, timeout_seconds=100_000, wait_for_status=["BACKLOG"])
    assert (found["timeout_seconds"], found["timeout_capped"]) == (900.0, True)
    assert "capped at 900 seconds" in found["message"]


def test_deletion_ends_a_wait(deck: Deck, board: Client, mover: Client, pool: ThreadPoolExecutor) -> None:
    task_id = made(mover)
    answer = waiting(deck, pool, board, task_id=task_id, wait_for_status=["DONE"])
    mover.done("tasks_delete", task_id=task_id)
    found = answer.result(60)
    assert (found["code"], found["changed"], found["task"]) == ("TASK_DELETED", True, None)
    assert (found["success"], found["current_status"]) == (False, None)


def in_flight(deck: Deck) -> int:
    """How many waits the core has open."""
    lines = deck.rest("GET", "/metrics").text.splitlines()
    return int(float(next(line for line in lines if line.startswith("quarterdeck_waiting ")).split()[1]))


def raw_wait(board: Client, task_id: str, version: str) -> bytes:
    """The HTTP request of a wait that asks for progress, to be sent by hand."""
    meta: Row = {"progressToken": "p1"}
    headers = dict(board._http.headers) | board.headers_of("tools/call", "tasks_wait")
    if version == MODERN:
        meta["io.modelcontextprotocol/protocolVersion"] = MODERN
        meta["io.modelcontextprotocol/clientInfo"] = {"name": "tests", "version": "1"}
        meta["io.modelcontextprotocol/clientCapabilities"] = {}
    params = {"name": "tasks_wait", "arguments": {"task_id": task_id}, "_meta": meta}
    body = json.dumps({"jsonrpc": "2.0", "id": str(uuid.uuid4()), "method": "tools/call", "params": params})
    place = urlsplit(board.url)
    kept = {name: value for name, value in headers.items() if name.lower() not in ("host", "content-length")}
    lines = [f"POST {place.path} HTTP/1.1", f"Host: {place.netloc}", f"Content-Length: {len(body)}"]
    lines += [f"{name}: {value}" for name, value in kept.items()]
    return ("\r\n".join(lines) + "\r\n\r\n" + body).encode()


def test_a_wait_sends_progress_at_once_and_a_client_that_leaves_frees_it(
    deck: Deck, board: Client, mover: Client, request: pytest.FixtureRequest
) -> None:
    task_id = made(mover)
    version = request.node.callspec.params["board"]
    place = urlsplit(deck.url)

    with socket.create_connection((place.hostname or "", place.port or 0), timeout=60) as connection:
        connection.sendall(raw_wait(board, task_id, version))
        heard = b""
        while b"notifications/progress" not in heard:
            more = connection.recv(65536)
            assert more, heard
            heard += more
        assert b'"progressToken":"p1"' in heard.replace(b" ", b"")
        assert in_flight(deck) == 1
    assert eventually(lambda: in_flight(deck) == 0)


def test_a_token_that_is_revoked_waits_no_more(deck: Deck, token: str, pool: ThreadPoolExecutor) -> None:
    minted = deck.mint()
    client = deck.connect(minted["token"], surface="board")
    before = in_flight(deck)
    answer = pool.submit(client.refused, "tasks_wait", task_id=made(client))
    assert eventually(lambda: in_flight(deck) > before)
    deck.rest("DELETE", f"/profile/mcp/tokens/{minted['id']}")
    assert answer.result(60)["code"] == "AUTHORIZATION_DENIED"


def test_calls_on_the_same_connection_go_on_beside_a_wait(
    deck: Deck, board: Client, mover: Client, pool: ThreadPoolExecutor
) -> None:
    task_id = made(mover)
    answer = waiting(deck, pool, board, task_id=task_id, wait_for_status=["DONE"])
    for _ in range(5):
        assert board.done("get_task", task_id=task_id)["task_id"] == task_id
    assert not answer.done()
    board.done("tasks_move", task_id=task_id, status="DONE")
    assert answer.result(60)["current_status"] == "DONE"


def test_a_graceful_stop_answers_every_waiter(tmp_path: Path, pool: ThreadPoolExecutor) -> None:
    with (
        CoreProcess(tmp_path, {"QUARTERDECK_ADMIN_SECRET": ADMIN}) as core,
        Deck(core.url, ADMIN) as deck,
    ):
        token = deck.mint()["token"]
        answers = []
        for version in (MODERN, OLDER):
            client = deck.connect(token, version=version, surface="board")
            task_id = made(client)
            answers.append(waiting(deck, pool, client, task_id=task_id))
        assert eventually(lambda: in_flight(deck) == 2)
        core.stop()
        for answer in answers:
            found = answer.result(60)
            assert (found["code"], found["changed"], found["timed_out"]) == (
                *("WAIT_INTERRUPTED", False),
                False,
            )
            assert found["next_tool"] == "tasks_wait" and found["next_arguments"]["from_updated_at"]


# Inside one process, where it can be seen that a wait has begun.


@contextlib.asynccontextmanager
async def own_core(folder: Path) -> AsyncIterator[OwnCore]:
    configured = Settings(search={"provider": "off"})  # type: ignore[arg-type]
    async with life.opened(configured, folder) as core:
        yield core


async def new(core: OwnCore, **fields: Any) -> str:
    return (await core_board.create(core, ANN, core_board.NewTask("A task", **fields))).id


async def begun(core: OwnCore, count: int = 1) -> None:
    """Return when so many waits listen and have looked."""
    async with asyncio.timeout(60):
        while core.waiting < count:
            await asyncio.sleep(0.01)


def run(body: Callable[[OwnCore], Any], folder: Path) -> None:
    async def whole() -> None:
        async with own_core(folder) as core:
            await body(core)

    asyncio.run(whole())


def test_a_thousand_waiters_wake_each_for_its_own_task(tmp_path: Path) -> None:
    async def body(core: OwnCore) -> None:
        ids = [await new(core) for _ in range(10)]
        waiters = [
            asyncio.create_task(waits.wait(core, ANN, waits.Wanted([ids[number % 10]]), 60))
            for number in range(1000)
        ]
        await begun(core, 1000)
        await core_board.update(core, ANN, ids[3], {}, "REVIEW")
        first = await asyncio.gather(*(waiter for n, waiter in enumerate(waiters) if n % 10 == 3))
        assert {outcome.code for outcome in first} == {"TASK_CHANGED"}
        assert sum(waiter.done() for waiter in waiters) == 100
        core.bus.close()
        rest = await asyncio.gather(*waiters)
        assert sum(outcome.code == "WAIT_INTERRUPTED" for outcome in rest) == 900

    run(body, tmp_path)


def test_a_status_that_is_passed_through_is_not_missed(tmp_path: Path) -> None:
    async def body(core: OwnCore) -> None:
        task_id = await new(core)
        wanted = waits.Wanted([task_id], states=frozenset({"review"}))
        waiter = asyncio.create_task(waits.wait(core, ANN, wanted, 60))
        await begun(core)
        for column in ("IN_PROGRESS", "REVIEW", "BACKLOG"):
            await core_board.update(core, ANN, task_id, {}, column)
        outcome = await waiter
        assert (outcome.code, outcome.decisive.status) == ("TASK_CHANGED", "review")

    run(body, tmp_path)


def test_a_change_of_fields_or_of_state_within_a_column_wakes_nobody(tmp_path: Path) -> None:
    async def body(core: OwnCore) -> None:
        task_id = await new(core)
        waiter = asyncio.create_task(waits.wait(core, ANN, waits.Wanted([task_id]), 60))
        await begun(core)
        await core_board.update(core, ANN, task_id, {"title": "Another"})
        await core_board.append_scratchpad(core, ANN, task_id, "a note")
        await asyncio.sleep(0)
        assert not waiter.done()
        await core_board.update(core, ANN, task_id, {}, "DONE")
        outcome = await waiter
        assert (outcome.code, outcome.decisive.status) == ("TASK_CHANGED", "completed")

    run(body, tmp_path)


def test_the_heart_of_a_long_wait_beats(tmp_path: Path) -> None:
    async def body(core: OwnCore) -> None:
        beats: list[float] = []
        three = asyncio.Event()

        async def beat(seconds: float) -> None:
            beats.append(seconds)
            if len(beats) == 3:
                three.set()

        task_id = await new(core)
        waiter = asyncio.create_task(waits.wait(core, ANN, waits.Wanted([task_id]), 600, beat, every=0.01))
        async with asyncio.timeout(60):
            await three.wait()
        assert beats == sorted(beats) and beats[0] == 0.0
        await core_board.update(core, ANN, task_id, {}, "DONE")
        assert (await waiter).code == "TASK_CHANGED"

    run(body, tmp_path)


def test_any_and_all_of_several_tasks_and_jobs(tmp_path: Path) -> None:
    async def body(core: OwnCore) -> None:
        one, two = await new(core), await new(core)

        def queued(tx: Any) -> Job:
            return queue.submit(tx, kind="auto", spec={}, agent=None, task_id=two, place="elsewhere")

        job = await core.db.tx(ANN, queued)
        done = frozenset({"completed"})
        either = asyncio.create_task(waits.wait(core, ANN, waits.Wanted([one, two], [job.id], done), 60))
        every = asyncio.create_task(
            waits.wait(core, ANN, waits.Wanted([one, two], [job.id], done, all_of_them=True), 60)
        )
        await begun(core, 2)
        await core_board.update(core, ANN, one, {}, "DONE")
        outcome = await either
        assert (outcome.code, outcome.decisive.row_id) == ("TASK_CHANGED", one)
        assert [watch.code for watch in outcome.watches] == ["TASK_CHANGED", None, None]
        assert not every.done()
        await core_board.update(core, ANN, two, {}, "DONE")  # which cancels its job
        outcome = await every
        assert {watch.code for watch in outcome.watches} == {"TASK_CHANGED"}
        ended = await waits.wait(core, ANN, waits.Wanted(job_ids=[job.id]), 60)
        assert ended.code == "ALREADY_AT_STATUS"
        assert isinstance(ended.decisive.latest, Job) and ended.decisive.latest.state == "CANCELED"

    run(body, tmp_path)


def test_the_default_and_the_cap_are_settings(tmp_path: Path) -> None:
    async def body(core: OwnCore) -> None:
        assert await waits.limit(core, None) == waits.Limit(900.0, False)
        await settings.update(core, ANN, {"tasks_wait_max_timeout_seconds": 60})
        assert await waits.limit(core, None) == waits.Limit(60.0, False)
        assert await waits.limit(core, 61) == waits.Limit(60.0, True)
        await settings.update(core, ANN, {"general.tasks_wait_default_timeout_seconds": 5})
        assert await waits.limit(core, None) == waits.Limit(5.0, False)

    run(body, tmp_path)
