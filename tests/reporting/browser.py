"""Open pages in Chromium: import the fixture ``browser`` to use it.

It is the Chromium of the system; nothing is downloaded. Without one, tests that need it are
skipped.
"""

import shutil
from contextlib import contextmanager

import pytest

ARGUMENTS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
]


def chromium():
    """The path of a Chromium, or None."""
    return next(
        filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
    )


@contextmanager
def running():
    """A browser that is closed at the end."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium(), args=ARGUMENTS)
        try:
            yield browser
        finally:
            browser.close()


class Opened:
    """A page from disk, with the complaints and the requests of the browser."""

    def __init__(self, browser, path, width=1280, height=900, **options):
        self.page = browser.new_page(viewport={"width": width, "height": height}, **options)
        self.complaints, self.fetched = [], []
        self.page.on(
            "console", lambda message: self.complaints.append(f"{message.type}: {message.text}")
        )
        self.page.on("pageerror", lambda error: self.complaints.append(f"error: {error}"))
        self.page.on(
            "requestfailed", lambda request: self.complaints.append(f"failed: {request.url[:100]}")
        )
        self.page.on("request", lambda request: self.fetched.append(request.url))
        self.url = path.resolve().as_uri()
        self.page.goto(self.url)

    @property
    def elsewhere(self):
        """What was asked for besides the page itself and what it holds."""
        return [url for url in self.fetched if url != self.url and not url.startswith("data:")]


@pytest.fixture(scope="module")
def browser():
    if chromium() is None:
        pytest.skip("no chromium, chromium-browser or google-chrome is installed")
    pytest.importorskip("playwright", reason="Playwright for Python is not installed")
    with running() as found:
        yield found
