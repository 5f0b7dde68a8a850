"""Jobs and diffs over REST: what the command line shows and no MCP tool answers in one piece."""

from dataclasses import asdict
from pathlib import Path
from typing import Any, get_args
from urllib.parse import parse_qsl

from starlette.types import Receive, Scope, Send

from quarterdeck.core import runs, worktrees
from quarterdeck.core.context import Core
from quarterdeck.domain.callers import Caller
from quarterdeck.domain.errors import Denied, Invalid, QuarterdeckError
from quarterdeck.domain.ids import iso
from quarterdeck.domain.jobs import KINDS, State
from quarterdeck.domain.records import Job
from quarterdeck.server import job_log
from quarterdeck.server.http import answer, refuse

PATH = "/api/jobs"
DIFFS = "/api/tasks"
_MOST_SECONDS = 30.0


class WorkRoutes:
    """`/api/jobs`, one of them, its log and files, cancel and retry; and `/api/tasks/{id}/diff`."""

    def __init__(self, core: Core) -> None:
        self._core = core

    async def serve(self, caller: Caller, scope: Scope, receive: Receive, send: Send) -> None:
        query = dict(parse_qsl(scope["query_string"].decode("latin-1")))
        match (scope["method"], *scope["path"].removeprefix("/api").strip("/").split("/")):
            case ("GET", "jobs"):
                work = self._listed(caller, query)
            case ("GET", "jobs", job_id):
                work = self._one(caller, job_id)
            case ("GET", "jobs", job_id, "log"):
                work = self._log(caller, job_id, query)
            case ("GET", "jobs", job_id, "files", name):
                work = self._file(caller, job_id, name)
            case ("POST", "jobs", job_id, "cancel" | "retry" as deed):
                work = self._do(caller, job_id, deed)
            case ("GET", "tasks", task_id, "diff"):
                work = self._diff(caller, task_id)
            case _:
                await answer(
                    send, 404, {"detail": "there is no such route", "hint": "docs/operations.md lists them"}
                )
                return
        try:
            shown = await work
        except QuarterdeckError as error:
            await refuse(send, error)
        else:
            await answer(send, 200, shown)

    async def _listed(self, caller: Caller, query: dict[str, str]) -> dict[str, Any]:
        limit = min(max(_whole(query, "limit", 50), 1), 200)
        wanted = {name: query[name] for name in runs.FILTERS if query.get(name)}
        for name, known in (("state", get_args(State)), ("kind", KINDS)):
            if wanted.get(name, known[0]) not in known:
                raise Invalid(f"{name} must be one of {', '.join(known)}", field=name)
        if task_id := query.get("task_id"):
            found = await runs.of_task(self._core, caller, task_id)
        else:
            seen = await runs.overview(self._core, caller, wanted)
            found = [*seen.running, *seen.waiting, *seen.over]
        kept = [job for job in found if all(getattr(job, name) == value for name, value in wanted.items())]
        return {"jobs": [job_row(job) for job in kept[:limit]], "more": len(kept) > limit}

    async def _one(self, caller: Caller, job_id: str) -> dict[str, Any]:
        view = await runs.get(self._core, caller, job_id)
        files = [{"name": name, "size": size, "sha256": sha} for name, (size, sha) in view.files.items()]
        more = {"result": view.job.result, "task_title": view.title, "files": files}
        return job_row(view.job) | more

    async def _file(self, caller: Caller, job_id: str, name: str) -> dict[str, Any]:
        found = await runs.artifact(self._core, caller, job_id, name)
        text = found.content.decode("utf-8", "replace")
        return {"name": name, "media_type": found.media_type, "sha256": found.sha256, "text": text}

    async def _do(self, caller: Caller, job_id: str, deed: str) -> dict[str, Any]:
        if not caller.may("operator") or caller.bound:
            raise Denied(f"to {deed} a job needs the profile operator")
        work = runs.cancel if deed == "cancel" else runs.retry
        return job_row(await work(self._core, caller, job_id))

    async def _log(self, caller: Caller, job_id: str, query: dict[str, str]) -> dict[str, Any]:
        """Some of a job's log from a place on, waiting a while for more when there is none yet."""
        wait = min(_whole(query, "wait", 0), _MOST_SECONDS)
        return asdict(await job_log.piece(self._core, caller, job_id, _whole(query, "offset", 0), wait))

    async def _diff(self, caller: Caller, task_id: str) -> dict[str, Any]:
        found = await worktrees.diff(self._core, caller, task_id)
        return {
            "task_id": task_id,
            "files": found.files,
            "insertions": found.insertions,
            "deletions": found.deletions,
            "repos": [
                {
                    "name": Path(each.worktree.repo_path).name,
                    "branch": each.worktree.branch,
                    "target": each.worktree.target,
                    "base": each.diff.base,
                    "head": each.diff.head,
                    "patch": each.diff.patch,
                    "truncated": each.diff.cut,
                    "files": [
                        {
                            "path": file.path,
                            "status": file.status,
                            "insertions": file.insertions,
                            "deletions": file.deletions,
                            "binary": file.binary,
                        }
                        for file in each.diff.files
                    ],
                }
                for each in found.repos
            ],
        }


def _whole(query: dict[str, str], name: str, default: int) -> int:
    text = query.get(name, str(default))
    if not text.isdecimal() or len(text) > 15:
        raise Invalid(f"{name} must be a whole number from 0", field=name)
    return int(text)


def job_row(job: Job) -> dict[str, Any]:
    """A job as a script sees it."""
    return {
        "id": job.id,
        "kind": job.kind,
        "state": job.state,
        "state_version": job.state_version,
        "priority": f"P{job.priority}",
        "attempt": job.attempt,
        "agent": job.agent,
        "task_id": job.task_id,
        "project_id": job.project_id,
        "summary": job.summary,
        "reason": job.reason_code,
        "cost_usd": job.cost_usd,
        "input_tokens": job.input_tokens,
        "output_tokens": job.output_tokens,
        "created_at": iso(job.created_at),
        "started_at": iso(job.started_at),
        "finished_at": iso(job.finished_at),
    }
