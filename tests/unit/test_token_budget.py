"""What a tool list costs an agent before it has done anything, and that it is written to be read."""

from __future__ import annotations

import json
from typing import Any

import pytest

from quarterdeck.surfaces.all import SURFACES, UNION
from quarterdeck.surfaces.table import Surface, Tool

# Tokens as a quarter of the bytes: what it was when last measured, and a tenth more.
BUDGETS = {"board": 3_450, "orchestrator": 1_611, "plans": 3_369, "relay": 812, "agent": 352}
UNION_BUDGET = 11_000
LONGEST_DESCRIPTION = 120
LONGEST_INSTRUCTIONS = 300
# A JobSpec has thirty fields, and an agent that writes one needs them all.
LARGER = {"jobs_submit": 520}

TOOLS = [tool for surface in SURFACES.values() for tool in surface.tools.values()]


def tokens(value: Any) -> int:
    return len(json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()) // 4


def listing(surface: Surface) -> list[dict[str, Any]]:
    return [tool.listing for tool in surface.tools.values()]


def test_every_surface_has_a_budget() -> None:
    assert BUDGETS.keys() == SURFACES.keys()


@pytest.mark.parametrize("name", BUDGETS)
def test_tool_list_stays_within_its_budget(name: str) -> None:
    cost = tokens(listing(SURFACES[name]))
    assert cost <= BUDGETS[name]
    # A budget far above the cost guards nothing: lower it after a saving.
    assert cost > BUDGETS[name] * 0.8


def test_union_stays_within_what_a_client_loads_at_once() -> None:
    assert tokens(listing(UNION)) <= UNION_BUDGET


@pytest.mark.parametrize("tool", TOOLS, ids=lambda tool: tool.name)
def test_description_is_one_short_line_that_ends(tool: Tool) -> None:
    assert 15 <= len(tool.description) <= LONGEST_DESCRIPTION
    assert tool.description.endswith(".")
    assert "\n" not in tool.description


@pytest.mark.parametrize("tool", TOOLS, ids=lambda tool: tool.name)
def test_listing_has_nothing_that_an_agent_need_not_read(tool: Tool) -> None:
    assert tool.listing.keys() == {"name", "description", "inputSchema", "annotations"}
    assert tokens(tool.listing) <= LARGER.get(tool.name, 300)


@pytest.mark.parametrize("surface", [*SURFACES.values()], ids=lambda surface: surface.name)
def test_instructions_are_short(surface: Surface) -> None:
    assert 0 < len(surface.instructions) <= LONGEST_INSTRUCTIONS
