"""One seat of a baseline as a real process: DeFL's transport, worker and files under the machine.

    python -m defl.lab.baselines.process FOLDER SEAT PARENT

launch.py creates FOLDER; PARENT is the process id of its process. The seat starts when all present
seats are connected, keeps status.json up to date, and serves until SIGTERM or until PARENT ends.
"""

import asyncio
import json
import os
import resource
import signal
import sys
import threading
from collections import Counter
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from defl.crypto import Ed25519Scheme
from defl.errors import PeerFault, WorkerFailed
from defl.ids import NodeId, digest_of
from defl.lab.baselines import systems
from defl.lab.baselines.frames import Inbox, lane_of
from defl.lab.baselines.machine import (
    SAMPLES_MAX,
    SAMPLES_METRIC,
    Event,
    NotTrained,
    SeatEnvelope,
    SeatModelReady,
    SeatOutput,
    SeatReceived,
    SeatStart,
    SeatTrain,
    SeatTrained,
    model_payload,
)
from defl.lab.baselines.stored import StoredFiles
from defl.node.net.send_queue import Frame
from defl.node.net.transport import Lane, Refusal, Transport, TransportLimits
from defl.node.report.model_file import shared_row
from defl.node.setup.agreement import INITIAL_FILE, read_federation
from defl.node.setup.config import card_file, read_card_file, read_identity, read_node
from defl.node.setup.local import FEDERATION_FILE
from defl.node.work.orphans import die_with
from defl.node.work.worker import Worker
from defl.output import Tick, Train, Trained
from defl.pool.weights import Base, decode

PLAN_FILE = "baseline.json"
STATUS_FILE = "status.json"
STATUS_EVERY_S = 0.1
# Frames wait here for the machine; the transport stops reading when it is full.
EVENTS_MAX = 64
# A block may be on its way to a peer while the next messages queue behind it.
MESSAGES_QUEUED = 3


class SeatPlan(Struct, frozen=True, forbid_unknown_fields=True):
    profile: systems.Profile
    seats: tuple[str, ...]  # the folder of each
    seed: int
    absent: tuple[int, ...] = ()  # never started, and not waited for


def read_plan(folder: Path) -> SeatPlan:
    return msgspec.json.decode((folder / PLAN_FILE).read_bytes(), type=SeatPlan)


class Process:
    def __init__(self, folder: Path, seat: NodeId) -> None:
        plan = read_plan(folder)
        agreement = read_federation(folder / FEDERATION_FILE)
        self._plan, self._seat = plan, seat
        self._federation = federation = agreement.federation
        self._folder = folder / plan.seats[seat]
        cards = [read_card_file(card_file(folder / name, name)) for name in plan.seats]
        config = read_node(self._folder)
        identity = read_identity(self._folder, config.name)
        initial, _ = shared_row(folder / INITIAL_FILE, federation.schema)
        self._machine = systems.machine_of(
            plan.profile,
            federation,
            seat,
            systems.Keys(identity.signer, Ed25519Scheme(), cards[-1].key),
            initial,
            seed=plan.seed,
        )
        self._frames = systems.frames_of(plan.profile, federation)
        self._inbox = Inbox(self._frames)
        self._connected = asyncio.Event()
        self._transport = Transport(
            me=seat,
            identity=identity,
            origin=federation.chain,
            epoch=0,
            contacts={NodeId(i): card for i, card in enumerate(cards) if i != seat},
            listen=config.listen_at,
            frame_bytes_max=dict.fromkeys(Lane, self._frames.frame_bytes_max),
            on_frame=self._on_frame,
            on_connected=self._on_connected,
            limits=TransportLimits(
                queue_bytes_max=MESSAGES_QUEUED * self._frames.message_bytes_max
            ),
        )
        self._worker = Worker(
            config.client or None,
            self._folder / "work",
            federation,
            project=self._folder / config.project,
        )
        self._stored = StoredFiles(self._folder)
        self._status_writing = threading.Lock()
        self._events: asyncio.Queue[Event] = asyncio.Queue(EVENTS_MAX)
        self._numbers: Counter[tuple[NodeId, Lane]] = Counter()
        self._training: asyncio.Task[None] | None = None
        self._model: SeatModelReady | None = None
        self._weights_sent = self._weights_received = self._refused = 0

    async def run(self, stop: asyncio.Event) -> None:
        await self._transport.start()
        tasks = [
            asyncio.create_task(self._loop()),
            asyncio.create_task(self._report_status()),
            asyncio.create_task(_awaited(stop)),
        ]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            if self._training is not None:
                tasks.append(self._training)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await self._worker.close()
            await self._transport.close()
            self._write_status()

    async def _loop(self) -> None:
        clock = asyncio.get_running_loop().time
        await self._connected.wait()
        output = await asyncio.to_thread(self._machine.handle, SeatStart(), clock())
        while True:
            await self._perform(output)
            event = await self._next_event(output.wake_at)
            try:
                output = await asyncio.to_thread(self._machine.handle, event, clock())
            except PeerFault:
                self._refused += 1
                output = SeatOutput(wake_at=output.wake_at)

    async def _next_event(self, wake_at: float | None) -> Event:
        if not self._events.empty():
            return self._events.get_nowait()
        try:
            async with asyncio.timeout_at(wake_at):
                return await self._events.get()
        except TimeoutError:
            return Tick()

    async def _perform(self, output: SeatOutput) -> None:
        for store in output.store:
            await asyncio.to_thread(self._stored.put, store)
        for envelope in output.send:
            self._send(envelope)
        for model in output.models:
            self._model = model
        if output.train is not None:
            self._training = asyncio.create_task(self._train(output.train))

    def _send(self, envelope: SeatEnvelope) -> None:
        lane = lane_of(envelope.message)
        for peer in envelope.to:
            number = self._numbers[peer, lane]
            self._numbers[peer, lane] += 1
            if peer in self._plan.absent:
                continue
            for frame in self._frames.encode(envelope.message, number):
                self._transport.send(peer, frame, lane)
            self._weights_sent += envelope.message.weights_bytes

    async def _train(self, train: SeatTrain) -> None:
        """Train in a worker process, as a DeFL node does."""
        payload = model_payload(self._federation, train.base)
        base, path = digest_of(payload), self._folder / "work" / "base"
        path.write_bytes(payload)
        try:
            done = await self._worker.run(Train(train.round, base), {base: path})
        except WorkerFailed as failed:
            sys.stderr.write(f"training for round {train.round} failed: {failed}\n")
            await self._events.put(NotTrained(train.round))
            return
        if not isinstance(done, Trained):
            raise TypeError(f"training was answered by {type(done).__name__}")
        made = self._worker.take_output(done.manifest)
        schema, codec = self._federation.schema, self._federation.codec
        row = decode(made.read_bytes(), schema, codec, Base(train.base, train.round))
        made.unlink()
        report = self._worker.training
        samples = report.metrics.get(SAMPLES_METRIC, 1) if report is not None else 1
        await self._events.put(
            SeatTrained(train.round, row, min(SAMPLES_MAX, max(1, int(samples))))
        )

    # --- Receiving ------------------------------------------------------------------

    def _on_connected(self, _peer: NodeId, _epoch: int) -> None:
        seats = map(NodeId, range(len(self._plan.seats)))
        others = [s for s in seats if s != self._seat and s not in self._plan.absent]
        if all(self._transport.connected(peer) for peer in others):
            self._connected.set()

    async def _on_frame(self, peer: NodeId, lane: Lane, frame: Frame) -> None:
        message = await asyncio.to_thread(self._inbox.take, peer, lane, frame)
        if message is not None:
            self._weights_received += message.weights_bytes
            await self._events.put(SeatReceived(peer, message))

    # --- Status ------------------------------------------------------------------

    def status(self) -> dict[str, Any]:
        totals = {lane.value: {"sent": 0, "received": 0} for lane in Lane}
        for (_, lane), traffic in self._transport.stats.traffic.items():
            totals[lane.value]["sent"] += traffic.bytes_out
            totals[lane.value]["received"] += traffic.bytes_in
        model = self._model
        return {
            "seat": self._seat,
            "round": 0 if model is None else model.round,
            "model": None
            if model is None
            else digest_of(model_payload(self._federation, model.row)).hex(),
            "finished": self._machine.finished,
            "traffic": totals,
            "weights_sent": self._weights_sent,
            "weights_received": self._weights_received,
            "disk_bytes": self._stored.bytes,
            "memory_peak_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
            "refused": self._refused + self._transport.stats.refusals[Refusal.FAULT],
            "worker_error": self._worker.last_error,
        }

    async def _report_status(self) -> None:
        while True:
            await asyncio.to_thread(self._write_status)
            await asyncio.sleep(STATUS_EVERY_S)

    def _write_status(self) -> None:
        path = self._folder / STATUS_FILE
        beside = path.with_name(f".{path.name}.writing")
        with self._status_writing:  # a thread may still be writing when the last one is due
            beside.write_text(json.dumps(self.status()), encoding="utf-8")
            os.replace(beside, path)


async def _awaited(stop: asyncio.Event) -> None:
    await stop.wait()


async def _main(folder: Path, seat: NodeId) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    await Process(folder, seat).run(stop)


if __name__ == "__main__":
    die_with(int(sys.argv[3]))
    asyncio.run(_main(Path(sys.argv[1]), NodeId(int(sys.argv[2]))))
