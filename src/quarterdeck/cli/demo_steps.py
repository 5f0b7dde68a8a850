"""The steps of the demo in their order; each checks the real answers."""

import time
from collections.abc import Callable

from quarterdeck.cli import demo_work
from quarterdeck.cli.demo_stage import Row, Stage, Unverified, check
from quarterdeck.cli.demo_work import Work
from quarterdeck.cli.mcp_client import McpClient, Refused

DECISIONS = (
    ("The nightly report timed out on the orders table", "Keep a running total instead of summing orders"),
    ("Two services wrote to the same cart", "Lock the cart row during checkout; no silent last write"),
    ("Where uploaded invoices live", "Files go to object storage, only their keys to the database"),
    ("The checkout test reads the clock", "Pass the clock in; tests freeze it"),
)
PARAPHRASE = "what did we do about simultaneous edits to a customer's basket?"
_EMBEDDED_WITHIN = 30.0


def tell_all(stage: Stage) -> None:
    """From a first start to work that is merged, and work that waits for you."""
    with stage.step("A core of its own: no key, no agent CLI, nothing configured"):
        start(stage)
    me = stage.client(stage.local_token())
    with stage.step("A repository, a project, and a plan from a template"):
        tasks = demo_work.plan(stage, me)
    with stage.step("Two agents at once, each in a worktree of its own: they edit, and their tests fail"):
        works = demo_work.begin(stage, me, tasks)
        watch = demo_work.Watch(stage, me, works)
        watch.until_all_said("FAILED")
    with stage.step("kill -9 of the core in the middle of it"):
        crash(stage)
    with stage.step("After the restart both go on, repair their work, and are judged by git and the tests"):
        demo_work.finish(stage, me, works, watch)
    with stage.step(f"“{works[0].title}” is merged"):
        demo_work.merge(stage, me, works[0])
    with stage.step("Decisions are remembered, and found again by meaning"):
        remember(stage, me, works[0])
    with stage.step("Another user sees none of it"):
        hide(stage, stage.client(stage.mint("bob")), works[0])
    stage.waiting = works[1].title


def start(stage: Stage) -> None:
    stage.start_core()
    stage.semantic = stage.core.search_mode() == "semantic"
    stage.say(f"{stage.core.url} answers, on SQLite in a temporary folder")
    stage.say(f"watch it on the board: {stage.link()}")
    if not stage.semantic:
        stage.say(f"search is by substring: {stage.core.readiness()['search']['reason']}")


def crash(stage: Stage) -> None:
    stage.core.kill()
    began = time.perf_counter()
    stage.start_core(stage.core.port)
    stage.say(f"killed, and started again on the same folder in {time.perf_counter() - began:.1f} s")


def remember(stage: Stage, me: McpClient, work: Work) -> None:
    for context, decision in DECISIONS:
        me.call("decision_log", context=context, decision=decision, tags=["shop"], task_id=work.task_id)
    wanted = DECISIONS[1][1]

    def search(query: str) -> list[Row]:
        found: list[Row] = me.call("decision_search", query=query, tags=["shop"])
        return found

    if stage.semantic:
        found = embedded(lambda: search(PARAPHRASE), len(DECISIONS))
        check(found[0]["decision"] == wanted, "a paraphrase finds the decision first")
        stage.say(f"asked: {PARAPHRASE}")
        near, next_best = (f"{row['similarity']:.2f}" for row in found[:2])
        stage.say(f"found: “{wanted}”, similarity {near}, next best {next_best}")
    else:
        check(search(PARAPHRASE) == [], "a substring search knows no paraphrase")
        found = search("the same cart")
        check([row["decision"] for row in found] == [wanted], "a substring finds the decision")
        stage.say(f"asked for “the same cart”, since a paraphrase needs the model; found: “{wanted}”")


def hide(stage: Stage, bob: McpClient, work: Work) -> None:
    check(bob.call("tasks_list")["tasks"] == [], "Bob has no tasks")
    check(bob.call("decision_search", query=PARAPHRASE) == [], "Bob has no decisions")
    refusal = refused(lambda: bob.call("get_task", task_id=work.task_id))
    check(refusal["code"] == "TASK_NOT_FOUND", "what is not yours is as good as absent")
    stage.say(f"tasks_list: [], decision_search: [], get_task: {refusal['code']}")


def refused(attempt: Callable[[], object]) -> Row:
    """The body of the refusal that must come."""
    try:
        attempt()
    except Refused as refusal:
        return refusal.body
    raise Unverified("a call that had to be refused was not")


def embedded(ask: Callable[[], list[Row]], count: int) -> list[Row]:
    """Ask until so many rows come with a similarity: they are embedded after the call that stored them."""
    deadline = time.monotonic() + _EMBEDDED_WITHIN
    while time.monotonic() < deadline:
        found = ask()
        if sum("similarity" in row for row in found) >= count:
            return found
        time.sleep(0.02)
    raise Unverified(f"{count} rows were not embedded within {_EMBEDDED_WITHIN:.0f} s")
