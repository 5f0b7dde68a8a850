"""A branch that moves, and the checkout that follows it as with `git merge --ff-only`."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from quarterdeck.git import landing
from quarterdeck.git.landing import Move, Moved
from quarterdeck.git.worktrees import Refused
from tests.git_repo import ENVIRONMENT, GitRepo
from tests.store import until

FILES = {
    "edited.txt": "one\n",
    "kept.txt": "kept\n",
    "gone.txt": "gone\n",
    "run.sh": "#!/bin/sh\n",
    "dir/deep.txt": "deep\n",
    "renamed.txt": "a long enough text to be seen as renamed\n",
    ".gitignore": "*.log\n",
}


def source(folder: Path) -> tuple[GitRepo, str, str]:
    """A repository on `main`, and the commit that `main` is to move to: every kind of change in it."""
    repo = GitRepo(folder)
    old = repo.commit(FILES)
    repo.git("checkout", "--quiet", "-b", "work")
    repo.write({"edited.txt": "two\n", "new/file.txt": "new\n", "app.log": "forced in\n"})
    (repo.path / "gone.txt").unlink()
    (repo.path / "run.sh").chmod(0o755)
    (repo.path / "renamed.txt").rename(repo.path / "other.txt")
    (repo.path / "link").symlink_to("kept.txt")
    repo.git("add", "--all")
    repo.git("add", "--force", "app.log")
    repo.git("commit", "--quiet", "-m", "Work")
    new = repo.git("rev-parse", "HEAD")
    repo.git("checkout", "--quiet", "main")
    repo.git("branch", "--quiet", "-D", "work")
    repo.git("update-ref", "refs/kept/new", new)
    return repo, old, new


def copy(repo: GitRepo, to: Path) -> GitRepo:
    shutil.copytree(repo.path, to, symlinks=True)
    return GitRepo.at(to)


def add(repo: GitRepo, **files: str) -> None:
    repo.write({name.replace("__", "/").replace("_", "."): text for name, text in files.items()})


def staged(repo: GitRepo, **files: str) -> None:
    add(repo, **files)
    repo.git("add", "--all")


def staged_and_edited(repo: GitRepo) -> None:
    staged(repo, edited_txt="staged\n")
    add(repo, edited_txt="edited again\n")


def remove(repo: GitRepo, name: str) -> None:
    (repo.path / name).unlink()


def merging(repo: GitRepo) -> None:
    repo.git("update-ref", "MERGE_HEAD", "HEAD")


def folder_in_the_way(repo: GitRepo) -> None:
    remove(repo, "edited.txt")
    add(repo, edited_txt__inner="a folder now\n")


def touch_only(repo: GitRepo) -> None:
    os.utime(repo.path / "edited.txt", ns=(1, 1))


STATES: dict[str, Callable[[GitRepo], object]] = {
    "clean": lambda repo: None,
    "an unrelated edit": lambda repo: add(repo, kept_txt="mine\n"),
    "an overlapping edit": lambda repo: add(repo, edited_txt="mine\n"),
    "an edit that is the same": lambda repo: add(repo, edited_txt="two\n"),
    "an unrelated file staged": lambda repo: staged(repo, kept_txt="mine\n"),
    "an overlapping file staged": lambda repo: staged(repo, edited_txt="mine\n"),
    "the same content staged": lambda repo: staged(repo, edited_txt="two\n"),
    "staged and edited again": staged_and_edited,
    "a new file staged in the way": lambda repo: staged(repo, new__file_txt="mine\n"),
    "a new file staged elsewhere": lambda repo: staged(repo, mine_txt="mine\n"),
    "an untracked file in the way": lambda repo: add(repo, new__file_txt="mine\n"),
    "an untracked file with the same content": lambda repo: add(repo, new__file_txt="new\n"),
    "an untracked file where a folder is to be": lambda repo: add(repo, new="mine\n"),
    "an untracked file elsewhere": lambda repo: add(repo, new__other_txt="mine\n"),
    "an ignored file in the way": lambda repo: add(repo, app_log="mine\n"),
    "an ignored file elsewhere": lambda repo: add(repo, my_log="mine\n"),
    "a deleted file that is changed": lambda repo: remove(repo, "edited.txt"),
    "a deleted file that is deleted": lambda repo: remove(repo, "gone.txt"),
    "a deleted file that stays": lambda repo: remove(repo, "kept.txt"),
    "a deletion staged": lambda repo: repo.git("rm", "--quiet", "edited.txt"),
    "an edit of what is deleted": lambda repo: add(repo, gone_txt="mine\n"),
    "the mode changed as well": lambda repo: (repo.path / "run.sh").chmod(0o755),
    "the mode of another changed": lambda repo: (repo.path / "kept.txt").chmod(0o755),
    "a folder in the place of a file": folder_in_the_way,
    "only the times changed": touch_only,
    "an edit of what is renamed": lambda repo: add(repo, renamed_txt="mine\n"),
    "a merge under way": merging,
}


def seen(repo: GitRepo) -> dict[str, object]:
    """What a person sees of a checkout: files, index, branch, and where the branch is."""
    files = {
        str(path.relative_to(repo.path)): (
            path.readlink() if path.is_symlink() else path.read_bytes(),
            path.lstat().st_mode,
        )
        for path in sorted(repo.path.rglob("*"))
        if ".git" not in path.relative_to(repo.path).parts and (path.is_symlink() or path.is_file())
    }
    return {
        "files": files,
        "index": repo.git("ls-files", "--stage"),
        "status": repo.git("status", "--porcelain=v2", "--branch", "--untracked-files=all"),
        "locks": [
            path.name for path in (repo.path / ".git").glob("*.lock") if path.name != "quarterdeck.lock"
        ],
        "beside": [path.name for path in (repo.path / ".git").glob("quarterdeck.index*")],
    }


@pytest.mark.parametrize("state", STATES)
def test_a_checkout_follows_exactly_as_git_would(state: str, tmp_path: Path) -> None:
    repo, old, new = source(tmp_path / "ours")
    STATES[state](repo)
    # With the same times, so that neither has to look closer than the other.
    other = copy(repo, tmp_path / "theirs")
    done = subprocess.run(
        ["git", "merge", "--ff-only", "--quiet", new], cwd=other.path, env=ENVIRONMENT, capture_output=True
    )
    before = seen(repo)
    move = Move(repo.path, "main", old, new)
    try:
        asyncio.run(landing.check(move))
        foreseen = True
    except Refused:
        foreseen = False
    assert seen(repo) == before, "a check changes nothing"
    try:
        asyncio.run(landing.land(move))
        landed, files = True, tuple[str, ...]()
    except Refused as refused:
        landed, files = False, refused.files
    assert landed == foreseen == (done.returncode == 0), done.stderr.decode()
    assert seen(repo) == seen(other)
    if not landed:
        assert seen(repo) == before
        named = {line.strip() for line in done.stderr.decode().splitlines() if line.startswith("\t")}
        assert named <= {name.removesuffix("/") for name in files} | {"new", "edited.txt"}
        assert files or state == "a merge under way"


def test_a_branch_that_moved_meanwhile_is_left_alone(tmp_path: Path) -> None:
    repo, old, new = source(tmp_path / "repo")
    repo.commit({"kept.txt": "newer\n"})
    before = repo.state()
    with pytest.raises(Moved):
        asyncio.run(landing.land(Move(repo.path, "main", old, new)))
    after = repo.state()
    assert {**after, "files": ""} == {**before, "files": ""}


def test_other_checkouts_are_left_alone_and_the_one_on_the_branch_follows(tmp_path: Path) -> None:
    repo, old, new = source(tmp_path / "repo")
    repo.git("checkout", "--quiet", "--detach")
    repo.git("worktree", "add", "--quiet", str(tmp_path / "beside"), "main")
    repo.write({"edited.txt": "mine, on no branch\n"})
    (tmp_path / "beside" / "kept.txt").write_text("mine\n")
    before = seen(repo)
    asyncio.run(landing.land(Move(repo.path, "main", old, new)))
    assert seen(repo) == before
    assert (tmp_path / "beside" / "edited.txt").read_text() == "two\n"
    assert (tmp_path / "beside" / "kept.txt").read_text() == "mine\n"
    assert repo.git("rev-parse", "main") == new


def test_a_bare_repository_and_a_branch_nobody_is_on_only_move_the_branch(tmp_path: Path) -> None:
    repo, old, new = source(tmp_path / "repo")
    bare = tmp_path / "bare.git"
    repo.git("clone", "--quiet", "--bare", ".", str(bare))
    repo.git("push", "--quiet", str(bare), "refs/kept/new:refs/kept/new")
    asyncio.run(landing.land(Move(bare, "main", old, new)))
    assert repo.git("--git-dir", str(bare), "rev-parse", "main") == new
    repo.git("checkout", "--quiet", "-b", "elsewhere")
    before = seen(repo)
    asyncio.run(landing.land(Move(repo.path, "main", old, new)))
    assert seen(repo) == before
    asyncio.run(landing.land(Move(repo.path, "made", None, new)))
    assert repo.git("rev-parse", "made") == new


def test_a_rebase_of_the_branch_under_way_refuses(tmp_path: Path) -> None:
    repo, _, new = source(tmp_path / "repo")
    repo.git("checkout", "--quiet", "-b", "other")
    repo.commit({"edited.txt": "theirs\n"})
    repo.git("checkout", "--quiet", "main")
    ours = repo.commit({"edited.txt": "ours\n"})
    subprocess.run(["git", "rebase", "other"], cwd=repo.path, env=ENVIRONMENT, capture_output=True)
    with pytest.raises(Refused, match="a rebase of main is under way"):
        asyncio.run(landing.land(Move(repo.path, "main", ours, new)))


def test_an_index_that_another_git_holds_refuses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(landing, "_BUSY_SECONDS", 0.2)
    repo, old, new = source(tmp_path / "repo")
    lock = repo.path / ".git" / "index.lock"
    lock.touch()
    with pytest.raises(Refused, match="another git command"):
        asyncio.run(landing.land(Move(repo.path, "main", old, new)))
    assert lock.exists()
    assert repo.git("rev-parse", "main") == old


def test_files_go_back_when_the_branch_cannot_move(tmp_path: Path) -> None:
    repo, old, new = source(tmp_path / "repo")
    before = seen(repo)
    # Somebody holds the branch's own lock for longer than git waits.
    lock = repo.path / ".git" / "refs" / "heads" / "main.lock"
    lock.touch()
    with pytest.raises(Moved):
        asyncio.run(landing.land(Move(repo.path, "main", old, new)))
    lock.unlink()
    assert seen(repo) == before


CHILD = """
import asyncio, os, signal, sys
from pathlib import Path
from quarterdeck.git import landing

repo, old, new, step, how = sys.argv[1:]

def reached(name):
    if name == step:
        if how == "half":
            # What a checkout cut short leaves: some files new, one half written, the index as it was.
            Path(repo, "edited.txt").write_text("tw")
            Path(repo, "gone.txt").write_text("gone\\n")
            Path(repo, "other.txt").unlink()
        os.kill(os.getpid(), signal.SIGKILL)

landing._reached = reached
asyncio.run(landing.land(landing.Move(Path(repo), "main", old, new)))
"""


@pytest.mark.parametrize(
    ("step", "how"),
    [("locked", ""), ("files", ""), ("files", "half"), ("index", ""), ("swapped", "")],
)
def test_a_move_that_was_killed_is_finished_or_undone(step: str, how: str, tmp_path: Path) -> None:
    repo, old, new = source(tmp_path / "repo")
    repo.write({"kept.txt": "mine\n"})
    other = copy(repo, tmp_path / "other")
    subprocess.run(["git", "merge", "--ff-only", "--quiet", new], cwd=other.path, env=ENVIRONMENT, check=True)
    killed = subprocess.run([sys.executable, "-c", CHILD, str(repo.path), old, new, step, how], check=False)
    assert killed.returncode == -signal.SIGKILL
    move = Move(repo.path, "main", old, new)
    assert asyncio.run(landing.recover(move)) == "landed"
    assert seen(repo) == seen(other)
    assert asyncio.run(landing.recover(move)) == "landed", "again changes nothing"
    assert seen(repo) == seen(other)


def test_a_git_that_outlives_its_core_is_waited_for(tmp_path: Path) -> None:
    repo, old, new = source(tmp_path / "repo")
    release = tmp_path / "release"
    slow = f"while [ ! -e {release} ]; do sleep 0.05; done; cat"
    repo.git("config", "filter.slow.smudge", slow)
    (repo.path / ".git" / "info" / "attributes").write_text("edited.txt filter=slow\n")
    child = subprocess.Popen([sys.executable, "-c", CHILD, str(repo.path), old, new, "", ""])
    under_way = repo.path / ".git" / "quarterdeck.index.lock"

    async def run() -> None:
        await until(under_way.exists)
        child.kill()
        child.wait()
        recovering = asyncio.create_task(landing.recover(Move(repo.path, "main", old, new)))
        await asyncio.sleep(0.2)
        assert not recovering.done()
        assert under_way.exists(), "it is not taken from under git"
        release.touch()
        assert await recovering == "landed"

    asyncio.run(run())
    assert (repo.path / "edited.txt").read_text() == "two\n"
    assert repo.git("rev-parse", "main") == new
    assert repo.git("status", "--porcelain") == ""


@pytest.mark.parametrize("how", ["", "half"])
def test_an_edit_since_the_crash_undoes_the_move(how: str, tmp_path: Path) -> None:
    repo, old, new = source(tmp_path / "repo")
    untouched = seen(repo)
    killed = subprocess.run(
        [sys.executable, "-c", CHILD, str(repo.path), old, new, "files", how], check=False
    )
    assert killed.returncode == -signal.SIGKILL
    repo.write({"run.sh": "mine\n"})
    assert asyncio.run(landing.recover(Move(repo.path, "main", old, new))) == "undone"
    assert repo.git("rev-parse", "main") == old
    assert repo.git("diff", "--name-only").split() == ["run.sh"]
    assert (repo.path / "run.sh").read_text() == "mine\n"
    (repo.path / "run.sh").chmod(0o644)
    repo.git("checkout", "run.sh")
    assert seen(repo) == untouched
