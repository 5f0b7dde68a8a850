"""The relay surface over both eras: submitting, reading, listing and cancelling jobs, and their resources."""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from pydantic import SecretStr
from sqlalchemy import text as sql

from quarterdeck.config import DatabaseSettings, Settings
from quarterdeck.core import life, relay
from quarterdeck.core.context import Core
from quarterdeck.domain.errors import Invalid
from quarterdeck.server.http import names_loopback
from quarterdeck.store.tx import Tx
from tests.git_repo import GitRepo
from tests.integration.relay_core import FILES, PATCH, RelayCore, Row, ended
from tests.mcp_client import Client, ProtocolError, eventually
from tests.store import ANN, BOB

HANG = ("hang", None)
ARTIFACTS = {
    "patch.diff": "text/plain",
    "out.md": "text/markdown",
    "logs.txt": "text/plain",
}


@pytest.fixture(scope="module")
def core(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RelayCore]:
    with RelayCore(tmp_path_factory.mktemp("relay"), QUARTERDECK_RELAY__MAX_QUEUED="5") as core:
        yield core


@pytest.fixture(params=["modern", "older"])
def client(core: RelayCore, request: pytest.FixtureRequest) -> Client:
    """A client of the relay with a user of its own."""
    token = core.minted(user_id=f"user-{request.node.name}"[:60])["token"]
    opened: Client = getattr(core, request.param)(token, "/mcp/relay")
    return opened


def read(client: Client, uri: str) -> Row:
    found: Row = client.request("resources/read", json.dumps({"uri": uri}), uri)["contents"][0]
    return found


def code_of(client: Client, uri: str) -> str:
    """The code with which a resource is refused."""
    with pytest.raises(ProtocolError) as refused:
        read(client, uri)
    code: str = refused.value.error["data"]["code"]
    return code


def test_a_spec_goes_in_and_a_patch_comes_out(core: RelayCore, client: Client) -> None:
    before = core.repo.state()
    submitted = client.done("jobs_submit", spec=core.spec())
    assert submitted.keys() == {"jobId"} and submitted["jobId"].startswith("job_")
    job = ended(client, submitted["jobId"])
    assert (job["state"], job["attempt"], job["summary"]) == ("SUCCEEDED", 1, "1 file changed, +1 -1")
    assert job["id"] == submitted["jobId"] and "reasonCode" not in job and "pr" not in job
    assert job["createdAt"] <= job["startedAt"] <= job["finishedAt"] <= job["lastUpdate"]

    base = f"mcp://jobs/{job['id']}"
    held = read(client, f"{base}/status")
    status = json.loads(held["text"])
    assert held["mimeType"] == "application/json"
    assert status == {
        "state": "SUCCEEDED",
        "stateVersion": job["stateVersion"],
        "createdAt": job["createdAt"],
        "startedAt": job["startedAt"],
        "finishedAt": job["finishedAt"],
        "durationMs": job["finishedAt"] - job["startedAt"],
        "attempt": 1,
    }
    assert {each["name"] for each in job["artifacts"]} == ARTIFACTS.keys()
    for each in job["artifacts"]:
        held = read(client, each["uri"])
        assert held["mimeType"] == ARTIFACTS[each["name"]]
        content = held["text"].encode()
        assert (len(content), hashlib.sha256(content).hexdigest()) == (each["size"], each["sha256"])
    assert read(client, f"{base}/artifacts/patch.diff")["text"] == PATCH
    assert read(client, f"{base}/artifacts/out.md")["text"] == "# Test Plan\n\nRun it.\n\n# Notes\n\nNone.\n"
    assert core.repo.state() == before, "the user's repository was touched"


def test_the_agent_sees_the_scope_of_its_commit_and_is_told_what_to_do(core: RelayCore) -> None:
    client = core.modern(path="/mcp/relay")
    core.repo.write({"src/later.txt": "not committed"})
    steps = [("tree", None), ("variable", "QUARTERDECK_MODEL"), ("prompt", None)]
    more: Row = {
        "scope__readPaths": ["src", "docs/readme.md"],
        "scope__fileGlobs": ["**/*.py"],
        "context": {
            "dirTreeDigest": "a digest",
            "keySignatures": ["def f()"],
            "codeSnippets": [{"path": "docs/readme.md", "from": 1, "to": 1}],
        },
    }
    job = core.ran(client, *steps, **more)
    said = read(client, f"mcp://jobs/{job['id']}/artifacts/logs.txt")["text"]
    assert "tree docs docs/readme.md src src/deep src/deep/b.py\n" in said
    assert "QUARTERDECK_MODEL is a-model\n" in said
    for expected in ("# Make two a number", "1. two is 2", "a digest", "def f()", "Read me", core.commit):
        assert expected in said
    assert FILES["secret.env"] not in said


@pytest.mark.parametrize(
    ("more", "path"),
    [
        ({"repo__baselineCommit": "abc"}, "spec.repo.baselineCommit"),
        ({"repo__type": "svn"}, "spec.repo.type"),
        ({"repo__type": "git"}, "spec.repo.url"),
        ({"repo__path": "/etc"}, "spec.repo.path"),
        ({"repo__path": "relative"}, "spec.repo.path"),
        ({"task__title": "x" * 201}, "spec.task.title"),
        ({"task__description": "x" * 10_001}, "spec.task.description"),
        ({"task__acceptance": [1]}, "spec.task.acceptance[0]"),
        ({"scope__readPaths": ["../.."]}, "spec.scope.readPaths[0]"),
        ({"outputContract": ["DIFF"]}, "spec.outputContract"),
        ({"execution__sandbox": "danger"}, "spec.execution.sandbox"),
        ({"execution__askPolicy": "never"}, "spec.execution.askPolicy"),
        ({"execution__priority": "P3"}, "spec.execution.priority"),
        ({"execution__ttlS": 0}, "spec.execution.ttlS"),
        ({"notify": {"webhook": "ftp://x"}}, "spec.notify.webhook"),
        ({"extra": 1}, "spec.extra"),
    ],
)
def test_a_wrong_spec_is_refused_by_the_path_of_its_mistake(core: RelayCore, more: Row, path: str) -> None:
    client = core.modern(path="/mcp/relay")
    before = client.done("jobs_list")["total"]
    body = client.refused("jobs_submit", spec=core.spec(**more))
    assert (body["code"], body["path"]) == ("INVALID_SPEC", path)
    assert body["message"].startswith(path) and body["hint"]
    assert client.done("jobs_list")["total"] == before


@pytest.mark.parametrize("arguments", [{}, {"spec": None}, {"spec": "text"}, {"spec": []}, {"spec": {}}])
def test_what_is_no_spec_at_all_is_refused_as_one(client: Client, arguments: Row) -> None:
    body = client.refused("jobs_submit", **arguments)
    assert body["code"] == "INVALID_SPEC"
    assert body["path"].startswith("spec")


def test_a_local_repository_must_be_the_callers_or_below_the_roots(core: RelayCore, tmp_path: Path) -> None:
    client = core.modern(path="/mcp/relay")
    (core.repo.path.parent / "link").symlink_to(tmp_path)
    for path in (str(core.data_dir), str(core.repo.path.parent / "link"), str(tmp_path)):
        body = client.refused("jobs_submit", spec=core.spec(repo__path=path))
        assert (body["code"], body["path"]) == ("INVALID_SPEC", "spec.repo.path")


def test_lists_page_through_the_callers_jobs(core: RelayCore, client: Client) -> None:
    assert client.done("jobs_list") == {"items": [], "total": 0, "hasMore": False}
    made = [client.done("jobs_submit", spec=core.spec())["jobId"] for _ in range(3)]
    for job_id in made:
        ended(client, job_id)
    page = client.done("jobs_list", limit=2)
    assert [item["id"] for item in page["items"]] == made[:0:-1]
    assert (page["total"], page["hasMore"]) == (3, True)
    rest = client.done("jobs_list", limit=2, offset=2)
    assert [item["id"] for item in rest["items"]] == made[:1]
    assert (rest["total"], rest["hasMore"]) == (3, False)
    assert rest["items"][0].keys() >= {"id", "state", "summary", "lastUpdate", "attempt"}
    assert client.done("jobs_list", state="SUCCEEDED")["total"] == 3
    assert client.done("jobs_list", state="RUNNING")["total"] == 0
    for wrong in ({"limit": 0}, {"limit": 101}, {"offset": -1}, {"state": "DONE"}):
        assert client.refused("jobs_list", **wrong)["path"] == next(iter(wrong))


def test_a_running_job_is_canceled_at_once_and_an_ended_one_stays_as_it_is(
    core: RelayCore, client: Client
) -> None:
    job_id = client.done("jobs_submit", spec=core.spec(("say", "here I am\n"), HANG))["jobId"]
    said = core.data_dir / "attempts" / f"{job_id}-1" / "agent" / "stdout"
    eventually(lambda: said.exists() and said.stat().st_size, 60)
    assert code_of(client, f"mcp://jobs/{job_id}/artifacts/patch.diff") == "ARTIFACT_MISSING"
    assert client.done("jobs_cancel", jobId=job_id) == {"ok": True, "state": "CANCELED"}
    again = client.done("jobs_cancel", jobId=job_id)
    assert again == {"ok": False, "state": "CANCELED", "code": "ALREADY_TERMINAL"}
    assert client.done("jobs_get", jobId=job_id)["state"] == "CANCELED"
    # The log is added when its processes are gone.
    eventually(lambda: not any((core.data_dir / "attempts").glob(f"{job_id}*")))
    assert read(client, f"mcp://jobs/{job_id}/artifacts/logs.txt")["text"] == "here I am\n"


def test_a_user_with_too_many_live_jobs_is_held_back(core: RelayCore) -> None:
    client = core.modern(core.minted(user_id="eager")["token"], "/mcp/relay")
    other = core.modern(core.minted(user_id="patient")["token"], "/mcp/relay")
    made = [client.done("jobs_submit", spec=core.spec(HANG))["jobId"] for _ in range(5)]
    body = client.refused("jobs_submit", spec=core.spec())
    assert body["code"] == "RATE_LIMIT" and body["hint"]
    waiting = other.done("jobs_submit", spec=core.spec(HANG))["jobId"]
    for job_id in made:
        assert client.done("jobs_cancel", jobId=job_id)["ok"]
    assert other.done("jobs_cancel", jobId=waiting)["ok"]
    assert core.ran(client)["state"] == "SUCCEEDED"


def test_another_users_job_does_not_exist(core: RelayCore, client: Client) -> None:
    owner = core.modern(path="/mcp/relay")
    job_id = core.ran(owner)["id"]
    body = client.refused("jobs_get", jobId=job_id)
    assert body["code"] == "JOB_NOT_FOUND"
    assert body["message"].replace(job_id, "job_x") == client.refused("jobs_get", jobId="job_x")["message"]
    assert client.refused("jobs_cancel", jobId=job_id)["code"] == "JOB_NOT_FOUND"
    for name in ("status", "artifacts/patch.diff", "artifacts/pr.json"):
        assert code_of(client, f"mcp://jobs/{job_id}/{name}") == "RESOURCE_NOT_FOUND"
    assert code_of(owner, f"mcp://jobs/{job_id}/artifacts/pr.json") == "ARTIFACT_MISSING"


@pytest.mark.parametrize(
    "rest",
    [
        "artifacts/../../../etc/passwd",
        "artifacts/..%2f..%2fetc%2fpasswd",
        "artifacts/PATCH.DIFF",
        "artifacts/patch.diff/",
        "artifacts/other.txt",
        "artifacts/",
        "",
        "status/x",
    ],
)
def test_only_the_documented_resources_exist(core: RelayCore, rest: str) -> None:
    client = core.modern(path="/mcp/relay")
    job_id = client.done("jobs_list", limit=1)["items"][0]["id"]
    assert code_of(client, f"mcp://jobs/{job_id}/{rest}") == "RESOURCE_NOT_FOUND"


def test_templates_name_every_resource(client: Client) -> None:
    listed = client.request("resources/templates/list", "{}")["resourceTemplates"]
    shown = {each["uriTemplate"]: each["mimeType"] for each in listed}
    assert shown == {
        "mcp://jobs/{jobId}/status": "application/json",
        "mcp://jobs/{jobId}/artifacts/patch.diff": "text/plain",
        "mcp://jobs/{jobId}/artifacts/out.md": "text/markdown",
        "mcp://jobs/{jobId}/artifacts/logs.txt": "text/plain",
        "mcp://jobs/{jobId}/artifacts/pr.json": "application/json",
    }


def test_only_operators_submit_and_cancel(core: RelayCore) -> None:
    token = core.minted(user_id="onlooker", profile="pair_worker")["token"]
    client = core.modern(token, "/mcp/relay")
    assert {tool["name"] for tool in client.tools()} == {"jobs_get", "jobs_list"}
    assert client.refused("jobs_submit", spec=core.spec())["code"] == "permission_denied"
    assert client.refused("jobs_cancel", jobId="job_x")["code"] == "permission_denied"
    assert client.refused("no_such_tool")["code"] == "unknown_tool"


def test_the_union_takes_relay_jobs_in_the_relays_words(core: RelayCore) -> None:
    client = core.modern()
    job = core.ran(client)
    assert job["state"] == "SUCCEEDED"
    assert client.refused("jobs_get", jobId="job_nobody")["code"] == "JOB_NOT_FOUND"
    assert client.refused("jobs_submit", spec={})["code"] == "INVALID_SPEC"
    assert client.done("jobs_cancel", jobId=job["id"])["code"] == "ALREADY_TERMINAL"
    assert json.loads(read(client, f"mcp://jobs/{job['id']}/status")["text"])["state"] == "SUCCEEDED"


def test_a_repository_of_ones_own_project_needs_no_root(tmp_path: Path, database_url: str) -> None:
    repo = GitRepo(tmp_path / "app")
    commit = repo.commit(FILES)
    urgent = {"priority": "P0", "timeoutS": 7.5}

    def register(tx: Tx) -> None:
        project = (
            "(id, user_id, name, description, created_at, updated_at) values ('p', 'ann', 'p', '', 1, 1)"
        )
        tx.conn.execute(sql(f"insert into projects {project}"))
        columns = "(id, user_id, project_id, name, path, created_at)"
        tx.conn.execute(sql(f"insert into repos {columns} values ('r', 'ann', 'p', 'app', '{repo.path}', 1)"))

    async def run() -> None:
        settings = Settings(database=DatabaseSettings(url=SecretStr(database_url)))
        async with life.opened(settings, tmp_path / "data", serving=False) as core:
            await core.db.tx(ANN, register)
            spec = RelayCore.spec_of(str(repo.path), commit, "key")
            first = await relay.submit(core, ANN, spec)
            assert (first.state, first.kind, first.place) == ("QUEUED", "relay", core.place)
            assert (first.priority, first.timeout_s) == (1, 1800)
            assert first.expires_at == pytest.approx(first.created_at + 600_000_000, abs=60_000_000)
            assert (await relay.submit(core, ANN, spec)).id == first.id
            spec["idempotencyKey"], spec["execution"] = "other", {**spec["execution"], **urgent}
            second = await relay.submit(core, ANN, spec)
            assert (second.priority, second.timeout_s) == (0, 8)
            with pytest.raises(Invalid, match=r"spec\.repo\.path"):
                await relay.submit(core, BOB, spec)
            jobs, total = await relay.listing(core, ANN, state="QUEUED", limit=1, offset=1)
            assert ([job.id for job in jobs], total) == ([first.id], 2)
            assert await relay.listing(core, BOB) == ([], 0)

    (tmp_path / "data").mkdir()
    asyncio.run(run())


def test_the_home_folder_is_a_root_where_nobody_else_can_call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    commit = "1" * 40

    async def taken(core: Core, path: Path) -> bool:
        try:
            await relay.submit(core, BOB, RelayCore.spec_of(str(path), commit, str(path)))
        except Invalid as error:
            assert error.field == "spec.repo.path"
            return False
        return True

    async def run() -> None:
        async with life.opened(Settings(), tmp_path / "data", serving=False) as core:
            assert not await taken(core, tmp_path / "app")
            core.loopback = True
            assert await taken(core, tmp_path / "app")
            assert not await taken(core, tmp_path.parent)
            assert not await taken(core, core.data_dir / "mirrors" / "another.git")

    (tmp_path / "data").mkdir()
    asyncio.run(run())


@pytest.mark.parametrize(
    ("host", "alone"),
    [("127.0.0.1", True), ("::1", True), ("localhost", True), ("0.0.0.0", False), ("::", False)],
)
def test_only_loopback_is_reached_by_this_machine_alone(host: str, alone: bool) -> None:
    assert names_loopback(host) is alone
