"""A core in this process whose providers are a scripted model server, for the tests of content."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr

from quarterdeck.config import BreakerSettings, ContentSettings, DatabaseSettings, SearchSettings, Settings
from quarterdeck.core import batches, life
from quarterdeck.core.context import Core
from quarterdeck.domain.callers import Caller
from quarterdeck.domain.jobs import LIVE
from tests.model_server import ModelServer

KEYS = {
    "ANTHROPIC_API_KEY": "sk-ant-0123456789-of-the-tests",
    "GEMINI_API_KEY": "AIza-0123456789-of-the-tests",
    "OPENAI_API_KEY": "sk-proj-0123456789-of-the-tests",
}
ANN = Caller("ann", "operator")
BOB = Caller("bob", "operator")
LOCAL = Caller("local", "maintainer")
ARTICLE = "# A title\n\n## One\n\n" + "plain words " * 350 + "\n\n## Two\n\nThe end."


@contextlib.asynccontextmanager
async def content_core(
    folder: Path,
    server: ModelServer,
    *,
    database_url: str | None = None,
    breaker: BreakerSettings | None = None,
    **content: Any,
) -> AsyncIterator[Core]:
    """A core with no retries unless it is told otherwise, so that a test counts what it means."""
    settings = Settings(
        database=DatabaseSettings(url=SecretStr(database_url) if database_url else None),
        search=SearchSettings(provider="off"),
        content=ContentSettings(**{"retries": 0, **server.settings, **content}),
        breaker=breaker or BreakerSettings(),
    )
    async with life.opened(settings, folder) as core:
        yield core


def batch_text(*slugs: str) -> str:
    articles = "".join(
        f"### Article {number}: About {slug}\n\n```yaml\nSLUG: {slug}\nDIFFICULTY: beginner\n"
        "OUTLINE: [One, Two]\nPRIMARY_KEYWORD: pages\n```\n\n"
        for number, slug in enumerate(slugs, 1)
    )
    facts = "**Service:** Pagehost\n**Category:** First steps\n\n```yaml\nSERVICE_NAME: Pagehost\n```\n\n"
    return facts + articles


def put_batch(folder: Path, batch_id: str, *slugs: str) -> None:
    (folder / "batches").mkdir(exist_ok=True)
    (folder / "batches" / f"{batch_id}.md").write_text(batch_text(*slugs))


def asked_for(server: ModelServer) -> list[str]:
    """The slugs of a batch's articles in the order in which the server was asked for them."""
    lines = (line for asked in server.requests for line in asked.prompt.splitlines())
    return [line.removeprefix("Title: About ") for line in lines if line.startswith("Title: About ")]


def set_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every provider has a key, and no proxy stands between the core and the server."""
    monkeypatch.delenv("GOOGLE_API_KEY", raising=False)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    for name, value in KEYS.items():
        monkeypatch.setenv(name, value)


async def ended(core: Core, caller: Caller, run: batches.Run) -> batches.Run:
    """The run at its end."""
    run = await batches.finished(core, caller, run.job.id, 30)
    assert run.job.state not in LIVE, run
    return run


async def until(happened: Callable[[], bool]) -> None:
    """Return once something is so."""
    async with asyncio.timeout(30):
        while not happened():
            await asyncio.sleep(0.01)
