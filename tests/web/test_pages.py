"""The other pages in a real browser: what can be done there, and whether everybody can read them."""

from __future__ import annotations

from pathlib import Path

import pytest
from playwright.sync_api import Browser, expect

from tests.integration.own_core import Core
from tests.web.browser import PHONE, Visitor, ask, sign_in
from tests.web.world import World

MEASURE = (Path(__file__).parent / "measure.js").read_text()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_page_can_be_read_by_everybody(browser: Browser, core: Core, world: World, scheme: str) -> None:
    with Visitor(browser, core, color_scheme=scheme) as visitor:
        found = {path: visitor.open(path).evaluate(MEASURE) for path in world.pages()}
        visitor.page.goto(core.url + "/signin")
        found["/signin"] = visitor.page.evaluate(MEASURE)
    assert {path: problems for path, problems in found.items() if problems} == {}


def test_no_page_is_wider_than_a_phone(browser: Browser, core: Core, world: World) -> None:
    with Visitor(browser, core, viewport=PHONE) as visitor:
        wide = "document.documentElement.scrollWidth"
        found = {path: visitor.open(path).evaluate(wide) for path in world.pages()}
    assert {path: width for path, width in found.items() if width > PHONE["width"]} == {}


def test_a_plan_is_made_from_a_template_and_worked_off(browser: Browser, core: Core) -> None:
    with Visitor(browser, core) as visitor:
        page = visitor.open("/plans")
        page.get_by_role("link", name="New plan").click()
        page.get_by_role("link", name="Bug fix").click()
        fields = page.locator("form input[required]")
        for number in range(fields.count()):
            fields.nth(number).fill("totals")
        page.get_by_label("Title of the plan").fill("Repair the totals")
        page.get_by_role("button", name="Preview").click()
        expect(page.locator("#preview li").first).to_be_visible()
        page.get_by_label("Title of the plan").fill("Repair the totals")
        page.get_by_role("button", name="Make the plan").click()
        expect(page.get_by_role("heading", level=1)).to_have_text("Repair the totals")
        tick = page.locator(".tick").first
        assert tick.get_attribute("aria-pressed") == "false"
        tick.click()
        expect(page.locator(".tick").first).to_have_attribute("aria-pressed", "true")
        page.locator("summary", has_text="Add a checkpoint").first.click()
        page.get_by_role("textbox", name="Note").first.fill("seen it fail")
        page.get_by_role("button", name="Add").first.click()
        expect(page.locator(".entry", has_text="seen it fail")).to_be_visible()
        page.get_by_label("Status").select_option("paused")
        page.get_by_role("button", name="Set").click()
        expect(page.locator(".pill.paused").first).to_be_visible()


def test_a_proposal_becomes_a_plan(browser: Browser, core: Core, world: World) -> None:
    with Visitor(browser, core) as visitor:
        page = visitor.open("/plans")
        page.get_by_label("Title of the plan").fill("As proposed")
        page.get_by_role("button", name="Accept").click()
        expect(page.get_by_role("heading", level=1)).to_have_text("As proposed")
        expect(page.locator(".ticks")).to_contain_text("Proposed")


def test_memory_is_searched_and_an_outcome_recorded(browser: Browser, core: Core) -> None:
    with Visitor(browser, core) as visitor:
        page = visitor.open("/memory")
        page.get_by_label("What to look for").fill("SQLite")
        page.keyboard.press("Enter")
        entry = page.locator(".entry", has_text="SQLite by default")
        expect(entry).to_be_visible()
        entry.get_by_text("Record the outcome").click()
        entry.get_by_label("Outcome").fill("It held")
        entry.get_by_role("button", name="Save").click()
        expect(page.locator(".entry", has_text="Outcome It held")).to_be_visible()
        page.get_by_label("What to look for").fill("nothing like this")
        page.keyboard.press("Enter")
        expect(page.get_by_text("Nothing like it was decided.")).to_be_visible()
        page.goto(core.url + "/memory?q=test")
        page.get_by_role("button", name="It worked").click()
        expect(page.get_by_text("100 % of 1 uses worked")).to_be_visible()


def test_a_token_is_minted_shown_once_and_revoked(browser: Browser, core: Core) -> None:
    with Visitor(browser, core) as visitor:
        page = visitor.open("/tokens")
        page.get_by_label("Name").fill("for a test")
        page.get_by_label("Profile").select_option("viewer")
        page.get_by_role("button", name="Mint").click()
        secret = page.locator("#secret").inner_text()
        assert secret.startswith("mcp_")
        assert core.modern(secret).done("task_list") is not None
        page = visitor.open("/tokens")
        assert secret not in page.content()
        visitor.agrees = True
        page.get_by_role("button", name="Revoke for a test").click()
        expect(page.locator("tr.over", has_text="for a test")).to_be_visible()
    assert core.request("GET", "/profile/mcp/tokens", secret).status_code == 403


def test_settings_are_changed_and_the_audit_tells_who_did_it(browser: Browser, core: Core) -> None:
    with Visitor(browser, core) as visitor:
        page = visitor.open("/settings")
        page.get_by_label("general.require_review_approval").select_option("yes")
        page.get_by_label("general.max_concurrent_agents").fill("0")
        page.get_by_role("button", name="Save").click()
        expect(page.get_by_role("alert")).to_contain_text("general.max_concurrent_agents")
        page.get_by_label("general.max_concurrent_agents").fill("2")
        page.get_by_role("button", name="Save").click()
        expect(page.locator("tr", has_text="require_review_approval")).to_contain_text("changed")
        page = visitor.open("/audit?kind=settings")
        row = page.locator("tbody tr").first
        expect(row).to_contain_text("settings.updated")
        expect(row).to_contain_text("web:change_settings")
        page = visitor.open("/audit?ok=no")
        assert "settings.updated" not in page.locator("table, .nothing").first.inner_text()


def test_a_job_shows_its_steps_its_log_and_its_patch(browser: Browser, core: Core, world: World) -> None:
    with Visitor(browser, core) as visitor:
        page = visitor.open(f"/jobs/{world.ids['job']}")
        expect(page.locator(".step")).to_have_count(2)
        fold = page.locator(".step details")
        expect(fold.locator("pre")).to_be_hidden()
        fold.locator("summary").click()
        expect(fold.locator("pre")).to_contain_text("reading")
        expect(page.locator(".log .ansi-red")).to_have_text("red")
        page.get_by_role("link", name="patch.diff").click()
        expect(page.locator(".diff summary").first).to_contain_text("shop/invoice.py")
        expect(page.locator(".lines tr.both .hk").first).to_have_text("def")
        page = visitor.open("/jobs?state=FAILED")
        expect(page.locator("td", has_text="TEST_FAILED")).to_be_visible()


def test_insight_counts_what_it_plots(browser: Browser, core: Core, world: World) -> None:
    with Visitor(browser, core) as visitor:
        page = visitor.open("/insight?days=7")
        expect(page.locator(".sums")).to_contain_text("$1.25")
        expect(page.locator("svg.plot")).to_have_count(5)
        assert page.locator("svg.plot rect title", has_text="codex $1.25").count() == 1


def test_a_project_is_made_with_its_repository(browser: Browser, core: Core, world: World) -> None:
    with Visitor(browser, core) as visitor:
        page = visitor.open("/projects")
        form = page.locator("form", has=page.get_by_role("button", name="Create"))
        form.get_by_label("Name").fill("Second")
        form.get_by_label("Repositories").fill(str(world.repo / "missing"))
        form.get_by_role("button", name="Create").click()
        expect(form.get_by_role("alert")).to_contain_text("missing")
        form.get_by_label("Repositories").fill(str(world.repo))
        form.get_by_role("button", name="Create").click()
        made = page.locator(".panel", has_text="Second").first
        expect(made).to_contain_text("shop")
        made.get_by_text("Change it").click()
        made.get_by_label("Gate command").fill("make check")
        made.get_by_role("button", name="Save").click()
        expect(made.locator("dl")).to_contain_text("make check")


def test_a_bad_address_is_answered_with_a_page(core: Core) -> None:
    cookie = "; ".join(f"{name}={value}" for name, value in sign_in(core, core.token).items())
    headers = {"Accept": "text/html", "Cookie": cookie}
    for path, status in {
        "/tasks/none": 404,
        "/plans/none": 404,
        "/plans?status=none": 422,
        "/sessions/none": 404,
        "/jobs/none": 404,
        "/templates/none": 422,
        "/insight?days=1": 422,
        "/audit?before=x": 422,
        "/board/more/NONE": 422,
        "/board/more/DONE?after=x": 422,
    }.items():
        answer = ask(core, "GET", path, headers=headers)
        assert (answer.status_code, "That did not work" in answer.text) == (status, True), path
