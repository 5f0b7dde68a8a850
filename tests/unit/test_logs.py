"""What reaches the log: one form for every library, and no secret."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator

import pytest
import structlog

from quarterdeck.server.logs import configure, redact

TOKEN = "mcp_" + "aB3-_xYz" * 6


@pytest.fixture
def own_logging() -> Iterator[None]:
    """Give the test run its logging back."""
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    yield
    root.handlers, root.level = handlers, level
    structlog.reset_defaults()


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        (f"token {TOKEN} was used", "token [secret] was used"),
        (f"{TOKEN},{TOKEN}", "[secret],[secret]"),
        ("Authorization: Bearer anything.at-all/of=it and more", "Authorization: Bearer [secret] and more"),
        ("postgresql://deck:p%40ss@db.example:5432/deck", "postgresql://[secret]@db.example:5432/deck"),
        ("postgresql+psycopg://deck:pa-ss@db/deck failed", "postgresql+psycopg://[secret]@db/deck failed"),
        ("key sk-proj_0123456789-abc is wrong", "key [secret] is wrong"),
        ("http://127.0.0.1:7411/mcp?x=1@2", "http://127.0.0.1:7411/mcp?x=1@2"),
        ("postgresql://deck@db/deck", "postgresql://deck@db/deck"),
        ("mcp_sessions and task sk-1", "mcp_sessions and task sk-1"),
    ],
)
def test_only_secrets_are_masked(text: str, shown: str) -> None:
    assert redact(text) == shown


@pytest.mark.parametrize("form", ["text", "json"])
def test_lines_of_ours_and_of_libraries_go_to_stderr_without_secrets(
    own_logging: None, capsys: pytest.CaptureFixture[str], form: str
) -> None:
    configure("info", form)
    structlog.get_logger().info("ours", url="postgresql://deck:pa55@db/deck", count=3)
    structlog.get_logger().debug("below the level")
    logging.getLogger("some.library").warning("theirs: %s", f"Bearer {TOKEN}")
    try:
        raise ValueError(f"broke on {TOKEN}")
    except ValueError:
        structlog.get_logger().exception("ours.broke")
        logging.getLogger("some.library").exception("theirs broke")
    out, err = capsys.readouterr()
    assert out == ""
    assert "pa55" not in err and TOKEN not in err
    assert err.count("ValueError: broke on [secret]") == 2
    assert "below the level" not in err
    if form == "json":
        lines = [json.loads(line) for line in err.splitlines()]
        assert [line["event"] for line in lines] == [
            "ours",
            "theirs: Bearer [secret]",
            "ours.broke",
            "theirs broke",
        ]
        assert [line["level"] for line in lines] == ["info", "warning", "error", "error"]
        assert lines[0]["count"] == 3
