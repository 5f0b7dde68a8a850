"""Makes the pictures of the README from the demo: `make screenshots`. Needs the browser of the tests."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from pathlib import Path

from playwright.sync_api import sync_playwright

HERE = Path(__file__).parent
BROWSER = "/usr/bin/chromium-headless-shell"


def main() -> None:
    demo = subprocess.Popen(
        [Path(sys.executable).with_name("quarterdeck"), "demo"], stdout=subprocess.PIPE, text=True
    )
    try:
        assert demo.stdout is not None
        story = iter(demo.stdout)
        next(line for line in story if "Every step verified" in line)
        link = next(filter(None, (re.search(r"http://\S+/signin\?code=\S+", line) for line in story)))
        with sync_playwright() as playwright:
            browser = playwright.chromium.launch(executable_path=BROWSER)
            page = browser.new_page(viewport={"width": 1280, "height": 480}, device_scale_factor=1.5)
            page.goto(link[0])
            page.wait_for_selector("main")
            page.screenshot(path=HERE / "board.png")
            page.get_by_role("link", name="Tell the tide").first.click()
            page.set_viewport_size({"width": 1280, "height": 760})
            page.get_by_role("link", name="Show what changed").click()
            page.wait_for_selector("text=tests/test_tide.py")
            page.screenshot(path=HERE / "review.png")
            browser.close()
    finally:
        demo.send_signal(signal.SIGINT)
        demo.wait(60)


if __name__ == "__main__":
    main()
