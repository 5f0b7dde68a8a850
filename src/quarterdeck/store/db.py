"""Opening a database, and the interface both stores share."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Concatenate, ParamSpec, Protocol, TypeVar

from sqlalchemy.exc import ArgumentError

from quarterdeck.domain.callers import Caller
from quarterdeck.domain.errors import Invalid
from quarterdeck.events import Bus
from quarterdeck.store.tx import Tx

P = ParamSpec("P")
T = TypeVar("T")


class Database(Protocol):
    """Where the rows are. A body is a plain function of a `Tx`; it is run again if it lost its connection."""

    dialect: str

    async def start(self) -> None:
        """Migrate and connect; after it, committed events reach the bus."""

    async def tx(
        self, caller: Caller, body: Callable[Concatenate[Tx, P], T], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        """Run a writing body; its result is returned only after COMMIT."""

    async def read(
        self, caller: Caller, body: Callable[Concatenate[Tx, P], T], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        """Run a reading body on a consistent snapshot."""

    async def close(self) -> None:
        """Finish what was accepted, then let go of the files or the server."""


def default_url(data_dir: Path) -> str:
    return f"sqlite:///{data_dir / 'quarterdeck.db'}"


def open_database(url: str, bus: Bus) -> Database:
    """The database behind a URL: `sqlite:///file` or `postgresql://…`. Call it on the event loop."""
    loop = asyncio.get_running_loop()
    if url.startswith("sqlite:///"):
        from quarterdeck.store.sqlite import Sqlite

        return Sqlite(Path(url.removeprefix("sqlite:///")), bus, loop)
    scheme, separator, rest = url.partition("://")
    if separator and scheme in ("postgresql", "postgres", "postgresql+psycopg"):
        try:
            from quarterdeck.store.postgres import Postgres
        except ImportError as missing:
            raise Invalid(
                "PostgreSQL needs the postgres extra",
                field="database.url",
                hint="pip install 'quarterdeck[postgres]'",
            ) from missing
        try:
            return Postgres(f"postgresql+psycopg://{rest}", bus, loop)
        except (ArgumentError, ValueError):  # whose text may quote the password
            raise Invalid(
                "the database URL cannot be read",
                field="database.url",
                hint="postgresql://user:password@host:5432/name, special characters percent-encoded",
            ) from None
    raise Invalid(
        "the database URL must begin with sqlite:/// or postgresql://",
        field="database.url",
        hint="leave it out for the embedded default",
    )
