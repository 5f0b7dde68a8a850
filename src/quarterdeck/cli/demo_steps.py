"""The steps of the demo in their order; each checks the real answers."""

import time
from collections.abc import Callable

from rich.table import Table

from quarterdeck.cli.demo_crash import WRITERS, crash
from quarterdeck.cli.demo_plan import hand_over
from quarterdeck.cli.demo_stage import Row, Stage, Unverified, check
from quarterdeck.cli.mcp_client import Connection, McpClient, Refused

BACKLOG = (
    ("Fix the flaky checkout test", "high", "It fails one run in twenty and passes when it is run again."),
    ("Compare three queue libraries", "medium", "For the mail worker: throughput, retries, upkeep."),
    ("Connect the Stripe webhook to the API", "medium", "Paid orders should show up at once."),
    ("Triage the incoming bug reports", "low", "Label them and find the duplicates."),
)
DECISIONS = (
    ("The nightly report timed out on the orders table", "Keep a running total instead of summing orders"),
    ("Two services wrote to the same cart", "Lock the cart row during checkout; no silent last write"),
    ("Where uploaded invoices live", "Files go to object storage, only their keys to the database"),
    ("The checkout test reads the clock", "Pass the clock in; tests freeze it"),
)
PARAPHRASE = "what did we do about simultaneous edits to a customer's basket?"
PATTERNS = (
    ("Flaky test: freeze the clock", "A test that fails now and then and passes when it is run again."),
    ("Slow endpoint: measure before caching", "A request got slow and someone proposes a cache."),
)
SITUATION = "the build turns red every so often although nobody changed anything"
_EMBEDDED_WITHIN = 10.0


def tell_all(stage: Stage) -> None:
    """From a first start to a crash."""
    with stage.step("A core of its own: no key, no agent, nothing configured"):
        start(stage)
    with stage.step("Two people, two tokens"):
        alice, bob = meet(stage)
    with stage.step("Alice fills a backlog; each task is classified and routed by rules, no model call"):
        tasks = fill(stage, alice)
    with stage.step("One task walks through the state machine"):
        walk(stage, alice, tasks[0]["id"])
    with stage.step("Decisions are remembered, and found again"):
        remember(stage, alice, tasks[0]["id"])
    with stage.step("Patterns are found by situation, and keep a record of their use"):
        learn(stage, alice)
    with stage.step("One call gathers what an agent needs for a task"):
        gather(stage, alice, tasks[0]["id"])
    with stage.step("A plan from a template, and a hand-over between two agents"):
        slug = hand_over(stage, alice)
    with stage.step("Bob sees none of it"):
        hide(stage, bob, tasks[0]["id"], slug)
    with stage.step(f"{WRITERS} writers at once, and kill -9 in the middle"):
        before = alice.call("task_get", task_id=tasks[0]["id"])
        crash(stage, stage.token_file("alice").read_text().strip())
        check(alice.call("task_get", task_id=tasks[0]["id"]) == before, "what was done before is unchanged")


def start(stage: Stage) -> None:
    stage.start_core()
    stage.semantic = stage.core.search_mode() == "semantic"
    stage.say(f"{stage.core.url} answers, on SQLite in a temporary folder")
    if stage.semantic:
        stage.say("search is semantic: a small model runs inside the core, offline")
    else:
        stage.say(f"search is by substring: {stage.core.readiness()['search']['reason']}")


def meet(stage: Stage) -> tuple[McpClient, McpClient]:
    stranger = Connection(stage.core.url, "mcp_" + "x" * 48)
    check(stranger.request("GET", "/profile/mcp/tokens")[0] == 403, "an unknown token is refused")
    stranger.close()
    alice, bob = (stage.client(stage.mint(user)) for user in ("alice", "bob"))
    tools = alice.tools()
    check("task_create" in tools and "orchestrator_reset_cache" not in tools, "a profile limits the tools")
    stage.say(f"alice and bob are operators and see {len(tools)} tools; an unknown token gets HTTP 403")
    return alice, bob


def fill(stage: Stage, alice: McpClient) -> list[Row]:
    tasks: list[Row] = []
    table = Table("  task", "category", "agent", "sure", box=None, pad_edge=False)
    for title, priority, description in BACKLOG:
        kind = alice.call("orchestrator_classify", title=title, description=description)
        task = alice.call("task_create", title=title, description=description, priority=priority)
        check(task["status"] == "pending" and task["user_id"] == "alice", "a new task is pending and Alice's")
        routed = alice.call("route_task", task_id=task["id"], assign=True)
        agent, sure = routed["routing"]["agent"]["id"], routed["routing"]["confidence"]
        check(routed["task"]["assigned_agent"] == agent, "the routing is written to the task")
        table.add_row(f"  {title}", kind["category"], agent, f"{sure:.2f}")
        tasks.append(task)
    listed = [task["id"] for task in alice.call("task_list")]
    check(listed == [task["id"] for task in reversed(tasks)], "the list has the backlog, newest first")
    stage.show(table)
    return tasks


def walk(stage: Stage, alice: McpClient, task_id: str) -> None:
    before = alice.call("task_get", task_id=task_id)
    refusal = refused(lambda: alice.call("task_update", task_id=task_id, action="complete"))
    check(refusal["code"] == "invalid_transition", "a step the machine does not know is refused")
    check(refusal["valid_actions"] == before["valid_actions"], "the refusal names the legal actions")
    check(alice.call("task_get", task_id=task_id) == before, "a refused call changes nothing")
    stage.say(f"refused: {refusal['error']}")
    actions = ("approve", "start", "submit", "reject", "submit", "complete")
    for action in actions:
        reason = "freeze the clock, do not sleep" if action == "reject" else None
        alice.call("task_update", task_id=task_id, action=action, actor="alice", reason=reason)
    after = alice.call("task_get", task_id=task_id)
    states = [transition["to_status"] for transition in after["transitions"]]
    check(len(states) == 1 + len(actions) and states[-1] == "completed", "every change is on record")
    check(after["valid_actions"] == [] and after["task"]["completed_at"], "completed is final")
    stage.say("on record: " + " → ".join(states))


def remember(stage: Stage, alice: McpClient, task_id: str) -> None:
    for context, decision in DECISIONS:
        alice.call("decision_log", context=context, decision=decision, tags=["shop"], task_id=task_id)
    wanted = DECISIONS[1][1]

    def search(query: str) -> list[Row]:
        found: list[Row] = alice.call("decision_search", query=query, tags=["shop"])
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
    outcome = "no lost cart in two weeks"
    told = alice.call("decision_outcome", decision_id=found[0]["id"], outcome=outcome)
    check(told["outcome"] == outcome, "the outcome is kept with the decision")
    stage.say(f"and how it turned out: {outcome}")


def learn(stage: Stage, alice: McpClient) -> None:
    steps = {"steps": ["pass the clock in", "freeze it", "run the test 200 times"]}
    when = {"symptom": "passes on retry"}
    for name, description in PATTERNS:
        alice.call(
            "pattern_store", name=name, description=description, trigger_conditions=when, actions=steps
        )
    asked = SITUATION if stage.semantic else "Flaky test"

    def match() -> list[Row]:
        matching: list[Row] = alice.call("pattern_match", situation=asked)
        return matching

    found = embedded(match, len(PATTERNS)) if stage.semantic else match()
    check(found[0]["name"] == PATTERNS[0][0], "the situation finds its pattern first")
    used = [
        alice.call("pattern_used", pattern_id=found[0]["id"], success=success)
        for success in (True, True, False)
    ][-1]
    check(used["usage_count"] == 3 and round(used["success_rate"], 2) == 0.67, "each use is counted")
    stage.say(f"asked: {asked}")
    stage.say(f"found: “{used['name']}”; used 3 times since, success rate {used['success_rate']:.2f}")


def gather(stage: Stage, alice: McpClient, task_id: str) -> None:
    context = alice.call("context_for_task", task_id=task_id)
    transitions, decisions = context["transitions"], context["related_decisions"]
    patterns = context["matching_patterns"]
    check(context["task"]["status"] == "completed" and len(transitions) == 7, "the task with its history")
    check(len(decisions) == len(DECISIONS) + 1, "its decisions, that of its routing too")
    check(len(patterns) == (len(PATTERNS) if stage.semantic else 0), "the patterns by meaning")
    stage.say(
        f"context_for_task: the task, {len(transitions)} transitions, {len(decisions)} decisions, "
        f"{len(patterns)} matching patterns"
    )


def hide(stage: Stage, bob: McpClient, task_id: str, slug: str) -> None:
    check(bob.call("task_list") == [], "Bob has no tasks")
    check(bob.call("decision_search", query=PARAPHRASE) == [], "Bob has no decisions")
    check(bob.call("pattern_match", situation=SITUATION) == [], "Bob has no patterns")
    refusal = refused(lambda: bob.call("task_get", task_id=task_id))
    check(refusal["code"] == "not_found", "what is not yours is as good as absent")
    absent = refused(lambda: bob.call("plan_get", slug=slug))
    check(absent["code"] == "not_found", "nor is a plan of another")
    stage.say(f"task_list: [], decision_search: [], task_get: {refusal['code']}, plan_get: {absent['code']}")


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
