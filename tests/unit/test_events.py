"""The bus: who hears what, who falls behind, and who waits when it closes."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest

from quarterdeck.events import ALL, GENESIS, Bus, Draft, Event


def event(seq: int, kind: str = "task.created", entity_id: str = "a", task_id: str | None = None) -> Event:
    return Draft(1, "ann", "ann", "tool", kind, entity_id, task_id).seal(seq, GENESIS)


def run(work: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(work, 30))


def test_a_listener_hears_its_topics_once_and_in_order() -> None:
    async def work() -> None:
        bus = Bus()
        with bus.listen(ALL, ALL, "task.created", "task:a") as mine, bus.listen("task:b") as other:
            events = [
                event(1),
                event(2, "job.done", "j", task_id="a"),
                event(3, "job.done", "j", task_id="b"),
            ]
            bus.publish(events)
            assert await mine.wait() == events
            assert await other.wait() == events[2:]

    run(work())


def test_a_listener_hears_nothing_after_its_block() -> None:
    async def work() -> None:
        bus = Bus()
        with bus.listen(ALL) as listener:
            pass
        bus.publish([event(1)])
        bus.close()
        assert not listener.closed

    run(work())


def test_a_reader_that_falls_behind_is_told_once_and_then_goes_on() -> None:
    async def work() -> None:
        bus = Bus()
        with bus.listen(ALL, "task.created") as listener:
            bus.publish([event(seq) for seq in range(1, 3000)])
            assert await listener.wait() == []
            assert listener.lagged
            bus.publish([event(3000)])
            assert [heard.seq for heard in await listener.wait()] == [3000]
            assert not listener.lagged

    run(work())


def test_closing_wakes_who_waits_and_who_comes_later() -> None:
    async def work() -> None:
        bus = Bus()
        with bus.listen(ALL) as early:
            waiting = asyncio.ensure_future(early.wait())
            await asyncio.sleep(0)
            bus.close()
            assert await waiting == []
            assert early.closed
            assert await early.wait() == []
        with bus.listen(ALL) as late:
            assert late.closed
            assert await late.wait() == []

    run(work())


def test_what_was_heard_before_closing_is_still_read() -> None:
    async def work() -> None:
        bus = Bus()
        with bus.listen(ALL) as listener:
            bus.publish([event(1)])
            bus.close()
            assert [heard.seq for heard in await listener.wait()] == [1]
            assert await listener.wait() == []

    run(work())


@pytest.mark.parametrize("data", [{"value": object()}, {"value": "\udc80"}, {"value": {1, 2}}])
def test_what_cannot_be_stored_gets_no_number(data: dict[str, Any]) -> None:
    with pytest.raises((TypeError, ValueError)):
        Draft(1, "ann", "ann", "", "task.created", None, data=data).seal(1, GENESIS)


def test_every_field_is_in_the_hash() -> None:
    plain: dict[str, Any] = {
        "at": 1,
        "user_id": "u",
        "actor": "a",
        "tool": "t",
        "kind": "k",
        "entity_id": "e",
        "task_id": "x",
    }
    base = Draft(**plain, ok=True, data={"b": 1, "a": 2})
    hashes = {base.seal(1, GENESIS).hash, base.seal(2, GENESIS).hash, base.seal(1, "f" * 64).hash}
    for name in plain:
        hashes.add(Draft(**{**plain, name: 7}, ok=True, data={"b": 1, "a": 2}).seal(1, GENESIS).hash)
    hashes.add(Draft(**plain, ok=False, data={"b": 1, "a": 2}).seal(1, GENESIS).hash)
    hashes.add(Draft(**plain, ok=True, data={"b": 1, "a": None}).seal(1, GENESIS).hash)
    assert len(hashes) == 3 + len(plain) + 2
    assert Draft(**plain, data={"a": 2, "b": 1}).seal(1, GENESIS).hash in hashes
