"""The prompt of a task: what an agent is told, compiled from what the board knows.

The same state gives the same bytes. It stays within a budget: sections are served in the order of `_SERVED`,
so that the last ones are cut or left out first, and the text says where something was cut.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from quarterdeck.core.context import Core
from quarterdeck.domain.callers import Caller
from quarterdeck.domain.jobs import LIVE
from quarterdeck.domain.records import Decision, Job, Pattern, Phase, Plan, Review, Task
from quarterdeck.store import jobs as job_rows
from quarterdeck.store import memory as memory_rows
from quarterdeck.store import plans as plan_rows
from quarterdeck.store import projects as project_rows
from quarterdeck.store import reviews as review_rows
from quarterdeck.store import scratchpads
from quarterdeck.store import tasks as task_rows
from quarterdeck.store.tx import Tx

BUDGET_TOKENS: Final = 12_000
CHARACTERS_A_TOKEN: Final = 4
# A section that has less room than this is left out: a stump says nothing.
_LEAST: Final = 200
# Kept for the line that names what was left out.
_NOTE: Final = 240
_DECISIONS: Final = 5
_PATTERNS: Final = 3
_FEEDBACK: Final = 5
_REVIEWS: Final = 50
_RUNS: Final = 5
_LINE: Final = 2_000

_SERVED: Final = ("task", "criteria", "feedback", "failure", "scratchpad", "plan", "decisions", "patterns")
_HEADINGS: Final = {
    "task": "Task",
    "criteria": "Acceptance criteria",
    "feedback": "Review feedback on the earlier work",
    "failure": "How the last run failed",
    "scratchpad": "Scratchpad",
    "plan": "Where the task stands in its plan",
    "decisions": "Related decisions",
    "patterns": "Patterns that worked before",
}
_READ: Final = ("task", "criteria", "feedback", "failure", "plan", "scratchpad", "decisions", "patterns")


@dataclass(frozen=True, slots=True)
class Place:
    """One checkout that the agent works in."""

    name: str
    path: str
    branch: str
    target: str


@dataclass(frozen=True, slots=True)
class Material:
    """All that a prompt is made of."""

    task: Task
    places: Sequence[Place] = ()
    acceptance_command: str | None = None
    plan: Plan | None = None
    phases: Sequence[Phase] = ()
    neighbours: Sequence[Task] = ()
    scratchpad: str = ""
    feedback: Sequence[Review] = ()
    failure: Job | None = None
    decisions: Sequence[Decision] = ()
    patterns: Sequence[Pattern] = ()


@dataclass(frozen=True, slots=True)
class Brief:
    """A compiled prompt. `cut` names the sections that did not fit whole."""

    text: str
    cut: tuple[str, ...]

    @property
    def tokens(self) -> int:
        """About how many tokens it has."""
        return -(-len(self.text) // CHARACTERS_A_TOKEN)


async def gather(core: Core, caller: Caller, task_id: str, places: Sequence[Place] = ()) -> Material | None:
    """What the board knows about the caller's task; None when there is no such task."""

    def body(tx: Tx) -> dict[str, Any] | None:
        task = task_rows.get(tx, task_id)
        if task is None:
            return None
        project = project_rows.get(tx, task.project_id) if task.project_id else None
        plan = plan_rows.by_id(tx, task.plan_id) if task.plan_id else None
        return {
            "task": task,
            "acceptance_command": project.acceptance_command if project else None,
            "plan": plan,
            "phases": plan_rows.phases_of(tx, plan.id) if plan else [],
            "neighbours": plan_rows.tasks_of(tx, plan.id) if plan else [],
            "scratchpad": scratchpads.get(tx, task_id),
            "feedback": _rejections(review_rows.of_task(tx, task_id, _REVIEWS)),
            "failure": _failure(tx, task_id),
            "own": memory_rows.decisions_of(tx, task_id)[:_DECISIONS],
        }

    found = await core.db.read(caller, body)
    if found is None:
        return None
    own: list[Decision] = found.pop("own")
    task: Task = found["task"]
    text = f"{task.title}\n{task.description or ''}".strip()
    related = [each for each, _ in await core.memory.decisions(caller, text, _DECISIONS, None)]
    patterns = [each for each, _ in await core.memory.patterns(caller, text, _PATTERNS)]
    known = {decision.id: decision for decision in (*own, *related)}
    return Material(
        **found,
        places=places,
        # By age and not by similarity, whose last digits may differ from one run to the next.
        decisions=sorted(list(known.values())[:_DECISIONS], key=lambda each: (each.created_at, each.id)),
        patterns=sorted(patterns, key=lambda each: (each.created_at, each.id)),
    )


def _rejections(reviews: Sequence[Review]) -> list[Review]:
    """What was found wanting, the newest at the end."""
    return [each for each in reviews if each.kind == "rejected"][-_FEEDBACK:]


def _failure(tx: Tx, task_id: str) -> Job | None:
    """The last run that came to an end, if it failed."""
    runs, _ = job_rows.of_task(tx, task_id, _RUNS)
    last = next((job for job in runs if job.kind == "auto" and job.state not in LIVE), None)
    return last if last is not None and last.state == "FAILED" else None


def compile_brief(
    material: Material, *, budget_tokens: int = BUDGET_TOKENS, interactive: bool = False
) -> Brief:
    """The prompt. `interactive` is for a PAIR session, where a person is present."""
    opening, closing = _opening(material, interactive), _closing(material, interactive)
    left = budget_tokens * CHARACTERS_A_TOKEN - len(opening) - len(closing) - _NOTE
    bodies = {name: text for name, text in _sections(material).items() if text}
    shown: dict[str, str] = {}
    cut = []
    for name in _SERVED:
        if name not in bodies:
            continue
        section = _fitted(name, bodies[name], left)
        if section is None:
            cut.append(name)
            continue
        if section != _whole(name, bodies[name]):
            cut.append(name)
        shown[name] = section
        left -= len(section)
    missing = [_HEADINGS[name] for name in _READ if name in bodies and name not in shown]
    note = f"[left out for length: {', '.join(missing)}]\n\n" if missing else ""
    text = opening + "".join(shown[name] for name in _READ if name in shown) + note + closing
    return Brief(text, tuple(cut))


def _whole(name: str, body: str) -> str:
    return f"## {_HEADINGS[name]}\n\n{body}\n\n"


def _fitted(name: str, body: str, room: int) -> str | None:
    """The section within `room` characters, cut with a word about it; None when there is no room for any."""
    whole = _whole(name, body)
    if len(whole) <= room:
        return whole
    frame = len(_whole(name, "")) + len(_cut_note(len(body), len(body))) + 1
    kept = room - frame
    if kept < _LEAST:
        return None
    note = _cut_note(kept, len(body))
    # Of notes and feedback the newest part matters; they are at the end.
    if name in ("scratchpad", "feedback", "failure"):
        return _whole(name, f"{note}\n{body[-kept:]}")
    return _whole(name, f"{body[:kept]}\n{note}")


def _cut_note(kept: int, total: int) -> str:
    return f"[cut: {kept:,} of {total:,} characters shown]"


def _opening(material: Material, interactive: bool) -> str:
    where = "\n".join(
        f"- {_line(place.name)}: {place.path} (branch {place.branch}, for {place.target})"
        for place in material.places
    )
    role = (
        "You work on one task of a board together with the person at this terminal."
        if interactive
        else "You work on one task of a board, on your own, until it is done. Nobody answers questions."
    )
    checkout = f"Your checkouts, each on a branch of this task's own:\n{where}\n\n" if where else ""
    return f"{role}\n\n{checkout}"


def _closing(material: Material, interactive: bool) -> str:
    task_id = material.task.id
    lines = [
        "## How the work is judged and reported",
        "",
        "- Work is judged by git and by checks, not by words: what counts is what is changed in the checkout "
        "when you end. Changes that you do not commit are committed for you, new files too.",
        "- Stay on the branch you are on; do not push or switch branches, and rebase or merge only where the "
        "feedback asks for it.",
    ]
    if material.acceptance_command:
        lines.append(f"- This command must exit with 0 afterwards: {_line(material.acceptance_command)}")
    lines += [
        f'- Keep notes for whoever goes on with `update_scratchpad` (task_id "{task_id}") of the MCP server '
        "quarterdeck: what you found, what you decided, what is left.",
        f'- When it is done, call `request_review` (task_id "{task_id}") with a summary of what changed.',
    ]
    if not interactive:
        lines.append("- If it cannot be done, change nothing and say why in the scratchpad.")
    return "\n".join(lines) + "\n"


def _sections(material: Material) -> dict[str, str]:
    task = material.task
    return {
        "task": f"{_line(task.title)}\n\nid {task.id}, priority {task.priority}"
        + (f"\n\n{task.description.strip()}" if task.description and task.description.strip() else ""),
        "criteria": "\n".join(f"- {_line(each)}" for each in task.acceptance_criteria),
        "feedback": "\n\n".join(_feedback(each) for each in material.feedback),
        "failure": _failed(material.failure) if material.failure else "",
        "scratchpad": material.scratchpad.strip(),
        "plan": _plan(material),
        "decisions": "\n".join(_decision(each) for each in material.decisions),
        "patterns": "\n".join(_pattern(each) for each in material.patterns),
    }


def _feedback(review: Review) -> str:
    lines = [f"From {_line(review.actor)}:", review.text.strip() or "(no words)"]
    for comment in review.data.get("comments") or ():
        lines.append(f"- {_comment(comment)}")
    return "\n".join(lines)


def _failed(job: Job) -> str:
    said = str(((job.result or {}).get("acceptance") or {}).get("output_tail") or "").strip()
    return (job.summary or "It failed.") + (f"\n\nIt said:\n\n{said}" if said else "")


def _comment(comment: Any) -> str:
    if not isinstance(comment, dict):
        return _line(str(comment))
    place = str(comment.get("path") or comment.get("file") or "")
    if comment.get("line") is not None:
        place += f":{comment['line']}"
    said = _line(str(comment.get("text") or comment.get("body") or comment.get("comment") or ""))
    return f"{place}: {said}" if place else said


def _plan(material: Material) -> str:
    plan, task = material.plan, material.task
    if plan is None:
        return ""
    lines = [f"Plan: {_line(plan.title)} ({plan.slug}, {plan.status})"]
    if plan.description:
        lines.append(plan.description.strip()[:_LINE])
    for phase in material.phases:
        here = " <- this task's phase" if phase.id == task.phase_id else ""
        lines.append(f"{phase.position}. {_line(phase.name)} ({phase.status}){here}")
        if phase.id == task.phase_id:
            for each in material.neighbours:
                if each.phase_id == phase.id:
                    mark = "x" if each.status == "completed" else " "
                    own = " <- this task" if each.id == task.id else ""
                    lines.append(f"   - [{mark}] {_line(each.title)}{own}")
    return "\n".join(lines)


def _decision(decision: Decision) -> str:
    outcome = f" Outcome: {_line(decision.outcome)}" if decision.outcome else ""
    return f"- {_line(decision.context)}: {_line(decision.decision)}{outcome}"


def _pattern(pattern: Pattern) -> str:
    told = f": {_line(pattern.description)}" if pattern.description else ""
    steps = "; ".join(f"{key}: {_words(value)}" for key, value in sorted(pattern.actions.items()))
    used = (
        f" (used {pattern.usage_count} times, {pattern.success_rate:.0%} well)" if pattern.usage_count else ""
    )
    return f"- {_line(pattern.name)}{told}{used}" + (f"\n  {_line(steps)}" if steps else "")


def _words(value: Any) -> str:
    return ", ".join(_words(each) for each in value) if isinstance(value, list) else str(value)


def _line(text: str) -> str:
    """On one line and not endless."""
    return " ".join(text.split())[:_LINE]
