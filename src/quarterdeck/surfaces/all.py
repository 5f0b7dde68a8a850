"""Every surface by its path, and the union of them at `/mcp`."""

from dataclasses import replace

from quarterdeck.surfaces import content, orchestrator, plans, relay, task_resources, templates, work_sessions
from quarterdeck.surfaces.table import Surface, union

_PLANS = (*plans.TOOLS, *work_sessions.TOOLS, *templates.TOOLS, *content.TOOLS)

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

SURFACES: dict[str, Surface] = {surface.name: surface for surface in (ORCHESTRATOR, PLANS, relay.SURFACE)}

UNION = union("all", "quarterdeck", list(SURFACES.values()))
