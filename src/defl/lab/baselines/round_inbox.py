"""What a Biscotti node collects in one round, in all its roles, and what follows from it alone."""

from defl.ids import Digest, NodeId, digest_of
from defl.lab.baselines.blockchain import (
    BiscottiProfile,
    BlockUpdate,
    Verdicts,
    decided,
)
from defl.lab.baselines.machine import Contribution
from defl.schema import Row


class RoundInbox:
    def __init__(self, now: float, profile: BiscottiProfile) -> None:
        self._verifiers = profile.verifiers
        self._keep_refused = profile.keep_refused
        self.own: tuple[Digest, bytes, Row] | None = None
        self.noise: dict[NodeId, Row | None] = {}  # by noiser; None until it arrives
        self.shown: dict[NodeId, Contribution] = {}
        self.commitments: dict[NodeId, Digest] = {}
        self.has_judged = False
        self.handed_in = False
        self.verdicts: dict[NodeId, Verdicts] = {}
        self.judged: dict[NodeId, bytes] = {}
        self.passed_on = False  # as a miner
        self.patience = profile.verify_timeout_s
        self.noise_until: float | None = None
        self.shown_until: float | None = None
        self.judged_until: float | None = None
        self.round_until = now + profile.round_timeout_s

    def until(self) -> float:
        times = (self.noise_until, self.shown_until, self.judged_until, self.round_until)
        return min(time for time in times if time is not None)

    def verdict_on(self, author: NodeId) -> Digest | bool | None:
        return decided(tuple(self.verdicts.values()), self._verifiers, author)

    def candidates(self, members: int) -> set[NodeId]:
        """The members on whom a verifier has an opinion."""
        authors = {o.author for v in self.verdicts.values() for o in v.opinions}
        return {author for author in authors if author < members}

    def accepted(self, members: int) -> dict[NodeId, Digest]:
        """By author, the commitment that a majority of verifiers accepts."""
        verdicts = {author: self.verdict_on(author) for author in self.candidates(members)}
        return {author: v for author, v in verdicts.items() if isinstance(v, bytes)}

    def block_updates(self, members: int, *, waited: bool) -> tuple[BlockUpdate, ...] | None:
        """What the leader's block holds; None while an update that belongs in it is missing."""
        accepted = self.accepted(members)
        wanted = self.candidates(members) if self._keep_refused else set(accepted)
        if not (waited or wanted <= self.judged.keys()):
            return None
        updates = []
        for author in sorted(wanted & self.judged.keys()):
            payload = self.judged[author]
            commitment = digest_of(payload)
            good = accepted.get(author) == commitment
            if good or self._keep_refused:
                updates.append(BlockUpdate(author, commitment, good, payload))
        return tuple(updates)
