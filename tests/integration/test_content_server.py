"""The content tools of a real core over MCP, and a batch that survives kill -9."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.core_process import CoreProcess
from tests.integration.content_core import ARTICLE, KEYS, put_batch
from tests.mcp_client import Client, Deck
from tests.model_server import ModelServer, Reply

ADMIN = "the admin secret of these tests"
SLUGS = [f"article-{number}" for number in range(1, 9)]


def core(folder: Path, server: ModelServer, **more: str) -> CoreProcess:
    """A core as its own process whose providers are the scripted server."""
    return CoreProcess(
        folder,
        {
            **server.environment,
            **KEYS,
            "NO_PROXY": "127.0.0.1",
            "QUARTERDECK_ADMIN_SECRET": ADMIN,
            "QUARTERDECK_CONTENT__RETRIES": "0",
            **more,
        },
    )


@pytest.fixture(scope="module")
def server() -> Iterator[ModelServer]:
    with ModelServer() as server:
        yield server


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("core")


@pytest.fixture(scope="module")
def deck(folder: Path, server: ModelServer) -> Iterator[Deck]:
    with (
        core(folder, server, QUARTERDECK_BREAKER__THRESHOLD="2") as running,
        Deck(running.url, ADMIN) as deck,
    ):
        yield deck


@pytest.fixture
def client(deck: Deck) -> Client:
    """A new user."""
    return deck.connect(surface="plans")


def ended(client: Client, batch_id: str | None = None) -> dict[str, Any]:
    """The newest run, or that of a batch, once it has ended."""
    end = time.monotonic() + 60
    arguments = {"batch_id": batch_id} if batch_id else {}
    while time.monotonic() < end:
        run: dict[str, Any] = client.done("content_status", **arguments)["batches"][0]
        if run["state"] not in ("QUEUED", "RUNNING", "STALE"):
            return run
        time.sleep(0.05)
    raise AssertionError(f"still {run}")


def test_a_prompt_is_answered_with_its_usage(client: Client, server: ModelServer) -> None:
    server.script("claude", Reply("Hello.", input_tokens=10, output_tokens=5))
    answer = client.done(
        "content_generate",
        prompt="Say hello",
        provider="claude",
        config={"temperature": 0.2, "max_tokens": 99},
    )
    assert answer == {
        "success": True,
        "content": "Hello.",
        "provider": "claude",
        "model": "claude-sonnet-4-6",
        "usage": {"input_tokens": 10, "output_tokens": 5, "cost": pytest.approx(0.000105)},
    }
    asked = server.requests[-1]
    assert (asked.prompt, asked.temperature, asked.max_tokens) == ("Say hello", 0.2, 99)
    stats = client.done("content_usage_stats", period="day")
    assert {key: stats[key] for key in ("success", "period", "requests", "input_tokens", "total_tokens")} == {
        "success": True,
        "period": "day",
        "requests": 1,
        "input_tokens": 10,
        "total_tokens": 15,
    }
    assert stats["by_provider"]["claude"]["cost"] == stats["by_purpose"]["prompt"]["cost"] == stats["cost"]
    assert stats["unknown_cost_requests"] == 0


@pytest.mark.parametrize(
    ("arguments", "field"),
    [
        ({}, "prompt"),
        ({"prompt": "a", "brief_id": "b"}, "prompt"),
        ({"prompt": ""}, "prompt"),
        ({"prompt": "a", "provider": "llama"}, "provider"),
        ({"prompt": "a", "config": {"temperature": 3}}, "config.temperature"),
        ({"prompt": "a", "config": {"max_tokens": 0}}, "config.max_tokens"),
        ({"prompt": "a", "config": {"top_p": 1}}, "config.top_p"),
        ({"brief_id": "b", "mode": "polish"}, "mode"),
    ],
)
def test_a_wrong_argument_is_named(
    client: Client, server: ModelServer, arguments: dict[str, Any], field: str
) -> None:
    before = len(server.requests)
    refusal = client.refused("content_generate", **arguments)
    assert (refusal["code"], refusal["field"]) == ("validation_error", field)
    assert len(server.requests) == before


def test_a_brief_goes_from_pending_to_review(client: Client, server: ModelServer) -> None:
    made = client.done(
        "content_brief_create",
        title="Creating a page",
        content_type="help_article",
        service="Pagehost",
        keywords=["page"],
        difficulty="beginner",
    )["brief"]
    assert (made["status"], made["target_word_count"], made["keywords"]) == ("pending", 800, ["page"])
    server.script("gemini", Reply("The draft."))
    server.script("claude", Reply("The text."))
    answer = client.done("content_generate", brief_id=made["id"], sync=True)
    assert (answer["success"], answer["queued"], answer["content"]) == (True, False, "The text.")
    found = client.done("content_brief_get", id=made["id"])["brief"]
    assert found == answer["brief"] == client.done("content_brief_get", brief_id=made["id"])["brief"]
    assert (found["status"], found["draft_output"], found["refined_output"], found["best_content"]) == (
        "review",
        "The draft.",
        "The text.",
        "The text.",
    )
    assert found["total_cost"] > 0 and len(found["generation_log"]) == 2
    assert (found["error_message"], found["final_content"]) == (None, "The text.")
    listed = client.done("content_brief_list", status="review")
    assert ([brief["id"] for brief in listed["briefs"]], listed["count"]) == ([made["id"]], 1)
    assert client.done("content_brief_list", status="pending")["count"] == 0


def test_a_queued_brief_answers_with_its_job(client: Client) -> None:
    made = client.done("content_brief_create", title="Creating a page")["brief"]
    answer = client.done("content_generate", brief_id=made["id"], mode="draft")
    assert answer["queued"] is True
    assert answer["job"]["job_id"].startswith("job_")
    assert ended(client)["state"] == "SUCCEEDED"
    assert client.done("content_status")["counts"] == {
        "pending": 0,
        "queued": 0,
        "generating": 0,
        "review": 1,
        "published": 0,
        "failed": 0,
    }


def test_pending_briefs_are_queued_in_the_shipped_shape(client: Client) -> None:
    made = [client.done("content_brief_create", title=f"Brief {n}")["brief"]["id"] for n in range(3)]
    answer = client.done("content_batch_generate", limit=2, mode="draft", dry_run=True)
    assert (answer["queued"], answer["brief_ids"]) == (0, made[:2])
    answer = client.done("content_batch_generate", limit=2, mode="draft")
    assert (answer["success"], answer["queued"], answer["brief_ids"]) == (True, 2, made[:2])
    assert ended(client)["completed"] == 2
    assert client.done("content_batch_generate", limit=-1, mode="draft")["brief_ids"] == made[2:]
    ended(client)
    assert client.done("content_batch_generate") == {"success": True, "queued": 0, "brief_ids": []}


def test_a_plan_becomes_briefs(client: Client) -> None:
    slug = client.done("plan_create", title="Docs", phases=[{"name": "One", "tasks": ["A", "B"]}])["plan"][
        "slug"
    ]
    answer = client.done("content_from_plan", plan_slug=slug, content_type="blog_post", limit=1)
    assert (answer["created"], answer["already_briefed"], answer["tasks_left"]) == (1, 0, 1)
    [made] = answer["briefs"]
    assert (made["title"], made["content_type"], made["plan_slug"]) == ("A", "blog_post", slug)
    assert client.refused("content_from_plan", plan_slug="none")["code"] == "not_found"


def test_a_batch_is_shown_before_and_while_and_after_it_runs(
    client: Client, server: ModelServer, folder: Path
) -> None:
    put_batch(folder, "guide", "one", "two")
    shown = client.done("content_batch_generate", batch_id="guide", dry_run=True)
    assert (shown["dry_run"], shown["total"], shown["to_generate"], shown["service"]) == (
        True,
        2,
        2,
        "Pagehost",
    )
    assert [article["slug"] for article in shown["articles"]] == ["one", "two"]
    assert shown["prompt_chars"] == sum(article["prompt_chars"] for article in shown["articles"]) > 500
    assert client.refused("content_status", batch_id="guide")["code"] == "not_found"

    gate = threading.Event()
    server.script("gemini", Reply(ARTICLE, gate=gate), Reply("Short."))
    started = client.done("content_batch_generate", batch_id="guide")
    assert (started["batch_id"], started["total"], started["queued"]) == ("guide", 2, 2)
    again = client.done("content_batch_generate", batch_id="guide", provider="openai")
    assert again["job_id"] == started["job_id"]
    gate.set()
    run = ended(client, "guide")
    assert (run["state"], run["completed"], run["failed"], run["pending"]) == ("SUCCEEDED", 2, 0, 0)
    assert run["started_at"] <= run["finished_at"]
    assert [article["slug"] for article in run["articles"]] == ["one", "two"]
    assert "content" not in run["articles"][0] and run["articles"][1]["problems"]

    page = client.done("content_status", batch_id="guide", include_content=True, limit=1)["batches"][0]
    assert (page["articles"][0]["content"], page["next_offset"]) == (ARTICLE, 1)
    page = client.done("content_status", batch_id="guide", include_content=True, offset=1)["batches"][0]
    assert ([article["content"] for article in page["articles"]], "next_offset" in page) == (
        ["Short."],
        False,
    )
    assert client.done("content_batch_generate", batch_id="guide", dry_run=True)["to_generate"] == 0
    assert client.refused("content_batch_generate", batch_id="../guide")["code"] == "validation_error"


def test_one_users_work_is_not_anothers(deck: Deck, client: Client, folder: Path) -> None:
    put_batch(folder, "mine", "one")
    made = client.done("content_brief_create", title="Mine")["brief"]["id"]
    client.done("content_batch_generate", batch_id="mine")
    ended(client, "mine")
    other = deck.connect(surface="plans")
    assert other.refused("content_brief_get", id=made)["code"] == "not_found"
    assert other.refused("content_generate", brief_id=made)["code"] == "not_found"
    assert other.refused("content_status", batch_id="mine")["code"] == "not_found"
    assert other.done("content_brief_list")["count"] == 0
    assert other.done("content_usage_stats", period="year")["requests"] == 0
    assert other.done("content_status")["batches"] == []


def test_a_viewer_reads_and_an_operator_writes(deck: Deck) -> None:
    viewer = deck.connect(deck.mint(profile="viewer")["token"], surface="plans")
    reads = {"content_brief_get", "content_brief_list", "content_status", "content_usage_stats"}
    assert {tool["name"] for tool in viewer.tools() if tool["name"].startswith("content_")} == reads
    assert viewer.refused("content_generate", prompt="Hello")["code"] == "permission_denied"
    operator = deck.connect(deck.mint(profile="operator")["token"], surface="plans")
    listed = [tool for tool in operator.tools() if tool["name"].startswith("content_")]
    assert len(listed) == 8
    assert all(tool["annotations"].get("destructiveHint") in (None, False) for tool in listed)


def test_an_open_breaker_is_told_at_once_and_shown_in_the_status(client: Client, server: ModelServer) -> None:
    server.script("openai", Reply(status=500), Reply(status=500))
    for _ in range(2):
        refusal = client.refused("content_generate", prompt="Hello", provider="openai")
        assert refusal["code"] == "service_unavailable"
    before = len(server.requests)
    refusal = client.refused("content_generate", prompt="Hello", provider="openai")
    assert (refusal["error"], refusal["code"]) == (
        "Agentic service temporarily unavailable",
        "service_unavailable",
    )
    assert len(server.requests) == before
    status = client.done("content_status")
    assert status["pipeline_available"] is True
    assert {name: (row["configured"], row["breaker"]) for name, row in status["providers"].items()} == {
        "claude": (True, "closed"),
        "gemini": (True, "closed"),
        "openai": (True, "open"),
    }


def test_no_key_is_written_anywhere(deck: Deck, folder: Path) -> None:
    for file in folder.rglob("*"):
        if file.is_file():
            found = file.read_bytes()
            assert not any(key.encode() in found for key in KEYS.values()), file


def test_killed_in_the_middle_a_batch_goes_on_and_no_kept_article_is_paid_again(tmp_path: Path) -> None:
    put_batch(tmp_path, "long", *SLUGS)
    with ModelServer() as server:
        server.answer = lambda asked: Reply(ARTICLE, delay=0.15)
        running = core(tmp_path, server)
        user = None
        for killed_at in (3, 6):
            running.start()
            with Deck(running.url, ADMIN) as deck:
                user = user or deck.mint()["token"]
                deck.connect(user, surface="plans").done("content_batch_generate", batch_id="long")
                server.wait_for(killed_at)
                running.kill9()
        with running, Deck(running.url, ADMIN) as deck:
            client = deck.connect(user, surface="plans")
            run = ended(client, "long")
            usage = client.done("content_usage_stats")
        assert (run["state"], run["completed"], run["attempt"]) == ("SUCCEEDED", len(SLUGS), 3)
        asked = Counter(
            next(slug for slug in SLUGS if f"Title: About {slug}\n" in request.prompt)
            for request in server.requests
        )
        assert set(asked) == set(SLUGS)
        twice = [slug for slug, count in asked.items() if count > 1]
        assert len(twice) <= 2 and max(asked.values()) <= 3, "only what was in flight is asked for again"
        assert sum(asked.values()) <= len(SLUGS) + 2
        assert usage["requests"] == len(SLUGS)
        drafts = list((tmp_path / "batches" / "long").rglob("*.md"))
        assert sorted(file.stem for file in drafts) == sorted(SLUGS)
