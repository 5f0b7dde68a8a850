"""Moves of branches that belong together: told of in rows first, carried out, taken back, recovered.

The rows of one call have the same time. While they stand at `planned` or `landed`, the move is on its way;
`done` and `undone` are its ends.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import structlog

from quarterdeck.core.context import Core
from quarterdeck.domain.callers import SYSTEM, Caller
from quarterdeck.domain.ids import new_id
from quarterdeck.domain.records import Merge, Task, Worktree
from quarterdeck.git import landing
from quarterdeck.git.landing import Move
from quarterdeck.git.merging import Made
from quarterdeck.git.spawn import GitError
from quarterdeck.git.worktrees import Refused
from quarterdeck.store import worktrees as rows
from quarterdeck.store.tx import Tx

BROKEN: Final = (Refused, GitError, OSError)

logger = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Plan:
    """One repository's part: the commit that was made, and the move of a branch that it leads to."""

    worktree: Worktree
    made: Made
    move: Move


async def carry_out(core: Core, caller: Caller, task: Task, plans: Sequence[Plan], strategy: str) -> None:
    """Land one after another. When one is refused after all, those before it are taken back."""
    if not plans:
        return
    merges = await core.db.tx(caller, _planned, core.place, task, plans, strategy)
    done: list[Plan] = []
    try:
        for plan, row in zip(plans, merges, strict=True):
            await landing.land(plan.move)
            done.append(plan)
            await core.db.tx(caller, rows.change_merge, row, "landed")
    except BROKEN:
        for plan in reversed(done):
            await _taken_back(plan.move)
        await core.db.tx(caller, stepped, merges, "undone")
        raise


def _planned(tx: Tx, place: str, task: Task, plans: Sequence[Plan], strategy: str) -> list[Merge]:
    """The rows of a merge, before anything is done; what belongs together has the same time."""
    merges = [
        Merge(
            id=new_id(),
            user_id=task.user_id,
            task_id=task.id,
            repo_path=str(plan.move.repo),
            target=plan.move.branch,
            strategy=strategy,
            old_commit=plan.move.old or "",
            new_commit=plan.move.new,
            step="planned",
            actor=tx.caller.actor,
            place=place,
            created_at=tx.now,
            updated_at=tx.now,
        )
        for plan in plans
    ]
    rows.add_merges(tx, merges)
    tx.emit("merge.planned", task.id, task_id=task.id, user_id=task.user_id, repos=len(merges))
    return merges


def stepped(tx: Tx, merges: Sequence[Merge], step: str) -> None:
    for merge_ in merges:
        rows.change_merge(tx, merge_, step)


async def _taken_back(move: Move) -> bool:
    """Move a branch back to where it was, if it is still where we put it."""
    if move.old is None:
        return False
    try:
        await landing.land(Move(move.repo, move.branch, move.new, move.old, "merge undone by quarterdeck"))
    except BROKEN as error:
        logger.error("merge.not_undone", repo=str(move.repo), branch=move.branch, error=str(error))
        return False
    return True


async def unfinished(core: Core) -> list[list[Merge]]:
    """Moves of this place that have not come to their end, those of one call together."""
    groups: dict[tuple[str | None, int], list[Merge]] = {}
    for row in await core.db.read(SYSTEM, rows.open_merges, core.place):
        groups.setdefault((row.task_id, row.created_at), []).append(row)
    return list(groups.values())


async def recover(core: Core, group: Sequence[Merge]) -> bool:
    """Bring moves that a crash cut short to their end, all of them or none; whether they landed."""
    moves = [Move(Path(row.repo_path), row.target, row.old_commit or None, row.new_commit) for row in group]
    landed = [await _recovered(move) for move in moves]
    if all(landed):
        await core.db.tx(SYSTEM, stepped, group, "landed")
        return True
    for move, is_there in zip(moves, landed, strict=True):
        if is_there:
            await _taken_back(move)
    await core.db.tx(SYSTEM, stepped, group, "undone")
    return False


async def _recovered(move: Move) -> bool:
    try:
        return await landing.recover(move) == "landed"
    except BROKEN as error:
        logger.error("merge.not_recovered", repo=str(move.repo), branch=move.branch, error=str(error))
        return False
