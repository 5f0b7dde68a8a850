"""What agents say while they say it, for who listens in the same process. Nothing of it is kept."""

import asyncio
import contextlib
from collections.abc import Iterator


class Ear:
    """What one listener has not read yet: the pieces of all runs of one user."""

    def __init__(self) -> None:
        self._pieces: list[tuple[str, str]] = []
        self._wake = asyncio.Event()

    def offer(self, job_id: str, piece: str) -> None:
        self._pieces.append((job_id, piece))
        self._wake.set()

    def wake(self) -> None:
        """Let who waits look at something else."""
        self._wake.set()

    async def within(self, job_id: str, seconds: float) -> str:
        """What a run has said since the last call; empty when it was woken, or nothing came in that time."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._wake.wait()
        return self.rest(job_id)

    def rest(self, job_id: str) -> str:
        """What a run has said since the last call, without waiting."""
        self._wake.clear()
        pieces, self._pieces = self._pieces, []
        return "".join(piece for of, piece in pieces if of == job_id)


class Speech:
    """From a run to those who listen to its user. Who listens before the run begins misses nothing."""

    def __init__(self) -> None:
        self._ears: dict[str | None, set[Ear]] = {}

    @contextlib.contextmanager
    def listen(self, user_id: str | None) -> Iterator[Ear]:
        ear = Ear()
        self._ears.setdefault(user_id, set()).add(ear)
        try:
            yield ear
        finally:
            self._ears[user_id].discard(ear)
            if not self._ears[user_id]:
                del self._ears[user_id]

    def say(self, user_id: str | None, job_id: str, piece: str) -> None:
        if piece:
            for ear in self._ears.get(user_id, ()):
                ear.offer(job_id, piece)
