"""Fetches one file by HTTP: resumed where it was cut off, checked, and only then put in place.

The only module of the learning side that reaches the network. Bytes go to NAME.part; a later call
asks for the rest of it (RFC 9110, section 14). The name itself appears when the file is whole.
"""

import fcntl
import os
import re
import urllib.error
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from hashlib import md5
from http.client import HTTPException, HTTPResponse
from pathlib import Path
from typing import BinaryIO

from defl.errors import UserError

Progress = Callable[[str, int, int], None]  # name, bytes there, bytes in all

SILENCE_S_MAX = 30.0  # a server that says nothing for so long has gone
CUTS_MAX = 5  # connections that break without coming further than before, until we give up
READ_BYTES = 1 << 18
RANGE_NOT_SATISFIABLE = 416
PARTIAL_CONTENT = 206


@dataclass(frozen=True, slots=True)
class DownloadSource:
    """An official file. `md5` is None where its authors have published none."""

    url: str
    subfolder: str
    bytes_max: int  # no server may fill the disk
    md5: str | None

    @property
    def name(self) -> str:
        return self.url.rpartition("/")[2]


class _CutOff(Exception):
    """The connection broke; what arrived is kept."""


def silent(name: str, there: int, in_all: int) -> None:
    """Progress that nobody watches."""


def download(source: DownloadSource, folder: Path, progress: Progress = silent) -> Path:
    """The whole and checked file in the data folder."""
    target = folder / source.subfolder / source.name
    part = target.with_name(f"{source.name}.part")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with part.open("ab") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise UserError(f"another process is downloading {target}: wait for it") from None
            try:
                _fill(source, file, progress)
            except UserError:
                if not file.tell():
                    part.unlink()
                raise
            file.flush()
            os.fsync(file.fileno())
            _check(source, part)
            part.rename(target)
    except OSError as wrong:
        raise UserError(f"cannot write {target}: {wrong}") from wrong
    return target


def _fill(source: DownloadSource, file: BinaryIO, progress: Progress) -> None:
    """Ask for the rest until all is there; give up when nothing more comes."""
    cuts = 0
    furthest = file.tell()
    while True:
        try:
            _receive(source, file, progress)
        except _CutOff as cut:
            cuts = 0 if file.tell() > furthest else cuts + 1
            furthest = max(furthest, file.tell())
            if cuts == CUTS_MAX:
                raise UserError(
                    f"{source.url} broke off {CUTS_MAX} times ({cut}); {file.tell()} bytes are "
                    "kept: the same command goes on from there"
                ) from cut
        else:
            return


def _receive(source: DownloadSource, file: BinaryIO, progress: Progress) -> None:
    """One answer of the server, appended to what is there."""
    have = file.tell()
    answer = _opened(source, file)
    if answer is None:
        return
    with answer:
        rest = re.fullmatch(rf"bytes {have}-\d+/(\d+)", answer.headers.get("Content-Range", ""))
        if answer.status == PARTIAL_CONTENT and rest:
            in_all = int(rest.group(1))
        else:
            _begin_afresh(file)
            in_all = int(answer.headers.get("Content-Length", 0))  # 0: it ends when it ends
        if in_all > source.bytes_max:
            raise UserError(f"{source.url} has {in_all} bytes, more than {source.bytes_max}")
        try:
            while data := answer.read1(READ_BYTES):
                if file.tell() + len(data) > source.bytes_max:
                    raise UserError(f"{source.url} sends more than {source.bytes_max} bytes")
                file.write(data)
                progress(source.name, file.tell(), in_all)
        except (HTTPException, ConnectionError, TimeoutError) as wrong:
            raise _CutOff(str(wrong)) from wrong
    if file.tell() < in_all:
        raise _CutOff(f"{file.tell()} of {in_all} bytes came")


def _opened(source: DownloadSource, file: BinaryIO) -> HTTPResponse | None:
    """The server's answer to a request for the rest; None if the file is already whole."""
    have = file.tell()
    request = urllib.request.Request(source.url)  # noqa: S310 - official places, all https
    if have:
        request.add_header("Range", f"bytes={have}-")
    try:
        answer = urllib.request.urlopen(request, timeout=SILENCE_S_MAX)  # noqa: S310 - likewise
    except urllib.error.HTTPError as refused:
        refused.close()
        if refused.code != RANGE_NOT_SATISFIABLE:
            raise UserError(f"{source.url} answers {refused.code} {refused.reason}") from refused
        if refused.headers.get("Content-Range") == f"bytes */{have}":
            return None
        _begin_afresh(file)
        raise _CutOff("what was kept is no part of the file") from refused
    except urllib.error.URLError as wrong:
        raise UserError(
            f"cannot reach {source.url} ({wrong.reason}). If this machine has no network, put "
            f"{source.name} into the data folder's {source.subfolder}/ by hand, or name a folder "
            "that has it with --data or DEFL_DATA"
        ) from wrong
    except (HTTPException, ConnectionError, TimeoutError) as wrong:
        raise _CutOff(str(wrong) or type(wrong).__name__) from wrong
    if not isinstance(answer, HTTPResponse):
        raise UserError(f"{source.url} is not an HTTP address")
    return answer


def _begin_afresh(file: BinaryIO) -> None:
    file.seek(0)
    file.truncate()


def _check(source: DownloadSource, part: Path) -> None:
    if source.md5 is None:
        return
    digest = md5(usedforsecurity=False)
    with part.open("rb") as file:
        while data := file.read(READ_BYTES):
            digest.update(data)
    if digest.hexdigest() != source.md5:
        part.unlink()
        raise UserError(
            f"{source.url} came with the md5 {digest.hexdigest()} instead of {source.md5}; "
            "what came was deleted: try again, and if it stays so, do not use it"
        )
