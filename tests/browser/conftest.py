"""A real Chromium, started once for each file, and the dashboards that a test shows in it."""

import os
from collections.abc import Callable, Iterator

import pytest
from playwright.sync_api import Browser, Playwright, sync_playwright

from support.browsers import Watched, find_chromium, launch
from support.sample_view import Sample
from support.sampled_source import SampledSource
from support.served_dashboard import ServedDashboard

# Set by .ci/run, which has installed the browser: there a missing one is a failure.
REQUIRED_VARIABLE = "DEFL_BROWSER_REQUIRED"


# Of a module, not of the session: while it runs, its event loop keeps every other one in this
# process from starting, and other tests of this worker need their own.
@pytest.fixture(scope="module")
def driver() -> Iterator[Playwright]:
    if find_chromium() is None:
        sentence = "there is no Chromium on this machine; `make browser` installs it"
        if os.environ.get(REQUIRED_VARIABLE):
            pytest.fail(sentence)
        pytest.skip(sentence)
    with sync_playwright() as started:
        yield started


@pytest.fixture(scope="module")
def chromium(driver: Playwright) -> Iterator[Browser]:
    browser = launch(driver)
    yield browser
    browser.close()


@pytest.fixture
def watched(chromium: Browser) -> Iterator[Watched]:
    pages = Watched(chromium)
    yield pages
    assert pages.close() == []


@pytest.fixture
def serve() -> Iterator[Callable[[Sample], ServedDashboard]]:
    """Starts a dashboard over sample data, or over a source."""
    started = []

    def start(sample: Sample | SampledSource) -> ServedDashboard:
        source = SampledSource(sample) if isinstance(sample, Sample) else sample
        dashboard = ServedDashboard(source)
        dashboard.start()
        started.append(dashboard)
        return dashboard

    yield start
    for dashboard in started:
        dashboard.stop()
