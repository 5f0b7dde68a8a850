"""Worktrees of real repositories: made, settled and removed, with nothing of the user's touched."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Coroutine
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import pytest

from quarterdeck.git import diffs, worktrees
from quarterdeck.git.spawn import GitError, git
from quarterdeck.git.worktrees import Refused, Strategy
from tests.git_repo import GitRepo

T = TypeVar("T")
BRANCH = "quarterdeck/task"


def run(work: Coroutine[Any, Any, T]) -> T:
    return asyncio.run(work)


class Desk:
    def __init__(self, folder: Path) -> None:
        self.repo = GitRepo(folder / "repo")
        self.repo.commit({"a.txt": "a\n", ".gitignore": "*.log\n"})
        self.path = folder / "worktrees" / "task" / "repo"

    def head(self, name: str = BRANCH) -> str:
        return self.repo.git("rev-parse", name)

    def add(self, commit: str = "main") -> Path:
        run(worktrees.add(self.repo.path, self.path, BRANCH, commit))
        return self.path

    def settle(self, message: str = "Leftovers") -> worktrees.Settled:
        return run(worktrees.settle(self.repo.path, self.path, BRANCH, message))

    def git(self, *args: str) -> str:
        return self.repo.git("-C", str(self.path), *args)


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    return Desk(tmp_path)


def test_a_worktree_leaves_the_users_checkout_alone(desk: Desk) -> None:
    desk.repo.write({"a.txt": "mine\n", "b.txt": "mine too\n"})
    before = seen(desk.repo)
    desk.add()
    assert (desk.path / "a.txt").read_text() == "a\n"
    assert desk.git("symbolic-ref", "--short", "HEAD") == BRANCH
    run(worktrees.remove(desk.repo.path, desk.path, BRANCH))
    assert not desk.path.exists()
    assert not desk.path.parent.exists()
    assert seen(desk.repo) == before


def seen(repo: GitRepo) -> dict[str, str]:
    return {name: text for name, text in repo.state().items() if name != "files"}


def test_a_worktree_is_made_to_its_end_when_its_maker_is_cancelled(desk: Desk) -> None:
    desk.repo.commit({f"files/{number}": "x\n" for number in range(300)})

    async def cancelled() -> None:
        task = asyncio.create_task(worktrees.add(desk.repo.path, desk.path, BRANCH, "main"))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    run(cancelled())
    assert desk.git("status", "--porcelain") == ""
    assert len(list((desk.path / "files").iterdir())) == 300


def test_what_an_earlier_try_left_does_not_matter(desk: Desk) -> None:
    desk.add()
    desk.repo.commit({"a.txt": "newer\n"})
    shutil.rmtree(desk.path)
    desk.add()
    assert (desk.path / "a.txt").read_text() == "a\n", "the branch is as it was"
    run(worktrees.remove(desk.repo.path, desk.path, BRANCH))
    desk.path.mkdir(parents=True)
    (desk.path / "half").write_text("made")
    desk.add()
    assert (desk.path / "a.txt").read_text() == "newer\n"
    assert not (desk.path / "half").exists()


@pytest.mark.parametrize("half", ["folder", "record", "branch", "all"])
def test_a_removal_can_be_done_again_after_half_of_it(half: str, desk: Desk) -> None:
    before = seen(desk.repo)
    desk.add()
    if half in ("folder", "all"):
        shutil.rmtree(desk.path)
    if half in ("record", "all"):
        shutil.rmtree(desk.repo.path / ".git" / "worktrees")
    if half in ("branch", "all"):
        desk.repo.git("update-ref", "-d", f"refs/heads/{BRANCH}")
    for _ in range(2):
        run(worktrees.remove(desk.repo.path, desk.path, BRANCH))
    assert not desk.path.exists()
    assert seen(desk.repo) == before


def test_a_worktree_that_another_git_begins_to_make_outlives_the_removal_of_ours(desk: Desk) -> None:
    desk.add()
    begun = desk.repo.path / ".git" / "worktrees" / "another"
    begun.mkdir()  # so far has git come when it has yet to lock it
    run(worktrees.remove(desk.repo.path, desk.path, BRANCH))
    desk.add()
    assert begun.is_dir()


@pytest.mark.parametrize("deed", ["add", "list"])
def test_a_record_that_another_git_has_half_made_is_waited_for(desk: Desk, deed: str) -> None:
    begun = desk.repo.path / ".git" / "worktrees" / "another"
    begun.mkdir(parents=True)
    for name, text in {"gitdir": "/nowhere/.git\n", "HEAD": "ref: refs/heads/x\n", "commondir": ""}.items():
        (begun / name).write_text(text)

    async def done() -> None:
        adding = partial(worktrees.add, desk.repo.path, desk.path, BRANCH, "main")
        listing = partial(worktrees.listing, desk.repo.path)
        waiting: asyncio.Future[Any] = asyncio.ensure_future(adding() if deed == "add" else listing())
        assert not (await asyncio.wait([waiting], timeout=0.4))[0]
        shutil.rmtree(begun)
        await waiting

    run(done())
    assert (desk.path / "a.txt").exists() == (deed == "add")


def test_a_folder_whose_rights_were_taken_away_is_removed(desk: Desk) -> None:
    desk.add()
    (desk.path / "deep").mkdir()
    (desk.path / "deep" / "file").write_text("x")
    (desk.path / "deep").chmod(0)
    run(worktrees.remove(desk.repo.path, desk.path, BRANCH))
    assert not desk.path.exists()


def test_a_branch_that_cannot_be_checked_out_leaves_nothing(desk: Desk) -> None:
    before = seen(desk.repo)
    with pytest.raises(GitError):
        desk.add("0" * 40)
    assert seen(desk.repo) == before
    assert not desk.path.exists()


def test_leftovers_are_committed_with_new_files_and_without_ignored_ones(desk: Desk) -> None:
    desk.repo.git("config", "user.name", "Grace")
    desk.repo.git("config", "user.email", "grace@example.org")
    desk.add()
    (desk.path / "a.txt").write_text("changed\n")
    (desk.path / "new").mkdir()
    (desk.path / "new" / "file.txt").write_text("new\n")
    (desk.path / "debug.log").write_text("ignored\n")
    before = seen(desk.repo)
    assert sorted(run(worktrees.changed_files(desk.repo.path, desk.path))) == ["a.txt", "new/file.txt"]
    settled = desk.settle("What was left\n\nof it")
    assert settled.committed
    assert settled.head == desk.head()
    assert desk.git("status", "--porcelain") == ""
    assert (
        desk.git("log", "-1", "--format=%an %ae|%cn|%B")
        == "Grace grace@example.org|Grace|What was left\n\nof it\n"
    )
    assert desk.git("show", "--name-only", "--format=", "HEAD").split() == ["a.txt", "new/file.txt"]
    after = seen(desk.repo)
    assert after["status"] == before["status"]
    assert desk.settle() == worktrees.Settled(settled.head, False)


def test_a_worktree_whose_git_file_is_gone_or_forged_is_settled_all_the_same(
    desk: Desk, tmp_path: Path
) -> None:
    desk.add()
    (desk.path / ".git").unlink()
    (desk.path / "b.txt").write_text("b\n")
    other = GitRepo(tmp_path / "other")
    shutil.copytree(other.path / ".git", desk.path / ".git")
    assert desk.settle().committed
    assert desk.repo.git("show", f"{BRANCH}:b.txt") == "b"


def test_commits_on_another_branch_come_back_when_they_follow_ours(desk: Desk) -> None:
    desk.add()
    desk.git("checkout", "--quiet", "-b", "its-own-idea")
    (desk.path / "b.txt").write_text("b\n")
    desk.git("add", "--all")
    desk.git("commit", "--quiet", "-m", "Elsewhere")
    (desk.path / "c.txt").write_text("c\n")
    settled = desk.settle()
    assert settled.committed
    assert desk.repo.git("show", "--format=", "--name-only", f"{BRANCH}~1", BRANCH).split() == [
        "b.txt",
        "c.txt",
    ]


def test_a_worktree_that_left_its_branch_for_good_is_told_of(desk: Desk) -> None:
    desk.add()
    (desk.path / "b.txt").write_text("b\n")
    ours = desk.settle().head
    desk.git("checkout", "--quiet", "--detach", "main")
    assert desk.settle().note is None
    (desk.path / "c.txt").write_text("c\n")
    settled = desk.settle()
    assert settled.head == ours
    assert not settled.committed
    assert "not on its branch" in str(settled.note)


def test_a_lock_that_a_killed_git_left_is_taken_away(desk: Desk) -> None:
    desk.add()
    admin = run(worktrees.admin_dir(desk.repo.path, desk.path))
    assert admin is not None
    (admin / "index.lock").touch()
    (desk.path / "b.txt").write_text("b\n")
    assert desk.settle().committed


def test_a_repository_inside_the_worktree_is_left_out(desk: Desk) -> None:
    desk.add()
    inner = GitRepo(desk.path / "inner")
    inner.commit({"x": "x\n"})
    (desk.path / "b.txt").write_text("b\n")
    settled = desk.settle()
    assert "inner" in str(settled.note)
    assert desk.git("ls-files").split() == [".gitignore", "a.txt", "b.txt"]


def test_a_snapshot_holds_what_is_not_committed_and_changes_nothing(desk: Desk) -> None:
    desk.add()
    assert run(worktrees.snapshot(desk.repo.path, desk.path, BRANCH)) == desk.head()
    (desk.path / "a.txt").unlink()
    (desk.path / "b.txt").write_text("b\nb\n")
    status = desk.git("status", "--porcelain")
    tree = run(worktrees.snapshot(desk.repo.path, desk.path, BRANCH))
    found = run(diffs.diff(desk.repo.path, desk.head(), tree))
    assert [(file.path, file.status, file.insertions, file.deletions) for file in found.files] == [
        ("a.txt", "D", 0, 1),
        ("b.txt", "A", 2, 0),
    ]
    assert (found.count, found.insertions, found.deletions, found.cut) == (2, 2, 1, False)
    assert desk.git("status", "--porcelain") == status


def test_a_diff_knows_renames_and_binary_files_and_says_when_it_is_cut(desk: Desk) -> None:
    desk.repo.commit({"long.txt": "".join(f"line {n}\n" for n in range(50))})
    base = desk.head("main")
    desk.repo.git("mv", "long.txt", "renamed.txt")
    head = desk.repo.commit({"data.bin": b"\0\1\2", "ä ö.txt": "x\n", "many.txt": "word\n" * 5000})
    whole = run(diffs.diff(desk.repo.path, base, head))
    by_path = {file.path: file for file in whole.files}
    assert by_path["renamed.txt"].old_path == "long.txt"
    assert by_path["renamed.txt"].status == "R"
    assert by_path["data.bin"].binary
    assert by_path["ä ö.txt"].insertions == 1
    assert not whole.cut
    short = run(diffs.diff(desk.repo.path, base, head, max_patch=1000))
    assert short.cut
    assert len(short.patch) <= 1000
    assert short.patch.endswith("\n")
    assert short.files == whole.files


@pytest.fixture
def cloned(desk: Desk, tmp_path: Path) -> Desk:
    """The desk's repository with a remote that is one commit ahead of what was last fetched."""
    remote = GitRepo(tmp_path / "remote")
    remote.commit({"r.txt": "1\n"})
    desk.repo.git("remote", "add", "origin", str(remote.path))
    desk.repo.git("fetch", "--quiet", "origin")
    desk.repo.git("reset", "--quiet", "--hard", "origin/main")
    remote.commit({"r.txt": "2\n"})
    desk.repo.git("config", "quarterdeck.remote", str(remote.path))
    return desk


@pytest.mark.parametrize(
    ("strategy", "ahead", "expected"),
    [
        ("remote", False, "origin/main"),
        ("remote", True, "origin/main"),
        ("local_if_ahead", False, "origin/main"),
        ("local_if_ahead", True, "main"),
        ("local", False, "main"),
    ],
)
def test_the_base_follows_the_strategy(cloned: Desk, strategy: Strategy, ahead: bool, expected: str) -> None:
    repo = cloned.repo
    if ahead:
        repo.commit({"mine.txt": "mine\n"})
    fetched = repo.git("rev-parse", "origin/main")
    base = run(worktrees.base_of(repo.path, None, "main", strategy))
    assert base.commit == repo.git("rev-parse", expected)
    assert (base.target, base.note) == ("main", None)
    assert (repo.git("rev-parse", "origin/main") != fetched) == (strategy != "local")


def test_fetches_at_once_of_one_branch_all_get_it(cloned: Desk) -> None:
    origin = GitRepo.at(Path(cloned.repo.git("remote", "get-url", "origin")))
    newest = origin.commit({"new.txt": "new\n"})

    async def fetched() -> list[worktrees.Base]:
        asked = [worktrees.base_of(cloned.repo.path, None, "main", "remote") for _ in range(6)]
        return await asyncio.gather(*asked)

    assert {(base.commit, base.note) for base in run(fetched())} == {(newest, None)}


def test_a_remote_that_does_not_answer_falls_back_with_a_note(cloned: Desk) -> None:
    cloned.repo.git("remote", "set-url", "origin", "/nowhere/at/all")
    base = run(worktrees.base_of(cloned.repo.path, None, "main", "remote"))
    assert base.commit == cloned.head("origin/main")
    assert "could not be fetched" in str(base.note)


def test_a_missing_default_branch_is_the_one_checked_out_but_a_named_one_must_exist(desk: Desk) -> None:
    desk.repo.git("branch", "--quiet", "-m", "main", "trunk")
    base = run(worktrees.base_of(desk.repo.path, None, "main", "remote"))
    assert (base.target, base.commit) == ("trunk", desk.head("trunk"))
    with pytest.raises(Refused, match="no branch missing"):
        run(worktrees.base_of(desk.repo.path, "missing", "main", "local"))


def test_a_repository_without_a_commit_says_that_it_has_none(tmp_path: Path) -> None:
    run(git(["init", "--quiet", "--initial-branch=trunk"], tmp_path))
    with pytest.raises(Refused, match="no commit yet"):
        run(worktrees.base_of(tmp_path, None, "main", "remote"))


def test_a_path_is_a_repository_or_says_why_not(desk: Desk, tmp_path: Path) -> None:
    def problem(path: Path) -> str | None:
        return run(worktrees.problem_of(path, tmp_path / "worktrees"))

    desk.add()
    desk.repo.write({"inner/file": "x\n"})
    (tmp_path / "plain").mkdir()
    desk.repo.git("clone", "--quiet", "--bare", ".", str(tmp_path / "bare.git"))
    assert problem(desk.repo.path) is None
    assert problem(tmp_path / "bare.git") is None
    assert problem(tmp_path / "missing") == "is not a folder"
    assert problem(tmp_path / "plain") == "is not a git repository"
    assert problem(desk.repo.path / "inner") == "is a folder inside a repository, not its top"
    assert problem(desk.repo.path / ".git") == "is the inner folder of a repository"
    assert problem(desk.path) == "lies within the worktrees of tasks"
    assert [each.branch for each in run(worktrees.listing(desk.repo.path))] == ["main", BRANCH]
    assert run(worktrees.branches(desk.repo.path)) == {BRANCH: desk.head()}
