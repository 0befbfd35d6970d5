"""The participant as a program: what feeds it events and does what it says.

    event -> participant.handle -> persist -> send
                                         `-> store -> send -> work -> drop

Nothing of the protocol is decided here. Nothing leaves before the persists in front of it and the
stores of its own output are done; work waits for all stores in front of it. A record that finds
the disk full holds up everything that follows until there is room.
"""

import asyncio
import errno
import json
import secrets
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from defl.errors import ChunkRotten, LocalFault, PeerFault, UserError, WorkerFailed
from defl.ids import Digest, NodeId, Round
from defl.messages import Gossip
from defl.node.net.framing import Frame
from defl.node.net.transport import Lane, Transport
from defl.node.net.verifying import Verifying
from defl.node.report.best_model import BestModel
from defl.node.report.history import Reports, nowhere, told
from defl.node.report.model_file import shared_row
from defl.node.report.non_finite import warn_not_finite
from defl.node.report.results import Results
from defl.node.report.status import metrics_of, status_of
from defl.node.report.telemetry import LineLimit, Log, Measures, Server, write_private
from defl.node.report.tracking import start_tracking
from defl.node.setup.config import (
    INITIAL_FILE,
    Agreement,
    NodeConfig,
    read_card_file,
    read_federation,
    read_identity,
    read_node,
)
from defl.node.setup.identity import Identity
from defl.node.store.blobs import disk_faults, sync_folder
from defl.node.store.serving import Serving
from defl.node.store.storage import DATABASE, Storage
from defl.node.store.writing import RETRY_S, Writing
from defl.node.work.evaluation import Evaluations
from defl.node.work.local_entries import LOCAL_FILE
from defl.node.work.worker import ChildLimits, Worker, inputs_of
from defl.output import (
    Aggregate,
    Aggregated,
    ChunkLost,
    Connected,
    Envelope,
    Event,
    Faulted,
    ModelReady,
    Notice,
    Output,
    PeerMisbehaved,
    ReceivedChunk,
    ServeChunk,
    Tick,
    Train,
    Trained,
    Work,
    WorkFailed,
)
from defl.participant import Participant
from defl.wire import chunk_frame_bytes_max, chunk_head, control_frame_bytes_max, encode
from defl.work import model_blob

# Frames wait here for the loop; the transport stops reading when it is full.
EVENTS_MAX = 1024
# Decided and not yet performed.
OUTPUTS_MAX = 64
# Chunks in memory between their arrival and their place on the disk; the weights lane of a peer
# whose chunk finds no room is not read on. The rest of what waits for blobs is a few per round.
CHUNKS_UNDER_WAY_MAX = 16
TROUBLE_EVERY_S = 2.0
# Of one kind about one peer: a link that flaps, or a peer that reconnects on purpose, must not fill
# the disk. So a peer causes at most a few thousand lines a day.
PEER_LINES_BURST = 5
PEER_LINES_EVERY_S = 60.0

PORT_FILE = "telemetry.port"  # where a running node answers
TOKEN_FILE = "telemetry.token"  # noqa: S105  (a name); who reads this file may read the status
PID_FILE = "node.pid"
STATUS_FILE = "status.json"  # the final status, written on exit
STARTED_FILE = "started"  # beside the state: whoever loses the state must not start afresh
NEWER_CARDS = "cards/*.card.toml"  # of members whose address changed since the federation's file

T = TypeVar("T")
QueuedEvent = tuple[Event, "asyncio.Future[None] | None"]  # done when the event is handled


def open_node(folder: Path, log: Log, *, observer: bool = False) -> "Node":
    """The node of this folder, made ready: its state is created at the first start."""
    config = read_node(folder)
    agreement = read_federation(folder / config.federation)
    identity = read_identity(folder, config.name)
    if agreement.member(identity.public_key) is None:
        raise UserError(
            f"{folder}: this node's key is not in {config.federation}; the federation was made "
            "without its card"
        )
    state, started = folder / config.state, folder / STARTED_FILE
    if not Storage.exists(state):
        if (started.exists() or Storage.was_used(state)) and not observer:
            raise UserError(
                f"{state / DATABASE} is gone, and with it the record of what this node signed: put "
                "the same folder back, never an older copy, or follow without signing: defl node "
                f"start --observer {folder}"
            )
        initial = (folder / config.federation).parent / INITIAL_FILE
        _create_state(state, agreement, initial, observer=observer)
    elif observer:
        with Storage.open(state, chain=agreement.federation.chain) as storage:
            storage.observe("it was started with --observer")
    _mark_started(started)
    node = Node(folder, config, agreement, identity, log)
    for path in sorted(folder.glob(NEWER_CARDS)):
        if node.transport.update_card(read_card_file(path)):
            log.info("a member's newer card is used", card=path.name)
    return node


def _mark_started(started: Path) -> None:
    """After the state is whole, so that a crash before costs nothing, and before anything is
    signed, so that nothing signed is forgotten."""
    if not started.exists():
        with disk_faults(f"write {started}"):
            started.touch(mode=0o600)
            sync_folder(started.parent)


def _create_state(state: Path, agreement: Agreement, initial: Path, *, observer: bool) -> None:
    federation = agreement.federation
    row, _ = shared_row(initial, federation.schema)
    manifest, payload = model_blob(federation, row)
    if manifest.digest != federation.initial:
        raise UserError(
            f"{initial}: these are not the initial weights that the federation agreed on; "
            "get the file that came with federation.toml"
        )
    Storage.create(state, federation, manifest, payload, observer=observer)


class Node:
    """One organisation's process."""

    def __init__(
        self,
        folder: Path,
        config: NodeConfig,
        agreement: Agreement,
        identity: Identity,
        log: Log,
    ) -> None:
        federation = agreement.federation
        member = agreement.member(identity.public_key)
        if member is None:
            raise UserError("this node is not a member of the federation")
        self.federation = federation
        self.me = member
        self.log = log
        self.measures = Measures()
        self._peer_lines = LineLimit(PEER_LINES_BURST, PEER_LINES_EVERY_S)
        self._loop_lines = LineLimit(1, PEER_LINES_EVERY_S)
        self.storage = Storage.open(folder / config.state, chain=federation.chain)
        self.writing = Writing(self.storage, log)
        durable = self.storage.recovered()
        for fault in self.storage.faults:
            log.warning("damage found at start", what=fault)
        self.participant = Participant(federation, self.me, identity.signer, durable)
        self.transport = Transport(
            me=self.me,
            identity=identity,
            cards=agreement.cards,
            chain=federation.chain,
            listen=config.listen_at,
            frame_bytes_max={
                Lane.CONTROL: control_frame_bytes_max(len(agreement.cards)),
                Lane.WEIGHTS: chunk_frame_bytes_max(federation.chunk_bytes),
            },
            on_frame=self._on_frame,
            on_connected=lambda peer: self._put(Connected(peer)),
            on_disconnected=lambda peer: self._log_peer(log.info, "peer is gone", peer),
        )
        self.worker = Worker(
            config.client,
            folder / config.state,
            federation,
            ChildLimits(client_s=config.work_time_max_s, evaluation_s=config.evaluation_time_max_s),
            project=folder / config.project,
        )
        self._tracking = start_tracking(
            config.track, folder, federation.chain.hex()[:16], config.name, log
        )
        names = [card.name for card in agreement.cards]
        self.reports = Reports(names, self._tracking.record if self._tracking else nowhere)
        local = folder / config.state / LOCAL_FILE
        best = (
            BestModel(folder, config.keep_best, federation, self.storage, local, log)
            if config.keep_best
            else None
        )
        self._evaluations = Evaluations(self.worker, self.storage, self.reports, log, best)
        self._folder = folder
        self._port = config.telemetry_port
        self._token = secrets.token_urlsafe()
        self._server = Server(lambda: status_of(self), lambda: metrics_of(self), self._token)
        self._results = Results(
            folder, agreement, self.me, self.storage, log, self.measures, self.reports, best
        )
        self._verifying = Verifying(federation, self.participant.wanted)
        self._events: asyncio.Queue[QueuedEvent] = asyncio.Queue(EVENTS_MAX)
        self._outputs: asyncio.Queue[Output | None] = asyncio.Queue(OUTPUTS_MAX)
        self._blob_outputs: asyncio.Queue[Output | None] = asyncio.Queue()
        self._chunk_room = asyncio.Semaphore(CHUNKS_UNDER_WAY_MAX)
        self._serving = Serving(
            self._read_frame,
            self._rotten,
            send=partial(self.transport.send, lane=Lane.WEIGHTS),
            drained=partial(self.transport.drained, lane=Lane.WEIGHTS),
        )
        self._notices: asyncio.Queue[Notice] = asyncio.Queue()  # a few per round
        self._tasks: set[asyncio.Task[None]] = set()
        self._stopping = asyncio.Event()

    def stop(self) -> None:
        self._stopping.set()

    async def run(self) -> None:
        """Until the federation is finished or `stop` is called."""
        asyncio.get_running_loop().set_exception_handler(self._on_loop_trouble)
        port = await self._server.start(self._port)
        write_private(self._folder / TOKEN_FILE, self._token)
        (self._folder / PORT_FILE).write_text(str(port), encoding="ascii")
        self._start(self._start_worker())
        await self.transport.start()
        self._start(self._tell_trouble())
        self._start(self._tell_notices())
        self.log.info("started", member=self.me, round=self.participant.state.round)
        loop = asyncio.create_task(self._to_the_end())
        stopping = asyncio.create_task(self._stopping.wait())
        try:
            await asyncio.wait((loop, stopping), return_when=asyncio.FIRST_COMPLETED)
            if loop.done():
                loop.result()
        finally:
            await self._evaluations.cancel()
            for task in (loop, stopping, *self._tasks):
                task.cancel()
            await asyncio.gather(loop, stopping, *self._tasks, return_exceptions=True)
            self._write_last_word()
            await self.transport.close()
            await self.worker.close()
            await self._server.close()
            self._verifying.close()
            self.writing.close()
            self.storage.close()
            if self._tracking is not None:
                await asyncio.to_thread(self._tracking.close)
            self.log.info("stopped", round=self.participant.state.round)

    def _write_last_word(self) -> None:
        """A full disk keeps the word before it, and hinders nothing that follows."""
        beside = self._folder / f".{STATUS_FILE}.writing"
        try:
            for name in (PORT_FILE, TOKEN_FILE):
                (self._folder / name).unlink(missing_ok=True)
            beside.write_text(json.dumps(status_of(self)), encoding="utf-8")
            beside.replace(self._folder / STATUS_FILE)
        except OSError as error:
            self.log.warning("not written", what=STATUS_FILE, why=error)

    async def _start_worker(self) -> None:
        try:
            await self.worker.start()
        except WorkerFailed as failed:
            self.log.warning("the worker does not start; each work tries it again", why=failed)

    async def _tell_notices(self) -> None:
        """Models and certificates are written one after the other, beside the loop."""
        while True:
            notice = await self._notices.get()
            while not await self._told(notice) and self._notices.empty():
                await asyncio.sleep(RETRY_S)  # the newest is worth waiting for room
            self._notices.task_done()

    async def _told(self, notice: Notice) -> bool:
        try:
            await self._results.notice(notice)
        except (OSError, LocalFault) as fault:
            self.log.warning("not written", what=type(notice).__name__, why=fault)
            return False
        return True

    async def _tell_trouble(self) -> None:
        """Why a peer is not connected, whenever the reason is a new one."""
        told: dict[NodeId, str] = {}
        while True:
            for peer, why in self.transport.stats.trouble.items():
                if told.get(peer) != why:
                    self._log_peer(self.log.warning, "peer is not connected", peer, why=why)
            told = dict(self.transport.stats.trouble)
            await asyncio.sleep(TROUBLE_EVERY_S)

    def _log_peer(
        self, log: Callable[..., None], event: str, peer: NodeId, **fields: object
    ) -> None:
        now = asyncio.get_running_loop().time()
        withheld = self._peer_lines.withheld((event, peer), now)
        if withheld is not None:
            more = {"withheld": withheld} if withheld else {}
            log(event, peer=self.federation.members[peer].name, **fields, **more)

    def _on_loop_trouble(self, loop: asyncio.AbstractEventLoop, context: dict[str, object]) -> None:
        """While there are no descriptors, asyncio's server reports 100 failed accepts a second with
        their tracebacks: they would fill the disk. Everything else is reported in full."""
        error = context.get("exception")
        if not isinstance(error, OSError) or error.errno not in (errno.EMFILE, errno.ENFILE):
            loop.default_exception_handler(context)
            return
        withheld = self._loop_lines.withheld("accept", loop.time())
        if withheld is not None:
            self.log.warning("telemetry accepts nobody", why=error, withheld=withheld)

    async def _to_the_end(self) -> None:
        await self._loop()
        await self._notices.join()
        await self._evaluations.finish()  # of the last model

    async def _loop(self) -> None:
        """Until the federation is finished: each step hands on to the next and may wait without
        holding up the one before it."""
        steps = (self._decide(), self._perform_all(), self._perform_blobs())
        tasks = [asyncio.create_task(step) for step in steps]
        try:
            await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()

    async def _decide(self) -> None:
        clock = asyncio.get_running_loop().time
        output = self.participant.handle(Tick(), clock())
        await self._outputs.put(output)
        while not self.participant.finished:
            event, handled = await self._next_event(output.wake_at)
            output = self.participant.handle(event, clock())
            if handled is not None and not handled.done():
                handled.set_result(None)
            if isinstance(event, ReceivedChunk) and not output.store:
                self._chunk_room.release()
            await self._outputs.put(output)
        await self._outputs.put(None)

    async def _next_event(self, wake_at: float | None) -> QueuedEvent:
        if not self._events.empty():
            return self._events.get_nowait()
        try:
            async with asyncio.timeout_at(wake_at):
                return await self._events.get()
        except TimeoutError:
            return Tick(), None

    # --- What the participant asks for -----------------------------------------------------

    async def _perform_all(self) -> None:
        """Records first. Those that came while the disk was busy are written together, by one
        sync instead of many."""
        while (output := await self._outputs.get()) is not None:
            if output.persist is None:
                self._perform(output)
                continue
            outputs = [output]
            while not self._outputs.empty() and (output := self._outputs.get_nowait()) is not None:
                outputs.append(output)
            await self.writing.persist([o.persist for o in outputs if o.persist is not None])
            for written in outputs:
                self._perform(written)
            if output is None:
                break
        self._blob_outputs.put_nowait(None)

    def _perform(self, output: Output) -> None:
        """Its records are written. What needs blobs (chunks to store, what follows them in the same
        output, work, drops) goes on in `_perform_blobs`, in order; nothing else waits for
        megabytes."""
        if output.store or output.work or output.drop:
            self._blob_outputs.put_nowait(output)
        if not output.store:
            self._send_all(output)
        for committed in output.committed:
            self._results.committed(committed)
        for notice in output.notices:
            if isinstance(notice, PeerMisbehaved):
                self._results.misbehaved(notice)  # a liar could make many: they do not queue
            else:
                self._notices.put_nowait(notice)
            if isinstance(notice, ModelReady) and notice.round == self.federation.rounds:
                self._evaluations.begin(notice.round, notice.digest)

    async def _perform_blobs(self) -> None:
        while (output := await self._blob_outputs.get()) is not None:
            for chunk in output.store:
                await self.writing.store_chunk(chunk)
                self._chunk_room.release()
            if output.store:
                self._send_all(output)
            for work in output.work:
                self._start(self._do(work))
            await asyncio.sleep(0)  # work opens its inputs before retention drops their names
            for digest in output.drop:
                await self.writing.drop(digest)

    def _send_all(self, output: Output) -> None:
        for item in output.send:
            if not isinstance(item, ServeChunk):
                self._send(item)
            elif self._serving.ask(item.to, item.digest, item.index):
                self._start(self._serving.feed(item.to))

    def _read_frame(self, digest: Digest, index: int) -> memoryview:
        return self.storage.read_chunk(digest, index, partial(chunk_head, digest, index))

    def _rotten(self, digest: Digest, index: int, rotten: ChunkRotten) -> None:
        self.log.warning("damage found", what=f"{rotten}: it is fetched again from the others")
        self._put(ChunkLost(digest, index))

    def _send(self, item: Envelope) -> None:
        if isinstance(item.message, Gossip):
            for transaction in item.message.transactions:
                if transaction.author == self.me:
                    self._results.submitted(transaction)
        frame = encode(item.message)
        for peer in item.to if item.to is not None else self.federation.committee.members:
            if peer != self.me:
                self.transport.send(peer, frame, Lane.CONTROL)

    async def _do(self, work: Work) -> None:
        try:
            with self.storage.reading(inputs_of(work)):
                done = await self.worker.run(work, self.storage.path, self.storage.take_spare)
            if isinstance(done, Aggregated):
                await self.writing.place_aggregate(done.manifest, self.worker.made(done))
            if isinstance(done, Trained):
                await self.writing.place_update(done.manifest, self.worker.made(done))
        except (WorkerFailed, LocalFault, OSError) as failed:
            self.log.warning("work failed", work=type(work).__name__, why=failed)
            await self._events.put((WorkFailed(work, str(failed)), None))
        else:
            self._tell_done(work)
            await self._events.put((done, None))
            if isinstance(work, Train):
                self._evaluations.begin(Round(work.round - 1), work.base)

    def _tell_done(self, work: Work) -> None:
        training, aggregation = self.worker.training, self.worker.aggregation
        if isinstance(work, Train) and training is not None:
            self.reports.trained(training)
            self.log.info("trained", **told(training.metrics, round=training.round))
            warn_not_finite(self.log, "train", training.round, training.metrics)
        if isinstance(work, Aggregate) and aggregation is not None:
            self._results.aggregated(work, aggregation)

    # --- What others send ------------------------------------------------------------------

    async def _on_frame(self, peer: NodeId, lane: Lane, frame: Frame) -> None:  # noqa: ARG002
        """Until it returns, the link that brought the frame is not read on."""
        try:
            event = await self._verifying.admit(peer, frame)
        except PeerFault as fault:
            event = Faulted(peer, str(fault))
        if isinstance(event, ReceivedChunk):
            await self._chunk_room.acquire()
        if event is not None:
            # What comes next on this link is judged with this one handled.
            handled = asyncio.get_running_loop().create_future()
            await self._events.put((event, handled))
            await handled

    def _put(self, event: Event) -> None:
        self._start(self._events.put((event, None)))

    # --- Tasks and threads -----------------------------------------------------------------

    def _start(self, doing: Any) -> None:
        task = asyncio.create_task(doing)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
