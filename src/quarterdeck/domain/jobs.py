"""Jobs: their seven states and ids."""

import secrets
from typing import Final, Literal

State = Literal["QUEUED", "RUNNING", "SUCCEEDED", "FAILED", "CANCELED", "EXPIRED", "STALE"]

LIVE: Final[tuple[State, ...]] = ("QUEUED", "RUNNING", "STALE")
CLAIMABLE: Final[tuple[State, ...]] = ("QUEUED", "STALE")
# A job that lost so many workers is given up: something about it may be what ends them.
MAX_ATTEMPTS: Final = 5

_ALPHABET = "abcdefghijklmnopqrstuvwxyz0123456789"


def new_job_id() -> str:
    return "job_" + "".join(secrets.choice(_ALPHABET) for _ in range(20))
