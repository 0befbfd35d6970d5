"""Log lines about peers, rate-limited.

A link that flaps, or a peer that reconnects on purpose, must not fill the disk: a peer causes at
most a few thousand lines a day.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping

from defl.ids import NodeId
from defl.node.net.tls_transport import RecordFlood
from defl.node.report.log import LineLimit, Log
from defl.node.report.names import Names

# For lines of one kind about one peer.
PEER_LINES_BURST = 5
PEER_LINES_EVERY_S = 60.0
TROUBLE_EVERY_S = 2.0
CROWD_EVERY_S = 60.0


async def report_crowd(
    log: Log,
    turned_away: Callable[[], int],
    wait: Callable[[float], Awaitable[None]] = asyncio.sleep,
) -> None:
    """Log, at most once a minute, that callers were turned away; runs forever. `turned_away` counts
    them since the start."""
    told = 0
    while True:
        pause_s = TROUBLE_EVERY_S
        if (count := turned_away()) > told:
            log.warning(
                "crowded: too many connect without a member's proof; callers were turned away",
                turned_away=count - told,
            )
            told, pause_s = count, CROWD_EVERY_S
        await wait(pause_s)


class FloodLog:
    """Links that were ended because their TLS records bring nothing."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self._limit = LineLimit(PEER_LINES_BURST, PEER_LINES_EVERY_S)

    def report(self, who: str, flood: RecordFlood) -> None:
        """`who` is a member, or one word for all strangers."""
        withheld = self._limit.withheld(who, asyncio.get_running_loop().time())
        if withheld is not None:
            fields = {"withheld": withheld} if withheld else {}
            self._log.warning(
                "connection ended: its TLS records bring nothing",
                peer=who,
                address=flood.remote,
                records=flood.records,
                **fields,
            )


class PeerLog:
    def __init__(self, log: Log, names: Names) -> None:
        self._log = log
        self._names = names
        self.floods = FloodLog(log)
        self._limit = LineLimit(PEER_LINES_BURST, PEER_LINES_EVERY_S)

    def disconnected(self, peer: NodeId) -> None:
        if (fields := self._fields("disconnected", peer)) is not None:
            self._log.info("peer disconnected", **fields)

    async def report(
        self, trouble: Mapping[NodeId, str], connected: Callable[[NodeId], bool]
    ) -> None:
        """Log why a peer is not connected, whenever the reason is new; runs forever. A connected
        one may have another process that was refused."""
        reported: dict[NodeId, str] = {}
        while True:
            for peer, reason in trouble.items():
                if reported.get(peer) != reason:
                    self._trouble(peer, reason, is_connected=connected(peer))
            reported = dict(trouble)
            await asyncio.sleep(TROUBLE_EVERY_S)

    def _trouble(self, peer: NodeId, reason: str, *, is_connected: bool) -> None:
        if (fields := self._fields("not connected", peer)) is not None:
            what = "a call of a peer was refused" if is_connected else "peer is not connected"
            self._log.warning(what, why=reason, **fields)

    def _fields(self, kind: str, peer: NodeId) -> dict[str, object] | None:
        """None: the line is withheld."""
        withheld = self._limit.withheld((kind, peer), asyncio.get_running_loop().time())
        if withheld is None:
            return None
        name = self._names.of(peer)
        return {"peer": name, "withheld": withheld} if withheld else {"peer": name}
