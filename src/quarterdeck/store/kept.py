"""Statements that run all the time: compiled once and run on SQLite's driver itself, in half the time."""

import sqlite3
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

from sqlalchemy import Insert, Select
from sqlalchemy.dialects import sqlite
from sqlalchemy.engine import Connection
from sqlalchemy.exc import DBAPIError
from sqlalchemy.sql import Executable
from sqlalchemy.types import TypeEngine

Params = Mapping[str, Any]
S = TypeVar("S", Insert, Select[Any])

_DIALECT = sqlite.dialect(paramstyle="qmark")
_KEPT: dict[Executable, "Kept | None"] = {}


def kept(statement: S) -> S:
    """Mark a statement that lives as long as the process. It has no list for an IN, no column defaults."""
    _KEPT[statement] = None
    return statement


def find(statement: Executable) -> "Kept | None":
    """The compiled form of a marked statement, None for any other."""
    if statement not in _KEPT:
        return None
    found = _KEPT[statement]
    if found is None:
        found = _KEPT[statement] = Kept(statement)
    return found


class Kept:
    """One compiled statement. Values and errors are SQLAlchemy's; rows are plain sequences, for `record`."""

    def __init__(self, statement: Any) -> None:
        compiled = statement.compile(dialect=_DIALECT)
        self._sql = str(compiled)
        self._names: list[str] = compiled.positiontup
        self._constants = {name: value for name, value in compiled.params.items() if value is not None}
        self._into = [
            (name, convert)
            for name in self._names
            if (convert := _impl(compiled.binds[name].type).bind_processor(_DIALECT)) is not None
        ]
        columns = statement.selected_columns if isinstance(statement, Select) else ()
        self._out_of = [
            (index, convert)
            for index, column in enumerate(columns)
            if (convert := _impl(column.type).result_processor(_DIALECT, None)) is not None
        ]

    def write(self, conn: Connection, params: Params | Sequence[Params]) -> int:
        """Run it once for each mapping; how many rows it touched."""
        given = [params] if isinstance(params, Mapping) else params
        values = [self._values(one) for one in given]
        cursor = conn.connection.cursor()
        try:
            cursor.executemany(self._sql, values)
        except sqlite3.Error as error:
            raise DBAPIError.instance(self._sql, None, error, sqlite3.Error) from error
        return cursor.rowcount

    def rows(self, conn: Connection, params: Params) -> list[Any]:
        values = self._values(params)
        cursor = conn.connection.cursor()
        try:
            cursor.execute(self._sql, values)
            found = cursor.fetchall()
        except sqlite3.Error as error:
            raise DBAPIError.instance(self._sql, None, error, sqlite3.Error) from error
        return [self._row(row) for row in found] if self._out_of else list(found)

    def _values(self, params: Params) -> list[Any]:
        values = {**self._constants, **params}
        for name, convert in self._into:
            values[name] = convert(values[name])
        return [values[name] for name in self._names]

    def _row(self, row: Sequence[Any]) -> list[Any]:
        values = list(row)
        for index, convert in self._out_of:
            values[index] = convert(values[index])
        return values


def _impl(kind: TypeEngine[Any]) -> TypeEngine[Any]:
    return kind.dialect_impl(_DIALECT)
