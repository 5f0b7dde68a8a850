"""Semantic memory of one process: an embedder, and the place where its vectors are searched."""

import asyncio
import contextlib
from collections import OrderedDict
from collections.abc import Callable, Sequence
from collections.abc import Set as AbstractSet
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeVar

import structlog

from quarterdeck.config import SearchSettings
from quarterdeck.core import embedding
from quarterdeck.core.vectors import Matrix
from quarterdeck.domain import fusion
from quarterdeck.domain.callers import SYSTEM, Caller
from quarterdeck.domain.errors import Unavailable
from quarterdeck.domain.records import Decision, Pattern
from quarterdeck.events import Bus, Event
from quarterdeck.store import memory as rows
from quarterdeck.store import pgvector
from quarterdeck.store.db import Database
from quarterdeck.store.tx import Tx

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Floats = NDArray[np.float32]

T = TypeVar("T", Decision, Pattern)
State = Literal["loading", "semantic", "fallback"]

_BATCH = 32
_PAGE = 5000
_AT_ONCE = 500
_CANDIDATES = 50
_CACHED_QUERIES = 1024
_RETRY_SECONDS = 15.0

logger = structlog.get_logger()


class Nearest(Protocol):
    """Where the vectors of one model are searched. The bytes in the store are the truth it is filled from."""

    async def catch_up(self) -> None:
        """Take in every stored vector."""

    async def take(self, keys: Sequence[rows.Key]) -> None:
        """Take in the stored vectors of these rows."""

    async def put(self, vectors: Sequence[rows.Vector]) -> None:
        """Store new vectors; who hears of it finds them."""

    async def search(
        self, caller: Caller, kind: rows.Kind, query: "Floats", k: int, allowed: AbstractSet[str] | None
    ) -> list[tuple[str, float]]:
        """The caller's `k` nearest rows with their similarity, best first; among `allowed` when given."""
        ...


class InProcess:
    """One matrix a kind in this process."""

    def __init__(self, db: Database, model: str, dim: int) -> None:
        self._db = db
        self._model = model
        self._matrices: dict[rows.Kind, Matrix] = {"decision": Matrix(dim), "pattern": Matrix(dim)}

    async def catch_up(self) -> None:
        after = ("", "")
        while page := await self._db.read(SYSTEM, rows.vectors_after, self._model, after, _PAGE):
            self._add(page)
            after = (page[-1].kind, page[-1].row_id)

    async def take(self, keys: Sequence[rows.Key]) -> None:
        fresh = [(kind, row_id) for kind, row_id in keys if row_id not in self._matrices[kind]]
        if fresh:
            self._add(await self._db.read(SYSTEM, rows.vectors_of, self._model, fresh))

    async def put(self, vectors: Sequence[rows.Vector]) -> None:
        self._add(vectors)
        await self._db.tx(SYSTEM, rows.put_vectors, self._model, vectors)

    async def search(
        self, caller: Caller, kind: rows.Kind, query: "Floats", k: int, allowed: AbstractSet[str] | None
    ) -> list[tuple[str, float]]:
        search = self._matrices[kind].search
        return await asyncio.to_thread(search, query, caller.user_id, caller.everyone, k, allowed)

    def _add(self, vectors: Sequence[rows.Vector]) -> None:
        import numpy as np

        for vector in vectors:
            numbers = np.frombuffer(vector.vector, dtype=np.float32)
            self._matrices[vector.kind].put(vector.row_id, vector.user_id, numbers)


class InDatabase:
    """The index of pgvector, which every core of the database shares."""

    def __init__(self, db: Database, model: str, dim: int) -> None:
        self._db = db
        self._model = model
        self._dim = dim

    async def catch_up(self) -> None:
        """See `Nearest`: what was stored before there was an index."""
        await self.take(None)
        await self._db.tx(SYSTEM, pgvector.index, self._model, self._dim)

    async def take(self, keys: Sequence[rows.Key] | None) -> None:
        """See `Nearest`: what a core stored that started before there was an index."""
        after: rows.Key = ("decision", "")
        while page := await self._db.read(SYSTEM, pgvector.lacking, self._model, after, _AT_ONCE, keys):
            await self._db.tx(SYSTEM, pgvector.put, self._model, page)
            after = (page[-1].kind, page[-1].row_id)

    async def put(self, vectors: Sequence[rows.Vector]) -> None:
        def body(tx: Tx) -> None:
            pgvector.put(tx, self._model, rows.put_vectors(tx, self._model, vectors))

        await self._db.tx(SYSTEM, body)

    async def search(
        self, caller: Caller, kind: rows.Kind, query: "Floats", k: int, allowed: AbstractSet[str] | None
    ) -> list[tuple[str, float]]:
        return await self._db.read(caller, pgvector.nearest, kind, self._model, query.tolist(), k, allowed)


class MemoryIndex:
    """Finds decisions and patterns by meaning; without a model it answers by the documented fallback."""

    def __init__(self, db: Database, bus: Bus, settings: SearchSettings) -> None:
        self._db = db
        self._settings = settings
        self._embedder: embedding.Embedder | None = None
        self._nearest: Nearest | None = None
        self._queries: OrderedDict[str, Floats] = OrderedDict()
        self._pending: list[rows.Key] = []
        self._foreign: list[rows.Key] = []
        self._wake = asyncio.Event()
        self._work: asyncio.Task[None] | None = None
        self.state: State = "loading"
        self.reason: str | None = None
        bus.on("decision.logged", lambda event: self._queue(self._pending, "decision", [event.entity_id]))
        bus.on("pattern.stored", lambda event: self._queue(self._pending, "pattern", [event.entity_id]))
        bus.on("memory.embedded", self._heard)

    def start(self) -> None:
        self._work = asyncio.create_task(self._run(), name="memory-index")

    async def close(self) -> None:
        if self._work is not None:
            self._work.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._work
        if self._embedder is not None:
            self._embedder.close()

    def clear_cache(self) -> int:
        """Forget the embedded queries; how many there were."""
        count = len(self._queries)
        self._queries.clear()
        return count

    async def decisions(
        self, caller: Caller, query: str, limit: int, tags: Sequence[str] | None
    ) -> list[tuple[Decision, float | None]]:
        """The caller's decisions nearest to a query."""
        allowed = await self._db.read(caller, rows.tagged, tags) if tags else None
        found = await self._find(caller, "decision", query, limit, allowed)
        if found:
            return await self._fetch(caller, rows.decisions_by_id, found)
        likely = await self._db.read(caller, rows.decisions_like, query, limit, tags)
        return [(decision, None) for decision in likely]

    async def patterns(
        self, caller: Caller, situation: str, limit: int
    ) -> list[tuple[Pattern, float | None]]:
        """The caller's patterns nearest to a situation."""
        found = await self._find(caller, "pattern", situation, limit, None)
        if found:
            return await self._fetch(caller, rows.patterns_by_id, found)
        likely = await self._db.read(caller, rows.patterns_like, situation, limit)
        return [(pattern, None) for pattern in likely]

    async def _fetch(
        self,
        caller: Caller,
        by_id: Callable[[Tx, Sequence[str]], dict[str, T]],
        found: dict[str, float | None],
    ) -> list[tuple[T, float | None]]:
        """The rows behind the ids, most similar first; one not embedded yet comes last."""
        records = await self._db.read(caller, by_id, list(found))
        pairs = [(records[row_id], similarity) for row_id, similarity in found.items() if row_id in records]
        return sorted(pairs, key=lambda pair: -1.0 if pair[1] is None else pair[1], reverse=True)

    async def _find(
        self, caller: Caller, kind: rows.Kind, query: str, limit: int, allowed: set[str] | None
    ) -> dict[str, float | None]:
        """Fusion picks the rows by meaning, words and identifiers. Empty when search is not semantic."""
        vector = await self._embedded(query)
        if vector is None or self._nearest is None or allowed == set():
            return {}
        rankings = await self._db.read(caller, rows.ranked, kind, query)
        if allowed is not None:
            rankings = [[row_id for row_id in ranking if row_id in allowed] for ranking in rankings]
        meaning = await self._nearest.search(caller, kind, vector, max(limit, _CANDIDATES), allowed)
        if not meaning:
            return {}
        chosen = fusion.fuse([[row_id for row_id, _ in meaning], *rankings])[:limit]
        similarity = dict(meaning)
        missing = set(chosen) - similarity.keys()
        if missing:
            similarity.update(await self._nearest.search(caller, kind, vector, len(missing), missing))
        return {row_id: similarity.get(row_id) for row_id in chosen}

    async def _embedded(self, query: str) -> "Floats | None":
        if self._embedder is None:
            return None
        if (known := self._queries.get(query)) is not None:
            self._queries.move_to_end(query)
            return known
        try:
            vector: Floats = (await asyncio.to_thread(self._embedder.embed, [query]))[0]
        except Unavailable as error:
            logger.warning("memory.query_not_embedded", error=error.message)
            return None
        self._queries[query] = vector
        while len(self._queries) > _CACHED_QUERIES:
            self._queries.popitem(last=False)
        return vector

    def _queue(self, to: list[rows.Key], kind: rows.Kind, ids: Sequence[Any]) -> None:
        if self.state != "fallback":
            to += [(kind, str(row_id)) for row_id in ids]
            self._wake.set()

    def _heard(self, event: Event) -> None:
        """Another process may have embedded rows: take in what this one does not have."""
        if self._embedder is not None and event.data["model"] == self._embedder.model:
            self._queue(self._foreign, event.data["rows"], event.data["ids"])

    async def _run(self) -> None:
        try:
            embedder = await asyncio.to_thread(
                embedding.load,
                self._settings.provider,
                openai_key=_secret(self._settings),
                openai_base_url=self._settings.openai_base_url,
            )
        except Exception as error:  # a model that cannot be loaded must not take search along
            self.state, self.reason = "fallback", str(error)
            logger.warning("memory.fallback", reason=self.reason)
            return
        self._embedder = embedder
        while True:
            try:
                if self._nearest is None:
                    self._nearest = await _nearest(self._db, embedder)
                await self._catch_up(embedder, self._nearest)
                self.state = "semantic"
                while True:
                    await self._wake.wait()
                    self._wake.clear()
                    await self._absorb(embedder, self._nearest)
            except Exception as error:
                # The rows are in the store: after a pause the next catch-up finds them.
                logger.warning("memory.embedding_failed", error=str(error))
                await asyncio.sleep(_RETRY_SECONDS)

    async def _catch_up(self, embedder: embedding.Embedder, nearest: Nearest) -> None:
        """Take in every stored vector, then embed the rows that have none."""
        await nearest.catch_up()
        while texts := await self._db.read(SYSTEM, rows.unembedded, embedder.model, _BATCH):
            await self._embed(embedder, nearest, texts)

    async def _absorb(self, embedder: embedding.Embedder, nearest: Nearest) -> None:
        while self._pending:
            batch, self._pending[:_BATCH] = self._pending[:_BATCH], []
            # Another core may have been faster.
            if texts := await self._db.read(SYSTEM, rows.unembedded, embedder.model, _BATCH, batch):
                await self._embed(embedder, nearest, texts)
        while self._foreign:
            batch, self._foreign[:_PAGE] = self._foreign[:_PAGE], []
            await nearest.take(batch)

    async def _embed(
        self, embedder: embedding.Embedder, nearest: Nearest, texts: Sequence[rows.Text]
    ) -> None:
        matrix = await asyncio.to_thread(embedder.embed, [text.body for text in texts])
        fresh = [
            rows.Vector(text.kind, text.row_id, text.user_id, vector.tobytes())
            for text, vector in zip(texts, matrix, strict=True)
        ]
        await nearest.put(fresh)


async def _nearest(db: Database, embedder: embedding.Embedder) -> Nearest:
    """The database's own index where it has one."""
    if await db.tx(SYSTEM, pgvector.prepare):
        return InDatabase(db, embedder.model, embedder.dim)
    return InProcess(db, embedder.model, embedder.dim)


def _secret(settings: SearchSettings) -> str | None:
    return settings.openai_api_key.get_secret_value() if settings.openai_api_key else None
