"""Checkouts of real repositories: the exact files of a commit, and nothing of the user's touched."""

from __future__ import annotations

import asyncio
import os
import stat
import subprocess
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, TypeVar

import pytest

from quarterdeck.domain.jobspec import JobSpec, prompt_for
from quarterdeck.run.checkout import Checkout, Limits, changed_paths, prepare, reopen, unchanged
from quarterdeck.run.mirror import CheckoutError
from tests.git_repo import ENVIRONMENT, GitRepo
from tests.job_spec import job_spec

T = TypeVar("T")


def run(work: Coroutine[Any, Any, T]) -> T:
    return asyncio.run(work)


class Desk:
    """A source repository and the folders that a worker would use for it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.repo = GitRepo(folder / "source")
        self.count = 0

    def spec(self, commit: str, context: dict[str, Any] | None = None, **scope: Any) -> JobSpec:
        repo = {"type": "local", "path": str(self.repo.path), "baselineCommit": commit}
        return job_spec(repo, context, **{"readPaths": ["."], **scope})

    def prepare(self, spec: JobSpec, limits: Limits | None = None) -> Checkout:
        self.count += 1
        into = self.folder / "jobs" / str(self.count)
        return run(prepare(spec, into, self.folder / "cache", [self.repo.path], limits=limits))

    def refusal(self, spec: JobSpec, limits: Limits | None = None) -> CheckoutError:
        with pytest.raises(CheckoutError) as caught:
            self.prepare(spec, limits)
        assert not (self.folder / "jobs" / str(self.count)).exists()
        return caught.value


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    return Desk(tmp_path)


def contents(folder: Path) -> dict[str, bytes]:
    """The plain files of a folder, without those of git."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file() and not path.is_symlink() and ".git" not in path.relative_to(folder).parts
    }


def agent_git(checkout: Checkout, *args: str) -> str:
    """git as the agent would run it in its folder."""
    done = subprocess.run(["git", *args], cwd=checkout.path, env=ENVIRONMENT, capture_output=True, check=True)
    return done.stdout.decode()


def test_regression_files_of_a_local_repository_are_there(desk: Desk) -> None:
    """The original left the folder empty for a local repository."""
    commit = desk.repo.commit({"src/a.py": "a\n", "README.md": "# A\n"})
    checkout = desk.prepare(desk.spec(commit))
    assert contents(checkout.path) == {"src/a.py": b"a\n", "README.md": b"# A\n"}
    assert run(unchanged(checkout))
    assert checkout.left_out == ()


def test_exact_commit_is_taken_though_the_branch_moved(desk: Desk) -> None:
    first = desk.repo.commit({"a": "1\n"})
    desk.repo.commit({"a": "2\n", "b": "new\n"})
    assert contents(desk.prepare(desk.spec(first)).path) == {"a": b"1\n"}


def test_commit_on_no_branch_is_taken(desk: Desk) -> None:
    desk.repo.commit({"a": "1\n"})
    lone = desk.repo.commit({"a": "lone\n"})
    desk.repo.git("reset", "--quiet", "--hard", "HEAD~1")
    assert contents(desk.prepare(desk.spec(lone)).path) == {"a": b"lone\n"}


def test_commit_of_a_shallow_clone_is_taken(desk: Desk, tmp_path: Path) -> None:
    desk.repo.commit({"a": "1\n"})
    commit = desk.repo.commit({"a": "2\n"})
    shallow = Desk(tmp_path / "second")
    shallow.repo.git("fetch", "--quiet", "--depth=1", f"file://{desk.repo.path}", commit)
    assert contents(shallow.prepare(shallow.spec(commit)).path) == {"a": b"2\n"}


def test_missing_commit_is_a_clear_error(desk: Desk) -> None:
    desk.repo.commit({"a": "1\n"})
    error = desk.refusal(desk.spec("1" * 40))
    assert f"has no commit {'1' * 40}" in str(error)
    assert error.reason == "EXECUTOR_ERROR"


def test_empty_repository_is_a_clear_error(desk: Desk) -> None:
    assert "has no commit" in str(desk.refusal(desk.spec("1" * 40)))


@pytest.mark.parametrize(("name", "kind"), [("HEAD^{tree}", "tree"), ("HEAD:a", "blob"), ("v1", "tag")])
def test_id_that_is_no_commit_is_refused(desk: Desk, name: str, kind: str) -> None:
    desk.repo.commit({"a": "1\n"})
    desk.repo.git("tag", "--annotate", "--message", "x", "v1")
    error = desk.refusal(desk.spec(desk.repo.git("rev-parse", name)))
    assert f"is a {kind}, not a commit" in str(error)


def test_dirty_repository_of_the_user_is_not_touched(desk: Desk) -> None:
    commit = desk.repo.commit({"a": "1\n", ".gitignore": "*.log\n", "gone": "x\n"})
    desk.repo.commit({"a": "2\n"})
    desk.repo.git("checkout", "--quiet", "-b", "mine")
    desk.repo.write({"a": "edited\n", "new": "n\n", "x.log": "l\n", "staged": "s\n"})
    desk.repo.git("add", "staged")
    (desk.repo.path / "gone").unlink()
    before = desk.repo.state()
    checkout = desk.prepare(desk.spec(commit))
    assert contents(checkout.path) == {"a": b"1\n", ".gitignore": b"*.log\n", "gone": b"x\n"}
    run(checkout.remove())
    assert desk.repo.state() == before


def test_only_the_scope_is_exported(desk: Desk) -> None:
    commit = desk.repo.commit(
        {"src/a.ts": "a", "src/b.js": "b", "tsconfig.json": "{}", "lib/c.ts": "c", "srcs/d.ts": "d"}
    )
    checkout = desk.prepare(
        desk.spec(commit, readPaths=["src/", "tsconfig.json"], fileGlobs=["**/*.ts", "**/*.tsx"])
    )
    assert sorted(contents(checkout.path)) == ["src/a.ts", "tsconfig.json"]
    assert sorted(checkout.files) == ["src/a.ts", "tsconfig.json"]


def test_scope_without_a_file_is_refused(desk: Desk) -> None:
    commit = desk.repo.commit({"src/a.py": "a"})
    assert "no file of commit" in str(desk.refusal(desk.spec(commit, readPaths=["scr/"])))


def test_commit_without_files_makes_an_empty_checkout(desk: Desk) -> None:
    checkout = desk.prepare(desk.spec(desk.repo.commit()))
    assert contents(checkout.path) == {}
    assert run(unchanged(checkout))


def test_names_and_bytes_come_through_as_they_are(desk: Desk) -> None:
    files: dict[str, str | bytes] = {
        "größe/ä ö.txt": "x\n",
        " leading and trailing ": "x\n",
        "new\nline\ttab": "x\n",
        "quo\"te's": "x\n",
        "-dash": "x\n",
        ":(top)magic": "x\n",
        "crlf.txt": b"a\r\nb\r\n",
        "mixed.txt": b"a\r\nb\n",
        "latin1.txt": b"\xe4\n",
        "binary": bytes(range(256)),
        "no-newline": "x",
        "empty": "",
    }
    (desk.repo.path / os.fsdecode(b"raw-\xff")).write_text("x\n")
    checkout = desk.prepare(desk.spec(desk.repo.commit(files)))
    wanted = {name: text.encode() if isinstance(text, str) else text for name, text in files.items()}
    assert contents(checkout.path) == wanted | {"raw-\udcff": b"x\n"}
    assert run(unchanged(checkout))
    assert "raw-\ufffd" in prompt_for(checkout.spec, run(checkout.tree()))


def test_attributes_of_the_tree_convert_nothing(desk: Desk) -> None:
    attributes = (
        "*.txt text eol=crlf\n*.id ident\n*.enc working-tree-encoding=UTF-16\n*.lfs filter=lfs\n*.d -diff\n"
    )
    desk.repo.git("config", "filter.lfs.smudge", "false")
    files = {"a.txt": "a\nb\n", "b.id": "$Id$\n", "c.lfs": "pointer\n", "e.d": "d\n"}
    commit = desk.repo.commit({**files, ".gitattributes": attributes})
    checkout = desk.prepare(desk.spec(commit))
    assert contents(checkout.path) == {
        name: text.encode() for name, text in {**files, ".gitattributes": attributes}.items()
    }
    (checkout.path / "e.d").write_text("changed\n")
    assert "+changed" in agent_git(checkout, "diff")


def test_symbolic_links_and_modes_are_kept(desk: Desk) -> None:
    desk.repo.write({"run.sh": "#!/bin/sh\n", "plain": "x\n"})
    (desk.repo.path / "run.sh").chmod(0o755)
    for name, target in {"in": "plain", "out": "/etc/hostname", "odd": "./a//../plain/"}.items():
        (desk.repo.path / name).symlink_to(target)
    checkout = desk.prepare(desk.spec(desk.repo.commit()))
    assert str((checkout.path / "out").readlink()) == "/etc/hostname"
    assert os.readlink(checkout.path / "odd") == "./a//../plain/"  # noqa: PTH115
    assert (checkout.path / "run.sh").stat().st_mode & stat.S_IXUSR
    assert run(unchanged(checkout))


def test_submodule_is_left_out_and_named(desk: Desk, tmp_path: Path) -> None:
    inner = GitRepo(tmp_path / "inner")
    inner.commit({"x": "x\n"})
    desk.repo.write({"a": "a\n"})
    desk.repo.git("-c", "protocol.file.allow=always", "submodule", "--quiet", "add", str(inner.path), "sub")
    checkout = desk.prepare(desk.spec(desk.repo.commit()))
    assert checkout.left_out == ("sub",)
    assert sorted(contents(checkout.path)) == [".gitmodules", "a"]
    assert run(unchanged(checkout))


def test_huge_file_is_left_out_and_named(desk: Desk) -> None:
    commit = desk.repo.commit({"a": "a\n", "huge": b"x" * 2000, "edge": b"x" * 1000})
    checkout = desk.prepare(desk.spec(commit), Limits(file_bytes=1000))
    assert sorted(contents(checkout.path)) == ["a", "edge"]
    assert checkout.left_out == ("huge",)
    assert run(unchanged(checkout))


@pytest.mark.parametrize("limits", [Limits(files=1), Limits(tree_bytes=10)])
def test_too_large_a_scope_is_refused(desk: Desk, limits: Limits) -> None:
    commit = desk.repo.commit({"a": "a" * 8, "b": "b" * 8})
    assert "2 files of 16 bytes" in str(desk.refusal(desk.spec(commit), limits))


def test_agent_has_a_repository_of_its_scope_and_no_more(desk: Desk) -> None:
    desk.repo.commit({"src/a.py": "a\n", "secret": "the secret\n"})
    commit = desk.repo.commit({"src/b.py": "b\n"})
    checkout = desk.prepare(desk.spec(commit, readPaths=["src"]))
    assert agent_git(checkout, "status", "--porcelain") == ""
    assert agent_git(checkout, "log", "--format=%s").strip() == f"Baseline {commit}"
    secret = desk.repo.git("rev-parse", f"{commit}:secret")
    assert secret not in agent_git(checkout, "cat-file", "--batch-all-objects", "--batch-check")
    assert not (checkout.path / ".git" / "objects" / "info" / "alternates").exists()
    (checkout.path / "src" / "a.py").write_text("A\n")
    (checkout.path / "src" / "new.py").write_text("n\n")
    agent_git(checkout, "add", "--intent-to-add", ".")
    assert "+A\n" in agent_git(checkout, "diff")
    assert "+n\n" in agent_git(checkout, "diff")


def test_folder_in_use_is_refused_and_kept(desk: Desk) -> None:
    commit = desk.repo.commit({"a": "a\n"})
    into = desk.folder / "jobs" / "1"
    into.mkdir(parents=True)
    (into / "mine").write_text("x")
    with pytest.raises(CheckoutError, match="in use"):
        desk.prepare(desk.spec(commit))
    assert (into / "mine").exists()


def test_snippets_come_from_the_commit_and_stay_within_the_scope(desk: Desk) -> None:
    commit = desk.repo.commit({"src/a.py": "one\ntwo\nthree\n", "secret": "x\n"})
    desk.repo.write({"src/a.py": "edited\n"})
    snippets = [
        {"path": "src/a.py", "from": 2, "to": 3},
        {"path": "./src/a.py", "from": 3, "to": 99},
        {"path": "src/a.py", "from": 50, "to": 60},
        {"path": "secret", "from": 1, "to": 1},
        {"path": "src", "from": 1, "to": 1},
    ]
    checkout = desk.prepare(desk.spec(commit, {"codeSnippets": snippets}, readPaths=["src"]))
    tree = run(checkout.tree())
    assert tree.files == ("src/a.py",)
    assert tree.excerpts == ("two\nthree", "three\n", None, None, None)


def test_reopened_checkout_is_the_same(desk: Desk) -> None:
    commit = desk.repo.commit({"a": "a\n", "huge": b"x" * 2000})
    checkout = desk.prepare(desk.spec(commit), Limits(file_bytes=1000))
    assert run(reopen(checkout.spec, checkout.folder)) == checkout
    run(checkout.remove())
    with pytest.raises(CheckoutError, match="holds no checkout"):
        run(reopen(checkout.spec, checkout.folder))


def test_what_the_agent_did_to_its_files_is_seen(desk: Desk) -> None:
    commit = desk.repo.commit({"a": "aaa\n", "b/c": "c\n", "d": "d\n", "e": "e\n", ".gitignore": "*.log\n"})
    checkout = desk.prepare(desk.spec(commit))
    before = (checkout.path / "a").stat()
    (checkout.path / "a").write_text("bbb\n")
    os.utime(checkout.path / "a", ns=(before.st_atime_ns, before.st_mtime_ns))
    (checkout.path / "b" / "c").unlink()
    (checkout.path / "d").chmod(0o755)
    (checkout.path / "e").unlink()
    (checkout.path / "e").symlink_to("a")
    (checkout.path / "x.log").write_text("ignored")
    (checkout.path / "folder").mkdir()
    os.mkfifo(checkout.path / "pipe")
    (checkout.path / "b" / ".git").mkdir()
    assert run(changed_paths(checkout)) == ["a", "b/.git", "b/c", "d", "e", "folder", "pipe", "x.log"]
    assert not run(unchanged(checkout))


def test_own_repository_of_the_agent_does_not_count_and_is_never_run(desk: Desk, tmp_path: Path) -> None:
    checkout = desk.prepare(desk.spec(desk.repo.commit({"a": "a\n"})))
    ran = tmp_path / "ran"
    agent_git(checkout, "config", "core.fsmonitor", f"touch {ran}; false")
    agent_git(checkout, "commit", "--quiet", "--allow-empty", "-m", "x")
    ran.unlink(missing_ok=True)
    assert run(unchanged(checkout))
    assert not ran.exists()


def test_whole_tree_gone_is_seen(desk: Desk) -> None:
    checkout = desk.prepare(desk.spec(desk.repo.commit({"a": "a\n"})))
    checkout.path.rename(checkout.folder / "moved")
    assert run(changed_paths(checkout)) == [".", "a"]


def test_removal_copes_with_rights_that_were_taken_away(desk: Desk) -> None:
    checkout = desk.prepare(desk.spec(desk.repo.commit({"deep/er/a": "a\n"})))
    (checkout.path / "deep" / "er").chmod(0o500)
    (checkout.path / "deep").chmod(0)
    run(checkout.remove())
    run(checkout.remove())
    assert not checkout.folder.exists()
    assert desk.repo.path.exists()
