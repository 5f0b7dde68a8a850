"""Following the log inside a core: nothing lost, nothing twice, whoever is slow; and who may be told what."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest
from pydantic import SecretStr
from sqlalchemy import text as sql

from quarterdeck.config import DatabaseSettings, SearchSettings, Settings
from quarterdeck.core import life, mcp_sessions, subscriptions, tokens
from quarterdeck.core.context import Core
from quarterdeck.core.following import following
from quarterdeck.domain.callers import SYSTEM, Caller
from quarterdeck.domain.errors import Conflict, RateLimited
from quarterdeck.domain.ids import now_us
from quarterdeck.events import Event
from quarterdeck.server.session_stream import SessionStream
from quarterdeck.server.subscriptions import MOST_STREAMS, Subscriptions
from quarterdeck.store.tx import Tx
from quarterdeck.surfaces.resources import Content, Notice, Resources, Template
from quarterdeck.surfaces.task_resources import TASKS
from tests.store import ANN, BOB, add, new_task

LONG = 60.0


@contextlib.asynccontextmanager
async def opened(folder: Path, url: str | None = None) -> AsyncIterator[Core]:
    database = DatabaseSettings(url=SecretStr(url) if url else None)
    async with life.opened(
        Settings(database=database, search=SearchSettings(provider="off")), folder
    ) as core:
        yield core


def emit(tx: Tx, *names: str) -> None:
    for name in names:
        tx.emit("thing.changed", name)


async def _read(core: Core, caller: Caller, uri: str) -> Content:
    return Content(uri, "text/plain", "")


async def _visible(core: Core, caller: Caller, uri: str) -> bool:
    return "hidden" not in uri


class Things:
    """Resources of which each change says two things about each of two URIs."""

    def __init__(self) -> None:
        self.worked: list[int] = []
        template = Template("things://{name}", "thing", "", "text/plain")
        self.resources = Resources("things://", (template,), _read, _visible, self._notices)

    async def _notices(self, core: Core, event: Event) -> Sequence[Notice]:
        self.worked.append(event.seq)
        if event.entity_id == "broken":
            raise ZeroDivisionError
        uris = [f"things://{event.entity_id}", f"things://hidden/{event.entity_id}"]
        return [Notice(uri, method, {"uri": uri}) for uri in uris for method in ("updated", "finished")]


class Stream:
    """What a session was told; `full` stops it as a client does that reads no more."""

    def __init__(self) -> None:
        self.frames: list[str] = []
        self.came = asyncio.Event()
        self.reads = asyncio.Event()
        self.reads.set()

    async def write(self, frame: bytes) -> None:
        self.frames.append(frame.decode())
        self.came.set()
        await self.reads.wait()

    async def until(self, count: int) -> list[str]:
        async with asyncio.timeout(LONG):
            while len(self.frames) < count:
                self.came.clear()
                await self.came.wait()
        return self.frames


@contextlib.asynccontextmanager
async def telling(
    core: Core, hub: Subscriptions, caller: Caller, *uris: str, stream: Stream | None = None
) -> AsyncIterator[Stream]:
    """The stream of a new session that subscribed to these, once it follows the log."""
    session_id = await mcp_sessions.keep(core, caller, "orchestrator", {})
    for uri in uris:
        await subscriptions.subscribe(core, caller, session_id, uri)
    stream = stream or Stream()
    session = SessionStream(core, hub, caller, session_id, stream.write)
    running = asyncio.create_task(session.run(None, primes=True))
    await stream.until(1)
    stream.frames.clear()
    try:
        yield stream
    finally:
        running.cancel()
        await asyncio.wait([running])


def test_follower_that_falls_behind_misses_nothing_and_hears_nothing_twice(
    database_url: str, tmp_path: Path
) -> None:
    async def run() -> None:
        async with opened(tmp_path, database_url) as core:
            await core.db.tx(ANN, emit, "before")
            with following(core, ANN) as late, following(core, ANN) as whole:
                await late.start(None)
                await whole.start(0)
                names = [str(n) for n in range(1500)]  # more than a listener holds
                await core.db.tx(BOB, emit, "another's")
                await core.db.tx(ANN, emit, *names)
                await core.db.tx(ANN, emit, "last")
                heard: dict[str, list[str | None]] = {"late": [], "whole": []}
                async with asyncio.timeout(LONG):
                    for name, follower in (("late", late), ("whole", whole)):
                        while heard[name][-1:] != ["last"]:
                            heard[name] += [event.entity_id for event in await follower.next(LONG) or ()]
                assert heard["late"] == [*names, "last"]
                assert heard["whole"] == ["before", *names, "last"]

    asyncio.run(run())


def test_slow_client_holds_up_nobody_and_is_told_everything_later(tmp_path: Path) -> None:
    async def run() -> None:
        async with opened(tmp_path) as core:
            things = Things()
            hub, uri = Subscriptions(core, [things.resources]), "things://a"
            async with telling(core, hub, ANN, uri) as slow, telling(core, hub, ANN, uri) as quick:
                slow.reads.clear()
                for _ in range(1300):
                    await core.db.tx(ANN, emit, "a")
                frames = list(await quick.until(2600))
                assert len(slow.frames) == 1
                slow.reads.set()
                assert await slow.until(2600) == frames

    asyncio.run(run())


def test_only_the_last_notice_of_an_event_carries_its_number(tmp_path: Path) -> None:
    async def run() -> None:
        async with opened(tmp_path) as core:
            hub = Subscriptions(core, [Things().resources])
            # The hidden ones come last, and must not take the number with them.
            async with telling(core, hub, ANN, "things://a", "things://hidden/a") as stream:
                await core.db.tx(ANN, emit, "a")
                first, last = await stream.until(2)
                numbers = [int(frame.partition("\n")[0].removeprefix("id: ")) for frame in (first, last)]
                assert numbers[1] == numbers[0] + 1
                assert '"updated"' in first and '"finished"' in last

    asyncio.run(run())


def test_notices_are_worked_out_once_for_all_and_a_broken_kind_breaks_no_other(tmp_path: Path) -> None:
    async def run() -> None:
        async with opened(tmp_path) as core:
            things = Things()
            hub = Subscriptions(core, [things.resources, TASKS])
            task = new_task(id="broken")
            async with (
                telling(core, hub, ANN, "mcp://tasks/broken") as one,
                telling(core, hub, ANN, "mcp://tasks/broken") as two,
            ):
                things.worked.clear()
                await core.db.tx(ANN, add, task)
                assert await one.until(1) == await two.until(1)
                assert len(things.worked) == len(set(things.worked))

    asyncio.run(run())


def test_who_subscribed_before_a_task_exists_is_told_of_it_if_it_is_theirs(tmp_path: Path) -> None:
    async def run() -> None:
        async with opened(tmp_path) as core:
            hub, future = Subscriptions(core, [TASKS]), "mcp://tasks/future"
            for caller in (ANN, BOB):
                assert await TASKS.visible(core, caller, future)
            async with (
                telling(core, hub, ANN, future) as owner,
                telling(core, hub, BOB, future, "mcp://tasks/own") as other,
            ):
                await core.db.tx(ANN, add, new_task(id="future"))
                await core.db.tx(BOB, add, new_task("bob", id="own"))
                assert [future in frame for frame in await owner.until(1)] == [True]
                assert [future in frame for frame in await other.until(1)] == [False]
            assert not await TASKS.visible(core, BOB, future)

    asyncio.run(run())


def test_follower_ends_when_its_token_does(tmp_path: Path) -> None:
    async def run() -> None:
        async with opened(tmp_path) as core:
            minted = await tokens.mint(core, ANN, name="t", profile="viewer")
            caller = Caller("ann", "viewer", token_id=minted.token.id)
            past = Caller("ann", "viewer", token_id=minted.token.id, expires_at=now_us() - 1)
            with following(core, caller) as follower, following(core, past) as expired:
                await follower.start(None)
                await expired.start(None)
                assert await follower.next(0.01) == []
                await core.db.tx(BOB, emit, "another's")  # which is no reason to return
                assert await follower.next(0.01) == []
                assert await expired.next(0.01) is None and expired.revoked
                await core.db.tx(ANN, emit, "before")
                await tokens.revoke(core, ANN, minted.token.id)
                async with asyncio.timeout(LONG):
                    while await follower.next(LONG) is not None:
                        pass
                assert follower.revoked
            # Gone without a word, as with the task that it was bound to.
            minted = await tokens.mint(core, ANN, name="t", profile="viewer")
            caller = Caller("ann", "viewer", token_id=minted.token.id)
            with following(core, caller) as follower:
                await follower.start(None)
                await core.db.tx(SYSTEM, lambda tx: tx.conn.execute(sql("DELETE FROM tokens")).rowcount)
                assert await follower.next(0.01) is None and follower.revoked

    asyncio.run(run())


def test_follower_ends_with_the_core_though_much_is_left(tmp_path: Path) -> None:
    async def run() -> None:
        async with opened(tmp_path) as core:
            await core.db.tx(ANN, emit, *"abc")
            with following(core, ANN) as follower:
                await follower.start(0)
                core.bus.close()
                assert await follower.next(LONG) is None and not follower.revoked

    asyncio.run(run())


def test_streams_and_subscriptions_are_limited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def run() -> None:
        async with opened(tmp_path) as core:
            hub = Subscriptions(core, [TASKS])
            with contextlib.ExitStack() as places:
                for _ in range(MOST_STREAMS):
                    places.enter_context(hub.place(ANN))
                with pytest.raises(RateLimited), hub.place(ANN):
                    pass
                with hub.place(BOB):
                    pass
            with hub.place(ANN):
                pass
            monkeypatch.setattr(subscriptions, "MOST", 2)
            session_id = await mcp_sessions.keep(core, ANN, "orchestrator", {})
            for uri in ("a", "b", "b"):
                await subscriptions.subscribe(core, ANN, session_id, uri)
            with pytest.raises(Conflict):
                await subscriptions.subscribe(core, ANN, session_id, "c")
            await subscriptions.unsubscribe(core, ANN, session_id, "a")
            await subscriptions.subscribe(core, ANN, session_id, "c")
            assert (await subscriptions.of(core, ANN, session_id)).keys() == {"b", "c"}

    asyncio.run(run())
