"""How relay jobs end: each reason to fail, what is left then, and the loss of a worker."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from quarterdeck.run.mirror import Source
from tests.integration.relay_core import PATCH, RelayCore, Row, answer, ended, read, running
from tests.mcp_client import Client, eventually

NEW_FILE = """diff --git a/{0} b/{0}
new file mode {1}
--- /dev/null
+++ b/{0}
@@ -0,0 +1 @@
+{2}
"""
REFORMATTED = """diff --git a/src/a.txt b/src/a.txt
--- a/src/a.txt
+++ b/src/a.txt
@@ -1,3 +1,3 @@
-one
-two
-three
+ one
+  two
+   three
"""
BINARY = """diff --git a/src/a.bin b/src/a.bin
new file mode 100644
index 0000000..1111111
Binary files /dev/null and b/src/a.bin differ
"""


@pytest.fixture(scope="module")
def core(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RelayCore]:
    with RelayCore(tmp_path_factory.mktemp("relay")) as core:
        yield core


@pytest.fixture(scope="module")
def client(core: RelayCore) -> Client:
    return core.modern(path="/mcp/relay")


def failed(client: Client, job: Row, reason: str) -> str:
    """The summary of a job that failed for this reason, which left its log and no patch."""
    assert (job["state"], job["reasonCode"]) == ("FAILED", reason), job
    assert [each["name"] for each in job["artifacts"]] == ["logs.txt"]
    assert read(client, job["id"], "logs.txt")
    summary: str = job["summary"]
    return summary


@pytest.mark.parametrize(
    ("said", "word"),
    [
        ("I could not do it.", "### DIFF is missing"),
        (answer().replace("### NOTES", "Notes:"), "### NOTES is missing"),
        (answer(plan=""), "### TEST_PLAN is empty"),
        (answer(diff="no patch at all\n"), "no change of a file"),
        (answer(diff=PATCH.replace("-1,3 +1,3", "-1,9 +1,9")), "the hunk"),
    ],
)
def test_an_answer_without_its_parts_is_a_bad_artifact(
    core: RelayCore, client: Client, said: str, word: str
) -> None:
    job = core.ran(client, ("say", said))
    assert word in failed(client, job, "BAD_ARTIFACTS")
    assert said in read(client, job["id"], "logs.txt")


def test_a_patch_that_does_not_apply_is_a_conflict(core: RelayCore, client: Client) -> None:
    job = core.ran(client, ("say", answer(PATCH.replace("-two", "-zwei"))))
    assert "src/a.txt" in failed(client, job, "CONFLICT")


@pytest.mark.parametrize(
    ("diff", "word"),
    [
        (NEW_FILE.format("docs/new.md", "100644", "x"), "outside the scope"),
        (NEW_FILE.format("../out.txt", "100644", "x"), "out of the tree"),
        (NEW_FILE.format("src/.git/hooks/post-checkout", "100755", "x"), "git itself"),
        (NEW_FILE.format("src/link", "120000", "/etc/passwd"), "symbolic link"),
        (BINARY, "binary"),
        (REFORMATTED, "reformatted"),
    ],
)
def test_a_patch_beyond_its_rules_is_a_matter_of_policy(
    core: RelayCore, client: Client, diff: str, word: str
) -> None:
    job = core.ran(client, ("say", answer(diff)), scope__disallowReformatting=True)
    assert word in failed(client, job, "POLICY")


def test_an_agent_that_fails_leaves_its_last_words(core: RelayCore, client: Client) -> None:
    steps = [("say", answer()), ("complain", "first\nout of credit\n"), ("exit", 3)]
    job = core.ran(client, *steps)
    summary = failed(client, job, "EXECUTOR_ERROR")
    assert "exit code 3" in summary and "out of credit" in summary
    assert job["result"] == {"sandbox": "bubblewrap", "network": "open"}


def test_a_commit_that_is_not_there_fails_the_job(core: RelayCore, client: Client) -> None:
    job = core.ran(client, repo__baselineCommit="1" * 40)
    assert "has no commit" in failed(client, job, "EXECUTOR_ERROR")


def test_a_scope_without_files_fails_the_job(core: RelayCore, client: Client) -> None:
    job = core.ran(client, scope__readPaths=["nowhere"])
    assert "in the scope" in failed(client, job, "EXECUTOR_ERROR")


def test_an_agent_that_takes_too_long_is_ended(core: RelayCore, client: Client) -> None:
    job = core.ran(client, ("hang", None), execution__timeoutS=1)
    assert "1 second" in failed(client, job, "TIMEOUT")
    eventually(lambda: not any((core.data_dir / "attempts").glob(f"{job['id']}*")))


def test_what_breaks_on_our_side_is_an_internal_error(core: RelayCore, client: Client) -> None:
    common = str((core.repo.path / ".git").resolve())
    lock = core.data_dir / "mirrors" / Source(common, local=True, user_config=True).folder
    lock = lock.with_suffix(".lock")
    lock.unlink(missing_ok=True)
    lock.mkdir(parents=True)
    try:
        job = core.ran(client)
    finally:
        lock.rmdir()
    assert (job["state"], job["reasonCode"]) == ("FAILED", "INTERNAL_ERROR")
    assert str(lock) not in job["summary"]
    assert core.ran(client)["state"] == "SUCCEEDED", "the worker goes on"


def test_the_agents_token_is_its_jobs_own_and_ends_with_it(core: RelayCore, client: Client) -> None:
    go = core.signal("token")
    steps: list[tuple[str, Any]] = [("environment", None), ("variable", "QUARTERDECK_TOKEN")]
    job_id = client.done("jobs_submit", spec=core.spec(*steps, ("wait_for", str(go)), ("say", answer())))[
        "jobId"
    ]
    running(client, job_id)
    go.touch()
    job = ended(client, job_id)
    said = read(client, job_id, "logs.txt")
    assert job["state"] == "SUCCEEDED"
    assert "QUARTERDECK_TOKEN is [secret]" in said
    assert "ADMIN_SECRET" not in said and "QUARTERDECK_DATABASE" not in said


def program(folder: Path, name: str, script: str) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / name).write_text(f"#!/bin/sh\n{script}\n")
    (folder / name).chmod(0o755)
    return folder


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RelayCore]:
    """A core on a host where bubblewrap is there, but does not work."""
    folder = tmp_path_factory.mktemp("bare")
    broken = program(folder / "bin", "bwrap", "echo no namespaces >&2; exit 1")
    with RelayCore(folder, PATH=f"{broken}:{os.environ['PATH']}") as core:
        yield core


def test_without_bubblewrap_a_changed_checkout_fails_the_job(bare: RelayCore) -> None:
    client = bare.modern(path="/mcp/relay")
    job = bare.ran(client)
    assert (job["state"], job["result"]["sandbox"]) == ("SUCCEEDED", "verified")
    for path in ("src/a.txt", "src/new.txt", ".hidden"):
        job = bare.ran(client, ("write", path), ("say", answer()))
        assert path in failed(client, job, "POLICY")


def test_a_core_that_requires_a_sandbox_runs_nothing_without(bare: RelayCore) -> None:
    bare.stop()
    bare._env["QUARTERDECK_WORKER__SANDBOX"] = "required"
    bare.start()
    client = bare.modern(path="/mcp/relay")
    job = bare.ran(client)
    assert "no namespaces" in failed(client, job, "EXECUTOR_ERROR")
