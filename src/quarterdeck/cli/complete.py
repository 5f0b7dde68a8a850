"""What a shell completes: ids of the running core. Silent when there is none."""

from collections.abc import Iterator

from quarterdeck.cli.desk import Desk
from quarterdeck.domain.errors import QuarterdeckError

Completion = Iterator[tuple[str, str]]


def ids(incomplete: str) -> Completion:
    """Jobs and tasks."""
    yield from job_ids(incomplete)
    yield from task_ids(incomplete)


def statuses(incomplete: str) -> list[str]:
    return [
        name for name in ("BACKLOG", "IN_PROGRESS", "REVIEW", "DONE") if name.startswith(incomplete.upper())
    ]


def _words(text: str) -> str:
    """What somebody wrote, without the signs that a shell would take for its own."""
    return "".join(c if c.isalnum() or c in " .,-_/" else " " for c in text[:60]).strip()


def task_ids(incomplete: str) -> Completion:
    """Tasks whose id begins so, with their titles."""
    try:
        found = Desk(None).call("board", "tasks_list", limit=50)["tasks"]
    except QuarterdeckError:
        return
    for task in found:
        if task["task_id"].startswith(incomplete):
            yield task["task_id"], _words(task["title"])


def project_ids(incomplete: str) -> Completion:
    try:
        found = Desk(None).call("board", "projects_list", limit=50)["projects"]
    except QuarterdeckError:
        return
    for project in found:
        if project["project_id"].startswith(incomplete):
            yield project["project_id"], _words(project["name"])


def job_ids(incomplete: str) -> Completion:
    try:
        found = Desk(None).get("/api/jobs", limit=50)["jobs"]
    except QuarterdeckError:
        return
    for job in found:
        if job["id"].startswith(incomplete):
            yield job["id"], f"{job['kind']} {job['state']}"


def plan_slugs(incomplete: str) -> Completion:
    try:
        found = Desk(None).call("plans", "plan_list")["plans"]
    except QuarterdeckError:
        return
    for plan in found:
        if plan["slug"].startswith(incomplete):
            yield plan["slug"], _words(plan["title"])
