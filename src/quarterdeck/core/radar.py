"""Which tasks in review would not merge cleanly now: tried without touching what anybody looks at."""

import contextlib
from pathlib import Path
from typing import Final

from quarterdeck.core import worktrees
from quarterdeck.core.context import Core
from quarterdeck.domain.callers import Caller
from quarterdeck.domain.records import Worktree
from quarterdeck.git import merging
from quarterdeck.git import worktrees as checkouts
from quarterdeck.git.merging import Conflicting
from quarterdeck.git.spawn import GitError
from quarterdeck.git.worktrees import Refused
from quarterdeck.store import cards as rows
from quarterdeck.store.tx import Tx

_TRIED: Final = 40
_KEPT: Final = 2000

# By repository and the two commits that would meet: these never change their minds.
_known: dict[tuple[str, str, str], bool] = {}


async def conflicts(core: Core, caller: Caller) -> list[str]:
    """The ids of the caller's newest tasks in review whose work is in conflict with its target."""

    def body(tx: Tx) -> list[str]:
        return [task.id for task in rows.in_column(tx, ["review"], {}, _TRIED)]

    found = []
    for task_id in await core.db.read(caller, body):
        for each in await worktrees.of(core, caller, task_id):
            if each.place == core.place and await _conflicts(each):
                found.append(task_id)
                break
    return found


async def _conflicts(worktree: Worktree) -> bool:
    repo = Path(worktree.repo_path)
    with contextlib.suppress(Refused, GitError, OSError):
        head = await checkouts.tip(repo, worktree.branch)
        onto = await merging.onto_of(repo, worktree.target, head, worktree.base_commit, follow=False)
        key = (worktree.repo_path, head, onto.tip)
        if key not in _known:
            if len(_known) >= _KEPT:
                _known.clear()
            _known[key] = await _clashes(repo, onto, head)
        return _known[key]
    return False


async def _clashes(repo: Path, onto: merging.Onto, head: str) -> bool:
    try:
        await merging.merged(repo, onto, head, "squash", "tried")
    except Conflicting:
        return True
    return False
