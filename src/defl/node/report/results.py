"""What a node produces for people: its models, round certificates, and a log line for each event.

Everything here follows from the participant's notices and nothing depends on it.
"""

import asyncio
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from defl.contacts import PeerRole
from defl.ids import Digest
from defl.messages import Evidence, Handover, Upd
from defl.node.report.archive import Archive
from defl.node.report.best_model import BestModel
from defl.node.report.certificate import certificate_of, certificate_text
from defl.node.report.evidence_file import EvidenceFolder
from defl.node.report.history import RoundHistory, log_fields
from defl.node.report.log import Log
from defl.node.report.model_file import write_model
from defl.node.report.names import Names
from defl.node.store.blobs import Blobs
from defl.node.work.worker_process import WorkReport
from defl.output import (
    Aggregate,
    Attested,
    Committed,
    Departed,
    EpochBegan,
    EvidenceFound,
    Finished,
    Isolated,
    ModelReady,
    Notice,
    Observing,
    OwnUpdateLate,
    PeerMisbehaved,
    RoundClosed,
    RoundProven,
    SafetyBroken,
    WaitsFor,
    WorkFailing,
)
from defl.participant import Participant
from defl.work import model_row

if TYPE_CHECKING:
    from defl.node.report.metrics import Measures

# A flood of faults must not become a flood of log lines.
FAULTS_LOGGED_MAX = 10

MODEL = "model.safetensors"
# The newest model that q members vouch for, and the certificate that says so.
PROVEN = "proven.safetensors"
CERTIFICATE = "round-certificate.json"

HOURS_S = 3600


def isolation_text(notice: Isolated) -> str:
    """What the node knows, and what it does not."""
    return (
        f"for {notice.seconds / HOURS_S:g} hours at most {notice.faults} of the other members "
        "could be heard. Either the federation has ended or gone on without this node, or this "
        "machine's network is cut; this node does not know which. Its state is kept: ask another "
        "member, and start it again if the federation goes on"
    )


class Results:
    def __init__(
        self,
        folder: Path,
        participant: Participant,
        names: Names,
        blobs: Blobs,
        log: Log,
        measures: "Measures",
        history: RoundHistory,
        best: BestModel | None = None,
    ) -> None:
        self._folder = folder
        self._participant = participant
        self._federation = participant.federation  # what is used of it is the same in every epoch
        self._names = names
        self._blobs = blobs
        self._log = log
        self._measures = measures
        self._history = history
        self.evidence_files = EvidenceFolder(folder, participant.federation, names)
        self._best = best
        self._archive = Archive(folder)
        self._written: Digest | None = None  # which model the file holds
        self._observing: str | None = None  # the reason that was logged

    def committed(self, committed: Committed) -> None:
        """How long this node's own transactions took from submission to commit."""
        for transaction in committed.block.transactions:
            if transaction.author == self._participant.me:
                if isinstance(transaction, Upd):
                    self._history.committed(transaction.round)
                latency_s = self._measures.committed(transaction)
                if latency_s is not None:
                    kind = type(transaction).__name__.upper()
                    ms = round(latency_s * 1000, 1)
                    self._log.info("committed", kind=kind, round=transaction.round, ms=ms)

    def misbehaved(self, notice: PeerMisbehaved) -> None:
        """Count every fault; log the first few."""
        name = self._names.of(notice.peer)
        self._measures.peer_faults[name] += 1
        if self._measures.peer_faults[name] <= FAULTS_LOGGED_MAX:
            self._log.warning("refused", peer=name, why=notice.reason)

    def aggregated(self, work: Aggregate, report: WorkReport) -> None:
        """Record each member's weight in the aggregate, and the reason."""
        done = self._history.aggregated(work, report)
        judged = {n: share for n, share in done.members.items() if share.score is not None}
        self._log.info(
            "aggregated",
            round=done.round,
            left_out=",".join(done.left_out) or "none",
            weights=log_fields({name: share.weight for name, share in judged.items()}),
            scores=log_fields({name: share.score or 0.0 for name, share in judged.items()}),
            why=done.reason,
        )

    def record(self, notice: Notice) -> None:
        """What is written down when it happens, whatever the disk does."""
        match notice:
            case RoundClosed(round=round_):
                closed = self._history.closed(notice, self._measures.commit_latency())
                without = ",".join(closed.missing) or "none"
                self._log.info("round closed", round=round_, without=without)
                for name in closed.late:
                    how = str(self._history.late[name])
                    self._log.info("member is late", member=name, how=how)
            case ModelReady():
                self._history.ready(notice)
            case RoundProven() | Attested():
                self._history.proven(notice)
            case EpochBegan(federation=federation):
                self._history.entered(federation)

    async def notice(self, notice: Notice) -> None:
        match notice:
            case ModelReady(round=round_, digest=digest):
                await asyncio.to_thread(self._write_model, round_, digest)
                self._log.info("model ready", round=round_, digest=digest.hex()[:16])
            case RoundProven() | Attested():
                text = certificate_text(certificate_of(self._federation, notice))
                await asyncio.to_thread(self._keep_certificate, notice.round, text)
                await self._keep_state()
                await asyncio.to_thread(self._write_certificate, text, notice.digest)
                if self._best is not None:
                    await self._best.proven(notice.digest, text)
                self._log.info("round proven", round=notice.round, digest=notice.digest.hex()[:16])
            case WaitsFor(round=round_, members=members):
                names = self._names
                longest = ", ".join(f"{names.of(m)} up to {left:.1f} s" for m, left in members)
                self._log.info("waiting for members", round=round_, members=longest)
            case OwnUpdateLate(round=round_, late_s=late_s):
                self._history.own_late(notice)
                self._log.warning(
                    "this node's update was late", round=round_, seconds=round(late_s, 3)
                )
            case EvidenceFound(evidence=evidence):
                kind = type(evidence.first).__name__
                author = self._names.of(evidence.first.author)
                self._log.warning("a member contradicts itself", member=author, kind=kind)
                await asyncio.to_thread(self.keep_evidence, (evidence,))
            case PeerMisbehaved():
                self.misbehaved(notice)
            case Observing(reason=reason) if reason != self._observing:
                self._observing = reason  # each epoch of an observer begins with it
                self._log.warning("observing: this node signs nothing any more", why=reason)
            case SafetyBroken(reason=reason):
                self._log.warning("safety is broken: more than f members lie", why=reason)
            case WorkFailing(reason=reason):
                self._log.warning("retrying failed work", why=reason.strip().rpartition("\n")[2])
            case EpochBegan(handover=handover):
                await asyncio.to_thread(self.keep_handover, handover)
                self._log_epoch(notice)
            case Departed(epoch=epoch):
                self._log.info(
                    "departed: this node has left, and enough members know it; it stops",
                    epoch=epoch,
                )
            case Isolated():
                self._log.warning("isolated: this node stops", why=isolation_text(notice))
            case Finished(round=round_):
                await self._keep_state()
                self._log.info("finished", rounds=round_)

    def _log_epoch(self, began: EpochBegan) -> None:
        committee = began.federation.committee
        self._log.info(
            "epoch began",
            epoch=began.federation.epoch,
            role=str(PeerRole.MEMBER if committee.has(began.me) else self._participant.role),
            first_round=began.federation.first_round,
            members=",".join(began.federation.members[id_].name for id_ in committee.members),
            n=committee.size,
            f=committee.faults,
            quorum=committee.quorum,
        )

    def keep_handover(self, handover: Handover) -> None:
        """Also at a start: the node may have stopped before it wrote the newest one."""
        try:
            self._archive.keep_handover(handover)
        except OSError as fault:
            self._log.warning("not written", what=f"handover of epoch {handover.epoch}", why=fault)

    def keep_evidence(self, proofs: Iterable[Evidence]) -> None:
        """Also at a start: the node may have stopped before it wrote the newest one."""
        for proof in proofs:
            try:
                self.evidence_files.keep(proof)
            except OSError as fault:
                self._log.warning("not written", what="evidence", why=fault)

    def _keep_certificate(self, round_: int, text: str) -> None:
        try:
            self._archive.keep_certificate(round_, text)
        except OSError as fault:
            self._log.warning("not written", what=f"certificate of round {round_}", why=fault)

    async def _keep_state(self) -> None:
        state = self._participant.replica.snapshot
        if state is None:
            return
        try:
            await asyncio.to_thread(self._archive.keep_state, state)
        except OSError as fault:
            self._log.warning("not written", what="state of the ledger", why=fault)

    def _write_model(self, round_: int, digest: Digest) -> None:
        metadata = {"round": str(round_), "digest": digest.hex()}
        with self._blobs.reading((digest,)):
            row = model_row(self._federation, self._blobs.read(digest))
            write_model(self._folder / MODEL, self._federation.schema, row, metadata)
        self._written = digest

    def _write_certificate(self, text: str, digest: Digest) -> None:
        if self._written != digest:
            return  # this node was away and never had that model
        temporary = self._folder / ".proven.writing"
        temporary.unlink(missing_ok=True)
        temporary.hardlink_to(self._folder / MODEL)
        temporary.replace(self._folder / PROVEN)
        # If this is the proven file already, the rename has done nothing: the name is still a link
        # to the model.
        temporary.unlink(missing_ok=True)
        temporary.write_text(text, encoding="utf-8")
        temporary.replace(self._folder / CERTIFICATE)
