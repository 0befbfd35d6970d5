"""Names and figures that no honest member has: a liar, or training code, may still cause them."""

from collections.abc import Callable

from msgspec.structs import replace
from playwright.sync_api import expect

from defl.dashboard.view import Overview, RoundView
from support.browsers import Watched, show
from support.sample_view import Sample
from support.sampled_source import SampledSource
from support.served_dashboard import ServedDashboard

Serve = Callable[[Sample | SampledSource], ServedDashboard]
SCORES = (1e-320, 1e308, -1e308, 0.0, 5e-324, 1e38)


class OddScores(SampledSource):
    def round(self, number: int, node: str | None) -> RoundView | None:
        view = super().round(number, node)
        if view is None:
            return None
        members = [
            replace(share, score=SCORES[place % len(SCORES)], weight=1e308)
            for place, share in enumerate(view.members)
        ]
        return replace(view, members=members)


def test_scores_and_weights_of_any_size_are_drawn(serve: Serve, watched: Watched) -> None:
    dashboard = serve(OddScores(Sample()))
    page = watched.open(dashboard.address)
    show(page, dashboard.base, "/rounds/7")

    scores = page.locator("[data-scores]").inner_text()
    assert "1.00e+308" in scores
    assert not any(word in scores for word in ("NaN", "Infinity", "undefined"))


NAMES = ("alice", "constructor", "toString", "__proto__")


class OpenRound(SampledSource):
    """Alice's update is in, constructor's is awaited, the others are members since later."""

    def overview(self) -> Overview:
        overview = super().overview()
        assert overview.open_round is not None
        now = replace(overview.open_round, arrivals={"alice": 1.5}, awaited=["constructor"])
        return replace(overview, open_round=now)


def test_names_that_every_script_object_has_are_names(serve: Serve, watched: Watched) -> None:
    dashboard = serve(OpenRound(Sample(names=NAMES)))
    page = watched.open(dashboard.address)

    expect(page.locator('[data-row][data-member="constructor"]')).to_contain_text("awaited")
    for name in NAMES[2:]:
        expect(page.locator(f'[data-row][data-member="{name}"]')).to_have_count(0)
