"""The step of the demo that kills the core under its writers, starts it again and counts."""

import re
import threading
import time
from concurrent.futures import ThreadPoolExecutor

from quarterdeck.cli.demo_stage import Row, Stage, check
from quarterdeck.cli.mcp_client import Connection, McpClient
from quarterdeck.domain.errors import Unavailable

WRITERS = 8
TASKS_EACH = 100
KILL_AFTER = 300
_ONE_WITHIN = 30.0
_CREATED = re.compile(r'^quarterdeck_events_total\{kind="task\.created"\} (\S+)$', re.MULTILINE)


class Writer:
    """Creates its tasks one after the other, sends none twice, and keeps the ids it was told."""

    def __init__(self, number: int, client: McpClient, acknowledged: threading.Semaphore) -> None:
        self.name = f"writer-{number}"
        self.ids: list[str] = []
        self.cut_off: str | None = None
        self._client = client
        self._acknowledged = acknowledged

    def write(self) -> None:
        """Go on until all tasks are there or the core is gone."""
        self.cut_off = None
        while len(self.ids) < TASKS_EACH:
            title = f"{self.name}, task {len(self.ids) + 1}"
            try:
                task = self._client.call("task_create", title=title, assigned_agent=self.name)
            except Unavailable:
                self.cut_off = title
                return
            self.ids.append(task["id"])
            self._acknowledged.release()

    def stored(self) -> list[Row]:
        rows: list[Row] = self._client.call("task_list", assigned_agent=self.name, limit=200)
        return rows

    def verify(self) -> bool:
        """Whether the task whose answer was cut off is there after all; all acknowledged ones must be."""
        stored = {row["id"]: row["title"] for row in self.stored()}
        check(set(self.ids) <= stored.keys(), f"every acknowledged task of {self.name} is there")
        check(len(set(stored.values())) == len(stored), f"no task of {self.name} is there twice")
        unheard = [task_id for task_id in stored if task_id not in set(self.ids)]
        check(all(stored[task_id] == self.cut_off for task_id in unheard), "nothing came out of thin air")
        self.ids += unheard
        return bool(unheard)


def crash(stage: Stage, token: str) -> None:
    acknowledged = threading.Semaphore(0)
    writers = [Writer(number + 1, stage.client(token), acknowledged) for number in range(WRITERS)]
    with ThreadPoolExecutor(WRITERS) as pool:
        writing = [pool.submit(writer.write) for writer in writers]
        for _ in range(KILL_AFTER):
            check(acknowledged.acquire(timeout=_ONE_WITHIN), "the writers make progress")
        stage.core.kill()
    for written in writing:
        written.result()
    told = sum(len(writer.ids) for writer in writers)
    cut_off = sum(writer.cut_off is not None for writer in writers)
    check(cut_off == WRITERS, "the kill came in the middle")
    stage.say(f"killed with {told} tasks acknowledged; {cut_off} calls got no answer")

    began = time.perf_counter()
    stage.start_core(stage.core.port)
    stage.say(f"started again on the same folder in {time.perf_counter() - began:.1f} s")
    unheard = sum(writer.verify() for writer in writers)
    stage.say(f"all {told} are there, each once; of the {cut_off} unanswered {unheard} had been committed")

    with ThreadPoolExecutor(WRITERS) as pool:
        list(pool.map(Writer.write, writers))
    stored = [row for writer in writers for row in writer.stored()]
    total = WRITERS * TASKS_EACH
    check(len({row["id"] for row in stored}) == len(stored) == total, f"{total} tasks with {total} ids")
    check(len({row["title"] for row in stored}) == total, "no task was created twice")
    check(_created(stage) == total - told - unheard, "one event for each task created since the restart")
    stage.say(f"the writers looked, went on with the same tokens, and ended at {total} tasks, none twice")


def _created(stage: Stage) -> float:
    """How many events `task.created` this core has committed, by its metrics."""
    connection = Connection(stage.core.url)
    found = _CREATED.search(connection.text("GET", "/metrics")[1])
    connection.close()
    return float(found[1]) if found else 0.0
