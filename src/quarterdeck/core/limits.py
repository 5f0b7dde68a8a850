"""The rate limit: a token bucket for each bearer token and identity, in this process."""

import math
import time
from collections import OrderedDict

from quarterdeck.domain.callers import Caller
from quarterdeck.domain.errors import RateLimited

_BUCKETS = 10_000


class RateLimit:
    """So many calls a minute, with a burst as large; 0 turns it off."""

    def __init__(self, per_minute: int) -> None:
        self._burst = float(per_minute)
        self._rate = per_minute / 60.0
        self._buckets: OrderedDict[tuple[str | None, str | None], tuple[float, float]] = OrderedDict()

    def take(self, caller: Caller) -> None:
        """Count one call, or raise RateLimited with the seconds until the next one passes."""
        if caller.unmetered or not self._burst:
            return
        key, now = (caller.token_id, caller.identity), time.monotonic()
        left, then = self._buckets.get(key, (self._burst, now))
        left = min(self._burst, left + (now - then) * self._rate)
        if left < 1.0:
            # Rounded up: who waits for so long passes.
            wait = math.ceil((1.0 - left) / self._rate * 1000) / 1000
            raise RateLimited("too many calls", hint=f"try again in {wait:g} s", retry_after=wait)
        self._buckets[key] = (left - 1.0, now)
        self._buckets.move_to_end(key)
        if len(self._buckets) > _BUCKETS:
            self._buckets.popitem(last=False)
