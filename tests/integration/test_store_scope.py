"""Whose rows a caller reaches: every function of the store that takes an id, asked for another's."""

from __future__ import annotations

import asyncio
import importlib
import inspect
import pkgutil
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from sqlalchemy import insert, select
from sqlalchemy import text as sql

from quarterdeck import store
from quarterdeck.domain.callers import SYSTEM, Caller
from quarterdeck.domain.records import (
    Artifact,
    BatchItem,
    Brief,
    Checkpoint,
    Decision,
    Delivery,
    Job,
    JobArtifact,
    LogEntry,
    McpSession,
    Merge,
    ModelUsage,
    Pattern,
    Phase,
    Plan,
    Proposal,
    Repo,
    Review,
    Session,
    StateValue,
    Token,
    Transition,
    Worktree,
    as_dict,
)
from quarterdeck.store import (
    artifacts,
    cards,
    content,
    jobs,
    ledger,
    log,
    memory,
    plans,
    projects,
    proposals,
    relay,
    reviews,
    runs,
    scratchpads,
    sessions,
    subscriptions,
    tasks,
    tokens,
    trail,
    worktrees,
)
from quarterdeck.store.db import Database
from quarterdeck.store.schema import metadata
from quarterdeck.store.tx import Tx
from tests.store import ANN, BOB, new_task, opened

ADMIN = Caller(None, "maintainer", everyone=True)
NOBODY = Caller(None, "maintainer")
VECTOR = memory.Vector("decision", "decision", "ann", b"\0\0\x80?")

CASES: dict[str, Callable[[Tx], Any]] = {
    "tasks.get": lambda tx: tasks.get(tx, "task"),
    "tasks.change": lambda tx: tasks.change(tx, "task", {"title": "changed"}),
    "tasks.remove": lambda tx: tasks.remove(tx, "task"),
    "tasks.children": lambda tx: tasks.children(tx, "task", 10),
    "tasks.history": lambda tx: tasks.history(tx, "task"),
    "tasks.some": lambda tx: tasks.some(tx, ["task"]),
    "tasks.project_exists": lambda tx: tasks.project_exists(tx, "project"),
    "memory.get_decision": lambda tx: memory.get_decision(tx, "decision"),
    "memory.set_outcome": lambda tx: memory.set_outcome(tx, "decision", "changed"),
    "memory.decisions_of": lambda tx: memory.decisions_of(tx, "task"),
    "memory.decisions_by_id": lambda tx: memory.decisions_by_id(tx, ["decision"]),
    "memory.get_pattern": lambda tx: memory.get_pattern(tx, "pattern"),
    "memory.set_use": lambda tx: memory.set_use(tx, "pattern", 1, 1.0, 9),
    "memory.patterns_by_id": lambda tx: memory.patterns_by_id(tx, ["pattern"]),
    "memory.vectors_of": lambda tx: memory.vectors_of(tx, "m", [("pattern", "pattern")]),
    "memory.unembedded": lambda tx: memory.unembedded(tx, "m", 9, [("decision", "decision")]),
    "memory.put_vectors": lambda tx: memory.put_vectors(tx, "m", [VECTOR]),
    "tokens.live": lambda tx: tokens.live(tx, "token"),
    "tokens.revoke": lambda tx: tokens.revoke(tx, "token"),
    "tokens.touch": lambda tx: tokens.touch(tx, "token"),
    "tokens.session": lambda tx: tokens.session(tx, "session"),
    "tokens.session_seen": lambda tx: tokens.session_seen(tx, "session"),
    "tokens.remove_session": lambda tx: tokens.remove_session(tx, "session"),
    "plans.by_id": lambda tx: plans.by_id(tx, "plan"),
    "plans.slugs_of": lambda tx: plans.slugs_of(tx, ["plan"]),
    "plans.progress_of": lambda tx: plans.progress_of(tx, ["plan"]),
    "plans.change": lambda tx: plans.change(tx, "plan", {"title": "changed"}),
    "plans.phases_of": lambda tx: plans.phases_of(tx, "plan"),
    "plans.change_phase": lambda tx: plans.change_phase(tx, "phase", {"name": "changed"}),
    "plans.tasks_of": lambda tx: plans.tasks_of(tx, "plan"),
    "plans.states_in": lambda tx: plans.states_in(tx, "phase"),
    "plans.checkpoints_of": lambda tx: plans.checkpoints_of(tx, ["phase"]),
    "plans.get_state": lambda tx: plans.get_state(tx, "plan", "key"),
    "plans.list_state": lambda tx: plans.list_state(tx, "plan", None, 10),
    "sessions.get": lambda tx: sessions.get(tx, "ses"),
    "sessions.change": lambda tx: sessions.change(tx, "ses", {"summary": "changed"}),
    "sessions.newest": lambda tx: sessions.newest(tx, "work", 10, plan_id="plan"),
    "sessions.entries": lambda tx: sessions.entries(tx, "ses", ["info"], 10),
    "sessions.counts": lambda tx: sessions.counts(tx, "ses"),
    "sessions.artifacts": lambda tx: sessions.artifacts(tx, "ses", 10),
    "log.of_entity": lambda tx: log.of_entity(tx, "job", 10),
    "log.count_of_entity": lambda tx: log.count_of_entity(tx, "job"),
    "sessions.live_of_task": lambda tx: sessions.live_of_task(tx, "task", "work"),
    "sessions.last_of_task": lambda tx: sessions.last_of_task(tx, "task", "opus"),
    "content.get_brief": lambda tx: content.get_brief(tx, "brief"),
    "content.change_brief": lambda tx: content.change_brief(tx, "brief", {"title": "changed"}),
    "content.briefed_tasks": lambda tx: content.briefed_tasks(tx, ["task"]),
    "content.usage_of": lambda tx: content.usage_of(tx, "brief").requests,
    "content.items_of": lambda tx: content.items_of(tx, "job"),
    "content.count_items": lambda tx: content.count_items(tx, ["job"])["job"],
    "content.live_job_of": lambda tx: content.live_job_of(tx, "brief"),
    "projects.get": lambda tx: projects.get(tx, "project"),
    "projects.change": lambda tx: projects.change(tx, "project", {"name": "changed"}),
    "projects.repos_of": lambda tx: projects.repos_of(tx, "project"),
    "proposals.held": lambda tx: proposals.held(tx, "proposal"),
    "proposals.change": lambda tx: proposals.change(tx, "proposal", {"status": "changed"}),
    "scratchpads.get": lambda tx: scratchpads.get(tx, "task"),
    "scratchpads.of": lambda tx: scratchpads.of(tx, ["task"]),
    "scratchpads.put": lambda tx: scratchpads.put(tx, "task", "changed"),
    "worktrees.home_of": lambda tx: worktrees.home_of(tx, "task"),
    "worktrees.of_task": lambda tx: worktrees.of_task(tx, "task"),
    "worktrees.merges_of": lambda tx: worktrees.merges_of(tx, "task"),
    "reviews.of_task": lambda tx: reviews.of_task(tx, "task", 10),
    "jobs.of_task": lambda tx: jobs.of_task(tx, "task", 10)[0],
    "ledger.live_jobs": lambda tx: ledger.live_jobs(tx, ["job"]),
    "cards.some": lambda tx: cards.some(tx, ["task"], {}),
    "cards.runs_of": lambda tx: cards.runs_of(tx, ["task"]),
    "cards.plans_by_id": lambda tx: cards.plans_by_id(tx, ["plan"]),
    "runs.titles_of": lambda tx: runs.titles_of(tx, ["task"]),
    "trail.steps_of": lambda tx: trail.steps_of(tx, "job", 10),
    "jobs.get": lambda tx: jobs.get(tx, "job"),
    "jobs.held": lambda tx: jobs.held(tx, "job", "worker", 1),
    "jobs.live_of_task": lambda tx: jobs.live_of_task(tx, "task", ["content"]),
    "artifacts.get": lambda tx: artifacts.get(tx, "job", "file"),
    "artifacts.tail": lambda tx: artifacts.tail(tx, "job", "file", 1),
    "artifacts.names_of": lambda tx: artifacts.names_of(tx, "job"),
    "relay.delivery_of": lambda tx: relay.delivery_of(tx, "job"),
    "tokens.live_of_job": lambda tx: tokens.live_of_job(tx, "job"),
    "jobs.costs_of": lambda tx: jobs.costs_of(tx, "ses"),
    "sessions.conversation": lambda tx: sessions.conversation(tx, "talk"),
    "log.mine": lambda tx: log.mine(tx, 0, 10, task_id="task"),
    "log.newest_of": lambda tx: log.newest_of(tx, "task", "task.created", 1),
    "subscriptions.add": lambda tx: subscriptions.add(tx, "session", "mcp://tasks/another"),
    "subscriptions.remove": lambda tx: subscriptions.remove(tx, "session", "mcp://tasks/task"),
    "subscriptions.count": lambda tx: subscriptions.count(tx, "session"),
    "subscriptions.of": lambda tx: subscriptions.of(tx, "session"),
    "subscriptions.told": lambda tx: subscriptions.told(tx, "session", 9),
}
# The caller's own whatever it is bound to: how it came in, and what its user knows.
NOT_BOUND = {name for name in CASES if name.startswith(("tokens.", "subscriptions."))} | {
    "memory.patterns_by_id",
    # Reached through a row that the caller was seen to have.
    "log.of_entity",
    "log.count_of_entity",
    "content.briefed_tasks",
    "content.usage_of",
}
# Rows that hang on a task, and the task itself.
OF_A_TASK = {
    *(name for name in CASES if name.startswith(("tasks.", "projects.", "scratchpads.", "worktrees."))),
    *(name for name in CASES if name.startswith(("cards.", "runs.", "trail."))),
    "reviews.of_task",
    "ledger.live_jobs",
    "memory.get_decision",
    "memory.set_outcome",
    "memory.decisions_of",
    "memory.decisions_by_id",
    "memory.unembedded",
    "memory.put_vectors",
    "log.mine",
    "log.newest_of",
    *(name for name in CASES if name.startswith(("plans.", "sessions.", "content.", "jobs.", "artifacts."))),
    "relay.delivery_of",
} - NOT_BOUND
OF_A_PROJECT = (
    *("tasks.", "projects.", "scratchpads.", "worktrees.", "reviews.", "plans.", "sessions.", "proposals."),
    *("cards.some", "cards.plans_by_id", "runs.titles_of"),
)
# Tested with the search that is its only use.
ELSEWHERE = {"pgvector.lacking"}


def fill(tx: Tx) -> None:
    """One of everything that is ann's, with ids that are easy to guess."""
    for name in ("project", "other"):
        columns = "(id, user_id, name, description, created_at, updated_at)"
        tx.conn.execute(sql(f"insert into projects {columns} values ('{name}', 'ann', 'p', '', 1, 1)"))
    tasks.add(tx, new_task(id="task", project_id="project"))
    tasks.add(tx, new_task(id="child", parent_task_id="task", project_id="project"))
    tasks.add(tx, new_task(id="stray"))
    tasks.add_transition(tx, Transition("t", "task", None, "pending", None, None, 1))
    tx.emit("job.progress", "job", task_id="task")
    memory.add_decision(tx, Decision("decision", "ann", "task", "c", "d", None, None, ["x"], 1))
    memory.add_pattern(tx, Pattern("pattern", "ann", "n", None, {}, {}, 0.0, 0, 1, 1))
    memory.put_vectors(tx, "m", [replace(VECTOR, kind="pattern", row_id="pattern")])
    tokens.add_session(tx, McpSession("session", "ann", "board", {}, 1, 1))
    subscriptions.add(tx, "session", "mcp://tasks/task")
    tx.emit("task.created", "task", task_id="task")
    phase = Phase("phase", "plan", 1, "n", None, "pending", None, 1)
    plan = Plan("plan", "ann", "project", "slug", "t", None, "draft", {}, None, None, 1, 1, None)
    plans.add(tx, plan, [phase])
    tasks.change(tx, "task", {"plan_id": "plan", "phase_id": "phase", "position": 0})
    plans.add_checkpoint(tx, Checkpoint("checkpoint", "phase", "n", None, 1))
    plans.put_state(tx, StateValue("plan", "key", 1, "general", 1, 1))
    work: tuple[Any, ...] = (
        "ses",
        "ann",
        "work",
        "opus",
        "project",
        "plan",
        "task",
        None,
        "active",
        {},
        None,
        None,
        1,
        1,
        None,
    )
    sessions.add(tx, Session(*work))
    sessions.add(tx, replace(Session(*work), id="talk", kind="prompt"))
    sessions.add(tx, replace(Session(*work), id="run", kind="auto"))
    sessions.add(tx, Session("paired", "ann", "pair", *work[3:]))
    tx.emit("job.queued", "job", task_id="task", user_id="ann")
    sessions.log(tx, LogEntry("ses", "info", "m", None, 1))
    sessions.add_artifact(tx, Artifact("ses", "p", "created", None, 1))
    written: tuple[Any, ...] = ("pending", None, None, None, None, [], 1, 1)
    content.add_brief(
        tx, Brief("brief", "ann", "plan", "task", "t", "blog_post", None, [], 800, None, None, *written)
    )
    content.add_usage(tx, ModelUsage("usage", "ann", "claude", "m", "p", "brief", 1, 1, None, 1))
    running: tuple[Any, ...] = ("RUNNING", 1, 1, 1, None, "worker", 9, None, None, {}, 1, 1, 1, None)
    jobs.add(tx, Job("job", "ann", "content", "task", {}, *running))
    over = Job("over", "ann", "prompt", "task", {}, *running)
    jobs.add(tx, replace(over, state="SUCCEEDED", session_id="ses", finished_at=1))
    artifacts.put(tx, [JobArtifact("job", "file", "text/plain", b"x", "digest", 1, 1)])
    token = Token("token", "ann", "n", "viewer", None, None, False, 1, None, None, None, "job", 1)
    tokens.add(tx, token, "digest")
    tx.write(insert(metadata.tables["repos"]), as_dict(Repo("repo", "ann", "project", "r", "/r", 1)))
    proposals.add(tx, Proposal("proposal", "ann", "project", [], [], "received", None, "ann", 1, 1))
    scratchpads.put(tx, "task", "notes")
    reviews.add(tx, Review("review", "task", "requested", "ann", "", {}, 1))
    worktrees.add(tx, Worktree("tree", "ann", "task", "repo", "/r", "/t", "b", "main", "c", "here", 1))
    worktrees.add_merges(
        tx, [Merge("merge", "ann", "task", "/r", "main", "squash", "a", "b", "done", "ann", "here", 1, 1)]
    )
    relay.add_delivery(tx, Delivery("delivery", "job", "u", {}, "pending", 0, 1, None, 1))
    content.add_items(tx, [BatchItem("job", 0, "brief", "t", "pending", None, [], None, 1)])


class Done(Exception):
    """Ends a body, so that nothing of it stays."""


def reach(tx: Tx, case: Callable[[Tx], Any]) -> None:
    def everything() -> list[Any]:
        return [tx.conn.execute(select(table)).all() for table in metadata.sorted_tables]

    before = everything()
    found = case(tx)
    raise Done(bool(found) or everything() != before)


async def reached(db: Database, caller: Caller) -> set[str]:
    """The functions by which the caller saw or changed something."""
    names = set()
    for name, case in CASES.items():
        with pytest.raises(Done) as done:
            await db.tx(caller, reach, case)
        if done.value.args[0]:
            names.add(name)
    return names


def test_every_function_with_an_id_is_asked() -> None:
    with_an_id = set()
    for module in pkgutil.iter_modules(store.__path__):
        loaded = importlib.import_module(f"quarterdeck.store.{module.name}")
        for name, function in inspect.getmembers(loaded, inspect.isfunction):
            takes = [*inspect.signature(function).parameters]
            public = not name.startswith("_") and function.__module__ == loaded.__name__
            ids = {"ids", "keys"}.intersection(takes) or any(each.endswith("_id") for each in takes)
            if public and takes[:1] == ["tx"] and ids:
                with_an_id.add(f"{module.name}.{name}")
    assert with_an_id - CASES.keys() - ELSEWHERE == set()


def test_a_user_reaches_nothing_of_another_and_the_admin_everything(database_url: str) -> None:
    async def run() -> None:
        async with opened(database_url) as db:
            await db.tx(ANN, fill)
            assert await reached(db, BOB) == set()
            assert await reached(db, NOBODY) == set()
            assert await reached(db, ANN) == CASES.keys()
            assert await reached(db, ADMIN) == CASES.keys()

    asyncio.run(run())


def test_a_bound_caller_reaches_what_it_is_bound_to_and_no_table_without_that_column(
    database_url: str,
) -> None:
    async def run() -> None:
        async with opened(database_url) as db:
            await db.tx(ANN, fill)
            for bound, expected in (
                (replace(ANN, task_id="task"), OF_A_TASK),
                (replace(ANN, task_id="stray"), set()),
                (replace(ANN, task_id="nowhere"), set()),
                (
                    replace(ANN, project_id="project"),
                    {"memory.decisions_of", *(name for name in CASES if name.startswith(OF_A_PROJECT))},
                ),
                (replace(ANN, project_id="other"), set()),
                (replace(ANN, project_id="other", task_id="task"), set()),
            ):
                assert await reached(db, bound) - NOT_BOUND == expected
            assert await reached(db, replace(BOB, task_id="task")) == set()
            assert await reached(db, replace(BOB, project_id="project")) == set()

    asyncio.run(run())


def test_lists_and_searches_hold_the_callers_rows_only(database_url: str) -> None:
    def listed(tx: Tx) -> list[set[str]]:
        return [
            {task.id for task in tasks.newest(tx, 50, {})},
            {task.id for task in tasks.newest(tx, 50, {"status": "pending"})},
            {decision.id for decision in memory.decisions_like(tx, "d", 50, None)},
            memory.tagged(tx, ["x"]),
            {pattern.id for pattern in memory.patterns_like(tx, "n", 50)},
            {token.id for token in tokens.newest(tx, 50)},
            set(memory.ranked(tx, "pattern", "word")[0]),
        ]

    async def run() -> None:
        async with opened(database_url) as db:
            await db.tx(ANN, fill)
            named = Pattern("worded", "ann", "word n", None, {}, {}, 0.0, 0, 1, 1)
            await db.tx(ANN, memory.add_pattern, named)
            everything = [
                {"task", "child", "stray"},
                {"task", "child", "stray"},
                {"decision"},
                {"decision"},
                {"pattern", "worded"},
                {"token"},
                {"worded"},
            ]
            assert await db.read(ANN, listed) == everything
            assert await db.read(SYSTEM, listed) == everything
            assert await db.read(BOB, listed) == [set()] * 7
            of_project = await db.read(replace(ANN, project_id="project"), listed)
            assert of_project[:4] == [{"task", "child"}, {"task", "child"}, set(), set()]
            of_task = await db.read(replace(ANN, task_id="task"), listed)
            assert of_task[:4] == [{"task"}, {"task"}, {"decision"}, {"decision"}]

    asyncio.run(run())
