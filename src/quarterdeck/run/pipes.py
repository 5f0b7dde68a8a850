"""What goes into an agent and what comes out of it: stdin as a file or a pipe, stdout line by line."""

import asyncio
import os
import re
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from pathlib import Path

from quarterdeck.run.adapters.base import Launch
from quarterdeck.run.attempts import Attempt, Chunk

_LINE_BYTES = 10 * 1024 * 1024


class Splitter:
    """Lines out of chunks. One that is too long, or lost its middle, is dropped up to its end."""

    def __init__(self) -> None:
        self._part = bytearray()
        self._broken = False

    def add(self, chunk: Chunk) -> Iterator[bytes]:
        if chunk.skipped:
            self._part.clear()
            self._broken = True
        # Not by splitlines: a carriage return ends no line.
        for piece in filter(None, re.split(rb"(?<=\n)", chunk.data)):
            if not self._broken:
                self._part += piece
            if piece.endswith(b"\n"):
                line, broken = bytes(self._part), self._broken
                self._part.clear()
                self._broken = False
                if not broken:
                    yield line
            elif len(self._part) > _LINE_BYTES:
                self._part.clear()
                self._broken = True

    def rest(self) -> Iterator[bytes]:
        if self._part:
            yield bytes(self._part)
            self._part.clear()


async def lines(attempt: Attempt) -> AsyncIterator[bytes]:
    splitter = Splitter()
    async for chunk in attempt.follow(stream="stdout"):
        for line in splitter.add(chunk):
            yield line
    for line in splitter.rest():
        yield line


def given(path: Path, launch: Launch) -> Path | None:
    """What the agent reads: a file with all of it, or a pipe that stays open."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    if launch.interactive:
        os.mkfifo(path, 0o600)
    elif launch.stdin:
        path.touch(mode=0o600)
        path.write_bytes(launch.stdin)
    else:
        return None
    return path


class Mouth:
    """The pipe to an interactive agent's stdin. It never waits: what does not fit is written later."""

    def __init__(self, path: Path, first: bytes) -> None:
        self._loop = asyncio.get_running_loop()
        # For reading too: so it opens at once, and stays open until the agent has it.
        self._file: int | None = os.open(path, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
        self._waiting = bytearray(first)
        self.shutting = False
        self._write()

    def say(self, words: bytes) -> None:
        if words and not self.shutting:
            self._waiting += words
            self._write()

    def shut(self) -> None:
        """End of input, once everything is said."""
        self.shutting = True
        self._write()

    def close(self) -> None:
        """Nobody listens any more."""
        self._waiting.clear()
        self.shut()

    def _write(self) -> None:
        if self._file is None:
            return
        with suppress(BlockingIOError):
            while self._waiting:
                del self._waiting[: os.write(self._file, self._waiting)]
        if self._waiting:
            self._loop.add_writer(self._file, self._write)
            return
        self._loop.remove_writer(self._file)
        if self.shutting:
            os.close(self._file)
            self._file = None
