"""Makes the pictures in docs/dashboard/: seven real nodes on this machine, one of which attacks and
another one has just been killed, as in `defl demo`.

    python tests/browser/screenshots.py [--rounds 40] [--out docs/dashboard]
"""

import argparse
import io
import sys
import tempfile
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event
from typing import Literal

from PIL import Image
from playwright.sync_api import Browser, expect, sync_playwright

from defl.dashboard.feed import Feed
from defl.dashboard.folders import nodes_in, title_of
from defl.lab.experiments import digits
from defl.lab.experiments.demo import ATTACK, GST_LT_MAX_S, GST_LT_MIN_S
from defl.running import MemberState, RunProgress, run

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from support.browsers import launch, ready, show
from support.served_dashboard import ServedDashboard

OUT = Path(__file__).resolve().parents[2] / "docs" / "dashboard"
NODES = 7
WIDE, NARROW = 1280, 400
SCALE = 1.5
COLOURS = 256  # of a picture: flat areas and text need no more, and the files stay small


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--out", type=Path, default=OUT)
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    killed, taken = Event(), Event()

    def watch(progress: RunProgress) -> None:
        """While this waits, the killed node is not started again."""
        if any(member.state is MemberState.KILLED for member in progress.members):
            killed.set()
            taken.wait()

    with (
        tempfile.TemporaryDirectory(prefix="defl-screenshots-") as folder,
        ThreadPoolExecutor(1) as beside,
        sync_playwright() as driver,
    ):
        project, out = Path(folder) / "digits", Path(folder) / "demo"
        project.mkdir()
        digits.write_parts(project, NODES, seed=1)
        ended = beside.submit(
            run,
            project,
            client=digits.CLIENT,
            nodes=NODES,
            rounds=options.rounds,
            gst_lt_min_s=GST_LT_MIN_S,
            gst_lt_max_s=GST_LT_MAX_S,
            attacks={NODES - 1: ATTACK},
            kills={1: options.rounds * 3 // 5},
            out=out,
            progress=False,
            watch=watch,
        )
        ended.add_done_callback(lambda _: killed.set())
        browser = launch(driver)
        killed.wait()
        one, whole = served(out / "node-0"), served(out)
        try:
            take_while_away(browser, one, whole, options.out)
            taken.set()
            ended.result()
            take(browser, one, f"/rounds/{options.rounds - 1}", options.out / "round.png")
        finally:
            taken.set()
            one.stop()
            whole.stop()
            browser.close()


def take_while_away(
    browser: Browser, one: ServedDashboard, whole: ServedDashboard, out: Path
) -> None:
    """Once a round has closed without the killed node, and another one for which nobody waited."""
    page = browser.new_page()
    page.goto(one.address)
    expect(page.locator("[data-member='node-1'] [data-verdict='n']").first).to_be_attached()
    page.close()
    updates_in = "[data-strip] [data-verdict='p']"
    take(browser, one, "/", out / "light.png", until=updates_in)
    take(browser, one, "/", out / "dark.png", scheme="dark", until=updates_in)
    take(browser, one, "/", out / "narrow.png", width=NARROW, until=updates_in)
    take(browser, whole, "/", out / "federation.png", until=updates_in)
    take(browser, one, "/members", out / "members.png")


def served(folder: Path) -> ServedDashboard:
    nodes = nodes_in([folder])
    dashboard = ServedDashboard(Feed(nodes, title_of([folder], nodes)))
    dashboard.start()
    return dashboard


def take(
    browser: Browser,
    dashboard: ServedDashboard,
    path: str,
    picture: Path,
    *,
    width: int = WIDE,
    scheme: Literal["light", "dark"] = "light",
    until: str = "main[data-ready]",
) -> None:
    context = browser.new_context(
        viewport={"width": width, "height": 900}, color_scheme=scheme, device_scale_factor=SCALE
    )
    page = context.new_page()
    page.goto(dashboard.address)
    ready(page)
    show(page, dashboard.base, path)
    expect(page.locator(until).first).to_be_attached()
    with Image.open(io.BytesIO(page.screenshot(full_page=True))) as image:
        in_few_colours(image.convert("RGB")).save(picture, optimize=True)
    print(f"{picture}: {picture.stat().st_size // 1000} kB")
    context.close()


def in_few_colours(image: Image.Image) -> Image.Image:
    """Only its most frequent colours: flat areas keep theirs exactly, edges of letters nearly."""
    frequent = Counter(zip(*[iter(image.tobytes())] * 3, strict=True)).most_common(COLOURS)
    palette = Image.new("P", (1, 1))
    palette.putpalette(bytes(part for colour, _ in frequent for part in colour))
    return image.quantize(palette=palette, dither=Image.Dither.NONE)


if __name__ == "__main__":
    main()
