"""Settings that were changed while the core ran. They belong to the server, not to a user."""

from typing import Any

from sqlalchemy import select
from sqlalchemy.dialects import postgresql, sqlite

from quarterdeck.store.schema import settings
from quarterdeck.store.tx import Tx


def _upsert(fresh: Any) -> Any:
    changed = {name: fresh.excluded[name] for name in ("value", "updated_by", "updated_at")}
    return fresh.on_conflict_do_update(index_elements=["key"], set_=changed)


_PUT = {
    "sqlite": _upsert(sqlite.insert(settings)),
    "postgresql": _upsert(postgresql.insert(settings)),
}


def stored(tx: Tx) -> dict[str, Any]:
    """Every changed setting by its dotted name."""
    return {row.key: row.value for row in tx.all(select(settings.c.key, settings.c.value))}


def put(tx: Tx, key: str, value: Any) -> None:
    row = {"key": key, "value": value, "updated_by": tx.caller.actor, "updated_at": tx.now}
    tx.write(_PUT[tx.dialect], row)
