"""A real Chromium, and pages whose errors, blocked content and foreign requests are recorded."""

import os
import shutil
from dataclasses import dataclass, field
from typing import Literal
from urllib.parse import urlsplit

from playwright.sync_api import (
    Browser,
    BrowserContext,
    ConsoleMessage,
    Page,
    Playwright,
    Request,
    expect,
)

NAMES = ("chromium", "chromium-browser", "google-chrome")
ANSWER_MS = 60_000  # for whatever a test waits for, on a busy machine
expect.set_options(timeout=ANSWER_MS)

# From the start of every document; the function is added by `open`.
WATCH_POLICY = """
document.addEventListener("securitypolicyviolation", (event) =>
  reportBlocked(`${event.violatedDirective} ${event.blockedURI}`));
"""


def find_chromium() -> str | None:
    return next(filter(None, map(shutil.which, NAMES)), None)


def launch(driver: Playwright) -> Browser:
    # Chromium's sandbox refuses to run as root.
    sandbox = [] if os.geteuid() else ["--no-sandbox"]
    return driver.chromium.launch(executable_path=find_chromium(), args=sandbox)


def ready(page: Page) -> None:
    """Until the page shows what it has fetched."""
    page.wait_for_selector("main[data-ready]")


def show(page: Page, base: str, path: str) -> None:
    page.goto(base + path)
    ready(page)


@dataclass
class Watched:
    """Pages of one test, and what went wrong in them."""

    browser: Browser
    contexts: list[BrowserContext] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)
    expected: tuple[str, ...] = ()  # parts of the messages that the scenario provokes

    def open(
        self,
        address: str,
        *,
        width: int = 1280,
        height: int = 1012,
        scheme: Literal["light", "dark"] = "light",
    ) -> Page:
        context = self.browser.new_context(
            viewport={"width": width, "height": height}, color_scheme=scheme
        )
        self.contexts.append(context)
        context.set_default_timeout(ANSWER_MS)
        context.expose_function(
            "reportBlocked", lambda what: self.faults.append(f"blocked by the policy: {what}")
        )
        context.add_init_script(WATCH_POLICY)
        home = urlsplit(address).netloc

        def on_console(message: ConsoleMessage) -> None:
            if message.type in ("error", "warning"):
                self.faults.append(f"console {message.type}: {message.text}")

        def on_request(request: Request) -> None:
            if urlsplit(request.url).netloc != home:
                self.faults.append(f"foreign request: {request.url}")

        page = context.new_page()
        page.on("console", on_console)
        page.on("pageerror", lambda error: self.faults.append(f"error: {error}"))
        page.on("request", on_request)
        page.goto(address)
        ready(page)
        return page

    def close(self) -> list[str]:
        """What went wrong and was not provoked."""
        for context in self.contexts:
            context.close()
        return [fault for fault in self.faults if not any(map(fault.__contains__, self.expected))]
