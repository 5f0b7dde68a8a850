"""A core in this process with a project of real repositories, for the tests of review and merge."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import AsyncIterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from pydantic import SecretStr

from quarterdeck.config import DatabaseSettings, GeneralSettings, SearchSettings, Settings
from quarterdeck.core import board, life, projects, reviews, tasks, worktrees
from quarterdeck.core.context import Core
from quarterdeck.domain.callers import Caller
from quarterdeck.domain.records import Task, Worktree
from quarterdeck.run.checks import check
from tests.git_repo import GitRepo

ANN = Caller("ann", "maintainer")
BOB = Caller("bob", "maintainer")


@dataclass
class Desk:
    """A core, and the repositories of its one project."""

    core: Core
    repos: list[GitRepo]
    project_id: str

    async def task(self, title: str = "Do it", **fields: str) -> Task:
        new = board.NewTask(title=title, project_id=self.project_id, task_type="AUTO", **fields)
        return await board.create(self.core, ANN, new)

    async def work(self, files: dict[str, str], title: str = "Do it", *, repo: int = 0) -> Task:
        """A task in review whose worktree holds these files, not committed."""
        task = await self.task(title)
        for name, content in files.items():
            path = Path((await worktrees.ensure(self.core, ANN, task.id))[repo].path, name)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(content)
        return await reviews.request(self.core, ANN, task.id, "Done.")

    async def worktrees(self, task: Task) -> list[Worktree]:
        return await worktrees.of(self.core, ANN, task.id)

    async def status(self, task: Task) -> str:
        return (await tasks.get(self.core, ANN, task.id)).task.status


_template: list[bytes] = []


async def template() -> bytes:
    """An empty database, made once: most of the time of a first start is the making of its tables."""
    if not _template:
        with tempfile.TemporaryDirectory() as folder:
            settings = Settings(search=SearchSettings(provider="off"))
            async with life.opened(settings, Path(folder), serving=False):
                pass
            _template.append(Path(folder, "quarterdeck.db").read_bytes())
    return _template[0]


@contextlib.asynccontextmanager
async def review_core(
    folder: Path,
    *,
    repos: int = 1,
    gate: str | None = None,
    database_url: str | None = None,
    **general: bool | str,
) -> AsyncIterator[Desk]:
    """A core without search. Where there was one before, it goes on with what that one left."""
    settings = Settings(
        database=DatabaseSettings(url=SecretStr(database_url) if database_url else None),
        search=SearchSettings(provider="off"),
        general=GeneralSettings(**{"worktree_base_ref_strategy": "local", **general}),  # type: ignore[arg-type]
    )
    data, paths = folder / "data", [folder / f"repo{number}" for number in range(repos)]
    fresh = not data.exists()
    data.mkdir(parents=True, exist_ok=True)
    if fresh and database_url is None:
        (data / "quarterdeck.db").write_bytes(await template())
    sources = [GitRepo(path) if fresh else GitRepo.at(path) for path in paths]
    async with life.opened(settings, data, serving=False) as core:
        core.check = partial(check, core)
        if not fresh:
            yield Desk(core, sources, (await projects.listing(core, ANN, 1))[0][0].id)
            return
        for repo in sources:
            repo.commit({"a.txt": "a\n", "b.txt": "b\n", ".gitignore": "*.log\n"}, "Begin")
        project, _ = await projects.create(
            core, ANN, name="p", repo_paths=[str(path) for path in paths], gate_command=gate
        )
        yield Desk(core, sources, project.id)
