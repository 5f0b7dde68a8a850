"""A core that is killed again and again under load: what it acknowledged is there, once, and whole."""

from __future__ import annotations

import asyncio
import http.client
import json
import random
import sqlite3
import threading
import time
from collections import Counter
from pathlib import Path
from urllib.parse import urlsplit

from quarterdeck import paths
from quarterdeck.events import Event
from tests.core_process import CoreProcess
from tests.mcp_client import MODERN, Modern, Older
from tests.store import is_chained, opened, whole_log

CLIENTS = 8
KILLS = 6
SEED = 20260728
META = {
    "io.modelcontextprotocol/protocolVersion": MODERN,
    "io.modelcontextprotocol/clientCapabilities": {},
}


class Creator(threading.Thread):
    """A client that creates tasks as fast as it can, each with a marker of its own, and never retries one."""

    def __init__(self, number: int, core: CoreProcess) -> None:
        super().__init__(name=f"creator-{number}")
        self._number = number
        self._core = core
        self._stop_asked = threading.Event()
        self.acknowledged: dict[str, str] = {}
        self.sent = 0

    def run(self) -> None:
        while not self._stop_asked.is_set():
            marker, self.sent = f"{self._number}-{self.sent}", self.sent + 1
            try:
                task_id = self._create(marker)
            except (OSError, http.client.HTTPException):
                task_id = None
            if task_id is None:
                self._stop_asked.wait(0.05)
            else:
                self.acknowledged[marker] = task_id

    def end(self) -> None:
        self._stop_asked.set()
        self.join(60)

    def _create(self, marker: str) -> str | None:
        """The id of a new task; None when the core did not say that there is one."""
        address = paths.read_address(self._core.data_dir)
        if address is None:  # the next core has taken the last one's away, and has none yet
            return None
        arguments = {"title": f"task {marker}", "metadata": {"marker": marker}}
        params = {"name": "task_create", "arguments": arguments, "_meta": META}
        body = json.dumps({"jsonrpc": "2.0", "id": marker, "method": "tools/call", "params": params})
        headers = {
            "Authorization": f"Bearer {self._core.token}",
            "Content-Type": "application/json",
            "Accept": "application/json, text/event-stream",
            "MCP-Protocol-Version": MODERN,
            "Mcp-Method": "tools/call",
            "Mcp-Name": "task_create",
        }
        connection = http.client.HTTPConnection(urlsplit(address.url).netloc, timeout=30)
        try:
            connection.request("POST", "/mcp/orchestrator", body, headers)
            response = connection.getresponse()
            answer = response.read()
        finally:
            connection.close()
        if response.status != 200:
            return None
        result = json.loads(answer)["result"]
        assert not result["isError"], result
        return str(result["structuredContent"]["id"])


def test_kill_9_under_load_loses_and_doubles_nothing_that_was_acknowledged(tmp_path: Path) -> None:
    chance = random.Random(SEED)
    with CoreProcess(tmp_path) as core:
        older = Older(f"{core.url}/mcp/orchestrator", core.token)
        session, early = older.session, older.done("task_create", title="before the first kill")["id"]
        creators = [Creator(number, core) for number in range(CLIENTS)]
        for creator in creators:
            creator.start()
        try:
            for _ in range(KILLS):
                before = _acknowledged(creators)
                time.sleep(chance.uniform(0.2, 1.5))
                _until_more_than(before, creators)  # so that each life has something to lose
                core.kill9()
                core.start()
            _until_more_than(_acknowledged(creators), creators)
        finally:
            for creator in creators:
                creator.end()
        kept = {marker: task_id for creator in creators for marker, task_id in creator.acknowledged.items()}
        with older, Modern(f"{core.url}/mcp/orchestrator", core.token) as modern:
            older.url = modern.url
            assert older.done("task_get", task_id=early)["task"]["id"] == early
            assert older.session == session
            for marker in chance.sample(sorted(kept), 20):
                shown = modern.done("task_get", task_id=kept[marker])
                assert shown["task"]["metadata"] == {"marker": marker}
                assert [(step["from_status"], step["to_status"]) for step in shown["transitions"]] == [
                    (None, "pending")
                ]
    _check_store(tmp_path / "quarterdeck.db", kept, sum(creator.sent for creator in creators))


def _check_store(file: Path, kept: dict[str, str], sent: int) -> None:
    """Look at the file itself: every task, its first transition, its event, and the chain of all events."""
    connection = sqlite3.connect(file)
    try:
        tasks = dict(connection.execute("SELECT id, metadata ->> 'marker' FROM tasks"))
        steps = connection.execute("SELECT task_id, from_status, to_status FROM transitions").fetchall()
        assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    finally:
        connection.close()
    markers = Counter(marker for marker in tasks.values() if marker is not None)
    assert {marker: task_id for marker, task_id in kept.items() if tasks.get(task_id) != marker} == {}
    assert max(markers.values()) == 1
    assert len(kept) <= len(markers) <= sent
    assert sorted(steps) == sorted((task_id, None, "pending") for task_id in tasks)
    events = asyncio.run(_events(file))
    created = Counter(event.entity_id for event in events if event.kind == "task.created")
    assert created == Counter(list(tasks))
    assert is_chained(events)


async def _events(file: Path) -> list[Event]:
    async with opened(f"sqlite:///{file}") as db:
        return await whole_log(db)


def _acknowledged(creators: list[Creator]) -> int:
    return sum(len(creator.acknowledged) for creator in creators)


def _until_more_than(before: int, creators: list[Creator]) -> None:
    deadline = time.monotonic() + 30
    while _acknowledged(creators) < before + CLIENTS:
        assert time.monotonic() < deadline, "no client gets anything done"
        time.sleep(0.01)
