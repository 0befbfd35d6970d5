"""Biscotti (Shayan, Fung, Yoon, Beschastnikh, IEEE TPDS 2021): learning on a blockchain.

In each round a stake-weighted lottery over the last block's hash picks verifiers and miners. Every
node trains and sends its update to the v verifiers. They wait for a share of the updates or a
timeout, run the federation's rule (Multi-Krum) and sign which ones they accept. Judged updates go
to the leader miner. Its block {round, previous hash, global model, updates, stakes, verdicts} is
flooded: each node appends it on first receipt and sends it to all others (or only the leader sends
it). The whole chain stays on disk. Bytes a round: C(z+v)M + kM + n(n-1)B with B about (k+1)M;
stored T * B.

`PAPER` is what DeFL's authors measured: no noise, no secure aggregation, blocks that hold all n
updates, flooding. Options: z noisers whose Gaussian noise hides an update from the verifiers;
secure aggregation, where Shamir shares go to all miners and blocks hold only commitments.

Left out: verifiable random functions (the lottery is a public hash, so roles are known in advance),
polynomial commitments (a contributor could show the verifiers an update other than the one it
commits to, and with secure aggregation a leader could publish another model unnoticed), the
noisers' own commitments, forks (a late block after an empty one leaves its receiver behind), and
joining later. Noise and shares come from a seeded generator, so runs repeat but secrets are unsafe.

One node plays every role within a round, and each role's step waits for another's, so the steps
are here together, in the order of the round. What follows from collected messages alone is in
round_inbox.py, secure aggregation in secure_sum.py, messages, lottery and checks in blockchain.py.
"""

from contextlib import suppress
from math import ceil

import numpy as np
from msgspec.msgpack import encode
from msgspec.structs import replace

from defl.aggregation.model import aggregate_model
from defl.committee import Federation
from defl.crypto import Scheme, Signer
from defl.errors import BadBlob, BadBlock, PeerFault, UserError, WrongAuthor
from defl.ids import Digest, NodeId, Round, digest_of
from defl.lab.baselines.blockchain import (
    STAKE_FIRST,
    BiscottiBlock,
    BiscottiProfile,
    BiscottiShare,
    BlockUpdate,
    Judged,
    Noise,
    NoiseAsk,
    Opinion,
    Shown,
    Verdicts,
    check_block,
    check_verdicts,
    empty_block,
    genesis,
    lottery,
    next_stakes,
)
from defl.lab.baselines.machine import (
    Contribution,
    Duties,
    Event,
    Merge,
    Message,
    NotTrained,
    SeatEnvelope,
    SeatLearner,
    SeatOutput,
    SeatReceived,
    SeatStart,
    SeatTrained,
    Store,
    checked_model,
    checked_update,
    merge_of,
    model_payload,
    ties_of,
    update_payload,
)
from defl.lab.baselines.round_inbox import RoundInbox
from defl.lab.baselines.secure_sum import SecureSum
from defl.output import Tick
from defl.schema import Row

# One message of each kind per member: a node that is ahead of us is ahead by one round.
EARLY_PER_MEMBER_MAX = 8


class BiscottiNode:
    def __init__(
        self,
        federation: Federation,
        me: NodeId,
        signer: Signer,
        scheme: Scheme,
        initial: Row,
        profile: BiscottiProfile,
        rng: np.random.Generator,
        merge: Merge | None = None,
    ) -> None:
        n = federation.committee.size
        for role, count in (("verifiers", profile.verifiers), ("miners", profile.miners)):
            if not 1 <= count <= n:
                raise UserError(f"{count} {role} among {n} nodes; choose 1 to {n}")
        if not 0 <= profile.noisers < n:
            raise UserError(f"{profile.noisers} noisers among {n} nodes; choose 0 to {n - 1}")
        self._federation, self._me, self._signer, self._scheme = federation, me, signer, scheme
        self._profile = profile
        self._rng = rng
        plain = replace(federation, charter=replace(federation.charter, aggregation="fed_avg"))
        self._mean = merge_of(plain, by_samples=False)
        self._merge = merge or self._mean
        self._others = tuple(m for m in federation.committee.members if m != me)
        self._learner = SeatLearner(federation.rounds, initial)
        self._tip = genesis(federation.chain)
        self._stakes = (STAKE_FIRST,) * n
        self._early: list[tuple[NodeId, Message]] = []
        self._open(0.0)

    @property
    def finished(self) -> bool:
        return self._learner.done

    def handle(self, event: Event, now: float) -> SeatOutput:
        duties = Duties.none()
        match event:
            case SeatStart():
                self._open(now)
                duties.train = self._learner.begin()
            case SeatTrained() | NotTrained():
                if self._learner.trained(event, duties) and isinstance(event, SeatTrained):
                    self._has_trained(event.row, duties, now)
            case SeatReceived(peer=peer, message=message):
                self._hear(peer, message, duties, now)
            case Tick():
                self._tick(duties, now)
        return duties.output(None if self.finished else self._inbox.until())

    # --- A round begins --------------------------------------------------------------------

    @property
    def _round(self) -> Round:
        return Round(self._learner.round + 1)

    def _open(self, now: float) -> None:
        profile = self._profile
        self._verifiers = lottery(self._tip, b"verifier", self._stakes, profile.verifiers)
        self._miners = lottery(self._tip, b"miner", self._stakes, profile.miners)
        self._leader = self._miners[0]
        self._inbox = RoundInbox(now, profile)
        self._sum = (
            SecureSum(self._round, self._me, self._miners, len(self._stakes))
            if profile.secure_aggregation
            else None
        )

    def _hear(self, peer: NodeId, message: Message, duties: Duties, now: float) -> None:
        round_: Round = message.round  # type: ignore[attr-defined]  # every kind has one
        if round_ == self._round + 1:
            blocks = any(isinstance(held, BiscottiBlock) for _, held in self._early)
            full = len(self._early) >= EARLY_PER_MEMBER_MAX * len(self._stakes)
            if not full and not (blocks and isinstance(message, BiscottiBlock)):
                self._early.append((peer, message))
        if round_ != self._round or (self.finished and not isinstance(message, NoiseAsk)):
            return
        match message:
            case NoiseAsk():
                row = self._rng.standard_normal(self._federation.schema.values, dtype=np.float32)
                row *= np.float32(self._profile.noise_sigma)
                noise = Noise(round_, model_payload(self._federation, row))
                duties.send.append(SeatEnvelope((peer,), noise))
            case Noise(payload=payload):
                if self._inbox.noise.get(peer, payload) is None:
                    self._inbox.noise[peer] = checked_model(self._federation, payload)
                    self._show_if_due(duties, now)
            case Shown(commitment=commitment, payload=payload):
                row = checked_update(self._federation, payload, self._learner.model)
                self._collect(peer, commitment, row, duties, now)
            case Verdicts() as verdicts:
                if verdicts.verifier != peer:
                    raise WrongAuthor(f"{peer} brings verdicts of {verdicts.verifier}")
                check_verdicts(verdicts, self._federation, self._scheme)
                self._learn_verdicts(verdicts, duties, now)
            case Judged(payload=payload):
                checked_update(self._federation, payload, self._learner.model)
                self._inbox.judged.setdefault(peer, payload)
                self._mine_if_due(duties, now)
            case BiscottiShare() as share:
                if self._sum is None:
                    raise BadBlob(f"{peer} sent a share, but blocks hold whole updates")
                self._sum.take(peer, share, self._federation.schema.values)
                self._mine_if_due(duties, now)
            case BiscottiBlock() as block:
                self._check(block)
                self._append(block, duties, now)

    def _tick(self, duties: Duties, now: float) -> None:
        inbox = self._inbox
        if self.finished:
            return
        if now >= inbox.round_until:
            empty = empty_block(self._tip, self._round)
            duties.store.append(Store(f"chain/{self._round:08d}", empty))
            self._advance(empty, self._learner.model, duties, now)
            return
        if inbox.noise_until is not None and now >= inbox.noise_until:
            inbox.noise = {noiser: row for noiser, row in inbox.noise.items() if row is not None}
            self._show_if_due(duties, now)
        if inbox.shown_until is not None and now >= inbox.shown_until:
            self._judge(duties, now)
        if inbox.judged_until is not None and now >= inbox.judged_until:
            inbox.judged_until = None
            self._mine_if_due(duties, now, waited=True)

    # --- As a contributor ------------------------------------------------------------------

    def _has_trained(self, row: Row, duties: Duties, now: float) -> None:
        payload = update_payload(self._federation, row, self._learner.model)
        self._inbox.own = (digest_of(payload), payload, row)
        if self._profile.noisers:
            seed = digest_of(self._tip + self._me.to_bytes(8, "big"))
            stakes = [0 if i == self._me else stake for i, stake in enumerate(self._stakes)]
            chosen = lottery(seed, b"noiser", stakes, self._profile.noisers)
            self._inbox.noise = dict.fromkeys(chosen)
            self._inbox.noise_until = now + self._inbox.patience
            duties.send.append(SeatEnvelope(chosen, NoiseAsk(self._round)))
        self._show_if_due(duties, now)
        self._hand_in_if_due(duties)

    def _show_if_due(self, duties: Duties, now: float) -> None:
        inbox = self._inbox
        if inbox.own is None or any(row is None for row in inbox.noise.values()):
            return
        inbox.noise_until = None
        commitment, payload, row = inbox.own
        noise = [given for given in inbox.noise.values() if given is not None]
        if noise:
            row = row + np.mean(noise, axis=0, dtype=np.float32)
            payload = update_payload(self._federation, row, self._learner.model)
            row = checked_update(self._federation, payload, self._learner.model)
        others = tuple(v for v in self._verifiers if v != self._me)
        if others:
            shown = Shown(self._round, commitment, payload)
            duties.send.append(SeatEnvelope(others, shown))
        self._collect(self._me, commitment, row, duties, now)

    def _hand_in_if_due(self, duties: Duties) -> None:
        """Send a judged update to the leader, or in shares to all miners."""
        inbox = self._inbox
        if inbox.own is None or inbox.handed_in:
            return
        commitment, payload, row = inbox.own
        verdict = inbox.verdict_on(self._me)
        wanted = verdict == commitment or (
            verdict is False and self._profile.keep_refused and self._sum is None
        )
        if verdict is None or not wanted:
            return
        inbox.handed_in = True
        if self._sum is not None:
            duties.send += self._sum.split(row - self._learner.model, self._rng)
        elif self._leader == self._me:
            inbox.judged[self._me] = payload
        else:
            duties.send.append(SeatEnvelope((self._leader,), Judged(self._round, payload)))

    # --- As a verifier ---------------------------------------------------------------------

    def _collect(
        self, author: NodeId, commitment: Digest, row: Row, duties: Duties, now: float
    ) -> None:
        inbox = self._inbox
        if self._me not in self._verifiers or inbox.has_judged or author in inbox.shown:
            return
        inbox.shown[author] = Contribution(author, row)
        inbox.commitments[author] = commitment
        inbox.shown_until = inbox.shown_until or now + inbox.patience
        if len(inbox.shown) >= ceil(self._profile.wait_share * len(self._stakes)):
            self._judge(duties, now)

    def _judge(self, duties: Duties, now: float) -> None:
        inbox, federation = self._inbox, self._federation
        inbox.has_judged, inbox.shown_until = True, None
        authors = sorted(inbox.shown)
        accepted = [False] * len(authors)
        if len(authors) > federation.updates_faults_max:  # fewer may all be faulty
            result = aggregate_model(
                federation.aggregation,
                federation.schema,
                [inbox.shown[author].row for author in authors],
                self._learner.model,
                faults_max=federation.updates_faults_max,
                ties=ties_of(self._round, authors),
                members=authors,
            )
            accepted = [weight > 0 for weight in result.weights]
        opinions = tuple(
            Opinion(author, inbox.commitments[author], good)
            for author, good in zip(authors, accepted, strict=True)
        )
        inbox.shown.clear()
        unsigned = Verdicts(self._round, self._me, opinions, b"")
        verdicts = replace(
            unsigned, signature=self._signer.sign(unsigned.statement(federation.chain))
        )
        duties.send.append(SeatEnvelope(self._others, verdicts))
        self._learn_verdicts(verdicts, duties, now)

    # --- As a miner ------------------------------------------------------------------------

    def _learn_verdicts(self, verdicts: Verdicts, duties: Duties, now: float) -> None:
        if verdicts.verifier not in self._verifiers:
            raise WrongAuthor(f"{verdicts.verifier} is no verifier of this round")
        self._inbox.verdicts.setdefault(verdicts.verifier, verdicts)
        self._inbox.judged_until = self._inbox.judged_until or now + self._inbox.patience
        self._hand_in_if_due(duties)
        self._mine_if_due(duties, now)

    def _mine_if_due(self, duties: Duties, now: float, *, waited: bool = False) -> None:
        inbox = self._inbox
        if self._me not in self._miners or inbox.passed_on:
            return
        if waited:
            inbox.judged_until = now + inbox.patience
        elif len(inbox.verdicts) < len(self._verifiers):
            return
        if self._sum is not None:
            self._sum_if_due(self._sum, duties, now, waited=waited)
        elif self._leader == self._me:
            updates = inbox.block_updates(len(self._stakes), waited=waited)
            if updates is not None:
                self._publish(updates, self._merged(updates, self._merge), duties, now)

    def _sum_if_due(self, sum_: SecureSum, duties: Duties, now: float, *, waited: bool) -> None:
        accepted = self._inbox.accepted(len(self._stakes))
        to_leader = sum_.add_up(set(accepted), waited=waited)
        if to_leader is not None:
            self._inbox.passed_on = True
            duties.send.append(to_leader)
        opened = sum_.open_mean()
        if opened is not None:
            authors, change = opened
            updates = tuple(BlockUpdate(a, accepted[a], True, b"") for a in authors)
            model = np.asarray(self._learner.model + change, dtype=np.float32)
            self._publish(updates, model, duties, now)

    def _merged(self, updates: tuple[BlockUpdate, ...], merge: Merge) -> Row:
        base = self._learner.model
        good = [
            Contribution(u.author, checked_update(self._federation, u.payload, base))
            for u in updates
            if u.accepted
        ]
        return merge(good, base, self._round) if good else base

    def _publish(
        self, updates: tuple[BlockUpdate, ...], model: Row, duties: Duties, now: float
    ) -> None:
        self._inbox.passed_on = True
        unsigned = BiscottiBlock(
            self._round,
            self._tip,
            self._me,
            model_payload(self._federation, model),
            updates,
            next_stakes(self._stakes, updates),
            tuple(self._inbox.verdicts[v] for v in sorted(self._inbox.verdicts)),
            b"",
        )
        block = replace(unsigned, signature=self._signer.sign(unsigned.id))
        self._append(block, duties, now)

    # --- The chain -------------------------------------------------------------------------

    def _check(self, block: BiscottiBlock) -> None:
        check_block(
            block,
            self._federation,
            self._scheme,
            tip=self._tip,
            stakes=self._stakes,
            leader=self._leader,
            verifiers=self._verifiers,
            commitments_only=self._sum is not None,
        )
        if self._sum is None:
            model = self._merged(block.updates, self._mean)
            if block.model != model_payload(self._federation, model):
                raise BadBlock("the model is not the mean of the accepted updates")

    def _append(self, block: BiscottiBlock, duties: Duties, now: float) -> None:
        row = checked_model(self._federation, block.model)
        name = f"chain/{block.round:08d}"
        duties.store.append(Store(name, encode(block), block.weights_bytes))
        if self._profile.flood or block.author == self._me:
            duties.send.append(SeatEnvelope(self._others, block))
        self._stakes = block.stakes
        self._advance(block.id, row, duties, now)

    def _advance(self, tip: Digest, model: Row, duties: Duties, now: float) -> None:
        self._tip = tip
        self._learner.learn(self._round, model, duties)
        self._open(now)
        early, self._early = self._early, []
        for peer, message in early:
            with suppress(PeerFault):
                self._hear(peer, message, duties, now)
