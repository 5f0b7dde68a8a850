"""The prompt of a task: what is in it, that it stays within its budget, and that it is always the same."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quarterdeck.core.brief import BUDGET_TOKENS, CHARACTERS_A_TOKEN, Material, Place, compile_brief
from quarterdeck.domain.records import Decision, Job, Pattern, Phase, Plan, Review, Task


def task(**values: Any) -> Task:
    base: dict[str, Any] = {
        "id": "01a1e099-9e49-7789-8ee1-ed3e5de89de0",
        "user_id": "ada",
        "title": "Say hello",
        "description": "The program should greet.",
        "status": "pending",
        "priority": "high",
        "source_channel": None,
        "assigned_agent": None,
        "parent_task_id": None,
        "project_id": "p",
        "metadata": {},
        "created_at": 1,
        "updated_at": 1,
        "completed_at": None,
    }
    return Task(**{**base, **values})


def rejected(text: str, *comments: dict[str, Any]) -> Review:
    return Review("r", "t", "rejected", "bob", text, {"comments": list(comments)}, 5)


def failed(said: str) -> Job:
    filled: dict[str, Any] = dict.fromkeys(Job.__slots__)
    summary = "The acceptance command ended with exit code 1: make check"
    return Job(**filled | {"summary": summary, "result": {"acceptance": {"output_tail": said}}})


def full(**values: Any) -> Material:
    """A task about which everything is known."""
    own = task(acceptance_criteria=["it greets", "it is tested"], plan_id="plan", phase_id="one")
    plan = Plan(
        "plan", "ada", None, "greet", "Greeting", "All about it", "active", {}, None, None, 1, 1, None
    )
    known: dict[str, Any] = {
        "task": own,
        "places": [Place("repo", "/data/worktrees/t/repo", "quarterdeck/t", "main")],
        "acceptance_command": "make check",
        "plan": plan,
        "phases": [
            Phase("one", "plan", 1, "Begin", None, "in_progress", None, 1),
            Phase("two", "plan", 2, "End", None, "pending", None, 1),
        ],
        "neighbours": [own, task(id="other", title="Say goodbye", phase_id="one", status="completed")],
        "scratchpad": "I looked at main.py.",
        "feedback": [rejected("Not friendly.", {"path": "main.py", "line": 3, "text": "add a name"})],
        "failure": failed("tests: 1 failed"),
        "decisions": [Decision("d", "ada", None, "Tone", "Be kind", "It worked", 0.9, [], 2)],
        "patterns": [Pattern("p", "ada", "Greet", "How to", {}, {"steps": ["a", "b"]}, 0.5, 2, 1, 1)],
    }
    return Material(**{**known, **values})


def test_everything_that_is_known_is_told() -> None:
    text = compile_brief(full()).text
    for said in (
        *(
            "Say hello",
            "The program should greet.",
            "it greets",
            "it is tested",
            "quarterdeck/t",
            "make check",
        ),
        *("Plan: Greeting", "1. Begin (in_progress) <- this task's phase", "[x] Say goodbye"),
        *(
            "I looked at main.py.",
            "Not friendly.",
            "main.py:3: add a name",
            "ended with exit code 1: make check\n\nIt said:\n\ntests: 1 failed",
            "Tone: Be kind Outcome: It worked",
        ),
        *("Greet: How to (used 2 times, 50% well)", "steps: a, b"),
        *("update_scratchpad", "request_review", "judged by git"),
    ):
        assert said in text, said
    assert compile_brief(full()).cut == ()


def test_a_bare_task_has_no_empty_sections() -> None:
    text = compile_brief(Material(task(description=None))).text
    assert text.count("## ") == 2
    assert "Say hello" in text and "cut" not in text


def test_the_same_state_gives_the_same_bytes() -> None:
    assert compile_brief(full()).text.encode() == compile_brief(full()).text.encode()


def test_a_person_at_the_terminal_is_mentioned() -> None:
    assert "together with the person" in compile_brief(full(), interactive=True).text
    assert "Nobody answers" in compile_brief(full()).text


def test_long_notes_are_cut_at_their_beginning_and_the_task_stays_whole() -> None:
    notes = "\n".join(f"note {n}" for n in range(20_000))
    brief = compile_brief(full(scratchpad=notes))
    assert "scratchpad" in brief.cut and "task" not in brief.cut
    assert "note 19999" in brief.text and "note 0\n" not in brief.text
    assert "characters shown]" in brief.text
    assert brief.tokens <= BUDGET_TOKENS


def test_what_matters_least_is_left_out_first_and_the_text_says_so() -> None:
    brief = compile_brief(full(scratchpad="x" * 100_000))
    assert brief.cut == ("scratchpad", "plan", "decisions", "patterns")
    assert "[left out for length: Where the task stands in its plan, Related decisions" in brief.text
    assert "Not friendly." in brief.text and "it greets" in brief.text
    everything = compile_brief(full(task=task(description="y" * 100_000)))
    assert everything.cut[0] == "task" and "judged by git" in everything.text


@settings(max_examples=50, deadline=None)
@given(st.text(max_size=3000), st.text(max_size=3000), st.integers(500, 2_000))
def test_it_never_exceeds_its_budget(description: str, notes: str, budget: int) -> None:
    brief = compile_brief(
        full(task=task(description=description * 9), scratchpad=notes * 9), budget_tokens=budget
    )
    assert len(brief.text) <= budget * CHARACTERS_A_TOKEN


@pytest.mark.parametrize(
    "comment", ["a plain word", {"file": "a.py", "comment": "why"}, {"body": "no place"}]
)
def test_remarks_of_any_shape_are_told(comment: Any) -> None:
    text = compile_brief(
        full(feedback=[Review("r", "t", "rejected", "b", "", {"comments": [comment]}, 1)])
    ).text
    said = comment if isinstance(comment, str) else str(list(comment.values())[-1])
    assert said in text
