"""One task of the board in full: what it is, what was done, where it is worked on."""

from typing import Literal

from quarterdeck.core import task_views
from quarterdeck.domain.ids import iso
from quarterdeck.domain.records import Review, Task, as_dict
from quarterdeck.surfaces.board import status_of
from quarterdeck.surfaces.board_tasks import OneTask
from quarterdeck.surfaces.schema import Row
from quarterdeck.surfaces.table import Call, tool

_LINKED_DESCRIPTION = 500


class GetTask(OneTask):
    include_scratchpad: bool | None = None
    include_logs: bool | None = None
    include_review: bool | None = None
    mode: Literal["summary", "full"] = "summary"


@tool("read", "viewer", binds=("task_id",))
async def get_task(call: Call, a: GetTask) -> Row:
    """A task; notes, logs of its runs and reviews when asked for or with mode full."""
    full = a.mode == "full"
    limits = task_views.FULL if full else task_views.SUMMARY
    found = await task_views.detail(
        call.core,
        call.caller,
        a.task_id,
        limits,
        notes=full if a.include_scratchpad is None else a.include_scratchpad,
        logs=full if a.include_logs is None else a.include_logs,
        review=full if a.include_review is None else a.include_review,
    )
    texts = _Texts(limits.text)
    row = {
        **_task(found.task, texts),
        "scratchpad": None if found.scratchpad is None else texts.end("scratchpad", found.scratchpad),
        "review_feedback": None if found.reviews is None else _feedback(found.reviews, texts),
        "reviews": None if found.reviews is None else [_review(each, texts) for each in found.reviews],
        "logs": None if found.logs is None else [_run(run) for run in found.logs],
        "runtime": as_dict(found.runtime),
    }
    if any(run.cut for run in found.logs or ()):
        texts.cut.append("logs")
    return {"success": True, **row, "truncated": texts.cut}


@tool("read", "viewer", binds=("task_id",))
async def get_context(call: Call, a: OneTask) -> Row:
    """A task with its workspace: worktrees, changes, linked tasks (@id) and tasks on the same files."""
    found = await task_views.workplace(call.core, call.caller, a.task_id)
    task, texts = found.around.task, _Texts(task_views.FULL.text)
    return {
        "success": True,
        **_task(task, texts),
        "scratchpad": texts.end("scratchpad", found.around.scratchpad),
        "review_feedback": _feedback(found.reviews, texts),
        "project_name": found.around.project.name if found.around.project else None,
        "workspace_id": task.id if found.path else None,
        "workspace_branch": found.branch,
        "workspace_path": found.path,
        "working_dir": found.working_dir,
        "repos": [_repo(repo) for repo in found.repos],
        "repo_count": len(found.repos),
        "linked_tasks": [
            {
                "task_id": each.id,
                "title": each.title,
                **status_of(each),
                "description": (each.description or "")[:_LINKED_DESCRIPTION],
            }
            for each in found.around.linked
        ],
        "overlaps": [
            {
                "task_id": each.task.id,
                "title": each.task.title,
                **status_of(each.task),
                "files": list(each.files),
                "file_count": each.count,
            }
            for each in found.overlaps
        ],
        "runtime": {**as_dict(found.runtime), "overlap_hints": [each.task.id for each in found.overlaps]},
        "truncated": texts.cut,
    }


class _Texts:
    """Cuts long texts and remembers which."""

    def __init__(self, most: int) -> None:
        self._most = most
        self.cut: list[str] = []

    def start(self, name: str, text: str) -> str:
        return text if self._fits(name, text) else text[: self._most]

    def end(self, name: str, text: str) -> str:
        return text if self._fits(name, text) else text[-self._most :]

    def _fits(self, name: str, text: str) -> bool:
        if len(text) <= self._most:
            return True
        if name not in self.cut:
            self.cut.append(name)
        return False


def _task(task: Task, texts: _Texts) -> Row:
    return {
        "task_id": task.id,
        "title": task.title,
        **status_of(task),
        "description": texts.start("description", task.description or ""),
        "acceptance_criteria": task.acceptance_criteria,
        "priority": task.priority.upper(),
        "task_type": task.task_type,
        "project_id": task.project_id,
        "parent_id": task.parent_task_id,
        "agent_backend": task.agent_backend,
        "assigned_agent": task.assigned_agent,
        "terminal_backend": task.terminal_backend,
        "base_branch": task.base_branch,
        "created_by": task.created_by,
        "created_at": iso(task.created_at),
        "updated_at": iso(task.updated_at),
    }


def _feedback(reviews: list[Review], texts: _Texts) -> str | None:
    """What the last rejection said; reviews come oldest first."""
    said = next((review.text for review in reversed(reviews) if review.kind == "rejected"), None)
    return None if said is None else texts.start("review_feedback", said)


def _review(review: Review, texts: _Texts) -> Row:
    return {
        "kind": review.kind,
        "actor": review.actor,
        "text": texts.start("reviews", review.text),
        "created_at": iso(review.created_at),
    }


def _run(run: task_views.Run) -> Row:
    return {
        "run": run.run,
        "job_id": run.job.id,
        "content": run.content,
        "truncated": run.cut,
        "created_at": iso(run.job.created_at),
    }


def _repo(repo: task_views.RepoState) -> Row:
    stats = {"files": repo.files, "insertions": repo.insertions, "deletions": repo.deletions}
    return {
        "repo_id": repo.repo_id,
        "name": repo.name,
        "path": repo.path,
        "worktree_path": repo.worktree_path,
        "target_branch": repo.target_branch,
        "has_changes": repo.has_changes,
        "diff_stats": None if repo.files is None else stats,
    }


TOOLS = (get_task, get_context)
