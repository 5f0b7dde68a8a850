"""What went wrong in the relay whose contract this is: each known defect, as it must not come back."""

from __future__ import annotations

import json
import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from tests.git_repo import GitRepo
from tests.integration.own_core import Core
from tests.integration.relay_core import FILES, PATCH, RelayCore, Row, answer, ended, read, running
from tests.mcp_client import MODERN, Client, ProtocolError, eventually

HANG = ("hang", None)


@pytest.fixture(scope="module")
def core(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RelayCore]:
    folder = tmp_path_factory.mktemp("relay")
    with RelayCore(folder, QUARTERDECK_RELAY__WEBHOOK_PRIVATE="true") as core:
        yield core


@pytest.fixture(scope="module")
def client(core: RelayCore) -> Client:
    return core.modern(path="/mcp/relay")


def test_1_a_submitted_spec_is_stored_whole_and_survives_the_core(core: RelayCore) -> None:
    client = core.modern(path="/mcp/relay")
    go = core.signal("survive")
    spec = core.spec(("wait_for", str(go)), ("say", answer()), notify={"enablePr": False})
    job_id = client.done("jobs_submit", spec=spec)["jobId"]
    core.restart()
    client = core.modern(path="/mcp/relay")
    go.touch()
    job = ended(client, job_id)
    assert (job["state"], job["attempt"]) == ("SUCCEEDED", 1), "an orderly restart is no attempt"
    assert client.done("jobs_submit", spec=spec)["jobId"] == job_id


def test_2_a_core_without_any_configuration_takes_jobs(tmp_path: Path) -> None:
    repo = GitRepo(tmp_path / "code")
    commit = repo.commit(FILES)
    # An agent that is not installed, and the home folder as the place for local repositories.
    tools = tmp_path / "tools"
    tools.mkdir()
    (tools / "git").symlink_to(shutil.which("git") or "git")
    with Core(tmp_path / "data", HOME=str(tmp_path), PATH=str(tools)) as core:
        client = core.modern(path="/mcp/relay")
        spec = RelayCore.spec_of(str(repo.path), commit, "key", ("say", "x"))
        job = ended(client, client.done("jobs_submit", spec=spec)["jobId"])
        assert (job["state"], job["reasonCode"], job["agent"]) == ("FAILED", "EXECUTOR_ERROR", "claude-code")
        assert "install" in job["summary"]


@pytest.mark.parametrize("fence", ["```diff\n", ""])
def test_3_a_lost_final_newline_makes_no_conflict(core: RelayCore, fence: str) -> None:
    client = core.modern(path="/mcp/relay")
    closing = "\n```" if fence else ""
    text = f"### TEST_PLAN\nx\n### NOTES\ny\n### DIFF\n{fence}{PATCH.rstrip()}{closing}"
    job = core.ran(client, ("say", text))
    assert job["state"] == "SUCCEEDED"
    assert read(client, job["id"], "patch.diff") == PATCH


def test_4_no_path_leads_out_of_the_artifacts(core: RelayCore, client: Client) -> None:
    job = core.ran(client)
    for name in ("../../../etc/passwd", "..%2F..%2Fetc%2Fpasswd", "/etc/passwd", "patch.diff/../logs.txt"):
        uri = f"mcp://jobs/{job['id']}/artifacts/{name}"
        with pytest.raises(ProtocolError) as refused:
            client.request("resources/read", json.dumps({"uri": uri}), uri)
        assert refused.value.error["data"]["code"] == "RESOURCE_NOT_FOUND"


def test_5_a_killed_worker_leaves_stale_and_a_job_that_waits_too_long_expires(core: RelayCore) -> None:
    client = core.modern(path="/mcp/relay")
    go = core.signal("killed")
    job_id = client.done("jobs_submit", spec=core.spec(("wait_for", str(go)), ("say", answer())))["jobId"]
    assert running(client, job_id)["attempt"] == 1
    eventually(lambda: list((core.data_dir / "attempts").glob(f"{job_id}-1/agent/identity.json")), 60)
    before = client.done("jobs_get", jobId=job_id)["stateVersion"]
    core.kill9()
    core.start()
    go.touch()
    client = core.modern(path="/mcp/relay")
    job = ended(client, job_id)
    assert (job["state"], job["attempt"]) == ("SUCCEEDED", 2)
    assert job["stateVersion"] == before + 3, "it was STALE, RUNNING and then at its end"
    assert read(client, job_id, "patch.diff") == PATCH
    waiting = [client.done("jobs_submit", spec=core.spec(HANG))["jobId"] for _ in range(3)]
    for each in waiting:
        running(client, each)
    late = client.done("jobs_submit", spec=core.spec(execution__ttlS=0.1))["jobId"]
    job = ended(client, late)
    assert (job["state"], job["attempt"]) == ("EXPIRED", 0)
    for each in waiting:
        client.done("jobs_cancel", jobId=each)


def test_6_cancel_ends_the_process_and_the_worker_goes_on(core: RelayCore) -> None:
    client = core.modern(path="/mcp/relay")
    go = core.signal("cancelled")
    job_id = client.done("jobs_submit", spec=core.spec(("wait_for", str(go)), ("say", answer())))["jobId"]
    running(client, job_id)
    client.done("jobs_cancel", jobId=job_id)
    go.touch()
    for _ in range(2):
        assert core.ran(client)["state"] == "SUCCEEDED"
    eventually(lambda: not any((core.data_dir / "attempts").glob(f"{job_id}*")))
    job = client.done("jobs_get", jobId=job_id)
    assert job["state"] == "CANCELED", "nothing overwrites it"
    assert "patch.diff" not in {each["name"] for each in job["artifacts"]}


def test_7_a_key_is_free_again_after_failure_and_kept_after_success(core: RelayCore) -> None:
    client = core.modern(path="/mcp/relay")
    spec = core.spec(HANG)
    first = client.done("jobs_submit", spec=spec)["jobId"]
    other = core.spec(idempotencyKey=spec["idempotencyKey"])
    assert client.done("jobs_submit", spec=other)["jobId"] == first, "while it lives, whatever the spec"
    client.done("jobs_cancel", jobId=first)
    second = client.done("jobs_submit", spec=other)["jobId"]
    assert second != first and ended(client, second)["state"] == "SUCCEEDED"
    assert client.done("jobs_submit", spec=other)["jobId"] == second
    body = client.refused("jobs_submit", spec=spec)
    assert (body["code"], body["path"]) == ("INVALID_SPEC", "spec.idempotencyKey")
    stranger = core.modern(core.minted(user_id="stranger")["token"], "/mcp/relay")
    third = stranger.done("jobs_submit", spec=spec)["jobId"]
    assert third not in (first, second), "keys are per user"
    stranger.done("jobs_cancel", jobId=third)


@contextmanager
def heard(core: RelayCore, era: str, *uris: str) -> Iterator[Iterator[Row]]:
    """The notifications about these URIs, as they come over the stream of one era."""
    client = core.modern(path="/mcp/relay") if era == "modern" else core.older(path="/mcp/relay")
    if era == "older":
        for uri in uris:
            client.request("resources/subscribe", json.dumps({"uri": uri}))
        stream = client._http.stream("GET", client.url, headers={"Accept": "text/event-stream"})
    else:
        meta = {
            "io.modelcontextprotocol/protocolVersion": MODERN,
            "io.modelcontextprotocol/clientInfo": {"name": "tests", "version": "1"},
            "io.modelcontextprotocol/clientCapabilities": {},
        }
        params = {"_meta": meta, "notifications": {"resourceSubscriptions": uris}}
        body = {"jsonrpc": "2.0", "id": 1, "method": "subscriptions/listen", "params": params}
        stream = client._http.stream(
            "POST", client.url, json=body, headers={"Mcp-Method": "subscriptions/listen"}
        )
    with stream as answer_:
        assert answer_.status_code == 200

        def messages() -> Iterator[Row]:
            for line in answer_.iter_lines():
                if line.startswith("data:") and line.removeprefix("data:").strip():
                    message = json.loads(line.removeprefix("data:"))
                    message.get("params", {}).pop("_meta", None)
                    yield message

        found = messages()
        if era == "modern":
            assert next(found)["method"].endswith("acknowledged")
        yield found


@pytest.mark.parametrize("era", ["modern", "older"])
@pytest.mark.parametrize("well", [True, False], ids=["finished", "failed"])
def test_8_subscribers_hear_of_every_change_and_how_it_ended(core: RelayCore, era: str, well: bool) -> None:
    client = core.modern(path="/mcp/relay")
    go = core.signal(f"{era}-{well}")
    steps = [("wait_for", str(go)), ("say", answer() if well else "sorry")]
    job_id = client.done("jobs_submit", spec=core.spec(*steps))["jobId"]
    running(client, job_id)
    status, patch = f"mcp://jobs/{job_id}/status", f"mcp://jobs/{job_id}/artifacts/patch.diff"
    told: list[Row] = []
    with heard(core, era, status, patch) as messages:
        go.touch()
        for message in messages:
            told.append(message)
            if message["method"].startswith("notifications/job/"):
                break
    job = client.done("jobs_get", jobId=job_id)
    updated = [each["params"] for each in told if each["method"] == "notifications/resources/updated"]
    version = job["stateVersion"]
    assert {"uri": status, "stateVersion": version} in updated
    assert ({"uri": patch, "stateVersion": version} in updated) == well
    assert told[-1]["params"] == _ending(job)


def _ending(job: Row) -> Row:
    told = {"jobId": job["id"], "stateVersion": job["stateVersion"]}
    told |= {name: job[name] for name in ("state", "summary", "attempt")}
    if job["state"] != "SUCCEEDED":
        return told | {"reasonCode": "BAD_ARTIFACTS"}
    base = f"mcp://jobs/{job['id']}/artifacts"
    uris = {"patch": f"{base}/patch.diff", "out": f"{base}/out.md", "logs": f"{base}/logs.txt"}
    return told | {"artifacts": uris} | {key: job[key] for key in ("startedAt", "finishedAt", "durationMs")}


def test_8_one_may_subscribe_to_what_is_not_there_yet_but_not_to_what_is_anothers(core: RelayCore) -> None:
    owner, other = core.modern(path="/mcp/relay"), core.older(core.minted()["token"], "/mcp/relay")
    job_id = core.ran(owner)["id"]
    other.request("resources/subscribe", json.dumps({"uri": "mcp://jobs/job_of_tomorrow/status"}))
    with pytest.raises(ProtocolError) as refused:
        other.request("resources/subscribe", json.dumps({"uri": f"mcp://jobs/{job_id}/status"}))
    assert refused.value.error["data"]["code"] == "RESOURCE_NOT_FOUND"


def test_8_a_webhook_hears_of_the_end(core: RelayCore) -> None:
    got: list[Any] = []

    class Hook(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            got.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(204)
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Hook) as server:
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        client = core.modern(path="/mcp/relay")
        job = core.ran(client, notify={"webhook": f"http://127.0.0.1:{server.server_port}/hook"})
        eventually(lambda: got)
        sent = eventually(
            lambda: client.done("jobs_get", jobId=job["id"])["webhook"]["state"] == "sent" and job
        )
        server.shutdown()
    assert got == [{"event": "job.finished", **_ending(sent)}]
