"""A project's gate: its command, run on what the target branches would become, before a merge lands."""

import asyncio
import contextlib
import shutil
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from pathlib import Path

from quarterdeck.core import worktrees
from quarterdeck.core.context import Core
from quarterdeck.domain.checks import Verdict
from quarterdeck.domain.ids import new_id
from quarterdeck.domain.records import Worktree
from quarterdeck.git import worktrees as checkouts
from quarterdeck.git.merging import Made
from quarterdeck.git.worktrees import Refused

# The folders of gates that run now.
RUNNING: set[str] = set()


def root(core: Core) -> Path:
    """Where the folders of all gates of this data directory are."""
    return core.data_dir / "gates"


async def judged(
    core: Core,
    task_id: str,
    command: str,
    computed: Sequence[tuple[Worktree, Made]],
    still: Callable[[], Awaitable[None]],
) -> Verdict:
    """The gate's verdict. It ends early with the core, and when `still` refuses after the task changed."""
    if core.check is None:
        raise Refused("this process runs no gates")
    async with _laid_out(core, computed) as paths:
        with core.bus.listen(f"task:{task_id}") as listener:
            seconds = core.settings.worker.gate_seconds
            running = asyncio.ensure_future(core.check(command, worktrees.workplace(paths), seconds))
            try:
                while True:
                    await still()
                    heard = asyncio.ensure_future(listener.wait())
                    await asyncio.wait({running, heard}, return_when=asyncio.FIRST_COMPLETED)
                    heard.cancel()
                    if running.done():
                        return running.result()
                    if listener.closed:
                        raise Refused("the core is stopping")
            finally:
                running.cancel()
                with contextlib.suppress(asyncio.CancelledError, Exception):
                    await running


@contextlib.asynccontextmanager
async def _laid_out(core: Core, computed: Sequence[tuple[Worktree, Made]]) -> AsyncIterator[list[Path]]:
    """Checkouts of what the targets would become, each below the name of the task's own worktree."""
    folder = root(core) / new_id()
    trees = [(Path(each.repo_path), folder / Path(each.path).name, made.commit) for each, made in computed]
    RUNNING.add(folder.name)
    try:
        for tree in trees:
            await checkouts.add_detached(*tree)
        yield [path for _, path, _ in trees]
    finally:
        try:
            for repo, path, _ in trees:
                await checkouts.remove(repo, path, None)
            await asyncio.to_thread(shutil.rmtree, folder, ignore_errors=True)
        finally:
            RUNNING.discard(folder.name)
