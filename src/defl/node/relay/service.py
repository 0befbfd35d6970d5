"""A relay of its own: one port, one acceptor, and the members that the agreed files name."""

import asyncio
import socket
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable

from defl.cards import Card
from defl.ids import Digest
from defl.node.net.acceptor import AcceptLimits, Acceptor
from defl.node.net.framing import Link
from defl.node.net.pending import Caller, Stranger
from defl.node.net.refusal import Refusal, Refused
from defl.node.net.sockets import listening
from defl.node.net.tls_transport import RecordFlood
from defl.node.relay.protocol import Signal
from defl.node.relay.server import RelayServer
from defl.node.relay.switchboard import CONNECTIONS_MAX
from defl.node.report.names import STRANGER
from defl.node.setup.identity import Identity

NO_LETTERBOX = Refused(Refusal.UNKNOWN, "a relay has no letterbox")


class Relay:
    def __init__(
        self,
        identity: Identity,
        origin: Digest,
        listen: tuple[str, int] | socket.socket,
        *,
        limits: AcceptLimits | None = None,
        connections_max: int = CONNECTIONS_MAX,
        wait: Callable[[float], Awaitable[None]] = asyncio.sleep,
        on_flood: Callable[[str, RecordFlood], None] = lambda _who, _flood: None,
    ) -> None:
        limits = limits or AcceptLimits()
        self._listen = listen
        self._listener: socket.socket | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self.refusals: Counter[Refusal] = Counter()
        self.floods = 0  # connections ended because their TLS records brought nothing
        self._on_flood = on_flood
        self._names: dict[bytes, str] = {}  # by certificate
        self.server = RelayServer(
            identity,
            origin,
            handshake_s=limits.handshake_s,
            connections_max=connections_max,
            wait=wait,
            on_flood=self._flooded,
        )
        self._acceptor = Acceptor(identity, limits, self._admit, _serve_nobody, self.refusals, wait)

    def agree(self, members: Iterable[Card]) -> None:
        """From now on these members are served, and nobody else."""
        cards = tuple(members)
        self._names = {card.certificate: card.name for card in cards}
        self._acceptor.expect(self.server.agree(cards))

    async def start(self) -> None:
        self._listener = await listening(self._listen)
        loop = asyncio.get_running_loop()
        self._tasks = [
            loop.create_task(self._acceptor.accept(self._listener)),
            loop.create_task(self.server.run()),
        ]

    async def close(self) -> None:
        await self._acceptor.stop(self._tasks)
        if self._listener is not None:
            self._listener.close()
        await self.server.close()

    @property
    def pending(self) -> int:
        return self._acceptor.pending

    @property
    def turned_away(self) -> int:
        """Accepted connections that lost their place to others, since the start."""
        return self._acceptor.turned_away

    def counts(self) -> dict[str, int]:
        """What it does now and has done since its start, for the log."""
        stats = self.server.stats
        return {
            "parked": self.server.parked,
            "pairs": self.server.spliced,
            "pairs_in_total": stats.pairs,
            "absent": stats.answers[Signal.ABSENT],
            "turned_away": self.turned_away,
            "refused": stats.answers[Signal.REFUSED] + self.refusals.total(),
            "floods": self.floods,
            "bytes": stats.bytes,
        }

    def _flooded(self, flood: RecordFlood) -> None:
        self.floods += 1
        self._on_flood(self._names.get(flood.certificate or b"", STRANGER), flood)

    async def _admit(self, link: Link, connection: socket.socket, caller: Caller) -> Refused | None:
        if caller is Stranger.LETTERBOX:
            return NO_LETTERBOX
        return await self.server.admit(link, connection)


async def _serve_nobody(link: Link) -> None:
    """No stranger is ever let in."""
    link.abort()
