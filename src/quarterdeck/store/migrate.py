"""Bringing a database to the current schema. Alembic is imported only when there is something to do."""

import contextlib
from collections.abc import Iterator
from importlib.resources import files
from typing import TYPE_CHECKING

from sqlalchemy import inspect, text
from sqlalchemy.engine import Connection, Engine
from sqlalchemy.exc import OperationalError

from quarterdeck.domain.errors import Invalid
from quarterdeck.store.schema import HEAD

if TYPE_CHECKING:
    from alembic.config import Config

_LOCK = 0x51444D47


def migrate(engine: Engine) -> None:
    """Run the missing migrations as one transaction, one process at a time.

    A database that a newer version wrote is refused.
    """
    with engine.connect() as conn:
        if _version(conn) == HEAD:
            return
    with engine.connect() as conn, _exclusive(conn):
        if _version(conn) == HEAD:
            return
        from alembic import command
        from alembic.util import CommandError

        try:
            command.upgrade(alembic_config(conn), "head")
        except CommandError as error:
            raise Invalid(
                "the database was written by a newer Quarterdeck",
                hint="update this installation, or point it at another database",
            ) from error


def alembic_config(conn: Connection) -> "Config":
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", str(files("quarterdeck.store") / "migrations"))
    config.attributes["connection"] = conn
    return config


def _version(conn: Connection) -> str | None:
    if not inspect(conn).has_table("alembic_version"):
        return None
    version: str | None = conn.execute(text("SELECT version_num FROM alembic_version")).scalar()
    return version


@contextlib.contextmanager
def _exclusive(conn: Connection) -> Iterator[None]:
    """One transaction that no other process can enter; rolled back when the block fails."""
    if conn.dialect.name == "sqlite":
        # The driver is in autocommit mode, so the transaction is ours to begin; keys are checked at its end.
        conn.exec_driver_sql("PRAGMA foreign_keys=OFF")
        conn.exec_driver_sql("BEGIN IMMEDIATE")
        try:
            yield
            if broken := conn.exec_driver_sql("PRAGMA foreign_key_check").all():
                raise RuntimeError(f"a migration leaves rows without their parent: {broken[:5]}")
            conn.exec_driver_sql("COMMIT")
        except BaseException:
            # A full disk has already undone it, and closing the connection would too.
            with contextlib.suppress(OperationalError):
                conn.exec_driver_sql("ROLLBACK")
            raise
        return
    with conn.begin():
        conn.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": _LOCK})
        yield
