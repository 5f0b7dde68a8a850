"""Every surface by its path, and the union of them at `/mcp`."""

from dataclasses import replace

from quarterdeck.surfaces import (
    agent,
    board,
    board_audit,
    board_context,
    board_jobs,
    board_plans,
    board_projects,
    board_review,
    board_sessions,
    board_settings,
    board_tasks,
    board_wait,
    content,
    orchestrator,
    plans,
    relay,
    task_resources,
    templates,
    work_sessions,
)
from quarterdeck.surfaces.table import Surface, union

# The tools of the board, a module each; their order here is their order in tools/list.
_BOARD = (
    *board_plans.TOOLS,
    *board_context.TOOLS,
    *board_tasks.TOOLS,
    *board_wait.TOOLS,
    *board_projects.TOOLS,
    *board_jobs.TOOLS,
    *board_sessions.TOOLS,
    *board_review.TOOLS,
    *board_settings.TOOLS,
    *board_audit.TOOLS,
)

_PLANS = (*plans.TOOLS, *work_sessions.TOOLS, *templates.TOOLS, *content.TOOLS)

BOARD = Surface(
    name="board",
    server_name="quarterdeck-board",
    instructions=board.INSTRUCTIONS,
    tools={tool.name: tool for tool in _BOARD},
    word=board.word,
)

ORCHESTRATOR = replace(orchestrator.SURFACE, resources=(task_resources.TASKS,))

PLANS = Surface(
    name="plans",
    server_name="quarterdeck-plans",
    instructions=(
        "Plans in phases whose tasks are the orchestrator's own. Log your work in a session; session_handoff "
        "and session_continue pass it on; session_replay tells what was done."
    ),
    tools={tool.name: tool for tool in _PLANS},
    word=plans.word,
)

_ALL = (BOARD, ORCHESTRATOR, PLANS, relay.SURFACE, agent.SURFACE)

SURFACES: dict[str, Surface] = {surface.name: surface for surface in _ALL}

UNION = union("all", "quarterdeck", list(SURFACES.values()))
