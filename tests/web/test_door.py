"""Signing in and out, and who is kept out: no browser needed."""

from __future__ import annotations

import re

import pytest

from tests.integration.own_core import ADMIN, Core
from tests.web.browser import ask, entry_code, sign_in
from tests.web.world import World

HTML = {"Accept": "text/html"}


def cookie_header(cookie: dict[str, str]) -> dict[str, str]:
    return {"Cookie": "; ".join(f"{name}={value}" for name, value in cookie.items())}


def mark(core: Core, cookie: dict[str, str]) -> str:
    """The mark that the forms of this session carry."""
    text = ask(core, "GET", "/tokens", headers={**HTML, **cookie_header(cookie)}).text
    found = re.search(r'name="csrf" content="([0-9a-f]{64})"', text)
    assert found is not None
    return found[1]


def test_the_printed_link_signs_in_once(core: Core) -> None:
    code = entry_code(core)
    assert code not in core.token and core.token not in code
    first = ask(core, "GET", f"/signin?code={code}", headers=HTML)
    assert (first.status_code, first.headers["location"]) == (303, "/")
    attributes = first.headers["set-cookie"].partition(";")[2]
    assert "HttpOnly" in attributes and "SameSite=Strict" in attributes and "Path=/" in attributes
    assert core.token not in first.headers["set-cookie"]
    second = ask(core, "GET", f"/signin?code={code}", headers=HTML)
    assert (second.status_code, "set-cookie" in second.headers) == (403, False)


def test_a_token_gets_a_link_of_its_own(core: Core) -> None:
    minted = core.minted(user_id="cy", profile="viewer")["token"]
    answer = core.request("POST", "/api/signin", minted)
    assert answer.status_code == 200
    path = answer.json()["url"].removeprefix(core.url)
    entered = ask(core, "GET", path, headers=HTML)
    assert (entered.status_code, "set-cookie" in entered.headers) == (303, True)
    assert ask(core, "GET", path, headers=HTML).status_code == 403
    assert core.request("GET", "/api/signin", minted).status_code == 405
    assert core.request("POST", "/api/signin").status_code == 401
    assert core.request("POST", "/api/signin", ADMIN).status_code == 403


def test_a_stranger_is_led_to_the_door_and_back(core: Core) -> None:
    led = ask(core, "GET", "/plans?status=draft", headers=HTML)
    assert (led.status_code, led.headers["location"]) == (303, "/signin?next=%2Fplans%3Fstatus%3Ddraft")
    entered = ask(core, "POST", "/signin", data={"token": core.token, "next": "/plans?status=draft"})
    assert (entered.status_code, entered.headers["location"]) == (303, "/plans?status=draft")
    assert ask(core, "GET", "/live").status_code == 401
    assert ask(core, "POST", "/tasks/new", data={"title": "t"}).status_code == 401


@pytest.mark.parametrize("where", ["//evil.example", "/\\evil.example", "https://evil.example", "/a\nb", ""])
def test_signing_in_never_leads_away(core: Core, where: str) -> None:
    entered = ask(core, "POST", "/signin", data={"token": core.token, "next": where})
    assert (entered.status_code, entered.headers["location"]) == (303, "/")


def test_wrong_bound_and_job_tokens_do_not_open_the_door(core: Core, world: World) -> None:
    bound = core.request(
        "POST",
        "/profile/mcp/tokens",
        core.token,
        json={"name": "bound", "profile": "viewer", "task_id": world.ids["task"]},
    ).json()["token"]
    for token in ("", "wrong", "mcp_" + "a" * 48, bound):
        answer = ask(core, "POST", "/signin", data={"token": token})
        assert (answer.status_code, "set-cookie" in answer.headers) == (403, False)
        assert not token or token not in answer.text


def test_revoking_the_token_ends_its_sessions_at_once(core: Core) -> None:
    minted = core.minted(user_id="bea", profile="operator")
    cookie = sign_in(core, minted["token"])
    assert ask(core, "GET", "/", headers={**HTML, **cookie_header(cookie)}).status_code == 200
    assert core.request("DELETE", f"/profile/mcp/tokens/{minted['id']}", minted["token"]).status_code == 200
    after = ask(core, "GET", "/", headers={**HTML, **cookie_header(cookie)})
    assert (after.status_code, after.headers["location"]) == (303, "/signin")


def test_a_changed_cookie_is_worth_nothing(core: Core) -> None:
    other = core.minted(user_id="eve", profile="viewer")
    ((name, value),) = sign_in(core, core.token).items()
    forged = [
        value[:-1] + ("0" if value[-1] != "0" else "1"),
        value.replace(value.split(".")[0], other["id"]),
        f"admin.{value.split('.', 1)[1]}",
        "",
        "..",
        "\u00e9.1.x",
    ]
    for one in forged:
        answer = ask(core, "GET", "/", headers={**HTML, "Cookie": f"{name}={one}".encode()})
        assert answer.status_code == 303, one


def test_signing_out_takes_the_cookie(core: Core) -> None:
    answer = ask(core, "POST", "/signout", headers=cookie_header(sign_in(core, core.token)))
    assert (answer.status_code, answer.headers["location"]) == (303, "/signin")
    assert "Max-Age=0" in answer.headers["set-cookie"]


def test_a_form_without_its_mark_is_refused(core: Core) -> None:
    cookie = cookie_header(sign_in(core, core.token))
    for form in ({"title": "t"}, {"title": "t", "csrf": "0" * 64}, {"title": "t", "csrf": "é"}):
        assert ask(core, "POST", "/tasks/new", headers=cookie, data=form).status_code == 403
    other = mark(core, sign_in(core, core.minted(user_id="eve")["token"]))
    answer = ask(core, "POST", "/tasks/new", headers=cookie, data={"title": "t", "csrf": other})
    assert answer.status_code == 403
    own = mark(core, sign_in(core, core.token))
    assert own != other


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "http://evil.example"},
        {"Origin": "null"},
        {"Origin": "http://localhost:1"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
    ],
)
def test_a_form_of_another_site_is_refused(core: Core, headers: dict[str, str]) -> None:
    cookie = sign_in(core, core.token)
    form = {"title": "from elsewhere", "csrf": mark(core, cookie)}
    answer = ask(core, "POST", "/tasks/new", headers={**cookie_header(cookie), **headers}, data=form)
    assert answer.status_code == 403
    assert ask(core, "POST", "/signin", headers=headers, data={"token": core.token}).status_code == 403


def test_a_viewer_can_send_no_form_that_changes_work(core: Core, world: World) -> None:
    cookie = sign_in(core, core.minted(user_id="local", profile="viewer")["token"])
    headers, form = cookie_header(cookie), {"csrf": mark(core, cookie)}
    task, plan = world.ids["review"], world.ids["plan"]
    paths = [
        *("/tasks/new", f"/tasks/{task}/edit", f"/tasks/{task}/move", f"/tasks/{task}/delete"),
        *(f"/tasks/{task}/{act}" for act in ("act", "route", "note", "review", "approve", "reject", "merge")),
        *(f"/plans/{plan}/{act}" for act in ("status", "toggle", "checkpoint")),
        *("/templates/bug-fix", f"/proposals/{world.ids['proposal']}/accept", "/settings", "/projects"),
        *(f"/jobs/{world.ids['job']}/{act}" for act in ("cancel", "retry")),
        f"/memory/decisions/{world.ids['decision']}/outcome",
    ]
    for path in paths:
        assert ask(core, "POST", path, headers=headers, data=form).status_code == 403, path
    assert ask(core, "GET", "/tasks/new", headers={**HTML, **headers}).status_code == 403


def test_another_user_sees_nothing_of_it(core: Core, world: World) -> None:
    headers = {**HTML, **cookie_header(sign_in(core, core.minted(user_id="eve")["token"]))}
    for path in world.pages():
        answer = ask(core, "GET", path, headers=headers)
        named = any(one in path for one in world.ids.values())
        assert answer.status_code == (404 if named else 200), path
        assert "Invoices" not in answer.text and "Make totals exact" not in answer.text, path


def test_the_admin_sees_everything_and_signs_in_by_the_secret(core: Core, world: World) -> None:
    headers = {**HTML, **cookie_header(sign_in(core, ADMIN))}
    assert "Task 0" in ask(core, "GET", "/", headers=headers).text


def test_every_page_forbids_what_is_not_ours(core: Core, world: World) -> None:
    headers = {**HTML, **cookie_header(sign_in(core, core.token))}
    for path in (*world.pages(), "/signin", "/static/app.js", "/nowhere"):
        answer = ask(core, "GET", path, headers=headers)
        policy = answer.headers.get("content-security-policy", "")
        assert "default-src 'none'" in policy and "script-src 'self'" in policy, path
        assert "unsafe" not in policy and "frame-ancestors 'none'" in policy
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert (
            "<script>" not in answer.text and " style=" not in answer.text and " onclick" not in answer.text
        )
        if not path.startswith("/static/"):
            assert answer.headers["cache-control"] == "no-store"


def test_a_file_of_a_job_is_never_served_as_a_page(core: Core, world: World) -> None:
    headers = {**HTML, **cookie_header(sign_in(core, core.token))}
    raw = ask(core, "GET", f"/jobs/{world.ids['job']}/files/patch.diff?raw=1", headers=headers)
    assert raw.headers["content-type"] == "application/octet-stream"
    assert raw.headers["content-disposition"].startswith("attachment")


def test_static_files_are_ours_alone_and_asked_for_again(core: Core) -> None:
    first = ask(core, "GET", "/static/board.js")
    assert first.headers["content-type"] == "text/javascript; charset=utf-8"
    again = ask(core, "GET", "/static/board.js", headers={"If-None-Match": first.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")
    for path in ("/static/../site.py", "/static/%2e%2e/site.py", "/static/", "/static/none.js"):
        assert ask(core, "GET", path).status_code == 404


def test_a_page_that_does_not_exist_says_so(core: Core) -> None:
    assert ask(core, "GET", "/nowhere").status_code == 404
    assert core.request("DELETE", "/plans").status_code == 405


def test_a_form_that_cannot_be_read_is_refused_and_breaks_nothing(core: Core) -> None:
    cookie = sign_in(core, core.token)
    headers = {**cookie_header(cookie), "X-CSRF": mark(core, cookie)}
    forms = {
        "application/json": b"{}",
        "application/x-www-form-urlencoded": b"title=\xff\xfe",
        "multipart/form-data; boundary=x": b"--x--",
    }
    for kind, body in forms.items():
        answer = ask(core, "POST", "/tasks/new", headers={**headers, "Content-Type": kind}, content=body)
        assert answer.status_code == 422, kind
    many = "&".join(f"a{number}=1" for number in range(600))
    form = {"Content-Type": "application/x-www-form-urlencoded"}
    assert ask(core, "POST", "/signin", headers=form, content=many.encode()).status_code == 422
    assert ask(core, "GET", f"/?{many}", headers={**HTML, **headers}).status_code == 422
    null = {"title": "a\0b", "csrf": headers["X-CSRF"]}
    assert ask(core, "POST", "/tasks/new", headers=headers, data=null).status_code == 422
