"""Time that a restarted member needs to get in again while strangers flood the node it calls.

    python tests/endurance/strangers.py [--rate N] [--addresses N] [--trials N] [--relay]
        [--restart-called] [--wrong-clock] [--all-words] [--delay-ms N]

The strangers call from many loopback addresses with the member's own first records, which they have
copied from the line, now and an hour ago; with --all-words also with nothing at all, half a record
and a valid one without a mark. The member's line delays each way. The control has the same load, on
another node of the same machine. Nodes, the member and the strangers are processes of their own.
"""

import argparse
import asyncio
import contextlib
import itertools
import multiprocessing
import os
import resource
import socket
import ssl
import statistics
import sys
import time
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from unittest.mock import patch

sys.path.insert(0, str(Path(__file__).parent.parent))

from defl.cards import Card
from defl.node.event_loop import loop_factory
from defl.node.net.sockets import BACKLOG
from defl.node.net.tls import client_context, relay_client_context
from defl.node.net.transport import TransportLimits
from defl.node.setup.identity import Identity, make_card
from support.relays import HIGH, LOW, RELAY, DiallingPeer, dialling_cards, relay_at
from support.transports import IDENTITIES, Peer, address_of, cards_of, listener

LIMITS = TransportLimits()  # those of real nodes
LIMIT_S = 60.0
OPEN_MAX = 2000  # as many as the strangers hold open
FORK = multiprocessing.get_context("fork")
PAIR = dialling_cards(LOW, HIGH)


def run(main: Coroutine[object, object, None]) -> None:
    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        runner.run(main)


def serve(bound: socket.socket, cards: Sequence[Card], me: int) -> None:
    bound.listen(BACKLOG)

    async def forever() -> None:
        if me < 0:
            async with relay_at(bound, PAIR):
                await asyncio.Event().wait()
        called = Peer(me, cards, bound, limits=LIMITS)
        await called.transport.start()
        await asyncio.Event().wait()

    run(forever())


def delay_line(bound: socket.socket, called: tuple[str, int], delay_s: float) -> None:
    """Passes connections on, each byte this much later."""

    async def pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(2**16):
                await asyncio.sleep(delay_s)
                writer.write(data)
        await asyncio.sleep(delay_s)
        writer.close()

    async def join(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            far_reader, far_writer = await asyncio.open_connection(*called)
            await asyncio.gather(pass_on(reader, far_writer), pass_on(far_reader, writer))
        writer.close()

    async def forever() -> None:
        await (await asyncio.start_server(join, sock=bound)).serve_forever()

    run(forever())


def record_of(make: Callable[[], ssl.SSLContext], clock_off_s: float = 0.0) -> bytes:
    """The first record of a call, as somebody on the line sees it."""
    outgoing, now = ssl.MemoryBIO(), time.time()
    with contextlib.suppress(ssl.SSLWantReadError), patch("time.time", lambda: now + clock_off_s):
        context = make()
        context.wrap_bio(ssl.MemoryBIO(), outgoing, server_hostname=None).do_handshake()
    return outgoing.read()


def flood(
    called: tuple[str, int], words: Sequence[bytes], rate: float, addresses: int, report: Connection
) -> None:
    """Calls at this rate until the parent says a word, then reports the rate."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, OPEN_MAX + 200), hard))
    sources = [f"127.9.{i // 250}.{i % 250 + 1}" for i in range(addresses)]
    open_ones: deque[socket.socket] = deque()
    began = time.monotonic()
    for calls in itertools.count(1):
        turn, i = divmod(calls, len(sources))
        if report.poll():
            break
        caller = socket.socket()
        caller.setblocking(False)
        caller.setsockopt(socket.SOL_IP, getattr(socket, "IP_BIND_ADDRESS_NO_PORT", 24), 1)
        caller.bind((sources[i], 0))
        caller.connect_ex(called)
        with contextlib.suppress(OSError):
            caller.send(words[(turn + i) % len(words)])
        open_ones.append(caller)
        if len(open_ones) > OPEN_MAX:
            open_ones.popleft().close()
        time.sleep(max(0.0, began + calls / rate - time.monotonic()))
    report.send(calls / (time.monotonic() - began))


def member_starts(
    cards: Sequence[Card], relay: Card | None, clock_off_s: float, report: Connection
) -> None:
    """Starts the member, reports the seconds until it is connected (or LIMIT_S), and ends it."""
    real_time = time.time
    time.time = lambda: real_time() + clock_off_s

    async def start_once() -> None:
        if relay is None:
            peers = [Peer(0, cards, listener(), limits=LIMITS)]
            goal, peer = peers[0], cards[2]
        else:
            peers = [
                DiallingPeer(i, PAIR, identity, relays=(relay,), limits=LIMITS)
                for i, identity in enumerate((LOW, HIGH))
            ]
            goal, peer = peers[0], PAIR[1]
        id_ = next(id_ for id_, card in goal.transport._contacts.cards.items() if card == peer)
        began = time.monotonic()
        for each in peers:
            await each.transport.start()
        while not goal.transport.connected(id_) and time.monotonic() - began < LIMIT_S:
            await asyncio.sleep(0.005)
        took = time.monotonic() - began
        report.send((took, goal.transport.stats.trouble.get(id_, "")))
        await asyncio.gather(*(each.transport.close() for each in peers))

    run(start_once())


def cpu_s(process: BaseProcess) -> float:
    fields = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def started(target: Callable[..., None], *options: object) -> BaseProcess:
    process = FORK.Process(target=target, args=options, daemon=True)
    process.start()
    return process


def measure(options: argparse.Namespace, *, rate: float, at_called: bool) -> None:
    listeners = [listener() for _ in range(4)]
    cards = cards_of(listeners)
    line = listener()
    member: Identity = IDENTITIES[0]
    relay = make_card(RELAY, address_of(line)) if options.relay else None
    as_dialled = [*cards[:2], make_card(IDENTITIES[2], address_of(line)), cards[3]]
    serving = (listeners[2], cards, -1 if options.relay else 2)
    called = started(serve, *serving)
    other = started(serve, listeners[3], cards, 3)
    delay_s = options.delay_ms / 1000
    delaying = started(delay_line, line, listeners[2].getsockname(), delay_s)

    def context() -> ssl.SSLContext:
        return relay_client_context(LOW, relay) if relay else client_context(member, cards[2])

    stranger = record_of(lambda: client_context(IDENTITIES[3], cards[1]))
    words = [record_of(context), record_of(context, -3600.0)]
    if options.all_words:
        words += [b"", stranger[:100], stranger]
    here, there = FORK.Pipe()
    target = listeners[2 if at_called else 3].getsockname()
    flooding = started(flood, target, words, rate, options.addresses, there)
    off_s = 86_400.0 if options.wrong_clock else 0.0
    took, troubles = [], set()
    try:
        time.sleep(3.0)
        cpu, began = cpu_s(called), time.monotonic()
        for _ in range(options.trials):
            if options.restart_called:
                called.kill()
                called.join()
                called = started(serve, *serving)
                cpu, began = cpu_s(called), time.monotonic()
            ours, theirs = FORK.Pipe()
            trial = started(member_starts, as_dialled, relay, off_s, theirs)
            theirs.close()
            seconds, trouble = ours.recv()
            took.append(seconds)
            if seconds >= LIMIT_S:
                troubles.add(trouble)
            trial.join()
        share = (cpu_s(called) - cpu) / (time.monotonic() - began)
        here.send("stop")
        achieved = here.recv()
    finally:
        for process in (called, other, delaying, flooding):
            process.kill()
            process.join()
        for bound in (*listeners, line):
            bound.close()
    where = "the called node" if at_called else "another node"
    out = sum(seconds >= LIMIT_S for seconds in took)
    print(
        f"{achieved:6.0f} calls/s at {where:<16} back after {statistics.median(took):6.2f} s "
        f"(median), {max(took):6.2f} s at most; not back in {LIMIT_S:.0f} s: {out} of {len(took)}; "
        f"{share:4.0%} of a core",
        flush=True,
    )
    for trouble in sorted(troubles):
        print(f"  the member says: {trouble}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rate", type=float, default=2000.0)
    parser.add_argument("--addresses", type=int, default=250)
    parser.add_argument("--trials", type=int, default=10)
    parser.add_argument("--relay", action="store_true", help="a pair that meets at a relay")
    parser.add_argument("--restart-called", action="store_true", help="it forgets what it knew")
    parser.add_argument("--wrong-clock", action="store_true", help="the member's, by a day")
    parser.add_argument("--all-words", action="store_true", help="and silence, and other records")
    parser.add_argument(
        "--delay-ms", type=float, default=25.0, help="of the member's line, one way"
    )
    options = parser.parse_args()
    measure(options, rate=1.0, at_called=True)
    measure(options, rate=options.rate, at_called=False)
    measure(options, rate=options.rate, at_called=True)


if __name__ == "__main__":
    main()
