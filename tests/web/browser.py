"""A real browser for the tests of the web board, and pages that fail a test when their console complains."""

from __future__ import annotations

import re
import shutil
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx2
from playwright.sync_api import Browser, BrowserContext, Dialog, Page, expect, sync_playwright

from tests.integration.own_core import Core

PROGRAMS = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")
WAIT_MS = 45_000
PHONE = {"width": 390, "height": 844}
DESK = {"width": 1280, "height": 900}
_NO_TLS = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)


@contextmanager
def launched() -> Iterator[Browser]:
    """The system's Chromium. Without one the tests fail: they would prove nothing."""
    program = next((found for name in PROGRAMS if (found := shutil.which(name))), None)
    assert program is not None, "no Chromium: apt-get install chromium-headless-shell"
    expect.set_options(timeout=WAIT_MS)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program)
        try:
            yield browser
        finally:
            browser.close()


def ask(core: Core, method: str, path: str, **options: Any) -> httpx2.Response:
    """One request that remembers no cookie of another."""
    with httpx2.Client(timeout=60, trust_env=False, verify=_NO_TLS) as client:
        return client.request(method, core.url + path, **options)


def sign_in(core: Core, token: str) -> dict[str, str]:
    """The cookie that a token gets at the door, by its name."""
    answer = ask(core, "POST", "/signin", data={"token": token, "next": "/"})
    assert answer.status_code == 303, answer.text
    name, _, rest = answer.headers["set-cookie"].partition("=")
    return {name: rest.partition(";")[0]}


class Visitor:
    """Somebody who is signed in. Ends with the block; a message of the console or a dialog fails the test."""

    def __init__(self, browser: Browser, core: Core, token: str | None = None, **options: Any) -> None:
        self.core = core
        self.problems: list[str] = []
        self.agrees = False  # what it says when a page asks whether it is sure
        self.context: BrowserContext = browser.new_context(**{"viewport": DESK, **options})
        self.context.set_default_timeout(WAIT_MS)
        cookie = sign_in(core, token or core.token)
        self.context.add_cookies(
            [{"name": name, "value": value, "url": core.url} for name, value in cookie.items()]
        )
        self.context.on("page", self._watch)
        self.page: Page = self.context.new_page()

    def _watch(self, page: Page) -> None:
        page.on("console", lambda message: self._heard(message.type, message.text))
        page.on("pageerror", lambda error: self.problems.append(str(error)))
        page.on("dialog", self._asked)

    def _asked(self, dialog: Dialog) -> None:
        if self.agrees:
            dialog.accept()
        else:
            self.problems.append(f"dialog: {dialog.message}")
            dialog.dismiss()

    def _heard(self, kind: str, text: str) -> None:
        # A refusal is what some tests ask for; the browser reports it as an error of the network.
        if kind in ("error", "warning") and "the server responded with a status of" not in text:
            self.problems.append(f"{kind}: {text}")

    def __enter__(self) -> Visitor:
        return self

    def __exit__(self, kind: Any, *_: object) -> None:
        self.context.close()
        assert kind is not None or self.problems == []

    def open(self, path: str) -> Page:
        """Go to a page of ours and wait until it hears of changes."""
        self.page.goto(self.core.url + path)
        self.page.wait_for_selector("html[data-live=yes]")
        return self.page


def entry_code(core: Core) -> str:
    """The code of the link that the core printed at its start."""
    found = re.findall(r"/signin\?code=(\S+)", core.log)
    assert found, core.log
    return str(found[-1])
