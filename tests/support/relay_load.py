"""What strangers and hostile members cost a relay, and what an honest byte costs it.

    python tests/support/relay_load.py [--frames N] [--strangers N] [--megabytes N]

A relay runs in a process of its own; its memory (VmRSS) is read after each attack and compared
with that after a first gentle use. Fuzzed frames come from members: first in many connections, each
ended by its first bad frame, then within a joined pair, where the relay does not read them.
"""

import argparse
import asyncio
import multiprocessing
import os
import random
import socket
import sys
import time
from collections.abc import Coroutine
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

from defl.cards import Card
from defl.node.event_loop import loop_factory
from defl.node.net.framing import Lane
from defl.node.relay.protocol import RELAY_FRAME_BYTES_MAX, Verb
from defl.node.setup.identity import Identity, make_card
from support.relays import HIGH, LOW, MIDDLE, RELAY, STRANGER, Guest, dialling_cards, pair_at
from support.relays import relay_at as relay_serving
from support.transports import address_of, listener

FRAMES_PER_CONNECTION = 1000
AT_ONCE = 4
PIECE = 256 * 2**10
MEMBERS = dialling_cards(LOW, MIDDLE, HIGH)


def serve(bound: socket.socket) -> None:
    async def forever() -> None:
        async with relay_serving(bound, MEMBERS):
            await asyncio.Event().wait()

    run(forever())


def run(main: Coroutine[object, object, None]) -> None:
    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        runner.run(main)


class Meter:
    def __init__(self, process: int) -> None:
        self._folder = Path("/proc") / str(process)

    def memory_mb(self) -> float:
        status = (self._folder / "status").read_text()
        line = next(line for line in status.splitlines() if line.startswith("VmRSS"))
        return int(line.split()[1]) / 1024

    def cpu_s(self) -> float:
        fields = (self._folder / "stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def fuzzed(rng: random.Random) -> bytes:
    """A frame of random bytes; every tenth has a length that is out of bounds."""
    body = rng.randbytes(rng.randint(1, RELAY_FRAME_BYTES_MAX))
    length = len(body) if rng.random() < 0.9 else rng.getrandbits(32)
    return length.to_bytes(4, "big") + body


async def fuzz_connections(card: Card, frames: int, rng: random.Random) -> int:
    """Members' connections that begin with fuzzed frames, or park first."""
    members = (LOW, MIDDLE, HIGH)
    sent = 0

    async def attack(identity: Identity) -> None:
        nonlocal sent
        while sent < frames:
            sent += FRAMES_PER_CONNECTION
            burst = b"".join(fuzzed(rng) for _ in range(FRAMES_PER_CONNECTION))
            try:
                if identity is HIGH and rng.random() < 0.5:
                    guest = await Guest.asking(card, HIGH, Verb.PARK, LOW)
                else:
                    guest = await Guest.at(card, identity)
                guest.writer.write(burst)
                await guest.ended()
                await guest.close()
            except OSError:
                continue

    await asyncio.gather(*(attack(member) for member in members for _ in range(AT_ONCE)))
    Guest.present.clear()
    return sent


async def fuzz_pair(card: Card, frames: int, rng: random.Random) -> None:
    parked, called = await pair_at(card)
    sample = b"".join(fuzzed(rng) for _ in range(FRAMES_PER_CONNECTION))
    for _ in range(frames // FRAMES_PER_CONNECTION):
        called.writer.write(sample)
        await called.writer.drain()
        await parked.reader.readexactly(len(sample))
    await parked.close()
    await called.close()


async def strangers(card: Card, count: int, meter: Meter) -> float:
    """All at once: a third silent, a third with a foreign certificate, a third with nonsense.
    Returns the most memory seen."""
    host, port = card.address.split(":")
    most = 0.0

    async def silent(first: bytes) -> None:
        try:
            _, writer = await asyncio.open_connection(host, int(port))
            writer.write(first)
            await asyncio.sleep(5)
            writer.transport.abort()
        except OSError:
            return

    async def parking() -> None:
        try:
            guest = await Guest.asking(card, STRANGER, Verb.PARK, LOW)
            await guest.ended()
            await guest.close()
        except OSError:
            return

    async def watch() -> None:
        nonlocal most
        while True:
            most = max(most, meter.memory_mb())
            await asyncio.sleep(0.05)

    watching = asyncio.create_task(watch())
    kinds = (lambda: silent(b""), parking, lambda: silent(b"GET / HTTP/1.1\r\n\r\n"))
    await asyncio.gather(*(kinds[i % 3]() for i in range(count)))
    watching.cancel()
    Guest.present.clear()
    return most


async def flood_of_parks(card: Card, count: int) -> None:
    """One member parks again and again, and reads nothing."""
    for i in range(count):
        lane = list(Lane)[i % 2]
        await Guest.asking(card, HIGH, Verb.PARK, (LOW, MIDDLE)[i // 2 % 2], lane)
    for guest in Guest.present:
        await guest.close()
    Guest.present.clear()


async def passed_on(card: Card, megabytes: int) -> float:
    """Seconds for this many megabytes through a joined pair."""
    parked, called = await pair_at(card)
    piece, pieces = bytes(PIECE), megabytes * 10**6 // PIECE
    began = time.perf_counter()

    async def write() -> None:
        for _ in range(pieces):
            called.writer.write(piece)
            await called.writer.drain()

    async def read() -> None:
        left = pieces * PIECE
        while left:
            left -= len(await parked.reader.read(PIECE))

    await asyncio.gather(write(), read())
    took = time.perf_counter() - began
    await parked.close()
    await called.close()
    return took


async def attack(card: Card, meter: Meter, options: argparse.Namespace) -> None:
    rng = random.Random(7)  # noqa: S311
    await passed_on(card, 10)
    await fuzz_connections(card, 20 * FRAMES_PER_CONNECTION, rng)
    first = meter.memory_mb()
    print(f"after a gentle use            {first:7.1f} MB")

    def show(what: str, memory: float | None = None) -> None:
        now = meter.memory_mb() if memory is None else memory
        print(f"{what:<30}{now:7.1f} MB ({now - first:+.1f})", flush=True)

    sent = await fuzz_connections(card, options.frames, rng)
    show(f"{sent} fuzzed frames, in calls")
    await fuzz_pair(card, options.frames, rng)
    show(f"{options.frames} fuzzed frames, in a pair")
    most = await strangers(card, options.strangers, meter)
    show(f"{options.strangers} strangers, at most", most)
    show(f"{options.strangers} strangers, after them")
    await flood_of_parks(card, 100)
    show("100 parks of one member")
    cpu = meter.cpu_s()
    took = await passed_on(card, options.megabytes)
    cpu = meter.cpu_s() - cpu
    show(f"{options.megabytes} MB passed on")
    rate, cost = options.megabytes / took, cpu / options.megabytes * 1000
    print(f"{rate:.0f} MB/s, {cost:.2f} s of the relay's processor per GB")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--frames", type=int, default=1_000_000)
    parser.add_argument("--strangers", type=int, default=1000)
    parser.add_argument("--megabytes", type=int, default=1000)
    options = parser.parse_args()
    bound = listener()
    process = multiprocessing.get_context("fork").Process(target=serve, args=(bound,))
    process.start()
    card = make_card(RELAY, address_of(bound))
    bound.close()
    try:
        run(attack(card, Meter(process.pid or 0), options))
    finally:
        process.kill()
        process.join()


if __name__ == "__main__":
    main()
