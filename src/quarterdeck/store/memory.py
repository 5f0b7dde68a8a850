"""Decisions and patterns, their full text and their vectors."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal

from sqlalchemy import (
    Row,
    Select,
    Table,
    and_,
    bindparam,
    func,
    insert,
    literal,
    or_,
    select,
    text,
    tuple_,
    update,
)
from sqlalchemy.dialects import postgresql, sqlite

from quarterdeck.domain import fusion
from quarterdeck.domain.records import Decision, Pattern, as_dict
from quarterdeck.store import tasks
from quarterdeck.store.schema import decision_tags, decisions, embeddings, patterns
from quarterdeck.store.tx import Shape, Tx, record, within

Kind = Literal["decision", "pattern"]
Key = tuple[Kind, str]
_TABLE: dict[Kind, Table] = {"decision": decisions, "pattern": patterns}
_RANKED = 50


@dataclass(frozen=True, slots=True)
class Vector:
    """One embedded row, as stored."""

    kind: Kind
    row_id: str
    user_id: str | None
    vector: bytes


@dataclass(frozen=True, slots=True)
class Text:
    """What is to be embedded for one row."""

    kind: Kind
    row_id: str
    user_id: str | None
    body: str


_VECTOR = [embeddings.c[name] for name in Vector.__slots__]


def _upsert(fresh: Any) -> Any:
    names = ("user_id", "model", "vector")
    return fresh.on_conflict_do_update(
        index_elements=["kind", "row_id"], set_={name: fresh.excluded[name] for name in names}
    )


_UPSERT = {
    "sqlite": _upsert(sqlite.insert(embeddings)),
    "postgresql": _upsert(postgresql.insert(embeddings)),
}


def add_decision(tx: Tx, decision: Decision) -> Decision:
    tx.write(insert(decisions), as_dict(decision))
    if decision.tags:
        tx.write(
            insert(decision_tags),
            [{"tag": tag, "decision_id": decision.id} for tag in sorted(set(decision.tags))],
        )
    _index(tx, "decision", decision.id, decision.user_id, decision_text(decision))
    tx.emit("decision.logged", decision.id, task_id=decision.task_id, tags=decision.tags)
    return decision


def add_pattern(tx: Tx, pattern: Pattern) -> Pattern:
    tx.write(insert(patterns), as_dict(pattern))
    _index(tx, "pattern", pattern.id, pattern.user_id, pattern_text(pattern))
    tx.emit("pattern.stored", pattern.id, name=pattern.name[:200])
    return pattern


def decision_text(decision: Decision) -> str:
    """The text that stands for a decision in search."""
    return f"{decision.context}\n{decision.decision}"


def pattern_text(pattern: Pattern) -> str:
    """The text that stands for a pattern in search."""
    return f"{pattern.name}\n{pattern.description or ''}".strip()


@cache
def _by_id(kind: Kind, shape: Shape, lock: bool) -> Select[Any]:
    table = _TABLE[kind]
    statement = select(table).where(table.c.id == bindparam("row_id"), *within(table, shape))
    return statement.with_for_update() if lock else statement


def get_decision(tx: Tx, decision_id: str) -> Decision | None:
    row = tx.one(_by_id("decision", tx.shape, True), row_id=decision_id)
    return None if row is None else record(Decision, row)


def get_pattern(tx: Tx, pattern_id: str) -> Pattern | None:
    row = tx.one(_by_id("pattern", tx.shape, True), row_id=pattern_id)
    return None if row is None else record(Pattern, row)


def set_outcome(tx: Tx, decision_id: str, outcome: str) -> None:
    mine = (decisions.c.id == decision_id, *within(decisions, tx.shape))
    tx.write(update(decisions).where(*mine), {"outcome": outcome})


def set_use(tx: Tx, pattern_id: str, usage_count: int, success_rate: float, updated_at: int) -> None:
    tx.write(
        update(patterns).where(patterns.c.id == pattern_id, *within(patterns, tx.shape)),
        {"usage_count": usage_count, "success_rate": success_rate, "updated_at": updated_at},
    )


def decisions_of(tx: Tx, task_id: str) -> list[Decision]:
    """The decisions that name the caller's task, newest first."""
    statement = (
        select(decisions)
        .where(decisions.c.task_id.in_(tasks.seen(tx.shape)), *within(decisions, tx.shape, anchored=True))
        .order_by(decisions.c.created_at.desc(), decisions.c.id.desc())
        .limit(200)
    )
    return [record(Decision, row) for row in tx.all(statement, task_id=task_id)]


def decisions_by_id(tx: Tx, ids: Sequence[str]) -> dict[str, Decision]:
    statement = select(decisions).where(decisions.c.id.in_(ids), *within(decisions, tx.shape, by_ids=True))
    return {row.id: record(Decision, row) for row in tx.all(statement)}


def patterns_by_id(tx: Tx, ids: Sequence[str]) -> dict[str, Pattern]:
    statement = select(patterns).where(
        patterns.c.id.in_(ids), *within(patterns, tx.shape, anchored=True, by_ids=True)
    )
    return {row.id: record(Pattern, row) for row in tx.all(statement)}


def tagged(tx: Tx, tags: Iterable[str]) -> set[str]:
    """The caller's decisions with at least one of the tags."""
    statement = (
        select(decision_tags.c.decision_id)
        .join(decisions, decisions.c.id == decision_tags.c.decision_id)
        .where(decision_tags.c.tag.in_(list(tags)), *within(decisions, tx.shape))
    )
    return {row.decision_id for row in tx.all(statement)}


def decisions_like(tx: Tx, query: str, limit: int, tags: Sequence[str] | None) -> list[Decision]:
    """The documented fallback: a case-insensitive substring of context or decision, newest first."""
    found = _contains(tx, query, decisions.c.context, decisions.c.decision)
    conditions = [found, *within(decisions, tx.shape)]
    if tags:
        conditions.append(
            decisions.c.id.in_(select(decision_tags.c.decision_id).where(decision_tags.c.tag.in_(tags)))
        )
    statement = (
        select(decisions)
        .where(*conditions)
        .order_by(decisions.c.created_at.desc(), decisions.c.id.desc())
        .limit(limit)
    )
    return [record(Decision, row) for row in tx.all(statement)]


def patterns_like(tx: Tx, situation: str, limit: int) -> list[Pattern]:
    """The documented fallback: by name or description, best success rate, then most used, first."""
    statement = (
        select(patterns)
        .where(
            _contains(tx, situation, patterns.c.name, patterns.c.description),
            *within(patterns, tx.shape, anchored=True),
        )
        .order_by(patterns.c.success_rate.desc(), patterns.c.usage_count.desc(), patterns.c.id)
        .limit(limit)
    )
    return [record(Pattern, row) for row in tx.all(statement)]


def _contains(tx: Tx, query: str, *columns: Any) -> Any:
    """What ILIKE says of the query as it is, without its wildcards and without SQLite's limit of 50 kB."""
    position = func.instr if tx.dialect == "sqlite" else func.strpos
    return or_(*(position(func.lower(column), func.lower(query)) > 0 for column in columns))


_INDEX = {
    "sqlite": text("INSERT INTO memory_text VALUES (:kind, :row_id, :user_id, :body)"),
    "postgresql": text(
        "INSERT INTO memory_text VALUES (:kind, :row_id, :user_id, to_tsvector('simple', :body))"
    ),
}


def _index(tx: Tx, kind: Kind, row_id: str, user_id: str | None, body: str) -> None:
    tx.write(
        _INDEX[tx.dialect],
        {"kind": kind, "row_id": row_id, "user_id": user_id, "body": fusion.plain(body)},
    )


def ranked(tx: Tx, kind: Kind, query: str) -> list[list[str]]:
    """Full-text rankings, best first: rows with all the words, and rows with an identifier of the query."""
    if tx.dialect == "sqlite":
        expressions = (fusion.fts5_and(query), fusion.fts5_phrases(query))
        match, order = "memory_text MATCH :query", "rank"
    else:
        expressions = (fusion.tsquery_and(query), fusion.tsquery_phrases(query))
        match = "body @@ to_tsquery('simple', :query)"
        order = "ts_rank(body, to_tsquery('simple', :query)) DESC"
    mine = "" if tx.caller.everyone else "AND user_id = :caller_user"
    statement = text(
        f"SELECT row_id FROM memory_text WHERE {match} AND kind = :kind {mine} "  # noqa: S608
        f"ORDER BY {order}, row_id LIMIT {_RANKED}"
    )
    return [
        [row.row_id for row in tx.all(statement, kind=kind, query=expression)]
        for expression in expressions
        if expression is not None
    ]


def put_vectors(tx: Tx, model: str, vectors: Sequence[Vector]) -> list[Vector]:
    """Store vectors in place of older ones; other processes hear of them. Those whose row still exists."""
    stored: list[Vector] = []
    for kind, table in _TABLE.items():
        wanted = {vector.row_id: vector for vector in vectors if vector.kind == kind}
        # In one order, so that two cores with the same rows do not lock each other out.
        statement = (
            select(table.c.id)
            .where(table.c.id.in_(list(wanted)), *within(table, tx.shape, by_ids=True))
            .order_by(table.c.id)
        )
        alive = [wanted[row.id] for row in tx.all(statement)] if wanted else []
        if alive:
            values = [as_dict(vector) for vector in alive]
            tx.write(_UPSERT[tx.dialect], [{**value, "model": model} for value in values])
            tx.emit("memory.embedded", None, model=model, rows=kind, ids=[vector.row_id for vector in alive])
            stored += alive
    return stored


def vectors_after(tx: Tx, model: str, after: tuple[str, str], count: int) -> list[Vector]:
    """A page of the stored vectors of a model, in the order of (kind, id)."""
    key = tuple_(embeddings.c.kind, embeddings.c.row_id)
    statement = (
        select(*_VECTOR)
        .where(
            embeddings.c.model == model,
            key > tuple_(*map(literal, after)),
            *within(embeddings, tx.shape),
        )
        .order_by(*_VECTOR[:2])
        .limit(count)
    )
    return [record(Vector, row) for row in tx.all(statement)]


def vectors_of(tx: Tx, model: str, keys: Sequence[Key]) -> list[Vector]:
    key = tuple_(embeddings.c.kind, embeddings.c.row_id)
    mine = within(embeddings, tx.shape)
    statement = select(*_VECTOR).where(embeddings.c.model == model, key.in_(keys), *mine)
    return [record(Vector, row) for row in tx.all(statement)]


def unembedded(tx: Tx, model: str, count: int, keys: Sequence[Key] | None = None) -> list[Text]:
    """Rows without a vector of this model, oldest first; of `keys` alone when they are given."""
    found: list[Text] = []
    for kind, table in _TABLE.items():
        joined = and_(
            embeddings.c.kind == kind, embeddings.c.row_id == table.c.id, embeddings.c.model == model
        )
        statement = (
            select(table)
            .outerjoin(embeddings, joined)
            .where(embeddings.c.row_id.is_(None), *within(table, tx.shape))
            .order_by(table.c.created_at)
            .limit(count - len(found))
        )
        if keys is not None:
            statement = statement.where(table.c.id.in_([row_id for wanted, row_id in keys if wanted == kind]))
        found += [_text(kind, row) for row in tx.all(statement)]
    return found


def _text(kind: Kind, row: Row[Any]) -> Text:
    body = decision_text(record(Decision, row)) if kind == "decision" else pattern_text(record(Pattern, row))
    return Text(kind, row.id, row.user_id, body)
