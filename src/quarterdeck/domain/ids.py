"""Identifiers and times as they are stored and shown."""

import os
import secrets
import time
import uuid
from datetime import UTC, datetime, timedelta
from functools import lru_cache

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def new_id() -> str:
    """A time-ordered UUID (version 7): neighbours in time are neighbours in an index."""
    raw = bytearray((time.time_ns() // 1_000_000).to_bytes(6, "big") + os.urandom(10))
    raw[6] = 0x70 | raw[6] & 0x0F
    raw[8] = 0x80 | raw[8] & 0x3F
    return str(uuid.UUID(bytes=bytes(raw)))


def new_token() -> str:
    """`mcp_` and 48 url-safe characters."""
    return "mcp_" + secrets.token_urlsafe(36)


def now_us() -> int:
    """Microseconds since 1970: every time in the store."""
    return time.time_ns() // 1000


@lru_cache(maxsize=4096)
def iso(us: int | None) -> str | None:
    """A stored time as ISO 8601 in UTC with microseconds."""
    if us is None:
        return None
    return (_EPOCH + timedelta(microseconds=us)).isoformat(timespec="microseconds")
