"""Reviewing in a real browser: the changes, comments on lines, a conflict, a merge."""

from __future__ import annotations

import subprocess

from playwright.sync_api import Browser, expect

from tests.git_repo import ENVIRONMENT
from tests.integration.own_core import Core
from tests.web.browser import Visitor
from tests.web.world import BEGUN, World


def git(world: World, *words: str) -> str:
    done = subprocess.run(
        ["git", *words], cwd=world.repo, env=ENVIRONMENT, capture_output=True, text=True, check=True
    )
    return done.stdout


def test_work_is_rejected_with_comments_on_lines(browser: Browser, core: Core, world: World) -> None:
    task = world.ids["review"]
    with Visitor(browser, core) as visitor:
        page = visitor.open(f"/tasks/{task}")
        expect(page.locator(".lines tr.both .fresh")).to_contain_text("return exact(lines)")
        page.get_by_role("button", name="Comment on line 5").click()
        page.get_by_role("textbox", name="Comment on line 5").fill("Round it once, at the end")
        page.get_by_role("button", name="Keep").click()
        page.reload()
        expect(page.get_by_role("textbox", name="Comment on line 5")).to_have_value(
            "Round it once, at the end"
        )
        expect(page.locator("#remarks")).to_contain_text("1 comment")
        page.get_by_label("What is to be done").fill("Nearly there")
        page.get_by_role("button", name="Reject", exact=True).click()
        expect(page.locator(".said-of")).to_contain_text("Round it once, at the end")
        expect(page.locator(".facts .pill").first).to_have_text("in progress")
        expect(page.locator("#review")).to_have_count(0)
        page.get_by_label("Move to").select_option("REVIEW")
        page.get_by_role("button", name="Move").click()
        expect(page.locator("#review")).to_be_visible()
        assert page.locator("#comments").input_value() == "[]"


def test_a_conflict_is_shown_and_a_clean_merge_lands(browser: Browser, core: Core, world: World) -> None:
    task = world.ids["review"]
    (world.repo / "invoice.py").write_text(BEGUN.replace("return sum(lines)", "return round(sum(lines))"))
    git(world, "commit", "-qam", "Round")
    with Visitor(browser, core) as visitor:
        page = visitor.open(f"/tasks/{task}")
        page.get_by_role("button", name="Approve").click()
        expect(page.locator(".entry", has_text="approved").first).to_be_visible()
        page.get_by_role("button", name="Merge").click()
        expect(page.locator("#refused")).to_contain_text("invoice.py")
        expect(page.locator(".clash")).to_contain_text("return round(sum(lines))")
        expect(page.locator(".clash")).to_contain_text("return exact(lines)")
        (world.repo / "invoice.py").write_text(BEGUN)
        git(world, "commit", "-qam", "Not so")
        page = visitor.open(f"/tasks/{task}")
        page.get_by_role("button", name="Rebase").click()
        expect(page.locator(".entry", has_text="rebased").first).to_be_visible()
        page.get_by_role("button", name="Merge").click()
        expect(page.locator(".facts .pill").first).to_have_text("completed")
    assert "return exact(lines)" in git(world, "show", "main:invoice.py")


def test_an_agent_is_started_and_watched_at_work(browser: Browser, core: Core, world: World) -> None:
    with Visitor(browser, core) as visitor:
        page = visitor.open("/tasks/new")
        page.get_by_label("Title").fill("Lower the rate")
        page.get_by_label("Project").select_option(label="Shop")
        page.get_by_role("button", name="Create").click()
        page.get_by_role("button", name="Start the agent").click()
        step = page.locator("#steps .step", has_text="looking at the rate <b>now</b>")
        expect(step).to_be_visible()
        expect(page.get_by_role("log", name="Log of the running job")).to_contain_text("rate <b>now</b>")
        expect(page.locator(".facts .pill").first).to_have_text("in progress")
        world.go.touch()
        expect(page.locator("#review")).to_be_visible()
        expect(page.locator(".lines tr.both .fresh")).to_contain_text("rate = 7")
        expect(page.locator("td", has_text="succeeded")).to_be_visible()
        page.get_by_role("link", name="auto").click()
        expect(page.locator(".log")).to_contain_text("changed the rate")


def test_a_card_whose_work_clashes_is_marked(browser: Browser, core: Core, world: World) -> None:
    task = next(
        one for one in core.modern().done("tasks_list", filter="REVIEW")["tasks"] if "rate" in one["title"]
    )["task_id"]
    with Visitor(browser, core) as visitor:
        page = visitor.open("/")
        expect(page.locator(f"#c-{task}")).to_be_visible()
        expect(page.locator(f"#c-{task} .pill.conflict")).to_have_count(0)
        (world.repo / "invoice.py").write_text(
            git(world, "show", "main:invoice.py").replace("rate = 19", "rate = 16")
        )
        git(world, "commit", "-qam", "Another rate")
        page.reload()
        expect(page.locator(f"#c-{task} .pill.conflict")).to_be_visible()


def test_a_job_is_cancelled_and_run_again(browser: Browser, core: Core, world: World) -> None:
    world.go.unlink(missing_ok=True)
    with Visitor(browser, core) as visitor:
        page = visitor.open("/tasks/new")
        page.get_by_label("Title").fill("Lower it again")
        page.get_by_label("Project").select_option(label="Shop")
        page.get_by_role("button", name="Create").click()
        page.get_by_role("button", name="Start the agent").click()
        expect(page.locator("#steps .step").first).to_be_visible()
        page = visitor.open("/jobs")
        page.get_by_role("button", name="Cancel job_").click()
        expect(page.locator(".facts .pill").first).to_have_text("canceled")
        first = page.url
        page.get_by_role("button", name="Retry").click()
        expect(page.locator("#steps .step").first).to_be_visible()
        assert page.url != first
        world.go.touch()
        expect(page.locator(".facts .pill").first).not_to_have_text("running")
