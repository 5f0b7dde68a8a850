"""Comparing an answer with the schema that somebody sent along."""

from __future__ import annotations

import asyncio
import socket
from typing import Any

from quarterdeck.run.schemas import misfit


def compared(schema: dict[str, Any], value: Any, seconds: float = 60) -> str | None:
    return asyncio.run(misfit(schema, value, seconds))


def test_a_value_fits_or_is_told_why_not() -> None:
    schema = {"$defs": {"port": {"type": "integer"}}, "properties": {"port": {"$ref": "#/$defs/port"}}}
    assert compared(schema, {"port": 7411}) is None
    assert "'ünï' is not of type 'integer'" in str(compared(schema, {"port": "ünï"}))


def test_a_schema_that_leads_elsewhere_or_round_in_circles_is_told_and_nothing_is_fetched() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.setblocking(False)
        url = f"http://127.0.0.1:{server.getsockname()[1]}/schema"
        assert "leads nowhere" in str(compared({"$ref": url}, 1))
        try:
            server.accept()
        except BlockingIOError:
            pass
        else:
            raise AssertionError("it was asked for")
    assert "leads nowhere" in str(compared({"$ref": "#"}, 1))


def test_a_pattern_that_never_ends_is_given_up() -> None:
    said = compared({"pattern": "^(a+)+$"}, "a" * 60 + "b", seconds=1)
    assert said == "the structured output could not be compared with json_schema in 1 s"
