"""Merging in the object store: new commits are made, and nothing that anybody looks at is changed."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal, get_args

from quarterdeck.git.conflicts import ConflictFile, described
from quarterdeck.git.spawn import GitError, identity, users_git
from quarterdeck.git.worktrees import REMOTE, Refused, is_ancestor, resolve, text

MergeStrategy = Literal["squash", "merge", "rebase"]
STRATEGIES: Final[tuple[MergeStrategy, ...]] = get_args(MergeStrategy)

_COMMITS: Final = 1000
_SECONDS: Final = 300.0


@dataclass(frozen=True, slots=True)
class Onto:
    """What a branch is to land on.

    `old` is where the target branch is (None: it is made), `tip` the commit to build on: the same, or the
    remote's newer one that the branch began at. `since` is where the branch began, if that is not in `tip`.
    """

    target: str
    old: str | None
    tip: str
    since: str | None


@dataclass(frozen=True, slots=True)
class Made:
    """The commit that a merge leads to. It is the tip itself when there is nothing to merge."""

    onto: Onto
    head: str
    commit: str

    @property
    def empty(self) -> bool:
        return self.commit == self.onto.tip


class Conflicting(Exception):
    """The two sides changed the same lines; nothing was changed. `commit` is the one that does not fit."""

    def __init__(self, files: tuple[ConflictFile, ...], more: int = 0, commit: str | None = None) -> None:
        super().__init__(f"conflict in {', '.join(file.path for file in files[:10])}")
        self.files = files
        self.more = more
        self.commit = commit


async def onto_of(repo: Path, target: str, head: str, base: str, *, follow: bool = True) -> Onto:
    """Where a branch with this head, which began at `base`, lands when it goes to `target`.

    With `follow` the target may be brought up to its remote first, as far as that was fetched.
    """
    local = await resolve(repo, f"refs/heads/{target}")
    remote = await resolve(repo, f"refs/remotes/{REMOTE}/{target}")
    tip = local or remote
    if tip is None:
        raise Refused(f"there is no branch {target} in {repo}")
    began = await resolve(repo, base)
    since = began if began is not None and await is_ancestor(repo, began, head) else None
    if since is not None and await is_ancestor(repo, since, tip):
        since = None
    if not follow:
        return Onto(target, local, tip, since)
    # A branch that began at a newer state of the remote: the target follows the remote first.
    if since and remote and await is_ancestor(repo, since, remote) and await is_ancestor(repo, tip, remote):
        return Onto(target, local, remote, None)
    return Onto(target, local, tip, since)


async def merged(repo: Path, onto: Onto, head: str, strategy: MergeStrategy, message: str) -> Made:
    """Make the commits that bring `head` onto the target. Raises Conflicting."""
    if await is_ancestor(repo, head, onto.tip):
        return Made(onto, head, onto.tip)
    whose = await identity(repo)
    if strategy == "rebase":
        return Made(onto, head, await _rebased(repo, onto, head, whose))
    if strategy == "merge":
        tree = await _merge_tree(repo, onto.tip, head)
        return Made(onto, head, await _commit(repo, tree, (onto.tip, head), message, whose))
    ours, theirs = onto.tip, head
    if onto.since is not None:
        # Only what the branch itself did, and nothing of what it began at.
        ours = await _commit(repo, f"{onto.tip}^{{tree}}", (onto.since,), "ours", whose)
        theirs = await _commit(repo, f"{head}^{{tree}}", (onto.since,), "theirs", whose)
    tree = await _merge_tree(repo, ours, theirs)
    if tree == await text(repo, "rev-parse", f"{onto.tip}^{{tree}}"):
        return Made(onto, head, onto.tip)
    return Made(onto, head, await _commit(repo, tree, (onto.tip,), message, whose))


async def _rebased(repo: Path, onto: Onto, head: str, whose: Mapping[str, str]) -> str:
    """Each commit of the branch again, one after another, on the tip; empty ones are dropped."""
    listed = await text(
        repo, "rev-list", "--reverse", "--topo-order", "--no-merges", f"{onto.since or onto.tip}..{head}"
    )
    commits = listed.split()
    if len(commits) > _COMMITS:
        raise Refused(f"the branch has {len(commits)} commits; at most {_COMMITS} are rebased one by one")
    tip = onto.tip
    for commit in commits:
        if await is_ancestor(repo, commit, tip):
            continue
        if await resolve(repo, f"{commit}^") == tip:  # it is where it belongs
            tip = commit
            continue
        # A commit with the tip's tree beside this one: their merge base is this one's parent.
        beside = await _commit(repo, f"{tip}^{{tree}}", (f"{commit}^",), "beside", whose)
        try:
            tree = await _merge_tree(repo, beside, commit)
        except Conflicting as conflict:
            raise Conflicting(conflict.files, conflict.more, commit) from None
        if tree != await text(repo, "rev-parse", f"{tip}^{{tree}}"):
            tip = await _again(repo, commit, tree, tip, whose)
    return tip


async def _again(repo: Path, commit: str, tree: str, parent: str, whose: Mapping[str, str]) -> str:
    """The same commit, by the same author and with the same words, elsewhere."""
    form = ("--format=%an%x00%ae%x00%ad%x00%B", "--date=raw")
    raw = await users_git(["show", "--no-patch", "--no-show-signature", *form, commit], repo)
    name, email, date, message = raw.decode("utf-8", "replace").split("\0", 3)
    author = {"GIT_AUTHOR_NAME": name, "GIT_AUTHOR_EMAIL": email, "GIT_AUTHOR_DATE": f"@{date}"}
    return await _commit(repo, tree, (parent,), message, {**whose, **author})


async def _commit(
    repo: Path, tree: str, parents: tuple[str, ...], message: str, whose: Mapping[str, str]
) -> str:
    words = ["commit-tree", tree, *(word for parent in parents for word in ("-p", parent)), "-F", "-"]
    made = await users_git(words, repo, stdin=message.rstrip().encode() + b"\n", env=whose)
    return made.decode().strip()


async def _merge_tree(repo: Path, ours: str, theirs: str) -> str:
    """The tree of a merge, or Conflicting."""
    words = [
        "-c",
        "merge.conflictStyle=merge",
        "merge-tree",
        "--write-tree",
        "-z",
        "--messages",
        ours,
        theirs,
    ]
    try:
        raw = await users_git(words, repo, timeout=_SECONDS)
    except GitError as error:
        if error.code != 1 or not error.output:
            raise
        tree, files = _conflicts(error.output)
        shown = await described(repo, tree, files)
        raise Conflicting(shown, len(files) - len(shown)) from None
    return raw.split(b"\0", 1)[0].decode().strip()


def _conflicts(raw: bytes) -> tuple[str, dict[str, str]]:
    """The tree and the files of a refused merge: rows of stages, an empty field, then messages.

    A message is the number of its paths, the paths, its kind and its text.
    """
    fields = [os.fsdecode(field) for field in raw.split(b"\0")]
    tree, rest = fields[0].strip(), iter(fields[1:])
    files: dict[str, str] = {}
    for row in rest:
        if not row:
            break
        files.setdefault(row.partition("\t")[2], "CONFLICT")
    for count in rest:
        if not count.isdigit():
            break
        paths = [next(rest, "") for _ in range(int(count))]
        kind, said = next(rest, ""), next(rest, "").strip()
        for path in paths:
            if kind.startswith("CONFLICT") and path in files:
                files[path] = said[:500] or kind
    return tree, files
