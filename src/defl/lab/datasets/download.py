"""Downloads one file by HTTP, resumes interrupted downloads, and checks the result.

The only module of the laboratory that uses the network. Bytes go to NAME.part; a later call
requests the rest (RFC 9110, section 14). NAME appears once the file is complete and checked.
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

SILENCE_S_MAX = 30.0  # a server that is silent for longer is considered dead
CUTS_MAX = 5  # broken connections without progress before we give up
READ_BYTES = 1 << 18
RANGE_NOT_SATISFIABLE = 416
PARTIAL_CONTENT = 206


@dataclass(frozen=True, slots=True)
class DownloadSource:
    """An official file. `md5` is None if its authors published none."""

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
    """Ignore progress."""


def download(source: DownloadSource, folder: Path, progress: Progress = silent) -> Path:
    """Download a file into the data folder; return its path once it is complete and checked."""
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
    except OSError as error:
        raise UserError(f"cannot write {target}: {error}") from error
    return target


def _fill(source: DownloadSource, file: BinaryIO, progress: Progress) -> None:
    """Request the rest until the file is complete; give up if nothing more arrives."""
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
    """Append one response of the server to the file."""
    have = file.tell()
    response = _open_response(source, file)
    if response is None:
        return
    with response:
        rest = re.fullmatch(rf"bytes {have}-\d+/(\d+)", response.headers.get("Content-Range", ""))
        if response.status == PARTIAL_CONTENT and rest:
            in_all = int(rest.group(1))
        else:
            _start_over(file)
            in_all = int(response.headers.get("Content-Length", 0))  # 0: it ends when it ends
        if in_all > source.bytes_max:
            raise UserError(f"{source.url} has {in_all} bytes, more than {source.bytes_max}")
        try:
            while data := response.read1(READ_BYTES):
                if file.tell() + len(data) > source.bytes_max:
                    raise UserError(f"{source.url} sends more than {source.bytes_max} bytes")
                file.write(data)
                progress(source.name, file.tell(), in_all)
        except (HTTPException, ConnectionError, TimeoutError) as error:
            raise _CutOff(str(error)) from error
    if file.tell() < in_all:
        raise _CutOff(f"{file.tell()} of {in_all} bytes came")


def _open_response(source: DownloadSource, file: BinaryIO) -> HTTPResponse | None:
    """The response to a request for the rest; None if the file is already complete."""
    have = file.tell()
    request = urllib.request.Request(source.url)  # noqa: S310 - official places, all https
    if have:
        request.add_header("Range", f"bytes={have}-")
    try:
        response = urllib.request.urlopen(request, timeout=SILENCE_S_MAX)  # noqa: S310 - likewise
    except urllib.error.HTTPError as refused:
        refused.close()
        if refused.code != RANGE_NOT_SATISFIABLE:
            raise UserError(f"{source.url} answers {refused.code} {refused.reason}") from refused
        if refused.headers.get("Content-Range") == f"bytes */{have}":
            return None
        _start_over(file)
        raise _CutOff("what was kept is no part of the file") from refused
    except urllib.error.URLError as error:
        raise UserError(
            f"cannot reach {source.url} ({error.reason}). If this machine has no network, put "
            f"{source.name} into the data folder's {source.subfolder}/ by hand, or name a folder "
            "that has it with --data or DEFL_DATA"
        ) from error
    except (HTTPException, ConnectionError, TimeoutError) as error:
        raise _CutOff(str(error) or type(error).__name__) from error
    if not isinstance(response, HTTPResponse):
        raise UserError(f"{source.url} is not an HTTP address")
    return response


def _start_over(file: BinaryIO) -> None:
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
