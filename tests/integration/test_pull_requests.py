"""Pull requests: a verified patch as a branch of a real repository, opened by a stand-in for `gh`."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import socket
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from quarterdeck.domain import contract
from quarterdeck.run import pull_requests
from quarterdeck.run.checkout import Checkout, prepare
from quarterdeck.run.pull_requests import NotOpened, PullRequest, create, repository
from tests.git_repo import ENVIRONMENT, GitRepo
from tests.integration.relay_core import FILES, PATCH, RelayCore, answer, read
from tests.job_spec import job_spec
from tests.mcp_client import eventually

# What it is asked lies beside it, and so do the files that tell it how to answer.
GH = """#!/bin/sh
here=$(dirname "$0")
printf '%s\\n' "$@" >"$here/asked-$2"
if [ "$2" = list ]; then cat "$here/list"; exit; fi
cat >"$here/body"
if [ -e "$here/refuses" ]; then cat "$here/refuses" >&2; exit 4; fi
echo "Creating pull request" >&2
echo "https://github.com/owner/app/pull/42"
"""


@dataclass
class Forge:
    """A bare repository that is pushed to, and the stand-in for `gh`."""

    folder: Path

    @property
    def bare(self) -> Path:
        return self.folder / "owner" / "app.git"

    @property
    def gh(self) -> Path:
        return self.folder / "bin"

    def make(self) -> str:
        """A repository with some history; its newest commit but one is the baseline."""
        self.gh.mkdir(parents=True)
        (self.gh / "gh").write_text(GH)
        (self.gh / "gh").chmod(0o755)
        (self.gh / "list").write_text("[]")
        work = GitRepo(self.folder / "work")
        work.commit({"old": "1"})
        baseline = work.commit(FILES)
        work.commit({"later": "1"})
        self.bare.parent.mkdir()
        work.git("clone", "--quiet", "--bare", ".", str(self.bare))
        return baseline

    def git(self, *words: str) -> str:
        done = subprocess.run(
            ["git", *words], cwd=self.bare, env=ENVIRONMENT, capture_output=True, text=True, check=True
        )
        return done.stdout

    def asked(self, verb: str = "create") -> list[str]:
        return (self.gh / f"asked-{verb}").read_text().splitlines()


@pytest.fixture
def forge(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Forge:
    found = Forge(tmp_path / "forge")
    monkeypatch.setenv("PATH", str(found.gh), prepend=os.pathsep)
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", os.devnull)
    return found


def opened(forge: Forge, tmp_path: Path, job_id: str = "job_1") -> PullRequest:
    """The pull request for a patch on the baseline."""

    async def run() -> PullRequest:
        return await create(await checkout(forge, tmp_path), contract.parse(answer()), job_id)

    return asyncio.run(run())


async def checkout(forge: Forge, tmp_path: Path) -> Checkout:
    baseline = forge.make() if not forge.bare.exists() else forge.git("rev-parse", "main~1").strip()
    spec = job_spec({"url": f"file://{forge.bare}", "baselineCommit": baseline})
    number = len(list(tmp_path.glob("job-*")))
    return await prepare(spec, tmp_path / f"job-{number}", tmp_path / "mirrors", [forge.bare])


def test_a_patch_becomes_a_branch_and_a_pull_request(forge: Forge, tmp_path: Path) -> None:
    made = opened(forge, tmp_path)
    assert made == PullRequest("https://github.com/owner/app/pull/42", 42, "open")
    assert json.loads(made.json()) == {"url": made.url, "number": 42, "status": "open"}
    branch = "quarterdeck/job_1"
    assert forge.git("rev-list", "--count", branch).strip() == "3", "all of its history is there"
    assert forge.git("rev-parse", f"{branch}~1") == forge.git("rev-parse", "main~1")
    assert forge.git("diff", "--no-color", "main~1", branch).splitlines()[-6:] == PATCH.splitlines()[-6:]
    assert forge.git("log", "-1", "--format=%s|%b|%an", branch).strip() == "Do it|None.\n|Quarterdeck"
    asked = forge.asked()
    assert asked[:2] == ["pr", "create"]
    assert dict(zip(asked[2::2], asked[3::2], strict=True)) == {
        "--repo": "owner/app",
        "--head": branch,
        "--base": "main",
        "--title": "Do it",
        "--body-file": "-",
    }
    assert (forge.gh / "body").read_text() == "# Test Plan\n\nRun it.\n\n# Notes\n\nNone.\n"


def test_a_second_attempt_finds_the_pull_request_of_the_first(forge: Forge, tmp_path: Path) -> None:
    opened(forge, tmp_path)
    (forge.gh / "refuses").write_text("a pull request for that branch already exists\n")
    url = "https://github.com/owner/app/pull/42"
    (forge.gh / "list").write_text(json.dumps([{"url": url, "number": 42, "state": "OPEN"}]))
    assert opened(forge, tmp_path) == PullRequest(url, 42, "open")
    assert "quarterdeck/job_1" in forge.asked("list")


def test_what_gh_refuses_is_told_without_secrets(forge: Forge, tmp_path: Path) -> None:
    forge.make()
    (forge.gh / "refuses").write_text("HTTP 401 at https://user:pass-word@github.com/x?token=t\n")
    with pytest.raises(NotOpened, match="HTTP 401") as refused:
        opened(forge, tmp_path)
    assert "pass-word" not in str(refused.value) and "token=" not in str(refused.value)


def test_a_branch_that_cannot_be_pushed_opens_nothing(forge: Forge, tmp_path: Path) -> None:
    forge.make()
    hook = forge.bare / "hooks" / "pre-receive"
    hook.parent.mkdir(exist_ok=True)
    hook.write_text("#!/bin/sh\necho closed >&2\nexit 1\n")
    hook.chmod(0o755)
    with pytest.raises(NotOpened, match="cannot be pushed"):
        opened(forge, tmp_path)
    assert not (forge.gh / "asked-create").exists()


def test_without_gh_nothing_is_pushed(forge: Forge, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    forge.make()
    (forge.gh / "gh").unlink()
    tools = tmp_path / "tools"
    tools.mkdir()
    (tools / "git").symlink_to(shutil.which("git") or "git")
    monkeypatch.setenv("PATH", str(tools))
    with pytest.raises(NotOpened, match="gh CLI is not on PATH"):
        opened(forge, tmp_path)
    assert "quarterdeck" not in forge.git("for-each-ref")


def test_gh_that_hangs_is_ended(forge: Forge, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    forge.make()
    (forge.gh / "gh").write_text("#!/bin/sh\nsleep 3600\n")
    monkeypatch.setattr(pull_requests, "GH_SECONDS", 0.2)
    with pytest.raises(NotOpened, match="did not answer"):
        opened(forge, tmp_path)


@pytest.mark.parametrize(
    ("url", "slug"),
    [
        ("https://github.com/owner/repo.git", "owner/repo"),
        ("https://github.com/owner/repo", "owner/repo"),
        ("https://user:secret@github.com/owner/repo.git/", "owner/repo"),
        ("git@github.com:owner/repo.git", "owner/repo"),
        ("ssh://git@github.com:22/owner/repo.git", "owner/repo"),
        ("ssh://git@ssh.github.com:443/owner/repo.git", "owner/repo"),
        ("https://git.example.org/group/owner/repo.git", "git.example.org/owner/repo"),
        ("git@git.example.org:owner/repo.git", "git.example.org/owner/repo"),
    ],
)
def test_owner_and_name_come_from_the_url(url: str, slug: str) -> None:
    assert repository(url) == slug


def test_a_url_without_an_owner_names_no_repository() -> None:
    with pytest.raises(NotOpened):
        repository("https://github.com/repo.git")


@pytest.fixture
def remote(forge: Forge) -> Iterator[tuple[str, str]]:
    """The forge over the network, and the baseline."""
    baseline = forge.make()
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    options = ["--reuseaddr", "--listen=127.0.0.1", f"--port={port}", "--export-all", "--enable=receive-pack"]
    words = ["git", "daemon", *options, f"--base-path={forge.folder}", str(forge.folder)]
    with subprocess.Popen(words, env=ENVIRONMENT, start_new_session=True) as daemon:

        def answers() -> bool:
            with socket.socket() as probe:
                return probe.connect_ex(("127.0.0.1", port)) == 0

        eventually(answers)
        yield f"git://127.0.0.1:{port}/owner/app.git", baseline
        os.killpg(daemon.pid, 9)


def test_a_job_opens_a_pull_request_for_whom_it_may(
    forge: Forge, remote: tuple[str, str], tmp_path: Path
) -> None:
    url, baseline = remote
    with RelayCore(tmp_path / "core") as core:
        wanted = {
            "repo": {"type": "git", "url": url, "baseBranch": "main", "baselineCommit": baseline},
            "notify": {"enablePr": True},
        }
        client = core.modern(path="/mcp/relay")
        job = core.ran(client, **wanted)
        expected = {"url": "https://github.com/owner/app/pull/42", "number": 42, "status": "open"}
        assert (job["state"], job["pr"]) == ("SUCCEEDED", expected)
        assert job["pr"]["url"] in job["summary"]
        assert json.loads(read(client, job["id"], "pr.json")) == expected
        assert json.loads(read(client, job["id"], "status"))["pr"] == expected
        assert client.done("jobs_list")["items"][0]["pr"] == expected
        assert f"quarterdeck/{job['id']}" in forge.git("for-each-ref")

        other = core.modern(core.minted()["token"], "/mcp/relay")
        job = core.ran(other, **wanted)
        assert job["state"] == "SUCCEEDED" and "pr" not in job
        assert "relay.pull_requests" in job["summary"] and job["result"]["pr_note"]

        (forge.gh / "refuses").write_text("no login\n")
        job = core.ran(client, **wanted)
        assert job["state"] == "SUCCEEDED" and "pr" not in job
        assert "no pull request: gh: no login" in job["summary"]

        job = core.ran(client, notify={"enablePr": True})
        assert job["state"] == "SUCCEEDED" and "folder of this host" in job["summary"]
