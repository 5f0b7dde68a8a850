"""A JobSpec for a test: small, valid, and about `src` unless told otherwise."""

from __future__ import annotations

from typing import Any

from quarterdeck.domain.jobspec import JobSpec, parse_spec


def job_spec(
    repo: dict[str, Any] | None = None, context: dict[str, Any] | None = None, **scope: Any
) -> JobSpec:
    """The spec with these fields of `repo` and `scope`; file URLs are let through."""
    return parse_spec(
        {
            "repo": {
                "type": "git",
                "url": "https://example.org/a.git",
                "baseBranch": "main",
                "baselineCommit": "0" * 40,
            }
            | (repo or {}),
            "task": {"title": "Do it", "description": "", "acceptance": []},
            "scope": {"readPaths": ["src"], "disallowReformatting": False} | scope,
            "context": context,
            "outputContract": ["DIFF", "TEST_PLAN", "NOTES"],
            "execution": {
                "preferredModel": "m",
                "sandbox": "read-only",
                "askPolicy": "untrusted",
                "priority": "P1",
                "ttlS": 60,
            },
            "idempotencyKey": "k",
        },
        allow_file=True,
    )
