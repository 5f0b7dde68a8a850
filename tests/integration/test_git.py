"""The runner of git: what it lets in and out, and that nothing it started stays."""

from __future__ import annotations

import asyncio
import base64
import os
import threading
import time
from collections.abc import Coroutine
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, TypeVar

import psutil
import pytest

from quarterdeck.git.spawn import GitError, GitTimeout, credentials_apart, environment, git, identity
from tests import starter
from tests.git_repo import GitRepo

T = TypeVar("T")


def run(work: Coroutine[Any, Any, T]) -> T:
    return asyncio.run(work)


@pytest.fixture
def repo(tmp_path: Path) -> GitRepo:
    repo = GitRepo(tmp_path / "repo")
    repo.commit({"a.txt": "one\n"})
    return repo


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The home of a user with a configuration of their own."""
    folder = tmp_path / "home"
    folder.mkdir()
    (folder / ".gitconfig").write_text(
        '[user]\n\tname = Grace\n\temail = grace@example.org\n[alias]\n\thello = "!echo hello"\n'
    )
    monkeypatch.setenv("HOME", str(folder))
    for name in ("GIT_CONFIG_GLOBAL", "XDG_CONFIG_HOME"):
        monkeypatch.delenv(name, raising=False)
    return folder


def children() -> list[str]:
    """What this process started and has not ended; the test run's own servers aside."""
    mine = [child for child in psutil.Process().children(recursive=True) if child.pid != starter.pid()]
    return [name for child in mine if (name := child.name()) not in ("postgres", "setpriv")]


def test_output_comes_back_as_bytes(repo: GitRepo) -> None:
    assert run(git(["show", "HEAD:a.txt"], repo.path)) == b"one\n"


def test_input_is_fed(repo: GitRepo) -> None:
    text = b"x" * 3_000_000
    blob = run(git(["hash-object", "-w", "--stdin"], repo.path, stdin=text)).decode().strip()
    assert run(git(["cat-file", "blob", blob], repo.path)) == text


def test_input_that_git_does_not_read_is_no_error_of_its_own(repo: GitRepo) -> None:
    assert run(git(["version"], repo.path, stdin=b"x" * 3_000_000)).startswith(b"git version")


def test_failure_carries_the_words_the_code_and_what_git_said(repo: GitRepo) -> None:
    with pytest.raises(GitError) as caught:
        run(git(["show", "nowhere"], repo.path))
    error = caught.value
    assert (error.words, error.code) == (("show", "nowhere"), 128)
    assert "unknown revision" in error.said
    assert str(error).startswith("git show nowhere: fatal:")


def test_failure_shows_no_secret_of_a_url(repo: GitRepo) -> None:
    url = "https://user:hunter2@localhost:1/a.git?token=hunter2"
    with pytest.raises(GitError) as caught:
        run(git(["fetch", url], repo.path, protocols=["https"]))
    assert "https://localhost:1/a.git" in str(caught.value)
    assert "hunter2" not in f"{caught.value} {caught.value.words} {caught.value.said}"


def test_folder_that_is_gone_is_a_git_error(tmp_path: Path) -> None:
    with pytest.raises(GitError, match="cannot be started"):
        run(git(["version"], tmp_path / "gone"))


def test_missing_program_is_a_git_error(repo: GitRepo) -> None:
    with pytest.raises(GitError, match="cannot be started"):
        run(git(["version"], repo.path, env={"PATH": str(repo.path)}))


def test_output_beyond_the_cap_is_refused(repo: GitRepo) -> None:
    repo.commit({"large": b"x" * 2_000_000})
    with pytest.raises(GitError, match="larger than 1000 bytes"):
        run(git(["show", "HEAD:large"], repo.path, max_output=1000))
    assert children() == []


def test_slow_git_is_ended_with_all_that_it_started(repo: GitRepo) -> None:
    began = time.monotonic()
    with pytest.raises(GitTimeout, match=r"took longer than 0\.5 s"):
        run(git(["-c", "alias.nap=!sleep 60 & sleep 60", "nap"], repo.path, timeout=0.5))
    assert time.monotonic() - began < 10
    assert children() == []


def test_git_that_ignores_the_kind_signal_is_killed(repo: GitRepo) -> None:
    nap = "alias.nap=!trap '' TERM; while :; do sleep 0.1; done"
    with pytest.raises(GitTimeout):
        run(git(["-c", nap, "nap"], repo.path, timeout=0.5))
    assert children() == []


def test_cancelled_call_leaves_no_process(repo: GitRepo) -> None:
    async def cancelled() -> None:
        task = asyncio.create_task(git(["-c", "alias.nap=!sleep 60", "nap"], repo.path))
        await asyncio.sleep(0.3)
        assert children()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert children() == []

    run(cancelled())


def test_git_runs_in_a_session_of_its_own(repo: GitRepo) -> None:
    shown = run(git(["-c", "alias.who=!ps -o sid= -p $$", "who"], repo.path))
    assert int(shown) != os.getsid(0)


def test_environment_of_the_host_stays_outside(repo: GitRepo, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("GIT_DIR", "GIT_INDEX_FILE", "GIT_WORK_TREE", "ANTHROPIC_API_KEY", "GIT_CONFIG_COUNT"):
        monkeypatch.setenv(name, "1")
    shown = run(git(["-c", "alias.env=!env", "env"], repo.path)).decode()
    for name in ("ANTHROPIC_API_KEY", "GIT_CONFIG_COUNT", "HOME=", "GIT_WORK_TREE=1"):
        assert name not in shown


def test_configuration_of_the_user_stays_outside_unless_asked_for(repo: GitRepo, home: Path) -> None:
    with pytest.raises(GitError, match="not a git command"):
        run(git(["hello"], repo.path))
    assert run(git(["hello"], repo.path, user_config=True)) == b"hello\n"
    assert "GIT_SSH_COMMAND" in environment()
    assert "GIT_CONFIG_NOSYSTEM" not in environment(user_config=True)


def test_no_hook_runs(repo: GitRepo) -> None:
    hook = repo.path / ".git" / "hooks" / "pre-commit"
    hook.parent.mkdir(exist_ok=True)
    hook.write_text("#!/bin/sh\ntouch hooked\nexit 1\n")
    hook.chmod(0o755)
    own = run(identity(repo.path))
    run(git(["commit", "--quiet", "--allow-empty", "-m", "x"], repo.path, env=own))
    assert not (repo.path / "hooked").exists()


def test_transport_that_was_not_named_is_refused(repo: GitRepo, tmp_path: Path) -> None:
    other = GitRepo(tmp_path / "other")
    with pytest.raises(GitError, match="transport 'file' not allowed"):
        run(git(["fetch", str(repo.path)], other.path))
    run(git(["fetch", str(repo.path)], other.path, protocols=["file"]))
    with pytest.raises(GitError, match="transport 'ext' not allowed"):
        run(git(["fetch", "ext::touch x"], other.path, protocols=["file", "https"]))
    assert not (other.path / "x").exists()


def test_nothing_asks_for_a_password(repo: GitRepo, tmp_path: Path) -> None:
    asked, helper = tmp_path / "asked", tmp_path / "askpass"
    helper.write_text(f"#!/bin/sh\ntouch {asked}\n")
    helper.chmod(0o755)
    with pytest.raises(GitError, match="terminal prompts disabled"):
        run(
            git(
                ["-c", f"core.askPass={helper}", "credential", "fill"],
                repo.path,
                stdin=b"protocol=https\nhost=example.org\n\n",
            )
        )
    assert not asked.exists()


@pytest.mark.parametrize(
    ("user", "sent"), [("ada:p%40ss", "ada:p@ss"), ("a-token", "a-token:"), ("x:", "x:"), (":only", ":only")]
)
def test_credentials_of_a_url_reach_the_server_and_no_command_line(
    repo: GitRepo, user: str, sent: str
) -> None:
    got: list[str | None] = []

    class Forge(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            got.append(self.headers["Authorization"])
            self.send_error(404)

        def log_message(self, *_: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Forge) as server:
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        here = f"127.0.0.1:{server.server_port}"
        address, secret = credentials_apart(f"http://{user}@{here}/owner/repo.git?x=1")
        assert address == f"http://{here}/owner/repo.git?x=1"
        with pytest.raises(GitError, match="not found"):
            run(git(["ls-remote", "--", address], repo.path, env=secret, protocols=("http",)))
        server.shutdown()
    assert got[0] == f"Basic {base64.b64encode(sent.encode()).decode()}"


@pytest.mark.parametrize(
    "url", ["https://example.org/a.git", "git@example.org:a.git", "ssh://git@example.org/a.git", "/a/folder"]
)
def test_a_url_without_credentials_stays_as_it_is(url: str) -> None:
    assert credentials_apart(url) == (url, {})


def test_replaced_object_does_not_stand_in_for_the_real_one(repo: GitRepo) -> None:
    first = repo.git("rev-parse", "HEAD")
    repo.git("replace", first, repo.commit({"a.txt": "two\n"}))
    assert run(git(["show", f"{first}:a.txt"], repo.path)) == b"one\n"


def test_identity_is_the_repository_s_then_the_user_s_then_our_own(
    repo: GitRepo, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert run(identity(repo.path))["GIT_AUTHOR_NAME"] == "Grace"
    repo.git("config", "user.name", "Repo Owner")
    assert run(identity(repo.path)) == {
        "GIT_AUTHOR_NAME": "Repo Owner",
        "GIT_AUTHOR_EMAIL": "grace@example.org",
        "GIT_COMMITTER_NAME": "Repo Owner",
        "GIT_COMMITTER_EMAIL": "grace@example.org",
    }
    repo.git("config", "--unset", "user.name")
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", os.devnull)
    assert run(identity(repo.path))["GIT_COMMITTER_NAME"] == "Quarterdeck"
    commit = run(git(["commit-tree", "-m", "x", "HEAD^{tree}"], repo.path, env=run(identity(repo.path))))
    assert repo.git("log", "-1", "--format=%an <%ae>", commit.decode().strip()) == (
        "Quarterdeck <quarterdeck@localhost>"
    )
