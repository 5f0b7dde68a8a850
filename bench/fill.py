"""Rows in bulk, through the store's own functions: thousands to a transaction, with events and hash chain."""

import asyncio
import itertools
import random
from pathlib import Path

from quarterdeck.config import Settings
from quarterdeck.core import embedding, life
from quarterdeck.core.tokens import LOCAL_USER
from quarterdeck.domain.callers import Caller
from quarterdeck.domain.ids import new_id
from quarterdeck.domain.records import Decision, Task, Transition
from quarterdeck.store import memory
from quarterdeck.store import tasks as rows
from quarterdeck.store.tx import Tx

REAL_VECTORS = 500
_AT_ONCE = 2000
_USER = Caller(LOCAL_USER, "maintainer", tool="bench.fill")
# No model in the core that fills: the rows come with their vectors.
_SETTINGS = Settings.model_validate({"search": {"provider": "off"}, "log": {"level": "error"}})
# 4,096 words, the first ones far more often than the last, as in any language.
_SYLLABLES = [first + last for first in "bdfgklmn" for last in "ao"]
_WORDS = ["".join(parts) for parts in itertools.product(_SYLLABLES, repeat=3)]
_WEIGHTS = list(itertools.accumulate(1 / rank for rank in range(1, len(_WORDS) + 1)))


def sentence(chance: random.Random, words: int) -> str:
    return " ".join(chance.choices(_WORDS, cum_weights=_WEIGHTS, k=words))


def tasks(directory: Path, count: int) -> list[str]:
    """Put so many tasks of the local user into a data directory; their ids."""

    async def fill() -> list[str]:
        chance, ids = random.Random(1), list[str]()
        async with life.opened(_SETTINGS, directory) as core:
            while len(ids) < count:
                ids += await core.db.tx(_USER, _add_tasks, chance, min(_AT_ONCE, count - len(ids)))
        return ids

    return asyncio.run(fill())


def _add_tasks(tx: Tx, chance: random.Random, count: int) -> list[str]:
    """What `task_create` writes: the row, its first transition, its event."""
    ids = [new_id() for _ in range(count)]
    for task_id in ids:
        title, text, extra = sentence(chance, 6), sentence(chance, 30), {"origin": "bench"}
        head = (task_id, LOCAL_USER, title, text, "pending", "medium", None, None, None, None)
        rows.add(tx, Task(*head, extra, tx.now, tx.now, None))
        rows.add_transition(tx, Transition(new_id(), task_id, None, "pending", None, "mcp", tx.now))
        tx.emit("task.created", task_id, task_id=task_id, status="pending", title=title)
    return ids


def decisions(directory: Path, count: int) -> None:
    """Put so many embedded decisions into a data directory: the first by the model, the rest at random."""

    async def fill() -> None:
        chance, model = random.Random(2), embedding.MiniLM()
        async with life.opened(_SETTINGS, directory) as core:
            for start in range(0, count, REAL_VECTORS):
                await core.db.tx(_USER, _add_decisions, chance, None if start else model)

    asyncio.run(fill())


def _add_decisions(tx: Tx, chance: random.Random, model: embedding.MiniLM | None) -> None:
    import numpy as np

    fresh = []
    for _ in range(REAL_VECTORS):
        said = (sentence(chance, 12), sentence(chance, 20))
        row = Decision(new_id(), LOCAL_USER, None, *said, None, 0.8, [sentence(chance, 1)], tx.now)
        fresh.append(memory.add_decision(tx, row))
    if model is not None:
        vectors = model.embed([memory.decision_text(row) for row in fresh])
    else:
        spread = np.random.default_rng(chance.getrandbits(32)).standard_normal((len(fresh), 384))
        vectors = (spread / np.linalg.norm(spread, axis=1, keepdims=True)).astype(np.float32)
    stored = [
        memory.Vector("decision", row.id, LOCAL_USER, vector.tobytes())
        for row, vector in zip(fresh, vectors, strict=True)
    ]
    memory.put_vectors(tx, embedding.MiniLM.model, stored)
