"""The end of a federation: its members attest the last round's model.

Every member signs (round, digest) of the model that it computed; q equal attestations prove the
model to anyone. A node keeps serving until all members have attested or the grace period is over.
"""

from dataclasses import dataclass, field

from defl.committee import Federation
from defl.crypto import Signer
from defl.ids import Digest, NodeId, Round
from defl.messages import Attestation, Evidence, attestation_statement
from defl.output import Attested, Envelope, EvidenceFound, Finished, Notice
from defl.verifier import IsProven, contradict


@dataclass(slots=True)
class FinishEffects:
    send: list[Envelope] = field(default_factory=list)
    notices: list[Notice] = field(default_factory=list)


class Finish:
    def __init__(self, federation: Federation, me: NodeId, signer: Signer) -> None:
        self._federation = federation
        self._me = me
        self._signer = signer
        self._attestations: dict[NodeId, Attestation] = {}
        self._answered: dict[NodeId, float] = {}
        self._own: Attestation | None = None
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
            self._repeat_at = now
        if self._repeat_at is not None and now >= self._repeat_at and self._own is not None:
            # First to all, then to members that have not attested. A member that attested but
            # missed this attestation repeats its own and gets an answer.
            silent = tuple(
                m for m in self._federation.committee.members if m not in self._attestations
            )
            self._effects.send.append(Envelope(silent if self._announced else None, self._own))
            self._announced = True
            self._repeat_at = now + self._federation.timing.view_base_s if silent else None
        self._conclude(now)

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
        self.answer(peer, now)

    def answer(self, peer: NodeId, now: float) -> None:
        """Answer a peer that still attests, but not every echo of an answer."""
        ready_at = self._answered.get(peer, float("-inf")) + self._federation.timing.view_base_s
        if self._own is not None and (now >= ready_at or now < self._answered[peer]):
            self._answered[peer] = now
            self._effects.send.append(Envelope((peer,), self._own))

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
        over = self._over_at is not None and now >= self._over_at
        if not self.finished and (len(self._attestations) == committee.size or over):
            self.finished = True
            self._effects.notices.append(Finished(Round(self._federation.rounds)))
