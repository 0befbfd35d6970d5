"""What a Biscotti node collects in one round, in whatever roles it has, and until when it waits."""

from defl.ids import Digest, NodeId
from defl.lab.baselines import shamir
from defl.lab.baselines.blockchain import BiscottiProfile, Verdicts
from defl.lab.baselines.machine import Contribution
from defl.schema import Row


class RoundInbox:
    def __init__(self, now: float, profile: BiscottiProfile) -> None:
        self.own: tuple[Digest, bytes, Row] | None = None
        self.noise: dict[NodeId, Row | None] = {}  # asked for; None until it comes
        self.shown: dict[NodeId, Contribution] = {}
        self.commitments: dict[NodeId, Digest] = {}
        self.has_judged = False
        self.handed_in = False
        self.verdicts: dict[NodeId, Verdicts] = {}
        self.judged: dict[NodeId, bytes] = {}
        self.shares: dict[NodeId, shamir.Secret] = {}
        self.sums: dict[NodeId, tuple[bytes, shamir.Secret]] = {}
        self.passed_on = False  # as a miner
        self.patience = profile.verify_timeout_s
        self.noise_until: float | None = None
        self.shown_until: float | None = None
        self.judged_until: float | None = None
        self.round_until = now + profile.round_timeout_s

    def until(self) -> float:
        times = (self.noise_until, self.shown_until, self.judged_until, self.round_until)
        return min(time for time in times if time is not None)
