"""A circuit breaker: after repeated failures calls are refused at once, until one trial has succeeded."""

import math
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Final, Literal

from quarterdeck.domain.errors import Unavailable

State = Literal["closed", "open", "half_open"]

MESSAGE: Final = "Agentic service temporarily unavailable"
TRIAL_SECONDS: Final = 30.0


class Breaker:
    """Guards one part that may be away: `enter` before a call, `succeeded` or `failed` after it.

    Thread-safe, and never waits. `threshold` failures within `window` seconds open it; `reset` seconds
    later one trial is let through, which closes or opens it again. A trial of which nothing is heard
    gives way to the next after 30 seconds.
    """

    def __init__(
        self,
        threshold: int = 5,
        window: float = 120.0,
        reset: float = 60.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._threshold = threshold
        self._window = window
        self._reset = reset
        self._clock = clock
        self._lock = threading.Lock()
        self._failures: deque[float] = deque()
        self._opened: float | None = None
        self._trial: float | None = None

    @property
    def state(self) -> State:
        with self._lock:
            if self._opened is None:
                return "closed"
            return "half_open" if self._clock() >= self._opened + self._reset else "open"

    def enter(self) -> None:
        """Let a call pass, or raise Unavailable with `retry_after` in whole seconds."""
        with self._lock:
            now = self._clock()
            wait = self._wait(now)
            if wait <= 0:
                if self._opened is not None:
                    self._trial = now
                return
        raise _refusal(wait)

    def check(self) -> None:
        """Raise as `enter` would now, without making this call the trial."""
        with self._lock:
            wait = self._wait(self._clock())
        if wait > 0:
            raise _refusal(wait)

    def _wait(self, now: float) -> float:
        """How long until a call may pass."""
        if self._opened is None:
            return 0.0
        wait = self._opened + self._reset - now
        if wait <= 0 and self._trial is not None:
            return self._trial + TRIAL_SECONDS - now
        return wait

    def succeeded(self) -> None:
        """A call came back well. A call that passed before the breaker opened cannot close it."""
        with self._lock:
            if self._opened is None:
                # One failure is made good, so that a few among thousands of calls do not add up.
                if self._failures:
                    self._failures.popleft()
            elif self._trial is not None:
                self._opened = self._trial = None
                self._failures.clear()

    def reset(self) -> None:
        """Close it: a health check has found the part well."""
        with self._lock:
            self._opened = self._trial = None
            self._failures.clear()

    def failed(self) -> None:
        """A call did not reach the part, or the part broke."""
        with self._lock:
            now = self._clock()
            if self._opened is not None:
                if self._trial is not None:
                    self._opened, self._trial = now, None
                return
            self._failures.append(now)
            while self._failures[0] <= now - self._window:
                self._failures.popleft()
            if len(self._failures) >= self._threshold:
                self._opened = now
                self._failures.clear()


def _refusal(wait: float) -> Unavailable:
    seconds = max(1, math.ceil(wait))
    return Unavailable(MESSAGE, hint=f"try again in {seconds} s or less", retry_after=seconds)
