"""Batches: a specification file becomes a durable job that never pays for an article twice."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from quarterdeck.config import BreakerSettings
from quarterdeck.core import batches, content
from quarterdeck.core.context import Core
from quarterdeck.domain.callers import SYSTEM
from quarterdeck.domain.errors import Invalid, NotFound
from quarterdeck.store import log
from tests.integration.content_core import (
    ANN,
    ARTICLE,
    BOB,
    KEYS,
    LOCAL,
    asked_for,
    batch_text,
    content_core,
    ended,
    put_batch,
    set_keys,
    until,
)
from tests.model_server import ModelServer, Reply

THREE = ("alpha", "beta", "gamma")


@pytest.fixture
def server() -> Iterator[ModelServer]:
    with ModelServer() as server:
        server.answer = lambda asked: Reply(ARTICLE)
        yield server


@pytest.fixture(autouse=True)
def keys(monkeypatch: pytest.MonkeyPatch) -> None:
    set_keys(monkeypatch)


async def events(core: Core, kind: str) -> int:
    return sum(event.kind == kind for event in await core.db.read(SYSTEM, log.after, 0, 10_000))


def test_a_dry_run_tells_everything_and_does_nothing(
    server: ModelServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in KEYS:
        monkeypatch.delenv(name)
    put_batch(tmp_path, "first", *THREE)

    async def run() -> None:
        async with content_core(tmp_path, server) as core:
            seen = await batches.preview(core, ANN, "first")
            assert [article.slug for article in seen.spec.articles] == list(THREE)
            assert (seen.done, seen.run) == (frozenset(), None)
            assert (await batches.status(core, ANN)).runs == []
            assert await events(core, "job.queued") == 0
        assert server.requests == []
        assert [file.name for file in (tmp_path / "batches").iterdir()] == ["first.md"]

    asyncio.run(run())


def test_a_batch_writes_every_article_once_with_its_usage_and_its_file(
    server: ModelServer, tmp_path: Path, database_url: str
) -> None:
    put_batch(tmp_path, "first", *THREE)
    server.script("openai", Reply(f"```markdown\n{ARTICLE}\n```"), Reply("Too short to leverage."))

    async def run() -> None:
        async with content_core(tmp_path, server, database_url=database_url) as core:
            queued = await batches.start(core, LOCAL, "first", "openai")
            assert (queued.job.kind, queued.job.state, queued.counts) == ("content", "QUEUED", {"pending": 3})
            done = await ended(core, LOCAL, queued)
            assert (done.job.state, done.job.attempt, done.counts) == ("SUCCEEDED", 1, {"completed": 3})
            assert done.job.result == {"completed": 3, "failed": 0, "total": 3}
            assert asked_for(server) == list(THREE)
            assert {(a.provider, a.temperature, a.max_tokens) for a in server.requests} == {
                ("openai", 0.7, 4000)
            }
            report = await content.usage(core, LOCAL, "day")
            assert (report.total.requests, set(report.by_purpose)) == (3, {"batch"})
            assert await events(core, "job.progress") == 3

            [shown] = (await batches.batch_status(core, LOCAL, "first")).runs
            assert [(item.slug, item.status, item.content) for item in shown.items] == [
                (slug, "completed", None) for slug in THREE
            ]
            assert shown.items[0].problems == []
            assert [problem.split(":")[0] for problem in shown.items[1].problems] == [
                "4 words; 600 to 1500 wanted",
                "banned words",
                "fewer than two section headings (##)",
            ]
            [page] = (await batches.batch_status(core, LOCAL, "first", page=(1, 1))).runs
            assert [(item.slug, item.content) for item in page.items] == [("beta", "Too short to leverage.")]

        file = (tmp_path / "batches" / "first" / "alpha.md").read_text()
        _, front, text = file.split("---\n", 2)
        facts = yaml.safe_load(front)
        assert text.strip() == ARTICLE
        assert (facts["title"], facts["slug"], facts["service"], facts["difficulty"]) == (
            "About alpha",
            "alpha",
            "Pagehost",
            "beginner",
        )
        assert (facts["provider"], facts["model"], facts["batch"]) == ("openai", "gpt-5.4-mini", "first")
        assert "generated_at" in facts and "problems" not in facts

    asyncio.run(run())


def test_a_run_that_is_live_is_returned_and_a_finished_batch_costs_nothing(
    server: ModelServer, tmp_path: Path
) -> None:
    put_batch(tmp_path, "first", *THREE)
    gate = threading.Event()
    server.script("gemini", Reply(ARTICLE, gate=gate))

    async def run() -> None:
        async with content_core(tmp_path, server) as core:
            first = await batches.start(core, ANN, "first")
            await until(lambda: len(server.requests) == 1)
            (tmp_path / "batches" / "first.md").unlink()
            again = await batches.start(core, ANN, "first", "claude")
            assert (again.job.id, again.job.state) == (first.job.id, "RUNNING")
            gate.set()
            await ended(core, ANN, first)
            put_batch(tmp_path, "first", *THREE)
            over = await batches.start(core, ANN, "first")
            assert (over.job.id, over.job.state) == (first.job.id, "SUCCEEDED")
            assert len(server.requests) == 3

            put_batch(tmp_path, "first", "alpha", "delta", "beta")
            assert (await batches.preview(core, ANN, "first")).done == {"alpha", "beta", "gamma"}
            more = await ended(core, ANN, await batches.start(core, ANN, "first"))
            assert (more.job.state, more.counts) == ("SUCCEEDED", {"completed": 3})
            assert more.job.id != first.job.id
            assert asked_for(server) == [*THREE, "delta"]
            [page] = (await batches.batch_status(core, ANN, "first", page=(0, 9))).runs
            assert [bool(item.content) for item in page.items] == [True] * 3

    asyncio.run(run())


def test_calls_at_once_start_one_run(server: ModelServer, tmp_path: Path, database_url: str) -> None:
    put_batch(tmp_path, "first", *THREE)

    async def run() -> None:
        async with content_core(tmp_path, server, database_url=database_url) as core:
            runs = await asyncio.gather(*(batches.start(core, ANN, "first") for _ in range(6)))
            assert len({run.job.id for run in runs}) == 1
            await ended(core, ANN, runs[0])
            assert asked_for(server) == list(THREE)

    asyncio.run(run())


def test_a_failed_article_is_tried_again_and_only_it(server: ModelServer, tmp_path: Path) -> None:
    put_batch(tmp_path, "first", *THREE)
    server.script("gemini", Reply(ARTICLE), Reply(status=500), Reply(status=500), Reply(ARTICLE))

    async def run() -> None:
        async with content_core(tmp_path, server, retries=1) as core:
            first = await ended(core, ANN, await batches.start(core, ANN, "first"))
            assert (first.job.state, first.job.reason_code) == ("FAILED", "ITEMS_FAILED")
            assert (first.job.summary, first.counts) == (
                "2 of 3 written, 1 failed",
                {"completed": 2, "failed": 1},
            )
            assert asked_for(server) == ["alpha", "beta", "beta", "gamma"], "one retry an article"
            [shown] = (await batches.batch_status(core, ANN, "first")).runs
            assert shown.items[1].error == "gemini failed with HTTP 500"
            second = await ended(core, ANN, await batches.start(core, ANN, "first"))
            assert second.job.state == "SUCCEEDED"
            assert asked_for(server)[4:] == ["beta"]
            assert (await content.usage(core, ANN, "day")).total.requests == 3

    asyncio.run(run())


def test_a_provider_that_goes_down_stops_the_batch_and_a_later_call_goes_on(
    server: ModelServer, tmp_path: Path
) -> None:
    put_batch(tmp_path, "first", *THREE, "delta")
    server.script("gemini", Reply(ARTICLE), Reply(status=503))

    async def run() -> None:
        breaker = BreakerSettings(threshold=1, reset_seconds=0.3)
        async with content_core(tmp_path, server, breaker=breaker) as core:
            first = await ended(core, ANN, await batches.start(core, ANN, "first"))
            assert (first.job.state, first.job.reason_code) == ("FAILED", "PROVIDER_UNAVAILABLE")
            assert first.counts == {"completed": 1, "failed": 1, "pending": 2}
            await asyncio.sleep(0.3)
            second = await ended(core, ANN, await batches.start(core, ANN, "first"))
            assert second.job.state == "SUCCEEDED"
            assert asked_for(server) == ["alpha", "beta", "beta", "gamma", "delta"]

    asyncio.run(run())


def test_a_refused_key_stops_the_batch_at_the_first_article(server: ModelServer, tmp_path: Path) -> None:
    put_batch(tmp_path, "first", *THREE)
    server.answer = lambda asked: Reply(status=401)

    async def run() -> None:
        async with content_core(tmp_path, server) as core:
            first = await ended(core, ANN, await batches.start(core, ANN, "first"))
            assert (first.job.state, first.job.reason_code) == ("FAILED", "PROVIDER_REFUSED")
            assert "GEMINI_API_KEY" in (first.job.summary or "")
            assert len(server.requests) == 1

    asyncio.run(run())


def test_an_answer_without_text_is_paid_but_not_kept(server: ModelServer, tmp_path: Path) -> None:
    put_batch(tmp_path, "first", "alpha")
    server.script("gemini", Reply(""))

    async def run() -> None:
        async with content_core(tmp_path, server) as core:
            first = await ended(core, ANN, await batches.start(core, ANN, "first"))
            assert first.counts == {"failed": 1}
            assert (await content.usage(core, ANN, "day")).total.requests == 1

    asyncio.run(run())


@pytest.mark.parametrize("batch_id", ["../secret", "a/b", "", "nul\0", ".hidden"])
def test_a_path_is_refused_and_an_unknown_name_is_not_found(
    server: ModelServer, tmp_path: Path, batch_id: str
) -> None:
    (tmp_path / "secret.md").write_text(batch_text("alpha"))

    async def run() -> None:
        async with content_core(tmp_path, server) as core:
            for call in (batches.start, batches.preview, batches.batch_status):
                with pytest.raises(Invalid):
                    await call(core, ANN, batch_id)
                with pytest.raises(NotFound):
                    await call(core, ANN, "unknown")

    asyncio.run(run())


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        (b"**Service:** x\n\xff\n", "line 2: not UTF-8"),
        (b"x" * (1 << 20) + b"x", "larger than 1 MiB"),
        (b"### Article 1: A\n```yaml\nSLUG: a b\n```\n", "line 3: article 1 needs a SLUG"),
    ],
)
def test_a_file_that_is_no_specification_is_refused_with_its_line(
    server: ModelServer, tmp_path: Path, raw: bytes, message: str
) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "bad.md").write_bytes(raw)

    async def run() -> None:
        async with content_core(tmp_path, server, batch_dir=Path("elsewhere")) as core:
            with pytest.raises(Invalid, match=message):
                await batches.start(core, ANN, "bad")
            assert (await batches.status(core, ANN)).runs == []

    asyncio.run(run())


def test_two_users_run_one_file_each_for_themselves(
    server: ModelServer, tmp_path: Path, database_url: str
) -> None:
    put_batch(tmp_path, "first", "alpha")

    async def run() -> None:
        async with content_core(tmp_path, server, database_url=database_url) as core:
            mine = await ended(core, ANN, await batches.start(core, ANN, "first"))
            with pytest.raises(NotFound):
                await batches.batch_status(core, BOB, "first")
            with pytest.raises(NotFound):
                await batches.finished(core, BOB, mine.job.id, 1)
            assert (await batches.preview(core, BOB, "first")).done == frozenset()
            theirs = await ended(core, BOB, await batches.start(core, BOB, "first"))
            assert theirs.job.id != mine.job.id
            assert len(server.requests) == 2
            assert (await content.usage(core, BOB, "day")).total.requests == 1
        files = sorted(file.relative_to(tmp_path / "batches") for file in tmp_path.rglob("alpha.md"))
        assert [str(file) for file in files] == ["first/@ann/alpha.md", "first/@bob/alpha.md"]

    asyncio.run(run())


def test_a_disk_that_refuses_drafts_costs_the_files_only(server: ModelServer, tmp_path: Path) -> None:
    put_batch(tmp_path, "first", "alpha")
    (tmp_path / "batches" / "first").write_text("a file where the folder should be")

    async def run() -> None:
        async with content_core(tmp_path, server) as core:
            done = await ended(core, LOCAL, await batches.start(core, LOCAL, "first"))
            assert done.job.state == "SUCCEEDED"

    asyncio.run(run())
