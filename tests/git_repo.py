"""A real git repository for a test, untouched by the configuration of whoever runs it."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping
from pathlib import Path

ENVIRONMENT = {
    "PATH": os.environ["PATH"],
    "LC_ALL": "C.UTF-8",
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_CONFIG_GLOBAL": os.devnull,
    "GIT_AUTHOR_NAME": "Ada",
    "GIT_AUTHOR_EMAIL": "ada@example.org",
    "GIT_COMMITTER_NAME": "Ada",
    "GIT_COMMITTER_EMAIL": "ada@example.org",
}


class GitRepo:
    """A repository with a working tree in `path`, on the branch `main`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.mkdir(parents=True)
        self.git("init", "--quiet", "--initial-branch=main")

    @classmethod
    def at(cls, path: Path) -> GitRepo:
        """A repository that is there already."""
        found = cls.__new__(cls)
        found.path = path
        return found

    def git(self, *args: str, stdin: bytes | None = None) -> str:
        done = subprocess.run(
            ["git", *args], cwd=self.path, env=ENVIRONMENT, input=stdin, capture_output=True, check=False
        )
        assert done.returncode == 0, f"git {' '.join(args)}: {done.stderr.decode()}"
        return done.stdout.decode("utf-8", "surrogateescape").removesuffix("\n")

    def write(self, files: Mapping[str, str | bytes]) -> None:
        for name, content in files.items():
            path = self.path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content if isinstance(content, bytes) else content.encode())

    def commit(self, files: Mapping[str, str | bytes] | None = None, message: str = "Change") -> str:
        """Write these files, commit all there is and give back the commit's id."""
        self.write(files or {})
        self.git("add", "--all")
        self.git("commit", "--quiet", "--allow-empty", "--message", message)
        return self.git("rev-parse", "HEAD")

    def diff(self) -> str:
        """The uncommitted changes, new files too; the working tree is put back after."""
        self.git("add", "--all")
        text = self.git("-c", "core.autocrlf=false", "diff", "--cached", "--binary") + "\n"
        self.git("reset", "--quiet", "--hard")
        return text

    def state(self) -> dict[str, str]:
        """Everything of the user that a careless tool could touch."""
        refs = self.git("for-each-ref")
        return {
            "status": self.git("status", "--porcelain=v2", "--branch", "--ignored", "--untracked-files=all"),
            "reflog": self.git("reflog", "--all") if refs else "",
            "refs": refs,
            "stash": self.git("stash", "list"),
            "worktrees": self.git("worktree", "list", "--porcelain"),
            "files": "\n".join(sorted(_described(self.path))),
        }


def _described(folder: Path) -> list[str]:
    rows = []
    for path in folder.rglob("*"):
        found = path.lstat()
        # The test's own `git status` may refresh the index, and so the time of the folder around it.
        if path.name != "index":
            rows.append(f"{path.relative_to(folder)} {found.st_mode:o} {found.st_size} {found.st_mtime_ns}")
    return [row for row in rows if not row.startswith(".git 4")]
