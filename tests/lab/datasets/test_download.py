"""Downloads from a server of our own that cuts, lies and resumes as a test tells it."""

import threading
from collections.abc import Iterator
from hashlib import md5
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest

from defl.errors import UserError
from defl.lab.datasets.catalogue import DATASETS, DataSet, fetched, loaded
from defl.lab.datasets.download import CUTS_MAX, DownloadSource, download

CONTENT = np.random.default_rng(1).bytes(300_000)


class Server(ThreadingHTTPServer):
    """Serves CONTENT; each number in `cuts` ends one answer after so many bytes."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.cuts: list[int] = []
        self.ranges = True
        self.claims_ranges = False  # tells of a range and sends all
        self.lengths = True
        self.status: int | None = None
        self.content = CONTENT
        self.requested_ranges: list[str | None] = []

    def source(self, checksum: str | None = None, bytes_max: int = 10**6) -> DownloadSource:
        return DownloadSource(
            f"http://127.0.0.1:{self.server_port}/tiny.bin", "tiny", bytes_max, checksum
        )


class Handler(BaseHTTPRequestHandler):
    server: Server

    def log_message(self, *_: object) -> None:
        pass

    def do_GET(self) -> None:
        server = self.server
        requested = self.headers["Range"]
        server.requested_ranges.append(requested)
        start = int(requested.removeprefix("bytes=").removesuffix("-")) if requested else 0
        size = len(server.content)
        if server.status:
            self.send_error(server.status)
            return
        if requested and server.ranges and start >= size:
            self.send_response(416)
            self.send_header("Content-Range", f"bytes */{size}")
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        body = server.content[start:] if server.ranges else server.content
        self.send_response(206 if requested and server.ranges else 200)
        if requested and (server.ranges or server.claims_ranges):
            self.send_header("Content-Range", f"bytes {start}-{size - 1}/{size}")
        if server.lengths:
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body[: server.cuts.pop(0)] if server.cuts else body)


@pytest.fixture
def server() -> Iterator[Server]:
    with Server() as made:
        thread = threading.Thread(target=made.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield made
        made.shutdown()
        thread.join()


def checksum(data: bytes) -> str:
    return md5(data, usedforsecurity=False).hexdigest()


def test_download_is_complete_and_reports_progress(server: Server, tmp_path: Path) -> None:
    steps: list[tuple[str, int, int]] = []

    path = download(server.source(checksum(CONTENT)), tmp_path, lambda *step: steps.append(step))

    assert path == tmp_path / "tiny" / "tiny.bin"
    assert path.read_bytes() == CONTENT
    assert steps[-1] == ("tiny.bin", len(CONTENT), len(CONTENT))
    assert [there for _, there, _ in steps] == sorted(there for _, there, _ in steps)
    assert list(path.parent.iterdir()) == [path]


def test_broken_connection_is_resumed(server: Server, tmp_path: Path) -> None:
    server.cuts = [100_000, 50_000]

    path = download(server.source(checksum(CONTENT)), tmp_path)

    assert path.read_bytes() == CONTENT
    assert server.requested_ranges == [None, "bytes=100000-", "bytes=150000-"]


def test_partial_file_of_an_earlier_call_is_resumed(server: Server, tmp_path: Path) -> None:
    server.cuts = [100_000] + [0] * CUTS_MAX
    with pytest.raises(UserError, match=r"100000 bytes are kept"):
        download(server.source(checksum(CONTENT)), tmp_path)
    assert not (tmp_path / "tiny" / "tiny.bin").exists()

    path = download(server.source(checksum(CONTENT)), tmp_path)

    assert path.read_bytes() == CONTENT
    assert server.requested_ranges[-1] == "bytes=100000-"


def test_server_without_ranges_sends_the_whole_file_again(server: Server, tmp_path: Path) -> None:
    server.ranges = False
    server.cuts = [100_000]

    assert download(server.source(checksum(CONTENT)), tmp_path).read_bytes() == CONTENT


def test_full_response_is_not_appended_to_a_partial_file(server: Server, tmp_path: Path) -> None:
    server.ranges, server.claims_ranges = False, True
    server.cuts = [100_000]

    assert download(server.source(), tmp_path).read_bytes() == CONTENT
    assert server.requested_ranges == [None, "bytes=100000-"]


def test_download_without_progress_is_given_up(server: Server, tmp_path: Path) -> None:
    server.ranges = False
    server.cuts = [100_000, 50_000] * CUTS_MAX

    with pytest.raises(UserError, match="broke off"):
        download(server.source(), tmp_path)

    assert len(server.requested_ranges) == 1 + CUTS_MAX


def test_complete_partial_file_is_not_requested_again(server: Server, tmp_path: Path) -> None:
    (tmp_path / "tiny").mkdir()
    (tmp_path / "tiny" / "tiny.bin.part").write_bytes(CONTENT)

    assert download(server.source(checksum(CONTENT)), tmp_path).read_bytes() == CONTENT
    assert server.requested_ranges == [f"bytes={len(CONTENT)}-"]


def test_partial_file_longer_than_the_source_starts_over(server: Server, tmp_path: Path) -> None:
    (tmp_path / "tiny").mkdir()
    (tmp_path / "tiny" / "tiny.bin.part").write_bytes(CONTENT + b"more")

    assert download(server.source(checksum(CONTENT)), tmp_path).read_bytes() == CONTENT


def test_wrong_checksum_leaves_no_file_behind(server: Server, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"md5 .* instead of"):
        download(server.source(checksum(b"other")), tmp_path)

    assert list((tmp_path / "tiny").iterdir()) == []


@pytest.mark.parametrize("lengths", [True, False], ids=["announced", "not announced"])
def test_oversized_response_does_not_fill_the_disk(
    server: Server, tmp_path: Path, lengths: bool
) -> None:
    server.lengths = lengths

    with pytest.raises(UserError, match="200000"):
        download(server.source(bytes_max=200_000), tmp_path)

    assert sum(path.stat().st_size for path in (tmp_path / "tiny").iterdir()) <= 200_000


def test_file_announced_as_too_large_is_not_downloaded(server: Server, tmp_path: Path) -> None:
    steps: list[tuple[str, int, int]] = []

    with pytest.raises(UserError, match="has 300000 bytes, more than 200000"):
        download(server.source(bytes_max=200_000), tmp_path, lambda *step: steps.append(step))

    assert steps == []
    assert list((tmp_path / "tiny").iterdir()) == []


def test_refusal_quotes_the_servers_response(server: Server, tmp_path: Path) -> None:
    server.status = 404
    with pytest.raises(UserError, match="404"):
        download(server.source(), tmp_path)


def test_missing_network_is_reported_with_what_to_do(server: Server, tmp_path: Path) -> None:
    source = server.source()
    server.shutdown()
    server.server_close()  # nobody listens there any more

    with pytest.raises(UserError, match=r"no network.*tiny\.bin.*tiny/ by hand.*DEFL_DATA"):
        download(source, tmp_path)

    assert list((tmp_path / "tiny").iterdir()) == []


def test_only_missing_data_sets_are_downloaded(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checked: list[Path] = []
    sources = (server.source(checksum(CONTENT)),)
    mnist = DATASETS["mnist"]
    tiny = DataSet(mnist.what, mnist.classes, mnist.load, sources, mnist.files, checked.append)
    monkeypatch.setitem(DATASETS, "mnist", tiny)

    with pytest.raises(UserError, match="no train-images"):
        fetched("mnist", tmp_path)  # what came is not MNIST
    assert checked == [tmp_path / "tiny" / "tiny.bin"]
    with pytest.raises(UserError, match="no train-images"):
        fetched("mnist", tmp_path)
    assert len(server.requested_ranges) == 1


def test_missing_folder_and_unknown_data_set_are_clear_errors() -> None:
    with pytest.raises(UserError, match="DEFL_DATA"):
        loaded("mnist", None)
    with pytest.raises(UserError, match="there are: cifar-10"):
        loaded("imagenet", None)
