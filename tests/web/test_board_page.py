"""The board in a real browser: dragging, keys, filters, forms, and changes that others make."""

from __future__ import annotations

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.integration.own_core import Core
from tests.web.browser import PHONE, Visitor
from tests.web.world import World, prepared


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    """More cards than a column shows at once."""
    return prepared(tmp_path_factory.mktemp("board"), cards=130)


def column(page: Page, name: str) -> str:
    return f'.column[data-column="{name}"]'


def status(core: Core, task_id: str) -> str:
    return str(core.modern().done("task_get", task_id=task_id)["task"]["status"])


def test_a_card_is_dragged_to_another_column(browser: Browser, core: Core, world: World) -> None:
    task = world.ids["task"]
    with Visitor(browser, core) as visitor:
        page = visitor.open("/")
        page.drag_and_drop(f"#c-{task}", column(page, "IN_PROGRESS"))
        expect(page.locator(f"{column(page, 'IN_PROGRESS')} #c-{task}")).to_be_visible()
        expect(page.locator(f"{column(page, 'BACKLOG')} #c-{task}")).to_have_count(0)
        assert status(core, task) == "in_progress"
        expect(page.get_by_role("status").filter(has_text="Moved to In progress")).to_be_visible()


def test_the_board_works_by_keys_alone(browser: Browser, core: Core, world: World) -> None:
    with Visitor(browser, core) as visitor:
        page = visitor.open("/?text=Task+12")
        page.keyboard.press("ArrowDown")
        first = page.locator(":focus").get_attribute("href")
        page.keyboard.press("ArrowDown")
        second = page.locator(":focus").get_attribute("href")
        assert first != second and second is not None
        task = second.rpartition("/")[2]
        page.keyboard.press("]")
        expect(page.locator(f"{column(page, 'IN_PROGRESS')} #c-{task}")).to_be_visible()
        expect(page.locator(":focus")).to_have_attribute("href", second)
        page.keyboard.press("[")
        expect(page.locator(f"{column(page, 'BACKLOG')} #c-{task}")).to_be_visible()
        page.keyboard.press("e")
        page.get_by_label("Title").fill("Renamed by keys")
        page.keyboard.press("Enter")
        expect(page.locator(f"#c-{task}")).to_have_count(0)  # the filter does not match any more
        page.keyboard.press("/")
        page.keyboard.type("Renamed by")
        expect(page.locator(f"#c-{task}")).to_contain_text("Renamed by keys")
        page.locator(f"#c-{task} .card-title").focus()
        page.keyboard.press("Enter")
        page.wait_for_url(f"**/tasks/{task}")


def test_filters_narrow_the_board_and_stay_in_the_address(browser: Browser, core: Core, world: World) -> None:
    with Visitor(browser, core) as visitor:
        page = visitor.open("/")
        total = page.locator(f"{column(page, 'BACKLOG')} [data-total]")
        assert int(total.inner_text()) > 100
        page.get_by_label("Project").select_option(label="Shop")
        expect(page.locator(".card")).to_have_count(1)
        assert f"project={world.ids['project']}" in page.url
        page.get_by_label("Project").select_option("")
        page.get_by_label("Plan").select_option(label="Invoices")
        expect(page.locator(".card", has_text="Step one")).to_have_count(1)
        expect(page.locator(".card")).to_have_count(1)
        page.reload()
        expect(page.locator(".card")).to_have_count(1)
        page.get_by_label("Plan").select_option("")
        page.get_by_label("Priority").select_option("urgent")
        expect(page.locator(".card")).to_have_count(0)


def test_a_column_shows_a_hundred_cards_and_more_when_asked(
    browser: Browser, core: Core, world: World
) -> None:
    with Visitor(browser, core) as visitor:
        page = visitor.open("/")
        cards = page.locator(f"{column(page, 'BACKLOG')} .card")
        expect(cards).to_have_count(100)
        page.locator(f"{column(page, 'BACKLOG')} [data-more]").click()
        total = int(page.locator(f"{column(page, 'BACKLOG')} [data-total]").inner_text())
        expect(cards).to_have_count(total)
        expect(page.locator(f"{column(page, 'BACKLOG')} [data-more]")).to_be_hidden()


def test_a_task_is_made_and_changed_in_a_dialog(browser: Browser, core: Core, world: World) -> None:
    with Visitor(browser, core) as visitor:
        page = visitor.open("/")
        page.get_by_role("link", name="New task").click()
        page.get_by_label("Title").fill("Made on the board")
        page.get_by_label("Priority").last.select_option("urgent")
        page.get_by_label("Acceptance criteria").fill("one\n\ntwo")
        page.get_by_role("button", name="Create").click()
        made = page.locator(".card", has_text="Made on the board")
        expect(made).to_be_visible()
        task = str(made.get_attribute("data-id"))
        page.get_by_role("button", name="Move or edit Made on the board").click()
        page.get_by_role("link", name="Edit").click()
        title = page.get_by_label("Title")
        expect(title).to_have_value("Made on the board")
        title.fill(" ")
        page.get_by_role("button", name="Save").click()
        expect(page.get_by_role("alert")).to_contain_text("title must not be empty")
        title.fill("Changed on the board")
        page.get_by_role("button", name="Save").click()
        expect(page.locator(f"#c-{task}")).to_contain_text("Changed on the board")
    found = core.modern().done("get_task", task_id=task, mode="full")
    assert "two" in str(found)


def test_what_an_agent_does_is_seen_at_once(browser: Browser, core: Core, world: World) -> None:
    agent = core.modern()
    with Visitor(browser, core) as visitor:
        page = visitor.open("/")
        before = int(page.locator(f"{column(page, 'REVIEW')} [data-total]").inner_text())
        task = agent.done("task_create", title="Made by an agent", priority="high")["id"]
        expect(page.locator(f"{column(page, 'BACKLOG')} #c-{task}")).to_contain_text("Made by an agent")
        for action in ("approve", "start", "submit"):
            agent.done("task_update", task_id=task, action=action)
        expect(page.locator(f"{column(page, 'REVIEW')} #c-{task}")).to_be_visible()
        expect(page.locator(f"{column(page, 'REVIEW')} [data-total]")).to_have_text(str(before + 1))
        agent.done("tasks_delete", task_id=task)
        expect(page.locator(f"#c-{task}")).to_have_count(0)


def test_another_users_work_is_not_heard_of(browser: Browser, core: Core, world: World) -> None:
    stranger = core.modern(core.minted(user_id="eve", profile="operator")["token"])
    with Visitor(browser, core) as visitor:
        page = visitor.open("/")
        other = stranger.done("task_create", title="A stranger's")["id"]
        own = core.modern().done("task_create", title="Made after it")["id"]
        expect(page.locator(f"#c-{own}")).to_be_visible()
        assert page.locator(f"#c-{other}").count() == 0


def test_a_viewer_finds_nothing_to_press(browser: Browser, core: Core, world: World) -> None:
    token = core.minted(user_id="local", profile="viewer")["token"]
    with Visitor(browser, core, token) as visitor:
        for path in world.pages():
            if path.endswith(("/new", "/edit", "/tokens")):
                continue
            page = visitor.open(path)
            forms = page.locator('form[method="post"]:not([action="/signout"])')
            assert forms.count() == 0, path
            assert page.locator('[draggable="true"], [data-menu], [data-sheet], .say').count() == 0, path
        page = visitor.open("/")
        page.keyboard.press("ArrowDown")
        page.keyboard.press("]")
        page.keyboard.press("n")
        assert page.locator("dialog[open]").count() == 0


def test_a_phone_moves_a_card_through_the_menu(browser: Browser, core: Core, world: World) -> None:
    task = core.modern().done("task_create", title="Moved by thumb")["id"]
    with Visitor(browser, core, viewport=PHONE, has_touch=True) as visitor:
        page = visitor.open("/")
        page.get_by_role("button", name="Move or edit Moved by thumb").tap()
        page.get_by_role("button", name="Review").tap()
        expect(page.locator(f"{column(page, 'REVIEW')} #c-{task}")).to_have_count(1)
    assert status(core, task) == "review"


def test_the_stream_ends_with_the_token(browser: Browser, core: Core) -> None:
    minted = core.minted(user_id="local", profile="operator")
    with Visitor(browser, core, minted["token"]) as visitor:
        page = visitor.open("/")
        core.request("DELETE", f"/profile/mcp/tokens/{minted['id']}", minted["token"])
        page.wait_for_url("**/signin")
