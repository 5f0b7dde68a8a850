"""`quarterdeck job`, `logs` and `wait`: what runs, what it says, and when it is over."""

import sys
import time
from typing import Annotated

import typer

from quarterdeck.cli import show
from quarterdeck.cli.complete import ids, job_ids
from quarterdeck.cli.desk import AsJson, DataDir, Desk, Row, as_json, part, waiting
from quarterdeck.domain.errors import Invalid, Unavailable

app = typer.Typer(help="List, show, cancel and retry jobs.", no_args_is_help=True)

JobId = Annotated[str, typer.Argument(help="The job's id.", autocompletion=job_ids)]
_POLL_SECONDS = 25
_WAIT_SECONDS = 25.0
_LAST_LINES = 10
_LIVE = ("QUEUED", "RUNNING", "STALE")


@app.command("list")
def listing(
    state: Annotated[str | None, typer.Option(help="QUEUED, RUNNING, SUCCEEDED, FAILED …")] = None,
    kind: Annotated[str | None, typer.Option(help="auto, relay, prompt or content.")] = None,
    agent: Annotated[str | None, typer.Option(help="Who carries it out.")] = None,
    task: Annotated[str | None, typer.Option(help="A task's id.")] = None,
    limit: Annotated[int, typer.Option(help="How many at most.")] = 50,
    data_dir: DataDir = None,
    json_: AsJson = False,
) -> None:
    """Show jobs: running, waiting by priority, then over."""
    state = state.upper() if state else None
    found = Desk(data_dir).get("/api/jobs", state=state, kind=kind, agent=agent, task_id=task, limit=limit)
    if json_:
        as_json(found)
        return
    rows = [
        (
            job["id"],
            job["kind"],
            show.state(job["state"]),
            job["agent"] or "",
            show.money(job["cost_usd"]),
            show.ago(job["created_at"]),
            job["summary"] or "",
        )
        for job in found["jobs"]
    ]
    columns = ("id", "kind", "state", "agent", "cost", "queued", "summary")
    show.table(columns, rows, "no jobs", spare=("cost", "kind", "queued", "agent"))


@app.command("show")
def one(job_id: JobId, data_dir: DataDir = None, json_: AsJson = False) -> None:
    """Show one job and the files it left."""
    job = Desk(data_dir).get(f"/api/jobs/{part(job_id)}")
    if json_:
        as_json(job)
        return
    show.fields(
        [
            ("id", job["id"]),
            ("kind", job["kind"]),
            ("state", show.state(job["state"])),
            ("task", job["task_title"] or job["task_id"]),
            ("agent", job["agent"]),
            ("attempt", job["attempt"]),
            ("summary", job["summary"]),
            ("reason", job["reason"]),
            ("output", "\n".join(_last_words(job))),
            ("cost", show.money(job["cost_usd"])),
            ("files", "\n".join(f"{each['name']} ({each['size']} bytes)" for each in job["files"])),
        ]
    )


def _last_words(job: Row) -> list[str]:
    """The end of what a job that failed had said, or its acceptance command."""
    return str((job["result"] or {}).get("log_tail") or "").rstrip().splitlines()[-_LAST_LINES:]


@app.command("file")
def file_(
    job_id: JobId,
    name: Annotated[str, typer.Argument(help="The file's name, such as patch.diff.")],
    data_dir: DataDir = None,
    json_: AsJson = False,
) -> None:
    """Print a file that a job left."""
    found = Desk(data_dir).get(f"/api/jobs/{part(job_id)}/files/{part(name)}")
    if json_:
        as_json(found)
    else:
        typer.echo(found["text"], nl=False)


@app.command()
def cancel(job_id: JobId, data_dir: DataDir = None, json_: AsJson = False) -> None:
    """End a job; its processes end with it."""
    _told(Desk(data_dir).request("POST", f"/api/jobs/{part(job_id)}/cancel"), json_)


@app.command()
def retry(job_id: JobId, data_dir: DataDir = None, json_: AsJson = False) -> None:
    """Run the same work once more, as a new job; its id is printed."""
    _told(Desk(data_dir).request("POST", f"/api/jobs/{part(job_id)}/retry"), json_)


def _told(job: Row, json_: bool) -> None:
    if json_:
        as_json(job)
    else:
        typer.echo(f"{job['id']} {job['state']}")


def logs(
    job_id: JobId,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on until the job ends.")] = False,
    raw: Annotated[bool, typer.Option("--raw", help="As the agent printed it.")] = False,
    data_dir: DataDir = None,
    json_: AsJson = False,
) -> None:
    """Print a job's log. With -f, as it grows; the exit code is 1 when the job did not succeed."""
    from quarterdeck.cli.transcripts import Transcript

    desk, offset, shown = Desk(data_dir), 0, None
    while True:
        wait = _POLL_SECONDS if follow else 0
        page = desk.get(f"/api/jobs/{part(job_id)}/log", offset=offset, wait=wait)
        shown = shown or Transcript(None if raw else page["adapter"])
        offset, last = page["offset"], page["ended"] or not (follow or page["text"])
        if json_ and (page["text"] or last):  # the last one tells the state, whatever the log holds
            as_json(page)
        elif page["text"]:
            sys.stdout.write(shown.add(page["text"]))
            sys.stdout.flush()
        if last:
            break
    sys.stdout.write(shown.rest())
    if follow and page["state"] != "SUCCEEDED":
        if not json_:
            show.say(f"{job_id} is {page['state']}")
        raise typer.Exit(1)


def wait(
    what: Annotated[str, typer.Argument(help="A task's or a job's id.", autocompletion=ids)],
    status: Annotated[
        list[str] | None, typer.Option("--status", help="Wait for this status; may be given several times.")
    ] = None,
    timeout: Annotated[float, typer.Option(help="Seconds at most; 0 for no end.", min=0.0)] = 0.0,
    data_dir: DataDir = None,
    json_: AsJson = False,
) -> None:
    """Wait until a task changes its status, or a job ends. Exit code 2 when the time is over."""
    desk = Desk(data_dir)
    end = time.monotonic() + timeout if timeout > 0 else float("inf")
    with waiting("waiting"):
        job = what.startswith("job_")
        answer = _job_ended(desk, what, end) if job else _task_changed(desk, what, status, end)
    if json_:
        as_json(answer)
    elif answer.get("timed_out"):
        show.say("the time is over")
    else:
        typer.echo(answer.get("current_status") or answer["state"])
    if answer.get("timed_out"):
        raise typer.Exit(2)
    if job and answer["state"] != "SUCCEEDED":
        raise typer.Exit(1)


def _slice(end: float) -> float:
    return max(min(end - time.monotonic(), _WAIT_SECONDS), 0.1)


def _job_ended(desk: Desk, job_id: str, end: float) -> Row:
    while True:
        job: Row = desk.get(f"/api/jobs/{part(job_id)}")
        if job["state"] not in _LIVE:
            return job
        if time.monotonic() >= end:
            return job | {"timed_out": True}
        desk.call("board", "tasks_wait", job_ids=[job_id], timeout_seconds=_slice(end))


def _task_changed(desk: Desk, task_id: str, status: list[str] | None, end: float) -> Row:
    cursor, before = None, None
    while True:
        answer: Row = desk.call(
            "board",
            "tasks_wait",
            task_id=task_id,
            wait_for_status=[each.upper() for each in status] if status else None,
            timeout_seconds=_slice(end),
            from_updated_at=cursor,
        )
        if answer["code"] == "TASK_DELETED":
            raise Invalid(f"task {task_id} was deleted")
        if answer["code"] == "WAIT_INTERRUPTED":
            raise Unavailable("the core is stopping", hint="wait again when it is back")
        before = before or answer["previous_status"]
        # Something else of the task may have changed since the cursor: that is not waited for.
        changed = answer["changed"] and (status or answer["current_status"] != before)
        if changed or time.monotonic() >= end:
            return answer | {"changed": bool(changed), "timed_out": not changed}
        cursor = answer["task"]["updated_at"]
