"""The board's settings."""

from typing import Any

from pydantic import AliasChoices, Field

from quarterdeck.config import BaseRef, Terminal
from quarterdeck.core import settings
from quarterdeck.surfaces.board import envelope
from quarterdeck.surfaces.schema import Args, Row
from quarterdeck.surfaces.table import Call, tool


class Nothing(Args):
    pass


@tool("read", "viewer", catalog=True)
async def settings_get(call: Call, a: Nothing) -> Row:
    """The settings in force, by dotted name."""
    return {"success": True, "settings": await settings.current(call.core)}


def _named(name: str, section: str = "general") -> Any:
    return Field(default=None, validation_alias=AliasChoices(name, f"{section}.{name}"))


class SettingsUpdate(Args):
    auto_review: bool | None = _named("auto_review")
    auto_approve: bool | None = _named("auto_approve")
    require_review_approval: bool | None = _named("require_review_approval")
    serialize_merges: bool | None = _named("serialize_merges")
    push_after_merge: bool | None = _named("push_after_merge")
    default_base_branch: str | None = _named("default_base_branch")
    auto_sync_base_branch: bool | None = _named("auto_sync_base_branch")
    worktree_base_ref_strategy: BaseRef | None = _named("worktree_base_ref_strategy")
    max_concurrent_agents: int | None = _named("max_concurrent_agents")
    default_worker_agent: str | None = _named("default_worker_agent")
    default_pair_terminal_backend: Terminal | None = _named("default_pair_terminal_backend")
    default_model_claude: str | None = _named("default_model_claude")
    default_model_opencode: str | None = _named("default_model_opencode")
    default_model_codex: str | None = _named("default_model_codex")
    default_model_gemini: str | None = _named("default_model_gemini")
    default_model_kimi: str | None = _named("default_model_kimi")
    default_model_copilot: str | None = _named("default_model_copilot")
    tasks_wait_default_timeout_seconds: int | None = _named("tasks_wait_default_timeout_seconds")
    tasks_wait_max_timeout_seconds: int | None = _named("tasks_wait_max_timeout_seconds")
    skip_pair_instructions: bool | None = _named("skip_pair_instructions", "ui")


@tool("write", "maintainer")
async def settings_update(call: Call, a: SettingsUpdate) -> Row:
    """Change settings of the server, for every user."""
    given = {name: getattr(a, name) for name in a.model_fields_set}
    updated = await settings.update(call.core, call.caller, given)
    return envelope(
        True,
        "1 setting updated" if len(updated) == 1 else f"{len(updated)} settings updated",
        "UPDATED",
        updated=sorted(updated),
        settings=await settings.current(call.core),
    )


TOOLS = (settings_get, settings_update)
