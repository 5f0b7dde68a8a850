"""Jobs: their kinds, their seven states and ids."""

import hashlib
import json
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal, get_args

Kind = Literal["content", "relay", "auto", "prompt"]
State = Literal["QUEUED", "RUNNING", "SUCCEEDED", "FAILED", "CANCELED", "EXPIRED", "STALE"]

KINDS: Final[tuple[Kind, ...]] = get_args(Kind)
# Prompts run in a lane of their own: one at a time for each user, and no limit counts them.
PROMPT: Final = "prompt"
# What the worker runs: content jobs have a runner inside the core.
WORKED: Final[tuple[Kind, ...]] = ("relay", "auto", "prompt")
LIVE: Final[tuple[State, ...]] = ("QUEUED", "RUNNING", "STALE")
CLAIMABLE: Final[tuple[State, ...]] = ("QUEUED", "STALE")
# A job that lost so many workers is given up: something about it may be what ends them.
MAX_ATTEMPTS: Final = 5

_ALPHABET = "abcdefghijklmnopqrstuvwxyz0123456789"


@dataclass(frozen=True, slots=True)
class Waiting:
    """What a job waits for, in words without other users' names. `missing`: no worker would take it."""

    words: str
    missing: bool = False


def new_job_id() -> str:
    return "job_" + "".join(secrets.choice(_ALPHABET) for _ in range(20))


def fingerprint(spec: Mapping[str, Any]) -> str:
    """The same for the same specification, whatever the order of its keys."""
    text = json.dumps(spec, ensure_ascii=False, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()
