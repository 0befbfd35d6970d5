"""How long the page takes to draw many members and rounds, in Chromium on this machine.

    python tests/browser/paint.py [--members 100] [--rounds 10000] [--times 5]

From the arrival of the answer with all rounds to the end of the drawing, from the arrival of one
more round, and the same for the picture of all members from the click. Milliseconds, by the page's
own clock.
"""

import argparse
import sys
from pathlib import Path
from statistics import median

from playwright.sync_api import Browser, Locator, Page, expect, sync_playwright

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from support.browsers import launch, ready
from support.sample_view import Sample
from support.sampled_source import SampledSource
from support.served_dashboard import ServedDashboard

# After the next frame the picture is on the screen.
DRAWN = """async () => {
  await new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)));
  const answers = performance.getEntriesByType("resource")
    .filter((entry) => new URL(entry.name).pathname === "/api/rounds");
  const drawn = performance.getEntriesByName("dense").at(-1);
  const end = drawn.startTime + drawn.duration;
  return { since: end - answers.at(-1).responseEnd, took: drawn.duration };
}"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--members", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=10_000)
    parser.add_argument("--times", type=int, default=5)
    options = parser.parse_args()
    names = [f"site-{number:03}" for number in range(options.members)]
    with sync_playwright() as driver:
        browser = launch(driver)
        runs = [measure(browser, names, options.rounds) for _ in range(options.times)]
        browser.close()
    print(f"{options.members} members, {options.rounds} rounds, median of {options.times}:")
    for what in runs[0]:
        values = [run[what] for run in runs]
        print(f"  {what:<32} {median(values):7.1f} ms   at most {max(values):.1f} ms")


def measure(browser: Browser, names: list[str], rounds: int) -> dict[str, float]:
    sample = Sample(names=names, rounds=rounds, total=2 * rounds)
    dashboard = ServedDashboard(SampledSource(sample))
    dashboard.start()
    page = browser.new_page(viewport={"width": 1280, "height": 1012})
    try:
        page.goto(dashboard.address)
        ready(page)
        first = page.evaluate(DRAWN)
        sample.rounds += 1
        expect(hint(page)).to_contain_text(f"{rounds + 1:,} rounds")
        second = page.evaluate(DRAWN)
        page.get_by_role("button", name=f"All {len(names)}").click()
        whole = page.evaluate(DRAWN)
    finally:
        page.close()
        dashboard.stop()
    return {
        "all rounds arrived, drawn after": first["since"],
        "one more round, drawn after": second["since"],
        "all members at once, drawn in": whole["took"],
    }


def hint(page: Page) -> Locator:
    return page.locator(".dense .hint").first


if __name__ == "__main__":
    main()
