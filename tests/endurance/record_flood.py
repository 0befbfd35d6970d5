"""Rounds of real nodes while somebody sends them TLS key updates, against as many bytes of data.

    python tests/endurance/record_flood.py [--mbit 8] [--windows 3] [--seconds 15] [--only WHO]

Two federations of four nodes. In the first, strangers call the letterboxes of two nodes. In the
second, three nodes run, and the fourth member's key calls two of them on both lanes. In windows
that take turns the callers send key updates, or frames of the greatest length, at the same rate,
and call again when they are cut off. Fails if a round takes over 1.5 times as long with key updates
as with data.
"""

import argparse
import asyncio
import multiprocessing
import ssl
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from statistics import median

sys.path.insert(0, str(Path(__file__).parent.parent))

from defl.cards import Card
from defl.committee import MEMBERS_MAX, Timing
from defl.ids import Digest
from defl.lab.experiments.processes import Nodes
from defl.node.net.framing import Lane
from defl.node.net.hello import PROTOCOL_VERSION, Hello, encode_hello
from defl.node.net.sessions import SESSION_BYTES
from defl.node.net.tls import client_context, letterbox_client_context
from defl.node.setup.agreement import read_federation
from defl.node.setup.config import read_identity, read_node
from defl.node.setup.identity import Identity, split_address
from defl.wire import chunk_frame_bytes_max, control_frame_bytes_max
from support.key_updates import RawTls

ROUNDS = 100_000
RATIO_MAX = 1.5
BAD, TARGETS = 1, (0, 2)
TIMING = Timing(view_base_s=0.5, gst_lt_min_s=1.0, gst_lt_max_s=10.0, grace_s=0.5)
PAUSE_S = 0.01  # between pieces, and before the next attempt to call
WARM_UP_ROUNDS = 8
LIMIT_S = 120.0
UPDATE_BYTES = 27
PIECE = bytes(2**14 - 4)  # with a header at most a record


@dataclass(frozen=True)
class Target:
    card: Card
    origin: Digest
    lane: Lane
    identity: Identity | None  # None: a stranger
    frame_bytes: int

    async def called(self) -> RawTls:
        context: ssl.SSLContext = (
            letterbox_client_context(self.card)
            if self.identity is None
            else client_context(self.identity, self.card)
        )
        link = await RawTls.to(split_address(self.card.address), context)
        key = bytes(32) if self.identity is None else self.identity.public_key
        hello = Hello(PROTOCOL_VERSION, self.origin, 0, key, self.lane, bytes(SESSION_BYTES))
        await link.send(framed(encode_hello(hello)))
        await link.receive(int.from_bytes(await link.receive(4), "big"))
        return link


class Caller:
    """Sends at a rate, on one connection after the other, and counts."""

    def __init__(self, target: Target, bytes_per_s: float) -> None:
        self._target = target
        self._bytes_per_s = bytes_per_s
        self._of_frame = 0  # bytes of the open frame that are sent
        self.calls = 0
        self.sent = 0

    async def run(self, seconds: float, *, data: bool, began: asyncio.Barrier) -> None:
        link = await self._call()
        # Making key updates takes longer than opening them.
        count = int(self._bytes_per_s * seconds / UPDATE_BYTES)
        made = [] if data else [link.keys.key_update() for _ in range(count)]
        await began.wait()
        started, self.calls, self.sent = time.monotonic(), 1, 0
        with suppress(TimeoutError):  # while it waits: it is read slowly, or not let in
            async with asyncio.timeout(seconds):
                while True:
                    due = int((time.monotonic() - started) * self._bytes_per_s) - self.sent
                    try:
                        await (self._send_data(link, due) if data else self._send(link, due, made))
                    except OSError:
                        link.close()
                        link, made = await self._call(), []
                        self.calls += 1
                    await asyncio.sleep(PAUSE_S)
        link.close()

    async def _call(self) -> RawTls:
        self._of_frame = 0
        while True:
            try:
                async with asyncio.timeout(10):
                    return await self._target.called()
            except OSError:
                await asyncio.sleep(PAUSE_S)

    async def _send_data(self, link: RawTls, due: int) -> None:
        """Frames of the greatest length, which mean nothing."""
        while due > 0:
            at = self._of_frame
            piece = PIECE[: self._target.frame_bytes - at]
            header = self._target.frame_bytes.to_bytes(4, "big") if at == 0 else b""
            await link.send(header + piece)
            self._of_frame = (at + len(piece)) % self._target.frame_bytes
            self.sent += len(piece)
            due -= len(piece)

    async def _send(self, link: RawTls, due: int, made: list[bytes]) -> None:
        """Key updates; a new connection has none yet."""
        count = max(1, due // UPDATE_BYTES)
        piece = b"".join(made[:count] or [link.keys.key_update() for _ in range(100)])
        del made[:count]
        await link.send_records(piece)
        self.sent += len(piece)


def framed(frame: bytes) -> bytes:
    return len(frame).to_bytes(4, "big") + frame


def attack(targets: list[Target], mbit: float, orders: Connection) -> None:
    """A process of its own: each order is a window."""

    async def window(seconds: float, *, data: bool) -> tuple[int, int]:
        callers = [Caller(target, mbit * 1e6 / 8 / len(targets)) for target in targets]
        began = asyncio.Barrier(len(callers) + 1)
        running = [asyncio.create_task(c.run(seconds, data=data, began=began)) for c in callers]
        await began.wait()
        orders.send("began")
        await asyncio.gather(*running)
        return sum(caller.calls for caller in callers), sum(caller.sent for caller in callers)

    while (order := orders.recv()) is not None:
        seconds, data = order
        orders.send(asyncio.run(window(seconds, data=data)))


@dataclass
class Window:
    rounds: int
    calls: int
    mbit: float


def measured(nodes: Nodes, orders: Connection, seconds: float, *, data: bool) -> Window:
    orders.send((seconds, data))
    orders.recv()  # all are connected
    before = closed(nodes)
    calls, sent = orders.recv()
    return Window(closed(nodes) - before, calls, sent * 8 / 1e6 / seconds)


def closed(nodes: Nodes) -> int:
    return max(nodes.round(member) for member in nodes.members if nodes.running(member))


def compare(name: str, nodes: Nodes, targets: list[Target], options: argparse.Namespace) -> bool:
    here, there = multiprocessing.Pipe()
    attacker = multiprocessing.get_context("spawn").Process(
        target=attack, args=(targets, options.mbit, there)
    )
    attacker.start()
    there.close()
    try:
        nodes.wait(lambda: closed(nodes) >= WARM_UP_ROUNDS, LIMIT_S)
        found: dict[bool, list[Window]] = {True: [], False: []}
        for _ in range(options.windows):
            for data in (True, False):
                found[data].append(measured(nodes, here, options.seconds, data=data))
        here.send(None)
    finally:
        attacker.join(1)
        attacker.kill()
    for data, windows in found.items():
        rounds = [window.rounds for window in windows]
        mbit = median(window.mbit for window in windows)
        calls = sum(window.calls for window in windows)
        what = "data" if data else "key updates"
        print(f"{name:10} {what:12} rounds {rounds}  {mbit:4.1f} Mbit/s sent  {calls} calls")
    rates = {data: sum(window.rounds for window in windows) for data, windows in found.items()}
    ratio = rates[True] / max(rates[False], 1)
    print(f"{name:10} a round takes {ratio:.2f} times as long with key updates\n", flush=True)
    return ratio <= RATIO_MAX


def targets_of(nodes: Nodes, identity: Identity | None) -> list[Target]:
    agreement = read_federation(nodes.local.folder / "federation.toml")
    longest = {
        Lane.CONTROL: control_frame_bytes_max(MEMBERS_MAX),
        Lane.WEIGHTS: chunk_frame_bytes_max(agreement.federation.chunk_bytes),
    }
    lanes = [Lane.CONTROL] if identity is None else list(Lane)
    return [
        Target(agreement.cards[i], agreement.federation.chain, lane, identity, longest[lane])
        for i in TARGETS
        for lane in lanes
    ]


def trial(
    name: str,
    running: tuple[int, ...],
    identity_of: Callable[[Nodes], Identity | None],
    options: argparse.Namespace,
) -> bool:
    with tempfile.TemporaryDirectory() as folder:
        nodes = Nodes(Path(folder) / "federation", 4, ROUNDS, timing=TIMING)
        try:
            nodes.start(*running)
            return compare(name, nodes, targets_of(nodes, identity_of(nodes)), options)
        finally:
            nodes.close()


def identity_of_bad(nodes: Nodes) -> Identity:
    folder = nodes.local.nodes[BAD]
    return read_identity(folder, read_node(folder).name)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mbit", type=float, default=8.0)
    parser.add_argument("--windows", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=15.0)
    parser.add_argument("--only", choices=["strangers", "member"])
    options = parser.parse_args()
    good = True
    if options.only != "member":
        good &= trial("strangers", (0, 1, 2, 3), lambda _: None, options)
    if options.only != "strangers":
        others = tuple(i for i in range(4) if i != BAD)
        good &= trial("a member", others, identity_of_bad, options)
    sys.exit(0 if good else "rounds take too long")


if __name__ == "__main__":
    main()
