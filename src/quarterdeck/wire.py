"""HTTP as the stdio bridge speaks it, with the standard library only: one request a connection."""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any
from urllib.parse import urlsplit

Message = dict[str, Any]
Fields = dict[str, str]

CONNECT_SECONDS = 2.0


class Unsent(Exception):
    """Nobody took the request."""


class Reply:
    """One HTTP answer, its body still to be read. Close it when done with it."""

    def __init__(self, head: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self.close = reader, writer.close
        first, *lines = head.decode("latin-1").split("\r\n")
        self.status = int(first.split()[1])
        self.fields = {name.lower(): value.strip() for name, _, value in (at.partition(":") for at in lines)}
        self._body: bytes | None = None
        self.last_id: str | None = None

    async def _parts(self) -> AsyncIterator[bytes]:
        """The body as it arrives."""
        if "content-length" in self.fields:
            yield await self._reader.readexactly(int(self.fields["content-length"]))
            return
        while size := int((await self._reader.readline()).split(b";")[0], 16):
            yield (await self._reader.readexactly(size + 2))[:-2]

    async def body(self) -> bytes:
        if self._body is None:
            self._body = b"".join([part async for part in self._parts()])
        return self._body

    async def messages(self) -> AsyncIterator[tuple[bytes, Message]]:
        """Every JSON-RPC message of the body as it arrives: its text on one line, and what it says.

        `last_id` is the number of the newest one, where a stream numbers them.
        """
        if not self.fields.get("content-type", "").startswith("text/event-stream"):
            if body := await self.body():
                yield b" ".join(body.splitlines()), json.loads(body)
            return
        rest, data, number = b"", b"", b""
        async for part in self._parts():
            *lines, rest = (rest + part).split(b"\n")
            for line in lines:
                if line.startswith(b"data:"):
                    data += line.removeprefix(b"data:").strip() + b" "
                elif line.startswith(b"id:"):
                    number = line.removeprefix(b"id:").strip()
                elif not line.strip():
                    self.last_id = number.decode("latin-1") or self.last_id
                    if data.strip():
                        yield data.strip(), json.loads(data)
                    data = b""


async def send(url: str, method: str, fields: Fields, body: bytes = b"") -> Reply:
    """Send one request, once. Unsent means that nothing was; after any other error it may have been."""
    try:
        to = urlsplit(url)
        tls = to.scheme == "https"
        opening = asyncio.open_connection(to.hostname, to.port or (443 if tls else 80), ssl=tls or None)
        reader, writer = await asyncio.wait_for(opening, CONNECT_SECONDS)
    except (OSError, ValueError) as error:
        raise Unsent from error
    # Never on a connection used before: one that is just being closed would lose what may not be repeated.
    lines = [f"{method} {to.path or '/'} HTTP/1.1", f"Host: {to.netloc}"]
    lines += [f"{name}: {value}" for name, value in fields.items()]
    try:
        writer.write("\r\n".join([*lines, f"Content-Length: {len(body)}", "\r\n"]).encode("latin-1") + body)
        return Reply((await reader.readuntil(b"\r\n\r\n"))[:-4], reader, writer)
    except BaseException:
        writer.close()
        raise
