"""Every page of the dashboard in a real browser, over sample data that has every state."""

from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import pytest
from axe_playwright_python.sync_playwright import Axe
from msgspec.structs import replace
from playwright.sync_api import Page, expect

from defl.dashboard.view import NodeView, Overview, RoundsView
from support.browsers import Watched, ready, show
from support.sample_view import Sample
from support.sampled_source import HostileSource, SampledSource
from support.served_dashboard import ServedDashboard

Serve = Callable[[Sample | SampledSource], ServedDashboard]

ALL_RULES = {"runOnly": {"type": "tag", "values": ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa"]}}
COLOUR_RULES = {"runOnly": {"type": "rule", "values": ["color-contrast", "link-in-text-block"]}}


class Look(NamedTuple):
    width: int
    scheme: Literal["light", "dark"]
    rules: dict[str, Any]


ONE_NODE = ("/", "/rounds", "/rounds/24", "/members", "/node")
ALL_NODES = ("/", "/members", "/nodes", "/log")
HUNDRED = [f"site-{number:02}" for number in range(100)]
TURNED = "\u202eevil "
MARKUP = f"<img src=x onerror=alert(1)>{TURNED}"
LONG = "W" * 57  # with the name after it: as long as a name may be
# Width, colours, and which of axe-core's rules: dark pages are light ones in other colours, narrow
# ones have the same colours as wide ones.
LOOKS: dict[str, Look] = {
    "light": Look(1280, "light", ALL_RULES),
    "dark": Look(1280, "dark", COLOUR_RULES),
    "narrow": Look(400, "light", ALL_RULES | {"rules": {"color-contrast": {"enabled": False}}}),
}
ANOTHER_TOKEN = "u" * 32


def of_seven_nodes() -> Sample:
    return Sample(names=[f"node-{number}" for number in range(7)], whole=True)


@pytest.mark.parametrize("look", LOOKS)
def test_every_page_is_accessible_and_fits(serve: Serve, watched: Watched, look: str) -> None:
    """No serious finding of axe-core, no sideways scrolling; and, as in every test here, no console
    error, nothing blocked by the content security policy, no request to another host."""
    width, scheme, rules = LOOKS[look]
    dense = Sample(names=HUNDRED, rounds=300, total=1000)
    faults = []
    for sample, paths in ((Sample(), ONE_NODE), (of_seven_nodes(), ALL_NODES), (dense, ("/",))):
        dashboard = serve(sample)
        page = watched.open(dashboard.address, width=width, scheme=scheme)
        for path in paths:
            show(page, dashboard.base, path)
            faults += faults_of(page, f"{path} of {len(sample.names)}", rules)
            for view in ("As a table", "All 100"):
                button = page.get_by_role("button", name=view, exact=True).first
                if look == "narrow" and button.is_visible():
                    button.click()
                    faults += faults_of(page, f"{path} of {len(sample.names)}, {view}", rules)
    assert faults == []


def faults_of(page: Page, where: str, rules: dict[str, Any]) -> list[str]:
    answer = Axe().run(page, options={"resultTypes": ["violations"], **rules})
    faults = [
        f"{where}: {found['id']}: {found['help']}: {[n['target'] for n in found['nodes'][:3]]}"
        for found in answer.response["violations"]
        if found["impact"] in ("serious", "critical")
    ]
    if is_wider_than_screen(page):
        faults.append(f"{where}: the page scrolls sideways")
    return faults


@pytest.mark.parametrize("words", [MARKUP, LONG], ids=["markup", "long"])
def test_text_of_others_is_shown_as_text(serve: Serve, watched: Watched, words: str) -> None:
    """Names, reasons, troubles, marks, metrics and logs are whatever a peer or a rule wrote."""
    dialogs: list[str] = []
    for sample, paths in ((Sample(), ONE_NODE), (of_seven_nodes(), ALL_NODES)):
        dashboard = serve(HostileSource(sample, words))
        page = watched.open(dashboard.address, width=400)
        page.on("dialog", lambda dialog: dialogs.append(dialog.message))
        for path in paths:
            show(page, dashboard.base, path)
            assert words in page.locator("main").inner_text(), path
            assert page.locator("img, script:not([src])").count() == 0
            assert not is_wider_than_screen(page), path
            assert turned_texts(page) == [], path
    assert dialogs == []


def is_wider_than_screen(page: Page) -> bool:
    return bool(page.evaluate("document.documentElement.scrollWidth > innerWidth"))


def turned_texts(page: Page) -> list[str]:
    """Names of members that could turn what stands beside them: outside of any isolation."""
    turned: list[str] = page.evaluate("""() => {
      const turned = [];
      const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
      while (walker.nextNode()) {
        const text = walker.currentNode;
        if (!text.data.includes("\\u202e")) continue;
        const isolated = [];
        for (let at = text.parentElement; at; at = at.parentElement)
          isolated.push(getComputedStyle(at).unicodeBidi);
        if (!isolated.some((kind) => kind.startsWith("isolate") || kind === "plaintext"))
          turned.push(text.parentElement.outerHTML.slice(0, 120));
      }
      return turned;
    }""")
    return turned


def test_the_keyboard_reaches_everything_in_the_strip(serve: Serve, watched: Watched) -> None:
    page = watched.open(serve(Sample()).address)
    strip = page.locator("[data-strip]")
    inspector = page.locator("[data-inspector]")

    strip.focus()
    page.keyboard.press("Home")
    expect(inspector).to_contain_text("round 1")
    for _ in range(7):
        page.keyboard.press("ArrowUp")
    for _ in range(14):
        page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowDown")
    expect(inspector).to_contain_text("carol, round 15")
    expect(inspector).to_contain_text("late")
    assert page.locator("[data-strip] [tabindex='0']").count() == 0, "one tab stop"

    page.keyboard.press("t")
    expect(page.get_by_role("table").get_by_role("columnheader", name="late")).to_be_visible()
    expect(page.get_by_role("button", name="As a picture")).to_be_focused()
    for hook in ("[data-older]", "[data-newer]", "[data-metric]"):
        expect(page.locator(hook), "the table has its own").to_be_hidden()
    page.get_by_role("spinbutton").press("t")
    expect(page.get_by_role("table"), "typed into a field").to_be_visible()
    page.get_by_role("region", name="Rounds as a table").press("t")
    expect(strip).to_be_focused()
    page.keyboard.press("t")
    page.keyboard.press("T")
    expect(strip).to_be_focused()

    page.keyboard.press("Enter")
    ready(page)
    expect(page.get_by_role("heading", name="Round 15")).to_be_visible()
    page.go_back()
    ready(page)
    expect(strip).to_be_visible()


class NotStarted(SampledSource):
    VERSION = "sample.0"
    has_run = False

    def overview(self) -> Overview:
        overview = super().overview()
        if self.has_run:
            return overview
        node = NodeView(name="alice", runs=False, process="does not run")
        return replace(overview, version=self.VERSION, nodes=[node], open_round=None)

    def rounds(self, since: str) -> RoundsView:
        view = super().rounds(since)
        if self.has_run:
            return view
        return replace(
            view, version=self.VERSION, rounds=[], marks=[], metrics=[], higher_is_better=[]
        )


@pytest.mark.parametrize("names", [Sample().names, HUNDRED], ids=["seven", "hundred"])
def test_a_node_that_never_ran_has_no_figures_yet(
    serve: Serve, watched: Watched, names: list[str]
) -> None:
    source = NotStarted(Sample(names=names))
    page = watched.open(serve(source).address)
    nothing = page.get_by_text("No round has closed yet.")

    expect(nothing).to_be_visible()
    expect(page.locator("canvas").filter(visible=True)).to_have_count(0)
    expect(page.locator(".this-node dd")).to_have_text(["none yet", *"——————"])
    assert faults_of(page, "/", ALL_RULES) == []

    source.has_run = True
    expect(page.locator(".strip-canvas, .dense canvas").filter(visible=True).first).to_be_visible()
    expect(nothing).to_be_hidden()
    expect(page.locator(".this-node dd").nth(4)).to_have_text("284 MB peak")


def test_a_whole_federation_has_a_tab_for_each_page(serve: Serve, watched: Watched) -> None:
    page = watched.open(serve(of_seven_nodes()).address)
    tabs = page.get_by_role("navigation", name="Pages").get_by_role("link")

    expect(tabs).to_have_text(["Overview", "Rounds", "Members", "Nodes", "Log"])
    tabs.get_by_text("Members").click()
    ready(page)
    expect(page.locator("[data-members] tbody tr")).to_have_count(7)
    expect(page.locator("[aria-current='page']")).to_have_text("Members")


def test_the_page_recovers_when_the_dashboard_was_away(serve: Serve, watched: Watched) -> None:
    watched.expected = (
        "ERR_CONNECTION_REFUSED",
        "ERR_CONNECTION_RESET",
        "ERR_EMPTY_RESPONSE",
        "401",
    )
    sample = Sample()
    dashboard = serve(sample)
    page = watched.open(dashboard.address)
    lost = page.locator(".lost")

    dashboard.stop()
    expect(lost).to_contain_text("No answer since")
    expect(page.locator(".health-sentence")).to_contain_text("Round 41 of 200")

    sample.rounds = 42
    dashboard.start()
    expect(lost).to_be_hidden()
    expect(page.locator(".health-sentence")).to_contain_text("Round 43 of 200")
    expect(page.locator("[data-strip] [data-round='42']").first).to_be_attached()

    dashboard.stop()
    dashboard.start(ANOTHER_TOKEN)
    expect(lost).to_contain_text("open the address that defl dashboard printed")
