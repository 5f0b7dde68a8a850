"""Texts that try to be more than text, in every field that an agent or a user can fill."""

from __future__ import annotations

import pytest
from playwright.sync_api import Browser

from tests.integration.own_core import Core
from tests.web.browser import Visitor
from tests.web.world import World, prepared

HOSTILE = (
    '"><script>window.pwned=1</script><img src=x onerror="window.pwned=1"><svg onload=window.pwned=1>'
    "</textarea></title></style></pre><style>body{display:none}</style><iframe src=//evil.example></iframe>"
    "'onfocus='window.pwned=1' javascript:window.pwned=1 {{7*7}} {% raw %} "
    '<a href="javascript:window.pwned=1">x</a> https://evil.example/"onmouseover="window.pwned=1" '
    "\x1b]8;;javascript:window.pwned=1\x07link\x1b]8;;\x07 \u202egnp.exe\u202c <!-- &lt; \x1b[2J"
)
FOUND = """() => {
  const all = [...document.querySelectorAll('*')];
  const handled = (one) => [...one.attributes].some(({ name }) => name.startsWith('on') || name === 'style');
  const values = [...document.querySelectorAll('input, textarea')].map((one) => one.value);
  const foreign = 'iframe, object, embed, base, main style, main script, img:not([src^="/static/"])';
  return {
    pwned: Boolean(window.pwned),
    handlers: all.filter(handled).length,
    foreign: document.querySelectorAll(foreign).length,
    links: [...document.querySelectorAll('a[href]')].map((one) => [one.getAttribute('href'), one.rel]),
    hidden: getComputedStyle(document.body).display === 'none',
    text: document.body.textContent + values.join(' '),
  };
}"""


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    return prepared(tmp_path_factory.mktemp("hostile"), HOSTILE)


def test_hostile_text_is_shown_and_never_run(browser: Browser, world: World, core: Core) -> None:
    silent = {"/templates", "/templates/bug-fix", "/agents", "/settings", "/tokens", "/tasks/new"}
    with Visitor(browser, core) as visitor:
        for path in world.pages():
            page = visitor.open(path)
            page.wait_for_load_state("load")
            found = page.evaluate(FOUND)
            assert not found["pwned"] and not found["hidden"], path
            assert (found["handlers"], found["foreign"]) == (0, 0), path
            for address, rel in found["links"]:
                assert address.startswith(("/", "#", "?", "https://", "http://")), (path, address)
                if address.startswith("http"):
                    assert set(rel.split()) == {"noopener", "noreferrer", "nofollow"}, (path, address)
            if path not in silent:
                assert "<script>window.pwned=1</script>" in found["text"], path
            if "/edit" not in path:
                assert "\u202e" not in found["text"], path


def test_a_hostile_title_survives_an_edit_unchanged(browser: Browser, world: World, core: Core) -> None:
    task = world.ids["task"]
    before = core.modern().done("task_get", task_id=task)["task"]["title"]
    with Visitor(browser, core) as visitor:
        page = visitor.open(f"/tasks/{task}/edit")
        page.get_by_role("button", name="Save").click()
        page.wait_for_url(f"**/tasks/{task}")
    assert core.modern().done("task_get", task_id=task)["task"]["title"] == before
