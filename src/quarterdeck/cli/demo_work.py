"""The demo's main job: a plan's tasks handed to two agents at once, followed, reviewed and merged."""

import time
from collections.abc import Callable
from dataclasses import dataclass

from quarterdeck.cli import demo_repo
from quarterdeck.cli.demo_stage import Row, Stage, check
from quarterdeck.cli.mcp_client import McpClient

_WITHIN = 120.0
_LOOK_SECONDS = 0.1


@dataclass(frozen=True, slots=True)
class Work:
    """A task that an agent carries out."""

    agent: str
    task_id: str
    title: str
    job_id: str


def plan(stage: Stage, me: McpClient) -> list[Row]:
    """A project on a repository, and a plan from a template whose tasks are on the board."""
    repo = demo_repo.make_repo(stage.repo)
    made = me.call(
        "projects_create",
        name="Harbour",
        repo_paths=[str(repo)],
        acceptance_command=demo_repo.acceptance(),
    )
    me.call("projects_open", project_id=made["project_id"])
    begun = me.call(
        "template_create_plan",
        template_slug=demo_repo.TEMPLATE,
        variables={"RELEASE": "summer"},
        activate=True,
    )
    slug = begun["plan"]["slug"]
    listed = {task["title"]: task for task in me.call("tasks_list", plan=slug)["tasks"]}
    check(len(listed) == 5, "a plan's tasks are cards on the board")
    for agent, title in zip(demo_repo.AGENTS, demo_repo.TASKS, strict=True):
        task = listed[title]
        me.call(
            "tasks_update",
            task_id=task["task_id"],
            project_id=made["project_id"],
            task_type="AUTO",
            agent_backend=agent,
        )
        stage.say(f"{task['title']} → {agent}")
    for title, priority in demo_repo.PRIORITIES.items():
        me.call("tasks_update", task_id=listed[title]["task_id"], priority=priority)
    later = me.call("tasks_list", plan=slug, filter="BACKLOG")["tasks"]
    return [task for task in later if task["task_type"] == "AUTO"]


def begin(stage: Stage, me: McpClient, tasks: list[Row]) -> list[Work]:
    """Hand each task to its agent; both run at once, each in a worktree of its own."""
    works = []
    for task in tasks:
        job = me.call("jobs_submit", task_id=task["task_id"], action="start_agent", arguments={})
        works.append(Work(task["agent"], task["task_id"], task["title"], job["job_id"]))
    return works


class Watch:
    """Shows what the agents say, each line once."""

    def __init__(self, stage: Stage, me: McpClient, works: list[Work]) -> None:
        self._stage = stage
        self._me = me
        self._works = works
        self._seen = dict.fromkeys((work.job_id for work in works), 0)
        self._heard: dict[str, list[str]] = {work.job_id: [] for work in works}

    def until_all_said(self, words: str) -> None:
        self._until(lambda: all(any(words in line for line in said) for said in self._heard.values()))

    def until_the_end(self) -> None:
        self._until(
            lambda: all(self._job(work)["status"] not in ("queued", "running") for work in self._works)
        )

    def _until(self, enough: Callable[[], bool]) -> None:
        deadline = time.monotonic() + _WITHIN
        while True:
            ended = enough()  # asked first: what is said meanwhile is shown
            for work in self._works:
                self._show(work)
            if ended:
                return
            check(time.monotonic() < deadline, "the agents come to an end")
            time.sleep(_LOOK_SECONDS)

    def _job(self, work: Work) -> Row:
        job: Row = self._me.call("jobs_get", job_id=work.job_id, task_id=work.task_id)
        return job

    def _show(self, work: Work) -> None:
        page = self._me.call(
            "jobs_events", job_id=work.job_id, task_id=work.task_id, offset=self._seen[work.job_id], limit=100
        )
        for event in page["events"]:
            self._seen[work.job_id] += 1
            line = str(event.get("message") or "").partition("\n")[0][:100]
            self._heard[work.job_id].append(line)
            if line:
                self._stage.say(f"{work.agent:<5} {line}")


def finish(stage: Stage, me: McpClient, works: list[Work], watch: Watch) -> None:
    """Both tasks end in review, by git and the tests and not by their agents' words."""
    watch.until_the_end()
    for work in works:
        job = me.call("jobs_get", job_id=work.job_id, task_id=work.task_id)
        check(job["status"] == "succeeded", f"{work.agent} succeeded: {job.get('message')}")
        task = me.call("get_task", task_id=work.task_id, include_scratchpad=True)
        check(task["status"] == "REVIEW", f"{work.title} waits for a review")
        check(task["scratchpad"], "the agent left a note through MCP")


def merge(stage: Stage, me: McpClient, work: Work) -> None:
    """Merge one task into main. The person's own checkout follows, and nothing else moves."""
    before = demo_repo.git(stage.repo, "rev-parse", "HEAD").strip()
    me.call("review", task_id=work.task_id, action="approve")
    merged = me.call("review", task_id=work.task_id, action="merge")
    check(merged["success"], f"{work.title} is merged")
    after = demo_repo.git(stage.repo, "rev-parse", "HEAD").strip()
    check(before != after, "main moved forward")
    check(not demo_repo.git(stage.repo, "status", "--porcelain").strip(), "the checkout is clean")
    branches = demo_repo.git(stage.repo, "branch", "--list", f"quarterdeck/{work.task_id}*")
    check(not branches.strip(), "its branch and worktree are gone")
    line = demo_repo.git(stage.repo, "log", "-1", "--format=%h %s").strip()
    stage.say(f"main is now at {line}")
    check(me.call("get_task", task_id=work.task_id)["status"] == "DONE", "the card is in DONE")
