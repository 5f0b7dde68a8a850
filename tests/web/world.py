"""A store with something of everything that the pages show, made before its core starts."""

from __future__ import annotations

import asyncio
import hashlib
import json
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from quarterdeck.config import Settings
from quarterdeck.core import (
    board,
    life,
    memory,
    plans,
    projects,
    proposals,
    queue,
    reviews,
    sessions,
    worktrees,
)
from quarterdeck.core.context import Core
from quarterdeck.core.tokens import LOCAL_USER
from quarterdeck.domain.callers import Caller
from quarterdeck.domain.ids import now_us
from quarterdeck.domain.jobs import new_job_id
from quarterdeck.domain.records import Job, JobArtifact, Task
from quarterdeck.store import artifacts, jobs
from quarterdeck.store.tx import Tx
from tests.git_repo import GitRepo

ME = Caller(LOCAL_USER, "maintainer")
PATCH = """diff --git a/shop/invoice.py b/shop/invoice.py
index 1111111..2222222 100644
--- a/shop/invoice.py
+++ b/shop/invoice.py
@@ -1,4 +1,5 @@ import decimal
 import decimal

-def total(lines):
+def total(lines: list) -> Decimal:
+    exact = sum(lines)
     return 1
"""
BEGUN = "import decimal\n\n\ndef total(lines):\n    return sum(lines)\n\n\nrate = 19\n"


# An agent that tells of itself, waits, and changes a line.
AGENT = """
import pathlib, sys, time
print("looking at the rate <b>now</b>", flush=True)
deadline = time.monotonic() + 120
while not pathlib.Path(sys.argv[1]).exists() and time.monotonic() < deadline:
    time.sleep(0.02)
file = pathlib.Path("invoice.py")
file.write_text(file.read_text().replace("rate = 19", "rate = 7"))
print("changed the rate", flush=True)
"""


@dataclass(slots=True)
class World:
    """Where it is, and the ids of what is in it by a short name. `words` is put into every text."""

    data_dir: Path
    words: str
    ids: dict[str, str] = field(default_factory=dict)

    @property
    def repo(self) -> Path:
        return self.data_dir.parent / "shop"

    @property
    def go(self) -> Path:
        """The scripted agent waits for this file."""
        return self.data_dir.parent / "go"

    def pages(self) -> list[str]:
        """Every page that can be looked at."""
        i = self.ids
        return [
            "/",
            f"/tasks/{i['task']}",
            f"/tasks/{i['review']}",
            f"/tasks/{i['review']}/diff",
            "/tasks/new",
            f"/tasks/{i['task']}/edit",
            "/plans",
            f"/plans/{i['plan']}",
            "/templates",
            "/templates/bug-fix",
            "/jobs",
            f"/jobs/{i['job']}",
            f"/jobs/{i['job']}/files/patch.diff",
            f"/jobs/{i['job']}/files/logs.txt",
            "/agents",
            "/memory",
            "/insight",
            "/sessions",
            f"/sessions/{i['session']}",
            "/projects",
            "/audit",
            "/tokens",
            "/settings",
        ]


def prepared(folder: Path, words: str = "", cards: int = 3) -> World:
    """A fresh data directory below `folder`, filled."""
    world = World(folder / "data", words)
    world.data_dir.mkdir()
    (folder / "agent.py").write_text(AGENT)
    command = [sys.executable, str(folder / "agent.py"), str(world.go)]
    (world.data_dir / "quarterdeck.toml").write_text(
        f'[agents.scripted]\nadapter = "command"\ncommand = {json.dumps(command)}\n'
        '[defaults]\nworker_agent = "scripted"\n[worker]\nsandbox = "off"\n'
    )
    # In a thread of its own: the browser's loop runs in this one.
    with ThreadPoolExecutor(1) as aside:
        aside.submit(lambda: asyncio.run(_fill(world, cards))).result()
    return world


async def _fill(world: World, cards: int) -> None:
    settings = Settings.model_validate({"search": {"provider": "off"}})
    async with life.opened(settings, world.data_dir) as core:
        await _tasks(core, world, cards)
        await _plan(core, world)
        await _work(core, world)
        await core.db.tx(ME, _job, world)


async def _tasks(core: Core, world: World, cards: int) -> None:
    words, ids = world.words, world.ids
    for number in range(cards):
        new = board.NewTask(f"Task {number}{words}", f"See https://example.org/{number} {words}")
        ids["task"] = (await board.create(core, ME, new)).id
    await board.append_scratchpad(core, ME, ids["task"], f"noted {words}")
    decision = await memory.log_decision(
        core,
        ME,
        context=f"choosing a store {words}",
        decision=f"SQLite by default {words}",
        task_id=ids["task"],
        confidence=0.8,
        tags=[f"storage{words}"],
    )
    ids["decision"] = decision.id
    await memory.store_pattern(
        core,
        ME,
        name=f"Test first {words}",
        description=f"a failing test before a repair {words}",
        trigger_conditions={"when": f"a bug {words}"},
        actions={"then": f"a test {words}"},
    )


async def _plan(core: Core, world: World) -> None:
    words, ids = world.words, world.ids
    phase = plans.NewPhase(
        f"First{words}", f"why {words}", [plans.NewTask(f"Step one{words}", f"so {words}")]
    )
    new = await plans.create(
        core,
        ME,
        title=f"Invoices{words}",
        description=f"end to end {words}",
        context={f"background{words}": f"b {words}"},
        phases=[phase],
        status="active",
    )
    ids["plan"] = new.plan.slug
    await plans.add_checkpoint(core, ME, new.plan.slug, 1, f"checked {words}", {"k": words})
    await plans.set_state(core, ME, new.plan.slug, f"key{words}", f"value {words}")
    started, _ = await sessions.start(core, ME, agent="opus", plan_slug=new.plan.slug)
    ids["session"] = started.id
    for kind in ("progress", "decision", "error"):
        message = f"\x1b[31m{kind}\x1b[0m {words}"
        await sessions.log(core, ME, started.id, message, kind=kind, data={"d": words})
    await sessions.add_artifact(core, ME, started.id, f"a/b{words}", "created", None)
    await sessions.hand_off(
        core, ME, started.id, summary=f"half done {words}", next_steps=[f"go on {words}"], blockers=[words]
    )
    offered = [
        {
            "title": f"Proposed{words}",
            "type": "PAIR",
            "description": f"p {words}",
            "acceptance_criteria": [f"c {words}"],
            "priority": "high",
        }
    ]
    ids["proposal"] = (await proposals.propose(core, ME, offered, []))[0].id


async def _work(core: Core, world: World) -> None:
    """A repository, and a task whose branch waits for review."""
    GitRepo(world.repo).commit({"invoice.py": BEGUN}, "Begin")
    project, _ = await projects.create(
        core, ME, name=f"Shop{world.words}", description=world.words, repo_paths=[str(world.repo)]
    )
    world.ids["project"] = project.id
    await projects.open_(core, ME, project.id)
    task = await reviewed(
        core, world, "Make totals exact", "    return sum(lines)", "    return exact(lines)"
    )
    world.ids["review"] = task.id


async def reviewed(core: Core, world: World, title: str, before: str, after: str) -> Task:
    """A task of the project in review, whose branch changed one line of the invoice."""
    new = board.NewTask(
        f"{title}{world.words}",
        f"why {world.words}",
        task_type="AUTO",
        acceptance_criteria=[f"it is exact {world.words}"],
        project_id=world.ids["project"],
    )
    task = await board.create(core, ME, new)
    made = await worktrees.ensure(core, ME, task.id)
    file = Path(made[0].path) / "invoice.py"
    file.write_text(file.read_text().replace(before, f"{after}  # {world.words}".rstrip("# ")))
    await worktrees.settle(core, made, title)
    return await reviews.request(core, ME, task.id, f"done {world.words}")


def _job(tx: Tx, world: World) -> None:
    """A job that is over, with its steps, its log and its patch."""
    now, words = now_us(), world.words
    job = Job(
        id=new_job_id(),
        user_id=LOCAL_USER,
        kind="relay",
        task_id=world.ids["task"],
        spec={"task": {"title": f"Relay{words}"}},
        state="FAILED",
        state_version=3,
        priority=1,
        attempt=1,
        idempotency_key=None,
        worker="a worker",
        lease_until=None,
        summary=f"it failed {words}",
        reason_code="TEST_FAILED",
        result={"note": words},
        created_at=now - 9_000_000,
        updated_at=now,
        started_at=now - 8_000_000,
        finished_at=now,
        agent=f"codex{words}",
        cost_usd=1.25,
        input_tokens=1000,
        output_tokens=200,
    )
    jobs.add(tx, job)
    world.ids["job"] = job.id
    steps: list[dict[str, Any]] = [
        {"step": "message", "text": f"\x1b[1;32mI begin\x1b[0m {words}", "tool": None},
        {"step": "tool_use", "text": f"reading {words}", "tool": f"Read{words}"},
    ]
    for step in steps:
        tx.emit("job.progress", job.id, task_id=job.task_id, user_id=LOCAL_USER, **step)
    files = {"patch.diff": PATCH + f"+# {words}\n", queue.LOG: f"\x1b[31mred\x1b[0m {words}\n"}
    kept = [(name, text.encode()) for name, text in files.items()]
    artifacts.put(
        tx,
        [
            JobArtifact(job.id, name, "text/plain", raw, hashlib.sha256(raw).hexdigest(), len(raw), now)
            for name, raw in kept
        ],
    )
