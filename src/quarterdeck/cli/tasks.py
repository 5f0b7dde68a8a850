"""`quarterdeck task`: the board from a terminal."""

from typing import Annotated

import typer

from quarterdeck.cli import show
from quarterdeck.cli.complete import statuses, task_ids
from quarterdeck.cli.desk import AsJson, DataDir, Desk, Row, as_json

app = typer.Typer(help="List, create, move, start and delete tasks.", no_args_is_help=True)

TaskId = Annotated[str, typer.Argument(help="The task's id.", autocompletion=task_ids)]
Title = Annotated[str | None, typer.Option(help="What is to be done.")]
Description = Annotated[str | None, typer.Option(help="The details.")]
Priority = Annotated[str | None, typer.Option(help="low, medium, high or urgent.")]
Kind = Annotated[str | None, typer.Option("--type", help="AUTO or PAIR.")]
Agent = Annotated[str | None, typer.Option(help="Who is to carry it out.")]
Branch = Annotated[str | None, typer.Option("--base-branch", help="The branch it starts from and merges to.")]
Criterion = Annotated[
    list[str] | None, typer.Option("--criterion", help="When it is done; may be given several times.")
]


@app.command("list")
def listing(
    status: Annotated[str | None, typer.Option(help="BACKLOG, IN_PROGRESS, REVIEW or DONE.")] = None,
    project: Annotated[str | None, typer.Option(help="A project's id.")] = None,
    plan: Annotated[str | None, typer.Option(help="A plan's slug.")] = None,
    agent: Annotated[str | None, typer.Option(help="Who is to carry it out.")] = None,
    text: Annotated[str | None, typer.Option(help="Words of the title or description.")] = None,
    limit: Annotated[int, typer.Option(help="How many at most.")] = 50,
    cursor: Annotated[str | None, typer.Option(help="Where an earlier list ended.")] = None,
    data_dir: DataDir = None,
    json_: AsJson = False,
) -> None:
    """Show tasks, newest first."""
    found = Desk(data_dir).call(
        "board",
        "tasks_list",
        project_id=project,
        filter=status,
        plan=plan,
        agent=agent,
        text=text,
        limit=limit,
        cursor=cursor,
    )
    if json_:
        as_json(found)
        return
    rows = [
        (
            task["task_id"],
            show.state(task["status"]),
            task["priority"].lower(),
            task["task_type"],
            task.get("agent") or "",
            task["title"],
            show.ago(task["updated_at"]),
        )
        for task in found["tasks"]
    ]
    columns = ("id", "status", "priority", "type", "agent", "title", "changed")
    show.table(
        columns,
        rows,
        "no tasks; make one with: quarterdeck task create TITLE",
        spare=("type", "priority", "changed", "agent"),
    )
    if found.get("next_cursor"):
        show.say(f"more with --cursor {found['next_cursor']}")


@app.command("show")
def one(task_id: TaskId, data_dir: DataDir = None, json_: AsJson = False) -> None:
    """Show one task with its notes, review and runs."""
    desk = Desk(data_dir)
    task = desk.call(
        "board",
        "get_task",
        task_id=task_id,
        mode="full",
        include_scratchpad=True,
        include_review=True,
        include_logs=True,
    )
    if json_:
        as_json(task)
        return
    runs: list[Row] = desk.get("/api/jobs", task_id=task_id)["jobs"]
    show.fields(
        [
            ("id", task["task_id"]),
            ("title", task["title"]),
            ("status", show.state(task["status"])),
            ("state", task.get("state")),
            ("type", task.get("task_type")),
            ("priority", task.get("priority")),
            ("agent", task.get("agent_backend") or task.get("assigned_agent")),
            ("project", task.get("project_id")),
            ("criteria", "\n".join(f"- {each}" for each in task.get("acceptance_criteria") or [])),
            ("description", task.get("description")),
            ("review", "\n".join(f"{each['kind']}: {each['text']}" for each in task.get("reviews") or [])),
            ("notes", task.get("scratchpad")),
            ("runs", "\n".join(map(_run, runs))),
        ]
    )


def _run(job: Row) -> str:
    return f"{job['id']} {job['state']} {job['agent'] or ''}: {job['summary'] or ''}".rstrip(": ")


@app.command()
def create(
    title: Annotated[str, typer.Argument(help="What is to be done.")],
    description: Description = None,
    project: Annotated[str | None, typer.Option(help="A project's id; else the open one.")] = None,
    priority: Priority = None,
    kind: Kind = None,
    agent: Agent = None,
    base_branch: Branch = None,
    criterion: Criterion = None,
    data_dir: DataDir = None,
    json_: AsJson = False,
) -> None:
    """Create a task and print its id."""
    made = _written("tasks_create", locals())
    _told(made, json_, made["task_id"])


@app.command()
def update(
    task_id: TaskId,
    title: Title = None,
    description: Description = None,
    project: Annotated[str | None, typer.Option(help="Another project's id.")] = None,
    priority: Priority = None,
    kind: Kind = None,
    agent: Agent = None,
    base_branch: Branch = None,
    criterion: Criterion = None,
    data_dir: DataDir = None,
    json_: AsJson = False,
) -> None:
    """Change fields of a task; what is not given stays."""
    made = _written("tasks_update", locals())
    _told(made, json_, made["message"])


# What the board calls the options of `create` and `update`, where it has other names.
_NAMES = {
    "project": "project_id",
    "kind": "task_type",
    "agent": "agent_backend",
    "criterion": "acceptance_criteria",
}


def _written(tool: str, options: Row) -> Row:
    """What a tool makes of all the options of its command; one that was not given is left out."""
    fields = {
        _NAMES.get(name, name): None if value == [] else value
        for name, value in options.items()
        if name not in ("data_dir", "json_")
    }
    written: Row = Desk(options["data_dir"]).call("board", tool, **fields)
    return written


@app.command()
def move(
    task_id: TaskId,
    status: Annotated[
        str, typer.Argument(help="BACKLOG, IN_PROGRESS, REVIEW or DONE.", autocompletion=statuses)
    ],
    data_dir: DataDir = None,
    json_: AsJson = False,
) -> None:
    """Move a task to another column."""
    made = Desk(data_dir).call("board", "tasks_move", task_id=task_id, status=status)
    _told(made, json_, made["message"])


@app.command()
def note(
    task_id: TaskId,
    text: Annotated[str, typer.Argument(help="What to add.")],
    data_dir: DataDir = None,
    json_: AsJson = False,
) -> None:
    """Add to a task's notes."""
    made = Desk(data_dir).call("board", "update_scratchpad", task_id=task_id, content=text)
    _told(made, json_, made["message"])


@app.command()
def delete(task_id: TaskId, data_dir: DataDir = None, json_: AsJson = False) -> None:
    """Delete a task with its jobs, session, worktrees and branches. For ever."""
    made = Desk(data_dir).call("board", "tasks_delete", task_id=task_id)
    _told(made, json_, made["message"])


@app.command()
def start(
    task_id: TaskId,
    agent: Agent = None,
    data_dir: DataDir = None,
    json_: AsJson = False,
) -> None:
    """Hand an AUTO task to an agent and print the job's id."""
    arguments: Row = {"agent": agent} if agent else {}
    made = Desk(data_dir).call(
        "board", "jobs_submit", task_id=task_id, action="start_agent", arguments=arguments
    )
    _told(made, json_, made.get("job_id") or made["message"])


@app.command()
def stop(task_id: TaskId, data_dir: DataDir = None, json_: AsJson = False) -> None:
    """Stop the agent of a task."""
    made = Desk(data_dir).call("board", "jobs_submit", task_id=task_id, action="stop_agent", arguments={})
    _told(made, json_, made["message"])


def _told(answer: Row, json_: bool, line: str) -> None:
    if json_:
        as_json(answer)
    else:
        typer.echo(line)
