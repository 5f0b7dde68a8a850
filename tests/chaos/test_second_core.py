"""Two cores and one data directory: the second is refused, and a killed first one does not stand in the way."""

from __future__ import annotations

from pathlib import Path

from tests.core_process import CoreProcess
from tests.integration.own_core import quarterdeck
from tests.mcp_client import Modern


def test_second_core_is_refused_by_name_while_the_first_goes_on(tmp_path: Path) -> None:
    with CoreProcess(tmp_path) as first, Modern(f"{first.url}/mcp/orchestrator", first.token) as client:
        made = client.done("task_create", title="made before")["id"]
        address, token = (tmp_path / "core.json").read_text(), first.token
        second = quarterdeck("up", "--data-dir", str(tmp_path), "--port", "0")
        said = " ".join(second.stderr.split())
        assert second.returncode == 1
        assert "another core already owns" in said
        assert first.url in said
        assert str(first.pid) in said
        assert "Traceback" not in said
        assert ((tmp_path / "core.json").read_text(), first.token) == (address, token)
        assert client.done("task_get", task_id=made)["task"]["title"] == "made before"
        client.done("task_create", title="made after")


def test_core_that_was_killed_leaves_room_for_the_next_one_at_once(tmp_path: Path) -> None:
    with CoreProcess(tmp_path) as core:
        killed, token = core.pid, core.token
        with Modern(f"{core.url}/mcp/orchestrator", token) as client:
            made = client.done("task_create", title="made before")["id"]
        core.kill9()
        core.start()
        assert core.pid != killed
        assert core.token == token
        assert "already owns" not in core.log
        with Modern(f"{core.url}/mcp/orchestrator", token) as client:
            assert client.done("task_get", task_id=made)["task"]["id"] == made
            refused = quarterdeck("up", "--data-dir", str(tmp_path), "--port", "0")
        assert refused.returncode == 1
        assert str(core.pid) in refused.stderr
