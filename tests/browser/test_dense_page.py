"""A hundred members and ten thousand rounds: what is drawn, found and counted again."""

from collections.abc import Callable
from typing import Any

from playwright.sync_api import Page, expect

from support.browsers import Watched, ready
from support.sample_view import Sample
from support.served_dashboard import ServedDashboard

Serve = Callable[[Sample], ServedDashboard]
HUNDRED = [f"site-{number:02}" for number in range(100)]
ROUNDS = 10_000
# What may be drawn at once: each member in each round of the widest window.
CELLS_MAX = 100 * 250


def work(page: Page) -> Any:
    """Of the newest drawing: squares drawn, and rounds counted since the page was opened."""
    return page.evaluate("performance.getEntriesByName('dense').at(-1)?.detail ?? null")


def test_a_new_round_of_ten_thousand_costs_one_round(serve: Serve, watched: Watched) -> None:
    sample = Sample(names=HUNDRED, rounds=ROUNDS, total=2 * ROUNDS)
    page = watched.open(serve(sample).address)
    expect(page.locator(".dense .hint").first).to_contain_text("100 members, 10,000 rounds")
    first = work(page)
    assert first["counted"] == ROUNDS
    assert 0 < first["cells"] <= CELLS_MAX

    sample.rounds += 1
    expect(page.locator(".dense .hint").first).to_contain_text("10,001 rounds")
    second = work(page)
    assert second["counted"] == ROUNDS + 1, "the others are not counted again"
    assert second["cells"] <= CELLS_MAX

    page.get_by_role("button", name="All 100").click()
    expect(page.locator(".dense-key")).to_contain_text("rounds and kept is the ground")
    assert work(page)["counted"] == ROUNDS + 1
    assert work(page)["cells"] <= CELLS_MAX


def test_exceptions_come_first_and_quiet_members_share_a_band(
    serve: Serve, watched: Watched
) -> None:
    sample = Sample(names=HUNDRED, rounds=300, total=1000)
    page = watched.open(serve(sample).address)
    names = page.locator(".dense-names > div")

    expect(names.first).to_have_text("site-96")
    shown, others = names.count() - 1, names.last.inner_text()
    assert others == f"{100 - shown} others"
    expect(page.locator(".dense-counts > .band")).to_contain_text("kept in all")

    page.get_by_label("Find a member").fill("site-0")
    expect(names).to_have_count(10)
    page.get_by_label("Find a member").press("Escape")
    expect(names).to_have_count(shown + 1)


def test_the_window_moves_by_keys_and_by_dragging(serve: Serve, watched: Watched) -> None:
    page = watched.open(serve(Sample(names=HUNDRED, rounds=300, total=1000)).address)
    shown = page.locator(".histogram + .dense-side > div").first
    newest = shown.inner_text()
    assert newest.endswith("to 300")

    page.locator(".dense-keys").focus()
    page.keyboard.press("Shift+ArrowLeft")
    expect(shown).not_to_have_text(newest)
    page.keyboard.press("End")
    expect(shown).to_have_text(newest)

    bars, window = (page.locator(part).bounding_box() for part in (".histogram", ".window"))
    assert bars is not None
    assert window is not None
    middle = window["y"] + window["height"] / 2
    page.mouse.move(window["x"] + window["width"] / 2, middle)
    page.mouse.down()
    page.mouse.move(bars["x"], middle, steps=3)
    page.mouse.up()
    expect(shown).to_contain_text("rounds 1 to")


def test_the_keyboard_reaches_every_member_and_round(serve: Serve, watched: Watched) -> None:
    page = watched.open(serve(Sample(names=HUNDRED, rounds=300, total=1000)).address)
    inspector = page.locator("[data-inspector]")
    stage = page.locator(".dense-keys")

    stage.focus()
    page.keyboard.press("Home")
    expect(inspector).to_contain_text("site-96, round 1")
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowRight")
    expect(inspector).to_contain_text("site-97, round 2")
    expect(inspector).to_contain_text("left out by the rule")

    page.keyboard.press("t")
    table = page.get_by_role("table")
    expect(table.get_by_role("columnheader", name="left out by the rule")).to_be_visible()
    expect(table.locator("tbody tr")).to_have_count(50)
    page.keyboard.press("t")
    expect(stage).to_be_focused()

    page.keyboard.press("Enter")
    ready(page)
    expect(page.get_by_role("heading", name="Round 2")).to_be_visible()


def test_any_metric_is_drawn_below_the_rows(serve: Serve, watched: Watched) -> None:
    sample = Sample(names=HUNDRED, rounds=300, total=1000)
    page = watched.open(serve(sample).address)
    value = page.locator("[data-metric-value]")

    expect(page.locator(".dense-curve canvas")).to_be_visible()
    expect(value).to_have_text("96.6 %")
    page.get_by_label("metric").select_option("loss")
    expect(value).to_have_text("0.103")
