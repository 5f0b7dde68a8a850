"""What an older client's GET stream carries beside the SDK's own messages: the news it subscribed to."""

import asyncio
import contextlib
import json
import time
from collections.abc import Awaitable, Callable

from starlette.types import Message, Send

from quarterdeck.core import subscriptions
from quarterdeck.core.context import Core
from quarterdeck.core.following import Follower, following
from quarterdeck.domain.callers import Caller
from quarterdeck.server.sse import frame
from quarterdeck.server.subscriptions import KEEP_ALIVE_SECONDS, Subscriptions

Write = Callable[[bytes], Awaitable[None]]
_END_SECONDS = 5.0


class Shared:
    """One answer that two write to: the SDK its messages, and we ours in between."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self._sending = asyncio.Lock()
        self._unfinished = False
        self.begun, self.over, self.ended = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def send(self, message: Message) -> None:
        """A message of the SDK's."""
        async with self._sending:
            starts = message["type"] == "http.response.start"
            self._unfinished = starts or message.get("more_body", False)
            await self._send(message)
        if starts and message["status"] == 200:
            self.begun.set()

    async def write(self, frame: bytes) -> None:
        """A frame of ours; none after the end."""
        async with self._sending:
            if self._unfinished:
                await self._send({"type": "http.response.body", "body": frame, "more_body": True})

    async def end(self) -> None:
        """Let the other side go; wait until it did, if it can."""
        self.over.set()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_END_SECONDS):
                await self.ended.wait()

    async def finish(self) -> None:
        if self._unfinished:
            await self._send({"type": "http.response.body", "body": b""})


class SessionStream:
    """One open stream of one session. `run` returns when the core, the session or the token ends."""

    def __init__(self, core: Core, hub: Subscriptions, caller: Caller, session_id: str, write: Write) -> None:
        self._core = core
        self._hub = hub
        self._caller = caller
        self._session_id = session_id
        self._write = write
        self._sent = self._kept = 0
        self._kept_at = time.monotonic()

    async def run(self, left_off: int | None, *, primes: bool) -> None:
        """Tell what came after `left_off`; who does not know is told from where the session is."""
        with following(self._core, self._caller) as follower:
            since = await subscriptions.of(self._core, self._caller, self._session_id)
            await follower.start(left_off if left_off is not None else min(since.values(), default=None))
            if left_off is not None:
                since = dict.fromkeys(since, follower.seq)
            self._sent = self._kept = follower.seq
            try:
                if primes:  # so that who is cut off before the first news knows where to go on
                    await self._write(f"id: {follower.seq}\ndata:\n\n".encode())
                await self._tell(follower, since)
            finally:
                self._core.spawn(self._keep(self._sent))

    async def _tell(self, follower: Follower, since: dict[str, int]) -> None:
        while (events := await follower.next(KEEP_ALIVE_SECONDS)) is not None:
            for event in events:
                if event.noun == "mcp_session" and event.entity_id == self._session_id:
                    if event.kind == "mcp_session.closed":
                        return
                    now = await subscriptions.of(self._core, self._caller, self._session_id)
                    since = {uri: since.get(uri, event.seq) for uri in now}
                for seq, notice in await self._hub.told(self._caller, event, since):
                    message = {"jsonrpc": "2.0", "method": notice.method, "params": notice.params}
                    await self._write(frame(seq, json.dumps(message, separators=(",", ":"))))
                self._sent = event.seq
            if time.monotonic() - self._kept_at > KEEP_ALIVE_SECONDS:
                await self._keep(self._sent)

    async def _keep(self, seq: int) -> None:
        """Write down how far the session was told, for clients that do not know themselves."""
        self._kept_at = time.monotonic()
        if seq > self._kept:
            self._kept = seq
            await subscriptions.told(self._core, self._caller, self._session_id, seq)
