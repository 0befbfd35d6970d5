"""The baseline for a round's time: the same bytes, all to all, over TLS and nothing else.

Each process runs the node's transport without consensus, disk or worker. This module is also the
program of such a process: it waits until all peers are connected and for the start signal, sends
its blob to all others and prints how long it took to receive all of theirs.
"""

import asyncio
import json
import sys
import time
from pathlib import Path

from defl.ids import NodeId, digest_of
from defl.node.net.send_queue import Frame
from defl.node.net.transport import Lane, Transport, TransportLimits
from defl.node.setup.config import LogFormat, read_card_file, read_identity, read_node
from defl.node.setup.local import make_nodes

CHUNK_BYTES = 4 * 2**20
LIMIT_S = 300.0


async def _process(folder: Path, me: NodeId, count: int, size: int, times: int) -> list[float]:
    cards = [read_card_file(folder / f"node-{i}" / f"node-{i}.card.toml") for i in range(count)]
    mine = folder / f"node-{me}"
    received = 0
    news = asyncio.Event()

    def on_frame(_peer: NodeId, _lane: Lane, frame: Frame) -> None:
        nonlocal received
        received += len(frame)
        news.set()

    transport = Transport(
        me=me,
        identity=read_identity(mine, f"node-{me}"),
        contacts={NodeId(i): card for i, card in enumerate(cards) if i != me},
        epoch=0,
        origin=digest_of(b"bare exchange"),  # of no federation; zero would be a probe
        listen=read_node(mine).listen_at,
        frame_bytes_max=dict.fromkeys(Lane, CHUNK_BYTES),
        on_frame=on_frame,
        on_connected=lambda _peer, _epoch: news.set(),
        limits=TransportLimits(queue_bytes_max=size + CHUNK_BYTES),  # everything is sent at once
    )
    await transport.start()
    peers = [NodeId(i) for i in range(count) if i != me]
    while not all(transport.connected(peer) for peer in peers):
        news.clear()
        await news.wait()
    chunk = bytes(CHUNK_BYTES)
    taken = []
    loop = asyncio.get_running_loop()
    for number in range(1, times + 1):
        sys.stdout.write("ready\n")
        sys.stdout.flush()
        await loop.run_in_executor(None, sys.stdin.readline)
        started = time.perf_counter()
        for start in range(0, size, CHUNK_BYTES):
            part = chunk[: min(CHUNK_BYTES, size - start)]
            for peer in peers:
                transport.send(peer, part, Lane.WEIGHTS)
        while received < number * size * len(peers):
            news.clear()
            if received < number * size * len(peers):
                await news.wait()
        taken.append(time.perf_counter() - started)
    sys.stdout.write(json.dumps(taken) + "\n")
    sys.stdout.flush()
    await loop.run_in_executor(None, sys.stdin.readline)  # peers may still be receiving
    await transport.close()
    return taken


async def measure(folder: Path, count: int, size: int, times: int) -> list[float]:
    """For each exchange, the seconds until every process had received everything."""
    make_nodes(folder, [""] * count, folder, LogFormat.JSON)
    command = (sys.executable, "-m", "defl.lab.experiments.exchange", str(folder))
    processes = [
        await asyncio.create_subprocess_exec(
            *command,
            *map(str, (member, count, size, times)),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
        )
        for member in range(count)
    ]
    try:
        async with asyncio.timeout(LIMIT_S):
            for _ in range(times):
                await asyncio.gather(*(_line(process) for process in processes))
                for process in processes:
                    _start(process)
            taken = await asyncio.gather(*(_line(process) for process in processes))
            for process in processes:
                _start(process)
    finally:
        for process in processes:
            if process.returncode is None:
                process.kill()
            await process.wait()
    return [max(times) for times in zip(*map(json.loads, taken), strict=True)]


async def _line(process: asyncio.subprocess.Process) -> bytes:
    if process.stdout is None:
        raise EOFError
    return await process.stdout.readline()


def _start(process: asyncio.subprocess.Process) -> None:
    if process.stdin is not None:
        process.stdin.write(b"go\n")


def main() -> None:
    folder, member, count, size, times = sys.argv[1:]
    asyncio.run(_process(Path(folder), NodeId(int(member)), int(count), int(size), int(times)))


if __name__ == "__main__":
    main()
