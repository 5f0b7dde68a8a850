"""Merges in the object store: squash, merge and rebase, with conflicts told and nothing changed."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from quarterdeck.git import merging
from quarterdeck.git.conflicts import ConflictFile
from quarterdeck.git.merging import STRATEGIES, Conflicting, Made, MergeStrategy
from quarterdeck.git.spawn import GitError
from quarterdeck.git.worktrees import Refused
from tests.git_repo import GitRepo


def state(repo: GitRepo) -> dict[str, str]:
    """All that a merge in the object store must leave as it is; the store itself grows."""
    return {name: text for name, text in repo.state().items() if name != "files"}


class Desk:
    """A repository with a branch `work` that began at the first commit of `main`."""

    def __init__(self, folder: Path) -> None:
        self.repo = GitRepo(folder / "repo")
        lines = "".join(f"{number}\n" for number in range(1, 21))
        self.base = self.repo.commit({"a.txt": lines, "b.txt": "b\n"}, "Begin")

    def commits(self, branch: str, *changes: dict[str, str | bytes]) -> str:
        """Commits on a branch, made in the checkout, which goes back to `main`."""
        repo = self.repo
        exists = branch in repo.git("branch", "--format=%(refname:short)").split()
        repo.git("checkout", "--quiet", *([branch] if exists else ["-b", branch, self.base]))
        for number, files in enumerate(changes, 1):
            repo.commit(files, f"{branch} {number}\n\nWith a body")
        head = repo.git("rev-parse", "HEAD")
        repo.git("checkout", "--quiet", "main")
        return head

    def merged(self, head: str, strategy: MergeStrategy = "squash", message: str = "Merged") -> Made:
        async def run() -> Made:
            onto = await merging.onto_of(self.repo.path, "main", head, self.base)
            return await merging.merged(self.repo.path, onto, head, strategy, message)

        before = state(self.repo)
        try:
            return asyncio.run(run())
        finally:
            assert state(self.repo) == before

    def conflict(self, head: str, strategy: MergeStrategy = "squash") -> Conflicting:
        with pytest.raises(Conflicting) as caught:
            self.merged(head, strategy)
        return caught.value


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    return Desk(tmp_path)


def changed(text: str, line: int) -> str:
    return "".join(f"{text if number == line else number}\n" for number in range(1, 21))


def test_each_strategy_makes_the_commits_that_git_would(desk: Desk) -> None:
    repo = desk.repo
    head = desk.commits("work", {"a.txt": changed("theirs", 20)}, {"new.txt": "new\n"})
    tip = repo.commit({"a.txt": changed("ours", 1)}, "Ours")
    squash, merge, rebase = (desk.merged(head, strategy, "In one") for strategy in STRATEGIES)
    tree = repo.git("rev-parse", f"{squash.commit}^{{tree}}")
    assert repo.git("show", f"{squash.commit}:a.txt") == changed("ours", 1).replace("20\n", "theirs")
    for made in (merge, rebase):
        assert repo.git("rev-parse", f"{made.commit}^{{tree}}") == tree
    assert repo.git("log", "-1", "--format=%P|%B", squash.commit) == f"{tip}|In one\n"
    assert repo.git("log", "-1", "--format=%P", merge.commit) == f"{tip} {head}"
    again = "--format=%an|%ad|%B"
    assert repo.git("log", again, f"{tip}..{rebase.commit}") == repo.git("log", again, f"{desk.base}..{head}")
    assert repo.git("rev-parse", f"{rebase.commit}~2") == tip


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_conflict_names_files_and_lines(strategy: MergeStrategy, desk: Desk) -> None:
    head = desk.commits("work", {"b.txt": "fine\n"}, {"a.txt": changed("theirs", 10)})
    desk.repo.commit({"a.txt": changed("ours", 10)})
    conflict = desk.conflict(head, strategy)
    (file,) = conflict.files
    assert (file.path, len(file.hunks)) == ("a.txt", 1)
    assert "content" in file.why
    assert (file.hunks[0].line, file.hunks[0].ours, file.hunks[0].theirs) == (10, ("ours",), ("theirs",))
    assert conflict.commit == (head if strategy == "rebase" else None)


def test_other_conflicts_are_told_as_well(desk: Desk) -> None:
    repo = desk.repo
    desk.commits("work", {"data.bin": b"\0theirs", "b.txt": "theirs\n"})
    repo.git("checkout", "--quiet", "work")
    repo.git("rm", "--quiet", "a.txt")
    head = repo.commit({"ä ö.txt": "theirs\n"})
    repo.git("checkout", "--quiet", "main")
    repo.commit({"a.txt": changed("ours", 3), "data.bin": b"\0ours", "ä ö.txt": "ours\n"})
    files: dict[str, ConflictFile] = {file.path: file for file in desk.conflict(head).files}
    assert files.keys() == {"a.txt", "data.bin", "ä ö.txt"}
    assert "deleted" in files["a.txt"].why
    assert files["data.bin"].hunks == ()
    assert files["ä ö.txt"].hunks[0].theirs == ("theirs",)


def test_a_large_conflict_is_cut_and_says_so(desk: Desk) -> None:
    head = desk.commits("work", {"b.txt": "theirs\n" * 500, **{f"{n}.txt": "theirs\n" for n in range(60)}})
    desk.repo.commit({"b.txt": "ours\n" * 500, **{f"{n}.txt": "ours\n" for n in range(60)}})
    conflict = desk.conflict(head)
    assert (len(conflict.files), conflict.more) == (50, 11)
    hunks = [hunk for file in conflict.files for hunk in file.hunks if file.path == "b.txt"]
    assert all(hunk.cut and len(hunk.ours) == 40 for hunk in hunks)


def test_nothing_new_makes_no_commit(desk: Desk) -> None:
    assert desk.merged(desk.base).empty
    head = desk.commits("work", {"b.txt": "same\n"})
    desk.repo.commit({"b.txt": "same\n"})
    assert desk.merged(head).empty
    assert desk.merged(head, "rebase").empty
    assert not desk.merged(head, "merge").empty


def test_a_rebase_drops_merges_of_the_target_and_what_is_there_already(desk: Desk) -> None:
    repo = desk.repo
    desk.commits("work", {"one.txt": "1\n"}, {"two.txt": "2\n"})
    repo.commit({"one.txt": "1\n"}, "One, picked")
    repo.git("checkout", "--quiet", "work")
    repo.git("merge", "--quiet", "--no-edit", "main")
    head = repo.commit({"three.txt": "3\n"}, "Three")
    repo.git("checkout", "--quiet", "main")
    repo.commit({"b.txt": "newer\n"}, "Newer")
    made = desk.merged(head, "rebase")
    assert desk.merged(made.commit, "rebase").commit == made.commit, "what is in its place stays"
    subjects = repo.git("log", "--format=%s", "-4", made.commit).split("\n")
    assert subjects == ["Three", "work 2", "Newer", "One, picked"]


def test_unrelated_histories_and_missing_targets_are_refused(desk: Desk) -> None:
    with pytest.raises(Refused, match="no branch missing"):
        asyncio.run(merging.onto_of(desk.repo.path, "missing", desk.base, desk.base))
    desk.repo.git("checkout", "--quiet", "--orphan", "alone")
    head = desk.repo.commit({"x.txt": "x\n"})
    desk.repo.git("checkout", "--quiet", "main")
    with pytest.raises(GitError, match="unrelated histories"):
        desk.merged(head)
