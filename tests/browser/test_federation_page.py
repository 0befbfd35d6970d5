"""Seven real nodes, one a liar, one killed, and the real dashboard over their folders, in a real
browser. One story in one test, because the federation should run only once."""

import json
import shlex
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPConnection
from pathlib import Path
from urllib.parse import urlsplit

from playwright.sync_api import Locator, Page, expect

from support.browsers import Watched, ready, show
from support.gated_federation import gated_nodes

DEFL = [sys.executable, "-m", "defl.cli.main"]
ROUNDS = 6
NOT_IN = ":is([data-verdict='n'], [data-verdict='l'])"
COMMAND_S = 60
# The browser says so of each request that finds nobody; the page goes on asking.
WHILE_AWAY = ("ERR_CONNECTION_REFUSED", "ERR_CONNECTION_RESET", "ERR_EMPTY_RESPONSE")


@contextmanager
def dashboard(folder: Path, *options: str) -> Iterator[str]:
    """`defl dashboard`, until the end of the block; its address."""
    command = [*DEFL, "dashboard", str(folder), "--json", *(options or ("--port", "0"))]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield json.loads(process.stdout.readline())["address"]
        finally:
            process.terminate()


def test_a_federation_with_a_liar_and_a_killed_node(tmp_path: Path, watched: Watched) -> None:
    run = tmp_path / "run"
    with (
        gated_nodes(tmp_path, count=7, rounds=ROUNDS, attack="sign_flip_10") as nodes,
        dashboard(run) as of_all,
    ):
        watched.expected = WHILE_AWAY
        token = tmp_path / "token"
        token.touch(mode=0o600)
        token.write_text("t" * 32)
        with dashboard(run / "node-0", "--port", "0", "--token-file", str(token)) as address:
            page = watched.open(address)
            whole = watched.open(of_all)

            nodes.let_close(2)
            expect(cells(page, "node-6", "[data-verdict='x']")).to_have_count(2)
            expect(cells(page, "node-5", "[data-verdict='k']")).to_have_count(2)
            expect(sentence(page)).to_contain_text(f"Round 3 of {ROUNDS}: training; 7 of 7")

            nodes.kill(1)
            expect(sentence(page)).to_contain_text("6 of 7 connected; node-1 is away")
            expect(sentence(whole)).to_contain_text("6 of 7 run; node-1 does not")
            nodes.let_close(3)
            expect(cells(page, "node-1", NOT_IN)).to_have_count(1)
            nodes.start(1)
            expect(sentence(whole)).to_contain_text("7 of 7 run")

            nodes.kill(0)
            expect(sentence(page)).to_contain_text("node-0 does not run")
            nodes.start(0)
            expect(sentence(page)).to_contain_text(f"Round 4 of {ROUNDS}: training")

            require_refusals(address)
        expect(page.locator(".lost")).to_contain_text("No answer since")
        port = str(urlsplit(address).port)
        with dashboard(run / "node-0", "--port", port, "--token-file", str(token)):
            expect(page.locator(".lost")).to_be_hidden()
            nodes.let_close(ROUNDS)
            expect(sentence(page)).to_contain_text(f"Finished: all {ROUNDS} rounds closed")
            require_round_page(page, tmp_path)
            require_other_pages(page)
        show(whole, base_of(of_all), "/nodes")
        expect(whole.locator("[data-nodes] tbody tr")).to_have_count(7)


def sentence(page: Page) -> Locator:
    return page.locator(".health-sentence")


def cells(page: Page, member: str, kind: str) -> Locator:
    return page.locator(f"[data-strip] [data-member='{member}'] {kind}")


def base_of(address: str) -> str:
    return f"http://{urlsplit(address).netloc}"


def require_refusals(address: str) -> None:
    """Another name for this machine, another method, another token."""
    place = urlsplit(address)

    def status(method: str, path: str, host: str = place.netloc) -> int:
        connection = HTTPConnection(place.netloc, timeout=COMMAND_S)
        connection.request(method, path, headers={"Host": host})
        answer = connection.getresponse().status
        connection.close()
        return answer

    assert status("GET", f"/?{place.query}", host="evil.example:80") == 403
    assert status("POST", f"/?{place.query}") == 405
    assert status("GET", "/?token=" + "u" * 32) == 401
    assert status("GET", "/api/overview") == 401


def require_round_page(page: Page, folder: Path) -> None:
    """The page of a proven round: what its files and its command are good for."""
    show(page, page.url.rstrip("/"), f"/rounds/{ROUNDS - 1}")
    expect(page.locator("[data-sentence]")).to_contain_text("node-6")
    expect(page.locator("[data-proven]")).to_contain_text("Proven by")
    downloads = folder / "downloads"
    downloads.mkdir()
    for link in page.locator("[data-file]").all():
        with page.expect_download() as started:
            link.click()
        started.value.save_as(downloads / started.value.suggested_filename)
    program, *arguments = shlex.split(page.locator("[data-command]").inner_text())
    assert program == "defl"
    verified = subprocess.run(
        [*DEFL, *arguments],
        cwd=downloads,
        check=False,
        capture_output=True,
        text=True,
        timeout=COMMAND_S,
    )
    assert verified.returncode == 0, verified.stderr


def require_other_pages(page: Page) -> None:
    for tab, content in (
        ("Rounds", f"[data-rounds] a[href='/rounds/{ROUNDS}']"),
        ("Members", "[data-members] tbody tr >> nth=6"),
        ("Node", ".fingerprint"),
        ("Overview", "[data-strip]"),
    ):
        page.get_by_role("navigation").get_by_role("link", name=tab, exact=True).click()
        ready(page)
        expect(page.locator(content).first).to_be_visible()
