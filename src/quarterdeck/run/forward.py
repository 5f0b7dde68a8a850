"""Inside a sandbox without a network: `python -I -S forward.py GATE DOORS PROGRAM ARGUMENT…`.

It listens on loopback, leaves a process behind that passes every connection on to the socket GATE, and
becomes PROGRAM. DOORS are the hosts and ports on loopback that are offered under their own addresses; all
others are reached by a proxy whose address PROGRAM finds in its environment. What may be reached, the gate
decides.
Standard library only: nothing else is there.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
from contextlib import suppress
from functools import partial

TYPE_CHECKING = False
if TYPE_CHECKING:
    from asyncio import StreamReader, StreamWriter, Timeout

    Ends = tuple[StreamReader, StreamWriter]

CHUNK = 65_536
HEAD_BYTES = 65_536
HEAD_SECONDS = 60.0
# Longer than the longest wait that a tool offers.
IDLE_SECONDS = 3_900.0
BACKLOG = 128

_LOOPBACK = "127.0.0.1,localhost,::1"
_WORDS = {400: "Bad Request", 403: "Forbidden", 502: "Bad Gateway", 503: "Service Unavailable"}
# They speak of the connection to the proxy, not of the message.
_OWN_HEADERS = (b"connection", b"proxy-connection", b"proxy-authorization", b"keep-alive")


def main(gate: str, doors: str, *argv: str) -> None:
    try:
        listeners = listen(doors.split())
        proxy = _listening("127.0.0.1", 0)
    except OSError as error:
        sys.exit(f"The sandbox cannot listen on loopback: {error}")
    os.environ.update(_variables(proxy.getsockname()[1]))
    # Twice: so it is no child of the program, which may wait for all of its own.
    child = os.fork()
    if child == 0:
        if os.fork() == 0:
            _stay(gate, listeners, proxy)
        os._exit(0)
    os.waitpid(child, 0)
    try:
        os.execv(argv[0], argv)  # noqa: S606 - the program, as it was given
    except OSError as error:
        sys.exit(f"{argv[0]}: {error.strerror}")


def listen(doors: list[str]) -> list[tuple[socket.socket, str]]:
    """A listener for each door under its own address, and which door it stands for."""
    found: dict[tuple[str, int], tuple[socket.socket, str]] = {}
    # Those that are given as an address come before a name for the same.
    for door in sorted(doors, key=lambda each: each.startswith("localhost:")):
        host, _, port = door.rpartition(":")
        for address in ("127.0.0.1", "::1") if host == "localhost" else (host.strip("[]"),):
            try:
                if (address, int(port)) not in found:
                    found[address, int(port)] = _listening(address, int(port)), door
            except OSError as error:
                # Where there is no IPv6, the name means the other address.
                if host != "localhost" or address != "::1":
                    raise OSError(error.errno, f"{door}: {error.strerror}") from error
    return list(found.values())


def _listening(address: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    return socket.create_server((address, port), family=family, backlog=BACKLOG)


def _variables(port: int) -> dict[str, str]:
    names = [f"{scheme}_PROXY" for scheme in ("HTTP", "HTTPS", "ALL")]
    values = dict.fromkeys(names, f"http://127.0.0.1:{port}") | {"NO_PROXY": _LOOPBACK}
    return values | {name.lower(): value for name, value in values.items()}


def _stay(gate: str, listeners: list[tuple[socket.socket, str]], proxy: socket.socket) -> None:
    """Serve until the sandbox goes: a program that is asked to end may still have something to say."""
    import asyncio

    try:
        os.setsid()
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
        null = os.open(os.devnull, os.O_RDWR)
        for file in range(3):
            os.dup2(null, file)
        asyncio.run(_serve(gate, listeners, proxy))
    finally:
        os._exit(1)


async def _serve(gate: str, listeners: list[tuple[socket.socket, str]], proxy: socket.socket) -> None:
    import asyncio

    for listener, door in listeners:
        await asyncio.start_server(partial(_passed_on, gate, door), sock=listener)
    await asyncio.start_server(partial(_proxied, gate), sock=proxy, limit=HEAD_BYTES)
    await asyncio.Event().wait()


async def _passed_on(gate: str, door: str, reader: StreamReader, writer: StreamWriter) -> None:
    """A connection to a door on loopback."""
    with suppress(OSError, ValueError, EOFError):
        status, _, ends = await _through(gate, door)
        if status == 200:
            await joined((reader, writer), ends)
        ends[1].transport.abort()
    writer.transport.abort()


async def _proxied(gate: str, reader: StreamReader, writer: StreamWriter) -> None:
    """A connection to the proxy: CONNECT, or one request with a whole URL."""
    import asyncio

    with suppress(OSError, ValueError, EOFError, asyncio.LimitOverrunError):
        async with asyncio.timeout(HEAD_SECONDS):
            head = await reader.readuntil(b"\r\n\r\n")
        try:
            door, request = wanted(head)
        except ValueError:
            await _refuse(writer, 400, "This is a proxy: CONNECT, or a request with an http:// URL.")
            return
        status, words, ends = await _through(gate, door)
        if status != 200:
            ends[1].transport.abort()
            await _refuse(writer, status, words)
            return
        if request:
            ends[1].write(request)
        else:
            writer.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
        await joined((reader, writer), ends)
    writer.transport.abort()


def wanted(head: bytes) -> tuple[str, bytes]:
    """Where a request to the proxy leads, and what has to be said there in its place: nothing for CONNECT."""
    first, *lines = head.removesuffix(b"\r\n\r\n").split(b"\r\n")
    method, target, version = first.split(b" ")
    if method == b"CONNECT":
        return target.decode("ascii"), b""
    scheme, _, rest = target.partition(b"://")
    authority, _, path = rest.partition(b"/")
    if scheme.lower() != b"http" or not authority:
        raise ValueError("no URL of HTTP")
    door = authority.decode("ascii")
    kept = [line for line in lines if line.partition(b":")[0].strip().lower() not in _OWN_HEADERS]
    # One request a connection: the next may be for another host.
    words = [b" ".join((method, b"/" + path, version)), *kept, b"Connection: close", b"", b""]
    return (door if door[-1] != "]" and ":" in door else f"{door}:80"), b"\r\n".join(words)


async def _refuse(writer: StreamWriter, status: int, words: str) -> None:
    body = f"{words}\n".encode()
    head = f"HTTP/1.1 {status} {_WORDS.get(status, 'Refused')}\r\nContent-Type: text/plain\r\n"
    head += f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    writer.write(head.encode() + body)
    await writer.drain()
    writer.close()


async def _through(gate: str, door: str) -> tuple[int, str, Ends]:
    """Ask the gate for a connection: its status as in HTTP, its words, and the two ends."""
    import asyncio

    reader, writer = await asyncio.open_unix_connection(gate)
    writer.write(f"{door}\n".encode())
    status, _, words = (await reader.readline()).decode().strip().partition(" ")
    return int(status or 502), words, (reader, writer)


async def joined(one: Ends, other: Ends, idle: float = IDLE_SECONDS) -> None:
    """Pass bytes both ways until both sides have ended, one broke, or nothing came for so long.

    Closes both. Raises OSError where it did not end well.
    """
    import asyncio

    now = asyncio.get_running_loop().time

    async def pump(reader: StreamReader, writer: StreamWriter, limit: Timeout) -> None:
        # Nothing is to be left unsent when this ends.
        writer.transport.set_write_buffer_limits(0)
        while data := await reader.read(CHUNK):
            limit.reschedule(now() + idle)
            writer.write(data)
            await writer.drain()
        writer.write_eof()

    try:
        async with asyncio.timeout(idle) as limit:
            await asyncio.gather(pump(one[0], other[1], limit), pump(other[0], one[1], limit))
    finally:
        for _, writer in (one, other):
            writer.transport.abort()


if __name__ == "__main__":
    main(*sys.argv[1:])
