"""An agent's stream of JSON in words, however it is cut into pieces."""

from __future__ import annotations

import json

import pytest

from quarterdeck.cli.transcripts import Transcript

LINES = [
    {"type": "system", "subtype": "init", "session_id": "s", "model": "m", "tools": [], "mcp_servers": []},
    {
        "type": "assistant",
        "session_id": "s",
        "message": {
            "role": "assistant",
            "content": [
                {"type": "text", "text": "I look first."},
                {"type": "tool_use", "id": "t", "name": "Bash", "input": {"command": "ls"}},
            ],
        },
    },
    {
        "type": "user",
        "session_id": "s",
        "message": {
            "role": "user",
            "content": [{"type": "tool_result", "tool_use_id": "t", "content": "README.md\nsrc"}],
        },
    },
]
LOG = "a line of its own\n" + "".join(f"{json.dumps(line)}\n" for line in LINES) + "unended"


@pytest.mark.parametrize("size", [1, 7, 10_000])
def test_claudes_stream_is_told_in_words(size: int) -> None:
    transcript = Transcript("claude")
    pieces = [LOG[begin : begin + size] for begin in range(0, len(LOG), size)]
    told = "".join(map(transcript.add, pieces)) + transcript.rest()
    lines = told.splitlines()
    assert lines[0] == "a line of its own"
    assert lines[1] == "I look first."
    assert lines[2].startswith("▸ Bash")
    assert lines[3:] == ["  README.md", "  src", "unended"]


@pytest.mark.parametrize("adapter", ["command", None, "one that is not known"])
def test_what_a_program_prints_stays_as_it_is(adapter: str | None) -> None:
    transcript = Transcript(adapter)
    assert transcript.add(LOG) + transcript.rest() == LOG
