"""Settings that were changed while the core ran. They belong to the server, not to a user."""

from typing import Any

from sqlalchemy import delete, insert, select

from quarterdeck.store.schema import settings
from quarterdeck.store.tx import Tx


def stored(tx: Tx) -> dict[str, Any]:
    """Every changed setting by its dotted name."""
    return {row.key: row.value for row in tx.all(select(settings.c.key, settings.c.value))}


def put(tx: Tx, key: str, value: Any) -> None:
    tx.write(delete(settings).where(settings.c.key == key), {})
    row = {"key": key, "value": value, "updated_by": tx.caller.actor, "updated_at": tx.now}
    tx.write(insert(settings), row)
