"""Memory: decisions with their outcomes, patterns with their record of use, and finding both again."""

from collections.abc import Sequence
from typing import Any

from quarterdeck.core import tasks
from quarterdeck.core.context import Core
from quarterdeck.domain.callers import Caller
from quarterdeck.domain.errors import NotFound
from quarterdeck.domain.ids import new_id
from quarterdeck.domain.records import Decision, Pattern, as_dict
from quarterdeck.store import memory as rows
from quarterdeck.store.tx import Tx


async def log_decision(
    core: Core,
    caller: Caller,
    *,
    context: str,
    decision: str,
    task_id: str | None = None,
    outcome: str | None = None,
    confidence: float | None = None,
    tags: Sequence[str] = (),
) -> Decision:
    """Append a decision; it is embedded afterwards."""

    def body(tx: Tx) -> Decision:
        if task_id is not None:
            tasks.seen(tx, task_id)
        new = Decision(
            new_id(), caller.user_id, task_id, context, decision, outcome, confidence, list(tags), tx.now
        )
        return rows.add_decision(tx, new)

    return await core.db.tx(caller, body)


async def record_outcome(core: Core, caller: Caller, decision_id: str, outcome: str) -> Decision:
    """Write down how a decision turned out."""

    def body(tx: Tx) -> Decision:
        found = rows.get_decision(tx, decision_id)
        if found is None:
            raise NotFound(
                f"decision {decision_id} not found", field="decision_id", hint="use decision_search"
            )
        rows.set_outcome(tx, decision_id, outcome)
        tx.emit(
            "decision.outcome",
            decision_id,
            task_id=found.task_id,
            user_id=found.user_id,
            before=found.outcome,
        )
        return Decision(**{**as_dict(found), "outcome": outcome})

    return await core.db.tx(caller, body)


async def store_pattern(
    core: Core,
    caller: Caller,
    *,
    name: str,
    trigger_conditions: dict[str, Any],
    actions: dict[str, Any],
    description: str | None = None,
) -> Pattern:
    """Keep a pattern; it is embedded afterwards."""

    def body(tx: Tx) -> Pattern:
        new = Pattern(
            new_id(), caller.user_id, name, description, trigger_conditions, actions, 0.0, 0, tx.now, tx.now
        )
        return rows.add_pattern(tx, new)

    return await core.db.tx(caller, body)


async def record_use(core: Core, caller: Caller, pattern_id: str, *, success: bool) -> Pattern:
    """Count one use of a pattern; the success rate is the running average of all uses."""

    def body(tx: Tx) -> Pattern:
        found = rows.get_pattern(tx, pattern_id)
        if found is None:
            raise NotFound(f"pattern {pattern_id} not found", field="pattern_id", hint="use pattern_match")
        count = found.usage_count + 1
        rate = found.success_rate + (float(success) - found.success_rate) / count
        stamp = max(tx.now, found.updated_at + 1)
        rows.set_use(tx, pattern_id, count, rate, stamp)
        tx.emit("pattern.used", pattern_id, user_id=found.user_id, success=success)
        kept = as_dict(found)
        return Pattern(**{**kept, "usage_count": count, "success_rate": rate, "updated_at": stamp})

    return await core.db.tx(caller, body)


async def search_decisions(
    core: Core, caller: Caller, query: str, *, limit: int = 10, tags: Sequence[str] | None = None
) -> list[tuple[Decision, float | None]]:
    """Decisions by meaning with their similarity, else by substring; `limit` is clamped to 1–50."""
    return await core.memory.decisions(caller, query, min(max(limit, 1), 50), tags)


async def match_patterns(
    core: Core, caller: Caller, situation: str, *, limit: int = 10
) -> list[tuple[Pattern, float | None]]:
    """Patterns by meaning with their similarity, else by substring; `limit` is clamped to 1–50."""
    return await core.memory.patterns(caller, situation, min(max(limit, 1), 50))
