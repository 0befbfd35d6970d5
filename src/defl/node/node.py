"""One node as a program: its parts, from start to stop, and what its peers send and get.

`driver.py` feeds the participant and carries out what it decides.
"""

import asyncio
import os
import secrets
from collections.abc import Callable, Coroutine, Iterable
from functools import partial
from pathlib import Path
from typing import Any

from defl.committee import Federation
from defl.contacts import PeerRole, id_of
from defl.crypto import ReportingSigner
from defl.duty import Report
from defl.errors import ChunkRotten, LocalFault, UserError
from defl.fields import MEMBERS_MAX
from defl.ids import OUTSIDER, Digest, NodeId, Round
from defl.messages import Gossip, Handover, Offer, StoreAck
from defl.node.driver import Driver, Outlets
from defl.node.epoch_parts import Cards, EpochParts, ingress_of
from defl.node.event_loop import LoopErrors
from defl.node.files import PORT_FILE, STATUS_FILE, TOKEN_FILE
from defl.node.intake import Intake
from defl.node.net.proxy import proxies_of
from defl.node.net.sessions import key_in_use, place_is_taken
from defl.node.net.tls_transport import RecordFlood
from defl.node.net.transport import Lane, Transport
from defl.node.net.verifier import FrameVerifier
from defl.node.report.best_model import BestModel
from defl.node.report.change_log import ChangeLog
from defl.node.report.history import RoundHistory, discard
from defl.node.report.log import Log
from defl.node.report.membership import membership_report
from defl.node.report.metrics import Measures, NodeMetrics
from defl.node.report.names import STRANGER, Names
from defl.node.report.notices import NoticeQueue
from defl.node.report.peer_log import PeerLog, report_crowd
from defl.node.report.requests import event_of
from defl.node.report.results import Results, isolation_text
from defl.node.report.round_log import FactWriter
from defl.node.report.status import encode_status, status_of
from defl.node.report.telemetry import Server, write_private
from defl.node.report.tracking import start_tracking
from defl.node.setup.agreement import Agreement
from defl.node.setup.config import NodeConfig
from defl.node.setup.identity import Identity
from defl.node.setup.joining import awaited_chain
from defl.node.store.serving import Serving
from defl.node.store.storage import Storage
from defl.node.store.writing import Writing
from defl.node.work.checked_values import CheckedValues
from defl.node.work.evaluation import Evaluations
from defl.node.work.local_entries import LOCAL_FILE
from defl.node.work.runner import WorkRunner
from defl.node.work.worker import ChildLimits, Result, Worker
from defl.output import (
    ChunkLost,
    Connected,
    Disconnected,
    Envelope,
    EpochBegan,
    Isolated,
    ModelReady,
    PeerMisbehaved,
    Received,
    SafetyBroken,
    ServeChunk,
    ServeHandover,
    Train,
    Trained,
    Validate,
    Work,
    WorkFailed,
)
from defl.participant import Participant
from defl.participant_parts import present_epoch
from defl.wire import (
    chunk_frame_bytes_max,
    chunk_head,
    control_frame_bytes_max,
    encode,
    says_handover,
)


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
        origin = agreement.federation
        self.name = config.name
        self.log = log
        self.measures = Measures()
        self.storage = Storage.open(folder / config.state, chain=origin.chain)
        durable = self.storage.recovered()
        for fault in self.storage.faults:
            log.warning("damage found at start", what=fault)
        federation = present_epoch(origin, durable)
        signer = ReportingSigner(identity.signer, self._remember_own)
        self.participant = Participant(
            federation,
            id_of(federation, identity.public_key),
            signer,
            durable,
            awaits_chain=awaited_chain(folder, origin, self.storage.records.handovers()),
        )
        self.names = Names(self.participant)
        self._peer_log = PeerLog(log, self.names)
        cards = Cards(agreement.cards)
        self.transport = Transport(
            me=self.me,
            identity=identity,
            origin=origin.chain,
            epoch=federation.epoch,
            contacts=cards.of(self.participant.contacts.all),
            listen=config.listen_at,
            reach=config.reach,
            relays=agreement.relays,
            relay=config.relay,
            proxies=proxies_of(config.proxy, os.environ),
            frame_bytes_max={
                Lane.CONTROL: control_frame_bytes_max(MEMBERS_MAX),
                Lane.WEIGHTS: chunk_frame_bytes_max(federation.chunk_bytes),
            },
            on_frame=lambda peer, _lane, frame: self._intake.take(peer, frame),
            on_connected=lambda peer, epoch: self._driver.feed(Connected(peer, epoch)),
            on_disconnected=self._disconnected,
            on_elsewhere=self._key_in_use,
            on_flood=self._flooded,
            is_letter=says_handover,  # the one message that strangers hand in
        )
        self.worker = Worker(
            config.client,
            folder / config.state,
            federation,
            ChildLimits(client_s=config.work_time_max_s, evaluation_s=config.evaluation_time_max_s),
            project=folder / config.project,
            client_environment=config.client_environment,
        )
        self._tracking = start_tracking(
            config.track, folder, origin.chain.hex()[:16], config.name, log
        )
        record = self._tracking.record if self._tracking else discard
        names = [member.name for member in federation.members]
        self._facts = FactWriter(folder, log)
        self.history = RoundHistory(
            names, federation.committee.members, record, federation.first_round, self._facts.put
        )
        local = folder / config.state / LOCAL_FILE
        best = (
            BestModel(folder, config.keep_best, federation, self.storage.blobs, local, log)
            if config.keep_best
            else None
        )
        self._evaluations = Evaluations(self.worker, self.storage.blobs, self.history, log, best)
        self._folder = folder
        self._port = config.telemetry_port
        self._token = secrets.token_urlsafe()
        self._metrics = NodeMetrics(self)
        self._server = Server(
            lambda: status_of(self),
            self._metrics.text,
            self._token,
            membership=lambda: membership_report(self.participant),
            on_request=lambda asked: self._driver.feed(event_of(asked, self.participant)),
        )
        self._results = Results(
            folder,
            self.participant,
            self.names,
            self.storage.blobs,
            log,
            self.measures,
            self.history,
            best,
        )
        self._results.keep_evidence(durable.evidence)
        self.evidence_files = self._results.evidence_files
        if durable.switch is not None:
            self._results.keep_handover(durable.switch.handover)
        checked = CheckedValues(federation)
        self._runner = WorkRunner(
            self.worker, self.storage.blobs, checked, self.history, self._results, log
        )
        self.writing = Writing(self.storage, self.worker.take_output, log)
        ingress = ingress_of(self.participant)
        self._verifier = FrameVerifier(
            federation.committee,
            ingress,
            self.participant.wanted,
            self.participant.has_requested,
            checked,
        )
        self._epoch_parts = EpochParts(
            self.participant, ingress, self._verifier, self.transport, cards
        )
        self._change_log = ChangeLog(self.participant, self.names, log)
        outlets = Outlets(self._send, self._report, self._work, self._follow)
        self._driver = Driver(self.participant, self.writing, outlets)
        self._intake = Intake(self._verifier, self._driver)
        self._serving = Serving(
            self._read_frame,
            self._rotten,
            send=partial(self.transport.send, lane=Lane.WEIGHTS),
            drained=partial(self.transport.drained, lane=Lane.WEIGHTS),
        )
        self._notices = NoticeQueue(self._results, log)
        self.safety_broken: str | None = None  # since the start: why
        self._isolated: Isolated | None = None  # it stops for this reason
        self._tasks: set[asyncio.Task[None]] = set()
        self.elsewhere: str | None = None  # why it stops: another process has its key
        self._stopping = asyncio.Event()

    @property
    def federation(self) -> Federation:
        """Its facts in the present epoch."""
        return self.participant.federation

    @property
    def me(self) -> NodeId:
        """OUTSIDER if this node is no member in the present epoch."""
        return self.participant.me

    def learn(self, handovers: Iterable[Handover]) -> None:
        """How earlier epochs ended, from a file; their signatures are checked."""
        for handover in handovers:
            self._driver.feed(Received(OUTSIDER, handover, handover.epoch))

    def stop(self) -> None:
        self._stopping.set()

    async def run(self, on_started: Callable[[], None] = lambda: None) -> None:
        """Run until the federation is finished or `stop` is called.

        `on_started` is called when the node listens and its loop runs."""
        asyncio.get_running_loop().set_exception_handler(LoopErrors(self.log).report)
        port = await self._server.start(self._port)
        write_private(self._folder / TOKEN_FILE, self._token)
        (self._folder / PORT_FILE).write_text(str(port), encoding="ascii")
        self._start(self._runner.start())
        await self.transport.start()
        self._start(self._peer_log.report(self.transport.stats.trouble, self.transport.connected))
        self._start(report_crowd(self.log, lambda: self.transport.turned_away))
        self._start(self._notices.run())
        facts = asyncio.create_task(self._facts.run())
        participant = self.participant
        self.history.started(self.federation, participant.state.round)
        self.log.info(
            "started",
            epoch=participant.epoch,
            role=str(participant.role),
            round=participant.state.round,
        )
        loop = asyncio.create_task(self._run_to_completion())
        stopping = asyncio.create_task(self._stopping.wait())
        on_started()
        try:
            await asyncio.wait((loop, stopping), return_when=asyncio.FIRST_COMPLETED)
            if loop.done():
                loop.result()
        finally:
            await self._evaluations.cancel()
            for task in (loop, stopping, *self._tasks):
                task.cancel()
            await asyncio.gather(loop, stopping, *self._tasks, return_exceptions=True)
            self._facts.end()
            await facts
            self._write_final_status()
            await self.transport.close()
            await self.worker.close()
            await self._server.close()
            self._verifier.close()
            self.writing.close()
            self._close_storage(None if loop.cancelled() else loop.exception())
            if self._tracking is not None:
                await asyncio.to_thread(self._tracking.close)
            self.log.info("stopped", round=self.participant.state.round)

    def _close_storage(self, first: BaseException | None) -> None:
        """A failing disk fails here too, but what ended the node is what the operator must read."""
        try:
            self.storage.close()
        except LocalFault as fault:
            if first is None:
                raise
            self.log.warning("state not closed cleanly", why=fault)

    def _write_final_status(self) -> None:
        """A failure keeps the previous status and does not stop the shutdown."""
        temporary = self._folder / f".{STATUS_FILE}.writing"
        try:
            for name in (PORT_FILE, TOKEN_FILE):
                (self._folder / name).unlink(missing_ok=True)
            temporary.write_bytes(encode_status(status_of(self)))
            temporary.replace(self._folder / STATUS_FILE)
        except OSError as error:
            self.log.warning("not written", what=STATUS_FILE, why=error)

    async def _run_to_completion(self) -> None:
        await self._driver.run()
        await self._notices.join()
        if self._isolated is not None and self.participant.role is not PeerRole.FORMER:
            raise LocalFault(isolation_text(self._isolated))
        await self._evaluations.finish()  # of the last model

    # --- Carrying out ----------------------------------------------------------------------

    def _report(self, report: Report) -> None:
        for committed in report.committed:
            self._results.committed(committed)
        for notice in report.notices:
            self._results.record(notice)
            if isinstance(notice, PeerMisbehaved):
                self._results.misbehaved(notice)  # a liar causes any number: they do not queue
            else:
                self._notices.put(notice)
            if isinstance(notice, EpochBegan):
                self._epoch_parts.boundary_written(notice.federation.epoch)
            if isinstance(notice, SafetyBroken):
                self.safety_broken = notice.reason
            if isinstance(notice, Isolated):
                self._isolated = notice
            if isinstance(notice, ModelReady) and notice.round == self.federation.rounds:
                self._evaluations.begin(notice.round, notice.digest)

    def _follow(self) -> None:
        """After each decision of the participant."""
        self._epoch_parts.follow()
        self._change_log.follow()

    def _send(self, item: Envelope | ServeChunk | ServeHandover) -> None:
        if isinstance(item, Envelope):
            self._send_message(item)
        elif isinstance(item, ServeHandover):
            self._start(self._serve_handover(item))
        elif self._serving.ask(item.to, item.digest, item.index):
            self._start(self._serving.feed(item.to))

    async def _serve_handover(self, item: ServeHandover) -> None:
        try:
            handover = await asyncio.to_thread(self.storage.records.handover, item.epoch)
        except LocalFault as fault:
            self.log.warning("a handover cannot be read", epoch=item.epoch, why=fault)
            return
        if handover is not None:
            self.transport.send(item.to, encode(handover), Lane.CONTROL)

    def _remember_own(self, message: Digest, signature: bytes) -> None:
        self._epoch_parts.remember_own(message, signature)

    def _read_frame(self, digest: Digest, index: int) -> memoryview:
        return self.storage.blobs.read_chunk(digest, index, partial(chunk_head, digest, index))

    def _rotten(self, rotten: ChunkRotten) -> None:
        self.log.warning("damage found", what=f"{rotten}: it is fetched again from the others")
        self._driver.feed(ChunkLost(Digest(rotten.digest), rotten.index))

    def _send_message(self, item: Envelope) -> None:
        if isinstance(item.message, Gossip):
            for transaction in item.message.transactions:
                if transaction.author == self.me:
                    self.measures.submitted(transaction)
        match item.message:
            case Offer(author=author, round=round_) if author == self.me:
                self.log.debug("offered", round=round_)
            case StoreAck(author=author, round=round_, digest=digest):
                self.log.debug("acknowledged", author=author, round=round_, digest=digest.hex())
        frame = encode(item.message, item.epoch)
        for peer in item.to if item.to is not None else self.federation.committee.members:
            if peer != self.me:
                self.transport.send(peer, frame, Lane.CONTROL)

    async def _work(self, work: Work) -> Result | WorkFailed:
        if isinstance(work, Validate):
            self.log.debug("received", digest=work.manifest.digest.hex())
        try:
            done = await self._runner.run(work)
        except ChunkRotten as rotten:
            self._rotten(rotten)
            return WorkFailed(work, str(rotten))
        if isinstance(work, Train) and isinstance(done, Trained):
            self._evaluations.begin(Round(work.round - 1), work.base)
        return done

    # --- What peers send -------------------------------------------------------------------

    def _disconnected(self, peer: NodeId) -> None:
        self._peer_log.disconnected(peer)
        self._driver.feed(Disconnected(peer))

    def _flooded(self, peer: NodeId | None, flood: RecordFlood) -> None:
        name = STRANGER if peer is None else self.names.of(peer)
        self.measures.floods[name] += 1
        self._peer_log.floods.report(name, flood)

    def _key_in_use(self, claiming: list[NodeId]) -> None:
        """These members are connected with another process that has this node's key."""
        faults = self.federation.committee.faults
        if self.elsewhere is None and place_is_taken(len(claiming), faults):
            self.elsewhere = key_in_use(list(map(self.names.of, claiming)))
            self._driver.stop(UserError(self.elsewhere))
            self.log.warning("stops", why=self.elsewhere)

    def _start(self, coroutine: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
