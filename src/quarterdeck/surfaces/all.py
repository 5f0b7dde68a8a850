"""Every surface by its path, and the union of them at `/mcp`."""

from quarterdeck.surfaces import orchestrator
from quarterdeck.surfaces.table import Surface

SURFACES: dict[str, Surface] = {surface.name: surface for surface in (orchestrator.SURFACE,)}

UNION = Surface(
    name="all",
    server_name="quarterdeck",
    instructions="\n".join(f"{surface.name}: {surface.instructions}" for surface in SURFACES.values()),
    tools={name: tool for surface in SURFACES.values() for name, tool in surface.tools.items()},
    word=orchestrator.word,
)
