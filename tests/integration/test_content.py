"""Briefs: made by hand or out of a plan, written by two models, each user's own."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from quarterdeck.config import BreakerSettings
from quarterdeck.core import batches, content, plans
from quarterdeck.core.content import BriefView
from quarterdeck.core.context import Core
from quarterdeck.domain.callers import SYSTEM, Caller
from quarterdeck.domain.errors import Conflict, Invalid, NotFound, RateLimited, Unavailable
from quarterdeck.store import content as rows
from tests.integration.content_core import ANN, ARTICLE, BOB, content_core, ended, set_keys, until
from tests.model_server import ModelServer, Reply


@pytest.fixture
def server() -> Iterator[ModelServer]:
    with ModelServer() as server:
        yield server


@pytest.fixture(autouse=True)
def keys(monkeypatch: pytest.MonkeyPatch) -> None:
    set_keys(monkeypatch)


async def new_brief(core: Core, caller: Caller = ANN, **fields: Any) -> str:
    wanted = {"title": "Creating a page", "content_type": "help_article", **fields}
    return (await content.create(core, caller, **wanted)).brief.id


async def brief(core: Core, brief_id: str, caller: Caller = ANN) -> BriefView:
    return await content.get(core, caller, brief_id)


def test_a_brief_keeps_what_it_was_given(server: ModelServer, tmp_path: Path, database_url: str) -> None:
    async def run() -> None:
        async with content_core(tmp_path, server, database_url=database_url) as core:
            plan = (await plans.create(core, ANN, title="Docs")).plan
            made = await content.create(
                core,
                ANN,
                title="Creating a page",
                content_type="blog_post",
                service="Pagehost",
                keywords=["page", "ünïcode 🎉"],
                target_word_count=500,
                description="How it is done",
                difficulty="advanced",
                plan_slug=plan.slug,
            )
            assert (made.brief.status, made.plan_slug) == ("pending", plan.slug)
            view = await brief(core, made.brief.id)
            assert view.brief == made.brief
            assert (view.plan_slug, view.total_cost, view.brief.best_content) == (plan.slug, 0, None)
            listed = await content.listing(core, ANN, status="pending", limit=1000)
            assert [found.brief.id for found in listed] == [made.brief.id]
            assert await content.listing(core, ANN, status="failed") == []
            with pytest.raises(NotFound):
                await new_brief(core, plan_slug="no-such-plan")

    asyncio.run(run())


def test_the_list_is_newest_first_and_clamped(server: ModelServer, tmp_path: Path) -> None:
    async def run() -> None:
        async with content_core(tmp_path, server) as core:
            made = [await new_brief(core, title=f"Brief {n}") for n in range(25)]
            for limit, shown in ((20, 20), (0, 1), (-5, 1), (1000, 25)):
                listed = await content.listing(core, ANN, limit=limit)
                assert [found.brief.id for found in listed] == made[::-1][:shown]

    asyncio.run(run())


def test_full_is_a_draft_by_the_default_model_refined_by_claude(
    server: ModelServer, tmp_path: Path, database_url: str
) -> None:
    async def run() -> None:
        async with content_core(tmp_path, server, database_url=database_url) as core:
            brief_id = await new_brief(core, service="Pagehost", keywords=["page"], description="About pages")
            server.script("gemini", Reply("```markdown\nThe draft.\n```"))
            server.script("claude", Reply("The refined text."))
            done, view = await batches.write_brief(core, ANN, brief_id)
            found = view.brief
            assert (done.job.state, done.counts) == ("SUCCEEDED", {"completed": 1})
            assert (found.status, found.draft_output, found.refined_output, found.final_content) == (
                "review",
                "The draft.",
                "The refined text.",
                "The refined text.",
            )
            assert found.best_content == "The refined text."
            draft, refine = server.requests
            assert (draft.provider, refine.provider) == ("gemini", "claude")
            for said in ("Title: Creating a page", "Service: Pagehost", "About pages", "about 800 words"):
                assert said in draft.prompt and said in refine.prompt
            assert refine.prompt.endswith("The draft.")
            assert "technical writer" in draft.system
            assert [(entry["stage"], entry["provider"], entry["ok"]) for entry in found.generation_log] == [
                ("draft", "gemini", True),
                ("refine", "claude", True),
            ]
            assert "800 words" not in str(found.generation_log)
            assert view.used is not None
            assert (view.used.requests, view.used.unknown) == (2, 0)
            assert view.total_cost == pytest.approx(sum(entry["cost"] for entry in found.generation_log))
            report = await content.usage(core, ANN, "week")
            assert set(report.by_purpose) == {"draft", "refine"}
            assert set(report.by_provider) == {"gemini", "claude"}

    asyncio.run(run())


def test_draft_and_refine_can_be_asked_for_one_by_one(server: ModelServer, tmp_path: Path) -> None:
    async def run() -> None:
        async with content_core(tmp_path, server) as core:
            brief_id = await new_brief(core)
            with pytest.raises(Invalid) as refusal:
                await batches.write_brief(core, ANN, brief_id, mode="refine")
            assert refusal.value.field == "mode"
            assert (await brief(core, brief_id)).brief.status == "pending"

            server.script("openai", Reply("Draft 1"), Reply("Refined 1"), Reply("Draft 2"))
            _, view = await batches.write_brief(core, ANN, brief_id, mode="draft", provider="openai")
            assert (view.brief.status, view.brief.best_content) == ("review", "Draft 1")
            _, view = await batches.write_brief(core, ANN, brief_id, mode="refine", provider="openai")
            assert (view.brief.draft_output, view.brief.best_content) == ("Draft 1", "Refined 1")
            _, view = await batches.write_brief(core, ANN, brief_id, mode="draft", provider="openai")
            assert (view.brief.refined_output, view.brief.best_content) == (None, "Draft 2")

    asyncio.run(run())


def test_any_provider_with_a_key_does_for_both_stages(
    server: ModelServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("GEMINI_API_KEY")
    monkeypatch.delenv("ANTHROPIC_API_KEY")

    async def run() -> None:
        async with content_core(tmp_path, server) as core:
            brief_id = await new_brief(core)
            await batches.write_brief(core, ANN, brief_id, temperature=0.1, max_tokens=50)
            assert [asked.provider for asked in server.requests] == ["openai", "openai"]
            assert {(asked.temperature, asked.max_tokens) for asked in server.requests} == {(0.1, 50)}
            monkeypatch.delenv("OPENAI_API_KEY")
            with pytest.raises(Invalid) as refusal:
                await batches.queue_brief(core, ANN, brief_id)
            assert "set GEMINI_API_KEY" in refusal.value.message
            assert (await brief(core, brief_id)).brief.status == "review"

    asyncio.run(run())


@pytest.mark.parametrize(
    ("reply", "kind"),
    [
        (Reply(status=401), Invalid),
        (Reply(status=500), Unavailable),
        (Reply(status=429, headers={"retry-after": "600"}), RateLimited),
    ],
)
def test_a_failed_brief_says_why_and_a_second_go_mends_it(
    server: ModelServer, tmp_path: Path, reply: Reply, kind: type[Exception]
) -> None:
    async def run() -> None:
        async with content_core(tmp_path, server) as core:
            brief_id = await new_brief(core)
            server.script("gemini", Reply("The draft."))
            server.script("claude", reply)
            with pytest.raises(kind):
                await batches.write_brief(core, ANN, brief_id)
            failed = (await brief(core, brief_id)).brief
            assert (failed.status, failed.draft_output) == ("failed", "The draft.")
            assert failed.error_message == failed.generation_log[-1]["error"]
            _, view = await batches.write_brief(core, ANN, brief_id, mode="refine")
            assert (view.brief.status, view.brief.error_message) == ("review", None)
            assert len(server.of("gemini")) == 1

    asyncio.run(run())


def test_while_the_breaker_is_open_a_brief_is_refused_at_once(server: ModelServer, tmp_path: Path) -> None:
    async def run() -> None:
        async with content_core(tmp_path, server, breaker=BreakerSettings(threshold=1)) as core:
            first, second = await new_brief(core), await new_brief(core)
            server.script("gemini", Reply(status=500))
            with pytest.raises(Unavailable):
                await batches.write_brief(core, ANN, first)
            with pytest.raises(Unavailable, match="Agentic service temporarily unavailable"):
                await batches.queue_brief(core, ANN, second)
            assert (await brief(core, second)).brief.status == "pending"

    asyncio.run(run())


def test_a_queued_brief_passes_through_generating_to_review(server: ModelServer, tmp_path: Path) -> None:
    async def run() -> None:
        gate = threading.Event()
        async with content_core(tmp_path, server) as core:
            brief_id = await new_brief(core)
            server.script("gemini", Reply("The draft.", gate=gate))
            first = await batches.queue_brief(core, ANN, brief_id, mode="draft")
            assert first.job.id.startswith("job_") and len(first.job.id) >= 20
            await until(lambda: len(server.requests) == 1)
            assert (await brief(core, brief_id)).brief.status == "generating"
            again = await batches.queue_brief(core, ANN, brief_id, mode="full")
            assert again.job.id == first.job.id, "a brief is never paid for by two jobs at once"
            gate.set()
            await ended(core, ANN, first)
            assert (await brief(core, brief_id)).brief.status == "review"
            assert len(server.requests) == 1

    asyncio.run(run())


def test_pending_briefs_are_queued_oldest_first_as_one_job(
    server: ModelServer, tmp_path: Path, database_url: str
) -> None:
    async def run() -> None:
        async with content_core(tmp_path, server, database_url=database_url) as core:
            assert await batches.queue_pending(core, ANN) == (None, [])
            made = [await new_brief(core, title=f"Brief {n}") for n in range(7)]
            other = await new_brief(core, BOB)
            assert await batches.pending(core, ANN) == made[:5]
            done, brief_ids = await batches.queue_pending(core, ANN, mode="draft")
            assert done is not None and brief_ids == made[:5]
            done = await ended(core, ANN, done)
            assert (done.job.state, done.total) == ("SUCCEEDED", 5)
            statuses = [(await brief(core, brief_id)).brief.status for brief_id in made]
            assert statuses == ["review"] * 5 + ["pending"] * 2
            assert (await brief(core, other, BOB)).brief.status == "pending"

    asyncio.run(run())


def test_two_calls_at_once_queue_each_brief_once(
    server: ModelServer, tmp_path: Path, database_url: str
) -> None:
    async def run() -> None:
        async with content_core(tmp_path, server, database_url=database_url) as core:
            made = {await new_brief(core) for _ in range(10)}
            results = await asyncio.gather(
                *(batches.queue_pending(core, ANN, limit=5, mode="draft") for _ in range(4))
            )
            queued = [brief_id for _, brief_ids in results for brief_id in brief_ids]
            assert len(queued) == len(set(queued)) and set(queued) <= made
            for queued_run, _ in results:
                if queued_run is not None:
                    await ended(core, ANN, queued_run)
            assert len(server.requests) == len(queued)

    asyncio.run(run())


def test_briefs_a_stopped_job_did_not_reach_wait_again(server: ModelServer, tmp_path: Path) -> None:
    async def run() -> None:
        async with content_core(tmp_path, server) as core:
            made = [await new_brief(core) for _ in range(3)]
            server.script("gemini", Reply("The draft."), Reply(status=401))
            stopped, _ = await batches.queue_pending(core, ANN, mode="draft")
            assert stopped is not None
            stopped = await ended(core, ANN, stopped)
            assert (stopped.job.state, stopped.job.reason_code) == ("FAILED", "PROVIDER_REFUSED")
            statuses = [(await brief(core, brief_id)).brief.status for brief_id in made]
            assert statuses == ["review", "failed", "pending"]

    asyncio.run(run())


def test_a_published_brief_is_left_alone(server: ModelServer, tmp_path: Path) -> None:
    async def run() -> None:
        async with content_core(tmp_path, server) as core:
            brief_id = await new_brief(core)
            await core.db.tx(SYSTEM, rows.change_brief, brief_id, {"status": "published"})
            with pytest.raises(Conflict):
                await batches.queue_brief(core, ANN, brief_id)

    asyncio.run(run())


def test_a_text_that_misses_its_brief_is_kept_with_what_is_wrong(server: ModelServer, tmp_path: Path) -> None:
    async def run() -> None:
        async with content_core(tmp_path, server) as core:
            good, short, post = (
                await new_brief(core, target_word_count=700),
                await new_brief(core, target_word_count=700),
                await new_brief(core, content_type="social_post", target_word_count=50),
            )
            for brief_id, text in ((good, ARTICLE), (short, "Too short."), (post, "Short, as it should be.")):
                server.script("gemini", Reply(text))
                _, view = await batches.write_brief(core, ANN, brief_id, mode="draft")
                assert view.brief.best_content == text
                problems = view.brief.generation_log[-1].get("problems", [])
                assert bool(problems) == (brief_id == short)

    asyncio.run(run())


def test_a_plan_makes_one_brief_for_each_unfinished_task(
    server: ModelServer, tmp_path: Path, database_url: str
) -> None:
    async def run() -> None:
        async with content_core(tmp_path, server, database_url=database_url) as core:
            tasks = [plans.NewTask(f"Task {n}", f"Details {n}") for n in range(4)]
            phases = [plans.NewPhase("One", None, tasks[:2]), plans.NewPhase("Two", None, tasks[2:])]
            view = await plans.create(core, ANN, title="Launch", description="All of it", phases=phases)
            slug = view.plan.slug
            await plans.update_task(core, ANN, slug, 1, 0, status="completed")
            await plans.update_task(core, ANN, slug, 2, 1, status="skipped")

            made = await content.from_plan(
                core, ANN, slug, service="Pagehost", limit=1, target_word_count=900
            )
            assert ([found.title for found in made.briefs], made.already, made.left) == (["Task 1"], 0, 1)
            [found] = made.briefs
            assert (found.task_id, found.plan_id) == (view.phases[0].tasks[1].id, view.plan.id)
            assert (found.service, found.target_word_count, found.content_type) == (
                "Pagehost",
                900,
                "help_article",
            )
            for said in ("Launch", "All of it", "Details 1"):
                assert said in (found.description or "")
            made = await content.from_plan(core, ANN, slug)
            assert ([brief.title for brief in made.briefs], made.already, made.left) == (["Task 2"], 1, 0)
            made = await content.from_plan(core, ANN, slug)
            assert (made.briefs, made.already) == ([], 2)

            # One that failed does not stand in the way of another.
            await core.db.tx(SYSTEM, rows.change_brief, found.id, {"status": "failed"})
            made = await content.from_plan(core, ANN, slug)
            assert [brief.title for brief in made.briefs] == ["Task 1"]
            with pytest.raises(NotFound):
                await content.from_plan(core, BOB, slug)

    asyncio.run(run())


def test_calls_at_once_make_no_second_brief_for_a_task(
    server: ModelServer, tmp_path: Path, database_url: str
) -> None:
    async def run() -> None:
        async with content_core(tmp_path, server, database_url=database_url) as core:
            tasks = [plans.NewTask(f"Task {n}") for n in range(5)]
            view = await plans.create(core, ANN, title="Launch", phases=[plans.NewPhase("One", None, tasks)])
            made = await asyncio.gather(*(content.from_plan(core, ANN, view.plan.slug) for _ in range(5)))
            assert sum(len(one.briefs) for one in made) == 5

    asyncio.run(run())


def test_users_see_their_own_briefs_and_usage_only(
    server: ModelServer, tmp_path: Path, database_url: str
) -> None:
    async def run() -> None:
        async with content_core(tmp_path, server, database_url=database_url) as core:
            mine = await new_brief(core)
            await batches.write_brief(core, ANN, mine, mode="draft")
            assert await content.listing(core, BOB) == []
            for call in (
                content.get(core, BOB, mine),
                batches.queue_brief(core, BOB, mine),
                batches.write_brief(core, BOB, mine),
            ):
                with pytest.raises(NotFound):
                    await call
            assert (await content.usage(core, BOB, "year")).total.requests == 0
            status = await batches.status(core, BOB)
            assert (status.runs, sum(status.counts.values())) == ([], 0)
            assert (await batches.status(core, ANN)).counts["review"] == 1

            # What the admin has written for a user is that user's.
            admin = Caller(None, "maintainer", everyone=True)
            await batches.write_brief(core, admin, mine, mode="refine")
            assert (await content.usage(core, ANN, "year")).total.requests == 2
            assert len((await batches.status(core, ANN)).runs) == 2

    asyncio.run(run())
