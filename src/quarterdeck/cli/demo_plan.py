"""The demo's plan: made from a template, begun by one agent, finished by another."""

from quarterdeck.cli.demo_stage import Stage, check
from quarterdeck.cli.mcp_client import McpClient

TEMPLATE = "bug-fix"
BUG = 'Checkout shows "sold out" for items in stock'


def hand_over(stage: Stage, alice: McpClient) -> str:
    """A plan whose tasks are on the same ledger, and a session that another agent takes over."""
    made = alice.call(
        "template_create_plan", template_slug=TEMPLATE, variables=_variables(alice), activate=True
    )
    slug = made["plan"]["slug"]
    plan = alice.call("plan_get", slug=slug)["plan"]
    tasks = [task for phase in plan["phases"] for task in phase["tasks"]]
    listed = {task["id"] for task in alice.call("task_list", limit=200)}
    check({task["id"] for task in tasks} <= listed, "a plan's tasks are tasks like any other")
    stage.say(f"{plan['title']}: {len(plan['phases'])} phases, {len(tasks)} tasks, on the same ledger")

    first = alice.call("session_start", agent_type="opus", plan_slug=slug)["session"]["session_id"]
    alice.call(
        "session_log", session_id=first, type="decision", message="Read stock from the ledger, not the cache"
    )
    alice.call("task_toggle", plan_slug=slug, phase_order=1, task_identifier=0)
    steps = ["Write the failing test", "Fix the read"]
    alice.call("session_handoff", session_id=first, summary="Reproduced it", next_steps=steps)
    went_on = alice.call("session_continue", session_id=first, agent_type="sonnet")
    check(went_on["handoff_context"]["next_steps"] == steps, "the next agent gets the word left for it")
    check(went_on["session"]["parent_session_id"] == first, "its session knows where it comes from")
    check(len(went_on["replay_context"]["decisions"]) == 1, "and what was decided")
    stage.say(f"opus hands over: “Reproduced it”; sonnet goes on: {' → '.join(steps)}")

    for phase in plan["phases"]:
        for task in phase["tasks"]:
            where = {"plan_slug": slug, "phase_order": phase["order"], "task_identifier": task["index"]}
            alice.call("task_update", **where, status="completed")
    done = alice.call("plan_get", slug=slug)["plan"]
    check(done["status"] == "completed", "the last task completes its phase, the last phase its plan")
    stage.say(f"progress {done['progress']['percentage']} %, and the plan is {done['status']} by itself")
    return str(slug)


def _variables(alice: McpClient) -> dict[str, str]:
    """A value for each blank that the template cannot do without."""
    found = {row["slug"]: row for row in alice.call("template_list")["templates"]}
    wanted = [variable["name"] for variable in found[TEMPLATE]["variables"] if variable["required"]]
    check(wanted, "a template says what it needs")
    return dict.fromkeys(wanted, BUG)
