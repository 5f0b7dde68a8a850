"""The orchestrator's document, written out for the tests: arguments and the fields of the answers."""

from __future__ import annotations

import re

# Tool → (required arguments, optional ones), in the order of the document; the last two are additions.
ARGUMENTS: dict[str, tuple[set[str], set[str]]] = {
    "ping": (set(), set()),
    "decision_log": ({"context", "decision"}, {"task_id", "outcome", "confidence", "tags"}),
    "decision_search": ({"query"}, {"limit", "tags"}),
    "pattern_store": ({"name", "trigger_conditions", "actions"}, {"description"}),
    "pattern_match": ({"situation"}, {"limit"}),
    "task_create": (
        {"title"},
        {"description", "priority", "source_channel", "assigned_agent", "parent_task_id", "metadata"},
    ),
    "task_update": (
        {"task_id"},
        {
            *("status", "action", "title", "description", "priority", "assigned_agent"),
            *("metadata", "reason", "actor"),
        },
    ),
    "task_list": (set(), {"status", "priority", "assigned_agent", "limit"}),
    "task_get": ({"task_id"}, set()),
    "context_for_task": ({"task_id"}, set()),
    "route_task": ({"task_id"}, {"assign"}),
    "select_model": ({"tier"}, {"context"}),
    "list_agents": (set(), set()),
    "get_agent": ({"agent_id"}, set()),
    "orchestrator_classify": ({"title"}, {"description", "project"}),
    "orchestrator_reset_cache": (set(), set()),
    "decision_outcome": ({"decision_id", "outcome"}, set()),
    "pattern_used": ({"pattern_id", "success"}, set()),
}
WRITES = {
    *("decision_log", "pattern_store", "task_create", "task_update", "route_task"),
    *("orchestrator_reset_cache", "decision_outcome", "pattern_used"),
}
TASK = [
    *("id", "user_id", "title", "description", "status", "priority", "source_channel", "assigned_agent"),
    *("parent_task_id", "metadata", "created_at", "updated_at", "completed_at"),
]
TRANSITION = ["id", "task_id", "from_status", "to_status", "reason", "actor", "created_at"]
DECISION = [
    *("id", "user_id", "task_id", "context", "decision", "outcome", "confidence", "tags", "created_at"),
]
PATTERN = [
    *("id", "user_id", "name", "description", "trigger_conditions", "actions", "success_rate"),
    *("usage_count", "created_at", "updated_at"),
]
AGENT = [
    *("id", "name", "description", "capabilities", "model", "transport", "max_concurrent", "cost_tier"),
]
# Tool → the fields of its answer, or of each row of it.
ANSWERS: dict[str, list[str]] = {
    "ping": ["pong", "server", "ts"],
    "decision_log": DECISION,
    "decision_search": DECISION,
    "pattern_store": PATTERN,
    "pattern_match": PATTERN,
    "task_create": TASK,
    "task_update": TASK,
    "task_list": TASK,
    "task_get": ["task", "transitions", "valid_actions"],
    "context_for_task": [
        *("task", "transitions", "related_decisions", "subtasks", "matching_patterns", "valid_actions"),
    ],
    "route_task": ["routing", "task", "action"],
    "select_model": ["tier", "model", "context", "guidance"],
    "list_agents": AGENT,
    "get_agent": AGENT,
    "orchestrator_classify": ["category", "actionability", "confidence", "reason"],
    "orchestrator_reset_cache": ["cleared_keys"],
    "decision_outcome": DECISION,
    "pattern_used": PATTERN,
}
TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}\+00:00")
