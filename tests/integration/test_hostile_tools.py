"""Whatever an argument of a tool is, no surface breaks over it: it is taken, or refused in words."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import pytest

from quarterdeck.surfaces.all import SURFACES
from tests.core_process import CoreProcess
from tests.mcp_client import Deck

ADMIN = "the admin secret of these tests"
ENVIRONMENT = {"QUARTERDECK_ADMIN_SECRET": ADMIN, "QUARTERDECK_SEARCH__PROVIDER": "off"}
NASTY: tuple[Any, ...] = (
    *("", " ", "²", "٣", "-1", "9" * 30, "a\0b", "\u202e\u2028", "x" * 70_000, "../../etc/passwd", "%_'\"--"),
    *("nan", "9999-12-31T23:59:59+23:59", "0001-01-01T00:00:00-23:59", "job_x", "ses_x", "mcp://tasks/x"),
    *(True, 0, -1, 2**63, 2**70, -0.0, 1e308, float("nan")),
    *([], [None], [[]], ["²"], [{}], {}, {"²": {"a": [None]}}),
)
# Its own page of tests has the orchestrator; a prompt starts a program.
TOOLS = [
    (surface, tool)
    for surface in sorted(SURFACES.keys() - {"orchestrator"})
    for tool in SURFACES[surface].tools.values()
    if tool.name != "prompt"
]


@pytest.fixture(scope="module")
def core(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CoreProcess]:
    with CoreProcess(tmp_path_factory.mktemp("core"), ENVIRONMENT) as core:
        yield core


@pytest.fixture(scope="module")
def deck(core: CoreProcess) -> Iterator[Deck]:
    with Deck(core.url, ADMIN) as deck:
        yield deck


@pytest.fixture(scope="module")
def token(deck: Deck) -> str:
    return str(deck.mint()["token"])


@pytest.fixture(scope="module")
def known(deck: Deck, token: str) -> dict[str, Any]:
    """A value that fits, by the name of its argument."""
    board, plans = deck.connect(token, surface="board"), deck.connect(token, surface="plans")
    plan = plans.done("plan_create", title="Plan", phases=[{"name": "One", "tasks": ["A task"]}])["plan"]
    session = plans.done("session_start", agent_type="opus", plan_slug=plan["slug"])["session"]
    return {
        "task_id": board.done("tasks_create", title="Task", task_type="AUTO")["task_id"],
        "project_id": board.done("projects_create", name="Project")["project_id"],
        "proposal_id": board.done("propose_plan", tasks=[{"title": "Task"}])["proposal_id"],
        "session_id": session["session_id"],
        **dict.fromkeys(("plan_slug", "slug", "plan"), plan["slug"]),
        **{"phase_order": 1, "task_identifier": 0, "timeout_seconds": 0.01, "limit": 1, "offset": 0},
        **{"action": "approve", "status": "review", "type": "info", "agent_type": "opus"},
    }


@pytest.mark.parametrize("surface", sorted({surface for surface, _ in TOOLS}))
def test_no_argument_breaks_a_tool(
    core: CoreProcess, deck: Deck, token: str, known: Any, surface: str
) -> None:
    client, values = deck.connect(token, surface=surface), itertools.cycle(NASTY)
    for _, tool in (each for each in TOOLS if each[0] == surface):
        needed = set(tool.input_schema.get("required", ()))
        # A wait takes any number of seconds, and we have not the time.
        waits = {name for name in tool.input_schema["properties"] if name == "timeout_seconds"}
        fitting = {name: known.get(name, "x") for name in needed | waits}
        for name in sorted(tool.input_schema["properties"].keys() - waits):
            for value in itertools.islice(values, 5):
                answer = client.call(tool.name, **{**fitting, name: value}).body
                assert str(answer.get("code")).lower() != "internal_error", (tool.name, name, value)
    assert "tool.broke" not in core.log
