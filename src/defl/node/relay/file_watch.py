"""Runs a relay on its files: they are read again when they change, and its counts are logged."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

from defl.cards import Card
from defl.errors import UserError
from defl.node.relay.files import guest_paths, served_members
from defl.node.relay.service import Relay
from defl.node.report.log import Log

# How often the files are looked at.
REREAD_S = 5.0
# How often the counts are logged, if they have changed.
REPORT_S = 600.0


class FileWatch:
    """Whom a relay serves, as its files say. A file that cannot be read changes nothing."""

    def __init__(self, folder: Path, federation: Path, lineage: Path | None, log: Log) -> None:
        self._folder = folder
        self._federation = federation
        self._lineage = lineage
        self._log = log
        self.agreement, self.members = served_members(folder, federation, lineage)
        self._seen = self._stamp()

    def reread(self) -> tuple[Card, ...] | None:
        """The members, if the files have changed since the last look and say so."""
        stamp = self._stamp()
        if stamp == self._seen:
            return None
        self._seen = stamp
        try:
            agreement, members = served_members(self._folder, self._federation, self._lineage)
        except UserError as error:
            self._log.warning("the files cannot be read; nothing changes", reason=str(error))
            return None
        if agreement.text != self.agreement.text:
            self._log.warning("federation.toml is another federation's; start a relay for it")
            return None
        if members == self.members:
            return None
        self.members = members
        self._log.info("members served", members=len(members))
        return members

    def _stamp(self) -> dict[Path, tuple[int, int] | None]:
        lineage = () if self._lineage is None else (self._lineage,)
        paths = (self._federation, *lineage, *guest_paths(self._folder))
        return {path: _stamp_of(path) for path in paths}


def _stamp_of(path: Path) -> tuple[int, int] | None:
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size


async def follow_files(
    relay: Relay, watch: FileWatch, wait: Callable[[float], Awaitable[None]] = asyncio.sleep
) -> None:
    """For ever."""
    while True:
        await wait(REREAD_S)
        if (members := watch.reread()) is not None:
            relay.agree(members)


async def report_regularly(relay: Relay, log: Log) -> None:
    told: dict[str, int] = {}
    while True:
        if (counts := relay.counts()) != told:
            log.info("relay", **counts)
            told = counts
        await asyncio.sleep(REPORT_S)
