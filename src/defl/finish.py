"""The end of a federation: its members attest the last round's model.

Every member signs (round, digest) of the model that it computed; q equal attestations prove the
model to anyone. A member that has them, durably, returns each author's attestation to it. A node
keeps serving until all members have done so or the grace period is over: a member that was killed
before it had the proof needs the others to get it.
"""

from dataclasses import dataclass, field

from defl.committee import Committee, Federation
from defl.crypto import Signer
from defl.ids import Digest, NodeId, Round
from defl.messages import Attestation, Evidence, attestation_statement
from defl.output import (
    Attested,
    Connected,
    Disconnected,
    Envelope,
    EvidenceFound,
    Finished,
    Notice,
    Received,
    ReceivedChunk,
)
from defl.verifier import IsProven, contradict


@dataclass(slots=True)
class FinishEffects:
    attestations: tuple[Attestation, ...] = ()  # durable before anything is sent
    send: list[Envelope] = field(default_factory=list)
    notices: list[Notice] = field(default_factory=list)


# A node stops when it has heard of at most f members for this long, which outlasts a weekend. They
# may all be Byzantine; any other one would have told it how the federation went on.
ALONE_S = 3 * 24 * 3600.0


PeerEvent = Received | ReceivedChunk | Connected | Disconnected


class Isolation:
    """Has this node been cut off for so long that it stops? It cannot know whether the federation
    has ended, or only its own network is cut; so it claims neither."""

    def __init__(self) -> None:
        self._connected: set[NodeId] = set()
        self._seen_at: dict[NodeId, float] = {}  # of members only: others are not numbered for good
        self._started_at: float | None = None
        self.wake_at: float | None = None
        self.stops = False

    def saw(self, committee: Committee, event: PeerEvent, now: float) -> None:
        """A peer is there, or was until now."""
        if not committee.has(event.peer):
            return
        self._seen_at[event.peer] = now
        if isinstance(event, Connected):
            self._connected.add(event.peer)
        elif isinstance(event, Disconnected):
            self._connected.discard(event.peer)

    def judge(self, committee: Committee, round_: Round, now: float) -> bool:
        """True once, when the node has to stop. `round_`: the newest closed one. Before the first
        one others may not have started yet, however long that takes."""
        if self._started_at is None:
            self._started_at, self.wake_at = now, now + ALONE_S
        if self.wake_at is None or now < self.wake_at:
            return False
        started_at = self._started_at
        seen = sorted(
            now if member in self._connected else self._seen_at.get(member, started_at)
            for member in committee.members
        )
        self.wake_at = (seen[-1 - committee.faults] if round_ else now) + ALONE_S
        if now < self.wake_at:
            return False
        self.stops, self.wake_at = True, None
        return True


class Finish:
    def __init__(
        self,
        federation: Federation,
        me: NodeId,
        signer: Signer,
        proof: tuple[Attestation, ...] = (),
    ) -> None:
        """`proof`: the attestations that this node had when it stopped."""
        self._federation = federation
        self._me = me
        self._signer = signer
        self._attestations = {a.author: a for a in proof if a.round == federation.rounds}
        self._answered: dict[NodeId, float] = {}
        self._own = self._attestations.get(me)
        self._served: set[NodeId] = set()  # they have returned this node's attestation
        self._announced = False
        self._repeat_at: float | None = None
        self._over_at: float | None = None
        self._proven = False
        self._effects = FinishEffects()
        self.finished = False
        self.muted = False

    @property
    def agreeing(self) -> int:
        """Members that attest this node's own model, with itself; 0 before it has one."""
        return len(self._agreeing())

    def _agreeing(self) -> list[Attestation]:
        own = self._own
        return [
            a for a in self._attestations.values() if own is not None and a.digest == own.digest
        ]

    @property
    def wake_at(self) -> float | None:
        times = [at for at in (self._repeat_at, self._over_at) if at is not None]
        return None if self.finished else min(times, default=None)

    def take(self) -> FinishEffects:
        effects = self._effects
        self._effects = FinishEffects()
        return effects

    def attest(self, round_: Round, digest: Digest, now: float) -> None:
        """Attest the last model, repeatedly, to all members that have not attested."""
        if self._over_at is None:
            self._over_at = now + self._federation.timing.grace_s
        if self._own is None and not self.muted:
            self._own = self._sign(round_, digest)
            self._attestations[self._me] = self._own
        if self._own is not None and not self._announced:
            self._repeat_at = now
        if self._repeat_at is not None and now >= self._repeat_at and self._own is not None:
            # First to all, then to members that may need it.
            needing = self._needing
            self._effects.send.append(Envelope(needing if self._announced else None, self._own))
            self._announced = True
            self._repeat_at = None
        self._conclude(now)
        if self._announced and self._repeat_at is None and self._needing:
            self._repeat_at = now + self._federation.timing.view_base_s

    @property
    def _needing(self) -> tuple[NodeId, ...]:
        """Members that have not attested; once this node has the proof, also who may lack it.
        Before, a member that missed this attestation repeats its own and gets an answer. One that
        attests another model can never have the proof."""
        lacking = (
            {attestation.author for attestation in self._agreeing()} if self._proven else set()
        )
        lacking -= {self._me, *self._served}
        members = self._federation.committee.members
        return tuple(m for m in members if m not in self._attestations or m in lacking)

    def _sign(self, round_: Round, digest: Digest) -> Attestation:
        message = attestation_statement(
            self._federation.chain, self._federation.epoch, round_, digest
        )
        return Attestation(round_, digest, self._me, self._signer.sign(message))

    def wants(self, attestation: Attestation, is_proven: IsProven) -> bool | None:
        """Is it worth verifying? None: it deserves no answer either."""
        if attestation.round != self._federation.rounds:
            return None
        earlier = self._attestations.get(attestation.author)
        return earlier is None or (
            contradict(earlier, attestation) and not is_proven(attestation.author, Attestation)
        )

    def receive(self, peer: NodeId, attestation: Attestation, now: float) -> None:
        if attestation.round != self._federation.rounds:
            return
        earlier = self._attestations.setdefault(attestation.author, attestation)
        if contradict(earlier, attestation):
            self._effects.notices.append(EvidenceFound(Evidence(earlier, attestation)))
        self.answer(peer, attestation, now)

    def answer(self, peer: NodeId, attestation: Attestation, now: float) -> None:
        """Answer a peer that still attests, but not every echo of an answer. A peer that returns
        this node's own attestation has the proof."""
        if attestation == self._own:
            self._served.add(peer)
            return
        ready_at = self._answered.get(peer, float("-inf")) + self._federation.timing.view_base_s
        if self._own is not None and (now >= ready_at or now < self._answered[peer]):
            self._answered[peer] = now
            self._effects.send.append(Envelope((peer,), self._own))
            if self._proven and peer in self._attestations:
                self._effects.send.append(Envelope((peer,), self._attestations[peer]))

    def _conclude(self, now: float) -> None:
        committee = self._federation.committee
        if not self._proven and self._own is not None:
            own = self._own
            agreeing = self._agreeing()
            if len(agreeing) >= committee.quorum:
                self._proven = True
                ordered = tuple(sorted(agreeing, key=lambda attestation: attestation.author))
                attested = Attested(own.round, own.digest, ordered, self._federation.epoch)
                self._effects.notices.append(attested)
                self._effects.attestations = ordered
                for attestation in ordered:
                    if attestation.author != self._me:
                        self._effects.send.append(Envelope((attestation.author,), attestation))
        over = self._over_at is not None and now >= self._over_at
        if not self.finished and (over or (self._proven and not self._needing)):
            self.finished = True
            self._effects.notices.append(Finished(Round(self._federation.rounds)))
