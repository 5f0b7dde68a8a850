"""Rows in bulk, through the store's own transactions: thousands to one, with their events and hash chain."""

import asyncio
import random
from pathlib import Path

from sqlalchemy import insert

from quarterdeck.config import Settings
from quarterdeck.core import embedding, life
from quarterdeck.core.tokens import LOCAL_USER
from quarterdeck.domain.callers import Caller
from quarterdeck.domain.ids import new_id
from quarterdeck.domain.records import Decision, Task, Transition
from quarterdeck.store import memory, schema
from quarterdeck.store.tx import Tx

REAL_VECTORS = 500
_AT_ONCE = 2000
_USER = Caller(LOCAL_USER, "maintainer", tool="bench.fill")
_WORDS = (
    "agent board branch budget cache commit deploy error event gate index job lease limit lock merge "
    "migration plan queue reader replay retry review route schema session stream task token vector writer"
).split()


def sentence(chance: random.Random, words: int) -> str:
    return " ".join(chance.choices(_WORDS, k=words))


def tasks(directory: Path, count: int) -> list[str]:
    """Put so many tasks of the local user into a data directory; their ids."""

    async def fill() -> list[str]:
        chance, ids = random.Random(1), list[str]()
        async with life.opened(_settings(), directory) as core:
            while len(ids) < count:
                ids += await core.db.tx(_USER, _add_tasks, chance, min(_AT_ONCE, count - len(ids)))
        return ids

    return asyncio.run(fill())


def _add_tasks(tx: Tx, chance: random.Random, count: int) -> list[str]:
    """What `task_create` writes, for many tasks: the rows, their first transitions, their events."""
    names, steps = Task.__slots__, Transition.__slots__
    fresh = []
    for _ in range(count):
        title, text = sentence(chance, 6), sentence(chance, 30)
        fresh.append(
            Task(
                *(new_id(), LOCAL_USER, title, text, "pending", "medium"),
                *(None, None, None, None, {"origin": "bench"}, tx.now, tx.now, None),
            )
        )
    first = [Transition(new_id(), task.id, None, "pending", None, "mcp", tx.now) for task in fresh]
    tx.write(insert(schema.tasks), [{name: getattr(task, name) for name in names} for task in fresh])
    tx.write(insert(schema.transitions), [{name: getattr(step, name) for name in steps} for step in first])
    for task in fresh:
        tx.emit("task.created", task.id, task_id=task.id, status="pending", title=task.title)
    return [task.id for task in fresh]


def decisions(directory: Path, count: int) -> None:
    """Put so many embedded decisions into a data directory: some by the model, the rest at random."""

    async def fill() -> None:
        chance, model = random.Random(2), embedding.MiniLM()
        async with life.opened(_settings(), directory) as core:
            for start in range(0, count, REAL_VECTORS):
                size = min(REAL_VECTORS, count - start)
                await core.db.tx(_USER, _add_decisions, chance, size, None if start else model)

    asyncio.run(fill())


def _add_decisions(tx: Tx, chance: random.Random, count: int, embedder: embedding.MiniLM | None) -> None:
    import numpy as np

    fresh = [
        memory.add_decision(
            tx,
            Decision(
                *(new_id(), LOCAL_USER, None, sentence(chance, 12), sentence(chance, 20)),
                *(None, 0.8, [chance.choice(_WORDS)], tx.now),
            ),
        )
        for _ in range(count)
    ]
    if embedder is not None:
        vectors = embedder.embed([memory.decision_text(decision) for decision in fresh])
    else:
        spread = np.random.default_rng(chance.getrandbits(32)).standard_normal((count, embedding.MiniLM.dim))
        vectors = (spread / np.linalg.norm(spread, axis=1, keepdims=True)).astype(np.float32)
    stored = [
        memory.Vector("decision", decision.id, LOCAL_USER, vector.tobytes())
        for decision, vector in zip(fresh, vectors, strict=True)
    ]
    memory.put_vectors(tx, embedding.MiniLM.model, stored)


def _settings() -> Settings:
    # No model in this core: the rows come with their vectors.
    return Settings.model_validate({"search": {"provider": "off"}})
