"""Nearest neighbours in PostgreSQL, where pgvector is: an index beside the vectors in `embeddings`."""

import json
import re
from array import array
from collections.abc import Sequence
from collections.abc import Set as AbstractSet

import structlog
from sqlalchemy import and_, column, literal, select, table, text, tuple_
from sqlalchemy.exc import DBAPIError

from quarterdeck.store.memory import Key, Kind, Vector
from quarterdeck.store.schema import embeddings
from quarterdeck.store.tx import Tx, record, within

_LOCK = 0x51445643
# Older ones cannot go on looking when the caller's rows are few among the nearest.
_LEAST = (0, 8)

logger = structlog.get_logger()

_indexed = table("embedding_vectors", column("kind"), column("row_id"), column("model"))
_TABLE = """
    CREATE TABLE IF NOT EXISTS embedding_vectors (
        kind VARCHAR(16), row_id VARCHAR(36), user_id VARCHAR(200), model VARCHAR(64) NOT NULL,
        v vector NOT NULL,
        PRIMARY KEY (kind, row_id),
        FOREIGN KEY (kind, row_id) REFERENCES embeddings ON DELETE CASCADE
    )
"""
_ONE_CORE = text("SELECT pg_advisory_xact_lock(:key)")
_BY_USER = "CREATE INDEX IF NOT EXISTS ix_embedding_vectors_user_id ON embedding_vectors (user_id, kind)"
_PUT = text("""
    INSERT INTO embedding_vectors (kind, row_id, user_id, model, v)
    VALUES (:kind, :row_id, :user_id, :model, CAST(:v AS vector))
    ON CONFLICT (kind, row_id) DO UPDATE
    SET user_id = excluded.user_id, model = excluded.model, v = excluded.v
""")
_SEARCHING = text("""
    SELECT set_config('hnsw.ef_search', '100', true), set_config('hnsw.iterative_scan', 'strict_order', true)
""")


def prepare(tx: Tx) -> bool:
    """Make the table; False where there is no pgvector, or no right to create it."""
    if tx.dialect != "postgresql":
        return False
    tx.one(_ONE_CORE, key=_LOCK)
    try:
        with tx.conn.begin_nested():
            tx.conn.execute(text("CREATE EXTENSION IF NOT EXISTS vector"))
            found = tx.one(text("SELECT extversion FROM pg_extension WHERE extname = 'vector'"))
            if found is None or tuple(map(int, re.findall(r"\d+", found.extversion)[:2])) < _LEAST:
                return False
            tx.conn.execute(text(_TABLE))
            tx.conn.execute(text(_BY_USER))
    except DBAPIError as error:
        if error.connection_invalidated:
            raise
        logger.info("store.no_pgvector", reason=str(error.orig).partition("\n")[0])
        return False
    return True


def index(tx: Tx, model: str, dim: int) -> None:
    """Make the indexes of a model; over rows that are there already it takes a tenth of the time."""
    tx.one(_ONE_CORE, key=_LOCK)
    tx.one(text("SELECT set_config('maintenance_work_mem', '256MB', true)"))
    for kind in ("decision", "pattern"):
        name = f"ix_embedding_vectors_{kind}_{re.sub(r'[^a-z0-9]', '_', model)}"
        statement = (
            f"CREATE INDEX IF NOT EXISTS {name} ON embedding_vectors "
            f"USING hnsw ({_typed(dim)} vector_cosine_ops) WHERE {_of(kind, model)}"
        )
        tx.conn.execute(text(statement))


def put(tx: Tx, model: str, vectors: Sequence[Vector]) -> None:
    """Index vectors that `embeddings` holds."""
    if vectors:
        tx.write(
            _PUT,
            [
                {
                    "kind": vector.kind,
                    "row_id": vector.row_id,
                    "user_id": vector.user_id,
                    "model": model,
                    "v": json.dumps(array("f", vector.vector).tolist()),
                }
                for vector in vectors
            ],
        )


def lacking(tx: Tx, model: str, after: Key, count: int, keys: Sequence[Key] | None = None) -> list[Vector]:
    """Stored vectors of this model that the index does not hold, in the order of (kind, id) after a key.

    Of `keys` alone when they are given.
    """
    key = tuple_(embeddings.c.kind, embeddings.c.row_id)
    joined = and_(
        _indexed.c.kind == embeddings.c.kind,
        _indexed.c.row_id == embeddings.c.row_id,
        _indexed.c.model == embeddings.c.model,
    )
    statement = (
        select(*(embeddings.c[name] for name in Vector.__slots__))
        .outerjoin(_indexed, joined)
        .where(embeddings.c.model == model, key > tuple_(*map(literal, after)), _indexed.c.row_id.is_(None))
        .where(*within(embeddings, tx.shape))
        .order_by(embeddings.c.kind, embeddings.c.row_id)
        .limit(count)
    )
    if keys is not None:
        statement = statement.where(key.in_(keys))
    return [record(Vector, row) for row in tx.all(statement)]


def nearest(
    tx: Tx, kind: Kind, model: str, query: Sequence[float], k: int, allowed: AbstractSet[str] | None
) -> list[tuple[str, float]]:
    """The caller's `k` nearest rows, best first, equal ones by id, with their similarity clamped to 0–1."""
    distance = f"{_typed(len(query))} <=> CAST(:query AS vector({len(query)}))"
    mine = "" if tx.caller.everyone else "AND user_id = :caller_user"
    among = "" if allowed is None else "AND row_id = ANY(:allowed)"
    statement = text(
        f"SELECT row_id, 1 - ({distance}) AS similarity FROM embedding_vectors "  # noqa: S608
        f"WHERE {_of(kind, model)} {mine} {among} ORDER BY {distance} LIMIT :k"
    )
    tx.one(_SEARCHING)
    found = tx.all(statement, query=json.dumps(list(query)), k=k, allowed=list(allowed or ()))
    best = sorted(found, key=lambda row: (-row.similarity, row.row_id))
    return [(row.row_id, min(1.0, max(0.0, row.similarity))) for row in best]


def _typed(dim: int) -> str:
    """The column as the index has it: the table holds vectors of any length."""
    return f"(v::vector({dim}))"


def _of(kind: Kind, model: str) -> str:
    # Written out, not bound: a prepared statement would not see that the partial index serves it.
    quoted = model.replace("'", "''")
    return f"kind = '{kind}' AND model = '{quoted}'"
