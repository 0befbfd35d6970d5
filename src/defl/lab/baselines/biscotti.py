"""Biscotti (Shayan, Fung, Yoon, Beschastnikh, IEEE TPDS 2021): learning on a blockchain.

In each round a stake-weighted lottery over the last block's hash picks verifiers and miners.
Everybody trains; each update goes to the v verifiers, who wait for a share of the updates or a
time-out, run the federation's rule (Multi-Krum) and sign what they accept. Judged updates go to
the leader miner, whose block {round, previous hash, global model, updates, stakes, verdicts} is
flooded: every first receiver appends it and sends it to all others (or the leader alone sends it).
The whole chain stays on disk. Bytes a round: C(z+v)M + kM + n(n-1)B with B about (k+1)M; stored
T * B.

`PAPER` is what DeFL's authors measured: no noise, no secure aggregation, blocks that hold all n
updates, flooding. Options: z noisers whose Gaussian noise hides an update from the verifiers;
secure aggregation, where Shamir shares go to all miners and blocks hold commitments only.

Left out: verifiable random functions (the lottery is a hash that anybody computes, so roles are
known beforehand), polynomial commitments (a contributor could show the verifiers another update
than it commits to, and with secure aggregation a leader could publish another model, unseen), the
noisers' own commitments, forks (a late block after an empty one leaves its receiver behind), and
joining later. Noise and shares come from a seeded generator: runs repeat, secrets are not safe.

One node plays every role within one round, and each role's step waits for another's: they are read
best in the round's order, in one place, hence a file longer than others. What needs no order
(messages, lottery, checks) is in blockchain.py.
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
from defl.lab.baselines import shamir
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
    decided,
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
    SeatTick,
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
from defl.messages import bitmap_of, members_in
from defl.schema import Row

# Of each kind one message per member; whoever is ahead of us is ahead by one round.
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
            case SeatTick():
                self._tick(duties, now)
        return duties.output(None if self.finished else self._desk.until())

    # --- A round begins --------------------------------------------------------------------

    @property
    def _round(self) -> Round:
        return Round(self._learner.round + 1)

    def _open(self, now: float) -> None:
        profile = self._profile
        self._verifiers = lottery(self._tip, b"verifier", self._stakes, profile.verifiers)
        self._miners = lottery(self._tip, b"miner", self._stakes, profile.miners)
        self._leader = self._miners[0]
        self._desk = RoundInbox(now, profile)

    def _hear(self, peer: NodeId, message: Message, duties: Duties, now: float) -> None:
        round_: Round = message.round  # type: ignore[attr-defined]  # every kind here has one
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
                if self._desk.noise.get(peer, payload) is None:
                    self._desk.noise[peer] = checked_model(self._federation, payload)
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
                self._desk.judged.setdefault(peer, payload)
                self._mine_if_due(duties, now)
            case BiscottiShare(authors=authors, payload=payload):
                self._take_share(peer, authors, payload, duties, now)
            case BiscottiBlock() as block:
                self._check(block)
                self._append(block, duties, now)

    def _tick(self, duties: Duties, now: float) -> None:
        desk = self._desk
        if self.finished:
            return
        if now >= desk.round_until:
            empty = empty_block(self._tip, self._round)
            duties.store.append(Store(f"chain/{self._round:08d}", empty))
            self._advance(empty, self._learner.model, duties, now)
            return
        if desk.noise_until is not None and now >= desk.noise_until:
            desk.noise = {noiser: row for noiser, row in desk.noise.items() if row is not None}
            self._show_if_due(duties, now)
        if desk.shown_until is not None and now >= desk.shown_until:
            self._judge(duties, now)
        if desk.judged_until is not None and now >= desk.judged_until:
            desk.judged_until = None
            self._mine_if_due(duties, now, waited=True)

    # --- As a contributor ------------------------------------------------------------------

    def _has_trained(self, row: Row, duties: Duties, now: float) -> None:
        payload = update_payload(self._federation, row, self._learner.model)
        self._desk.own = (digest_of(payload), payload, row)
        if self._profile.noisers:
            seed = digest_of(self._tip + self._me.to_bytes(8, "big"))
            stakes = [0 if i == self._me else stake for i, stake in enumerate(self._stakes)]
            chosen = lottery(seed, b"noiser", stakes, self._profile.noisers)
            self._desk.noise = dict.fromkeys(chosen)
            self._desk.noise_until = now + self._desk.patience
            duties.send.append(SeatEnvelope(chosen, NoiseAsk(self._round)))
        self._show_if_due(duties, now)
        self._hand_in_if_due(duties)

    def _show_if_due(self, duties: Duties, now: float) -> None:
        desk = self._desk
        if desk.own is None or any(row is None for row in desk.noise.values()):
            return
        desk.noise_until = None
        commitment, payload, row = desk.own
        noise = [given for given in desk.noise.values() if given is not None]
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
        """What the verifiers have judged goes to the leader, or in shares to all miners."""
        desk = self._desk
        if desk.own is None or desk.handed_in:
            return
        commitment, payload, row = desk.own
        verdict = decided(tuple(desk.verdicts.values()), len(self._verifiers), self._me)
        wanted = verdict == commitment or (
            verdict is False and self._profile.keep_refused and not self._secure
        )
        if verdict is None or not wanted:
            return
        desk.handed_in = True
        if not self._secure:
            if self._leader == self._me:
                desk.judged[self._me] = payload
            else:
                duties.send.append(SeatEnvelope((self._leader,), Judged(self._round, payload)))
            return
        secret = shamir.fixed_point(row - self._learner.model)
        shares = shamir.split(secret, len(self._miners), self._shares_needed, self._rng)
        authors = bitmap_of([self._me], len(self._stakes))
        for miner, share in zip(self._miners, shares, strict=True):
            if miner == self._me:
                desk.shares[self._me] = share
            else:
                part = BiscottiShare(self._round, authors, shamir.to_bytes(share))
                duties.send.append(SeatEnvelope((miner,), part))

    # --- As a verifier ---------------------------------------------------------------------

    def _collect(
        self, author: NodeId, commitment: Digest, row: Row, duties: Duties, now: float
    ) -> None:
        desk = self._desk
        if self._me not in self._verifiers or desk.has_judged or author in desk.shown:
            return
        desk.shown[author] = Contribution(author, row)
        desk.commitments[author] = commitment
        desk.shown_until = desk.shown_until or now + desk.patience
        if len(desk.shown) >= ceil(self._profile.wait_share * len(self._stakes)):
            self._judge(duties, now)

    def _judge(self, duties: Duties, now: float) -> None:
        desk, federation = self._desk, self._federation
        desk.has_judged, desk.shown_until = True, None
        authors = sorted(desk.shown)
        accepted = [False] * len(authors)
        if len(authors) > federation.updates_faults_max:  # fewer may all be faulty
            made = aggregate_model(
                federation.aggregation,
                federation.schema,
                [desk.shown[author].row for author in authors],
                self._learner.model,
                faults_max=federation.updates_faults_max,
                ties=ties_of(self._round, authors),
            )
            accepted = [weight > 0 for weight in made.weights]
        opinions = tuple(
            Opinion(author, desk.commitments[author], good)
            for author, good in zip(authors, accepted, strict=True)
        )
        desk.shown.clear()
        unsigned = Verdicts(self._round, self._me, opinions, b"")
        verdicts = replace(
            unsigned, signature=self._signer.sign(unsigned.statement(federation.chain))
        )
        duties.send.append(SeatEnvelope(self._others, verdicts))
        self._learn_verdicts(verdicts, duties, now)

    # --- As a miner ------------------------------------------------------------------------

    @property
    def _secure(self) -> bool:
        return self._profile.secure_aggregation

    @property
    def _shares_needed(self) -> int:
        return len(self._miners) // 2 + 1

    def _learn_verdicts(self, verdicts: Verdicts, duties: Duties, now: float) -> None:
        if verdicts.verifier not in self._verifiers:
            raise WrongAuthor(f"{verdicts.verifier} is no verifier of this round")
        self._desk.verdicts.setdefault(verdicts.verifier, verdicts)
        self._desk.judged_until = self._desk.judged_until or now + self._desk.patience
        self._hand_in_if_due(duties)
        self._mine_if_due(duties, now)

    def _accepted(self) -> dict[NodeId, Digest]:
        verdicts = tuple(self._desk.verdicts.values())
        said = {a: decided(verdicts, len(self._verifiers), a) for a in self._candidates()}
        return {a: d for a, d in said.items() if isinstance(d, bytes)}

    def _candidates(self) -> list[NodeId]:
        seen = {o.author for v in self._desk.verdicts.values() for o in v.opinions}
        return sorted(author for author in seen if author < len(self._stakes))

    def _mine_if_due(self, duties: Duties, now: float, *, waited: bool = False) -> None:
        desk = self._desk
        if self._me not in self._miners or desk.passed_on:
            return
        if waited:
            desk.judged_until = now + desk.patience
        elif len(desk.verdicts) < len(self._verifiers):
            return
        accepted = self._accepted()
        if self._secure:
            self._sum_if_due(accepted, duties, now, waited=waited)
            return
        wanted = set(self._candidates()) if self._profile.keep_refused else set(accepted)
        if self._leader != self._me or not (waited or wanted <= desk.judged.keys()):
            return
        updates = []
        for author in sorted(wanted & desk.judged.keys()):
            payload = desk.judged[author]
            commitment = digest_of(payload)
            good = accepted.get(author) == commitment
            if good or self._profile.keep_refused:
                updates.append(BlockUpdate(author, commitment, good, payload))
        self._publish(tuple(updates), self._merged(tuple(updates), self._merge), duties, now)

    def _merged(self, updates: tuple[BlockUpdate, ...], merge: Merge) -> Row:
        base = self._learner.model
        good = [
            Contribution(u.author, checked_update(self._federation, u.payload, base))
            for u in updates
            if u.accepted
        ]
        return merge(good, base, self._round) if good else base

    def _take_share(
        self, peer: NodeId, authors: bytes, payload: bytes, duties: Duties, now: float
    ) -> None:
        share = shamir.from_bytes(payload, self._federation.schema.values)
        if share is None or not self._secure:
            raise BadBlob(f"{peer} sent what is no share")
        if members_in(authors) == (peer,):
            self._desk.shares.setdefault(peer, share)
        elif self._me == self._leader and peer in self._miners:
            self._desk.sums.setdefault(peer, (authors, share))
        self._mine_if_due(duties, now)

    def _sum_if_due(
        self, accepted: dict[NodeId, Digest], duties: Duties, now: float, *, waited: bool
    ) -> None:
        """A miner adds up the shares of all accepted changes; the leader opens the sum alone."""
        desk = self._desk
        authors = sorted(accepted.keys() & desk.shares.keys())
        if self._me not in desk.sums and authors and (waited or len(authors) == len(accepted)):
            total = shamir.added([desk.shares[author] for author in authors])
            bitmap = bitmap_of(authors, len(self._stakes))
            desk.sums[self._me] = (bitmap, total)
            if self._me != self._leader:
                desk.passed_on = True
                share = BiscottiShare(self._round, bitmap, shamir.to_bytes(total))
                duties.send.append(SeatEnvelope((self._leader,), share))
        mine = desk.sums.get(self._me)
        if self._me != self._leader or mine is None:
            return
        same = {
            self._miners.index(miner): share
            for miner, (bitmap, share) in desk.sums.items()
            if bitmap == mine[0]
        }
        if len(same) < self._shares_needed:
            return
        summed = members_in(mine[0])
        change = shamir.mean_of_sum(shamir.reconstruct(same, self._shares_needed), len(summed))
        updates = tuple(BlockUpdate(a, accepted[a], True, b"") for a in summed)
        model = np.asarray(self._learner.model + change, dtype=np.float32)
        self._publish(updates, model, duties, now)

    def _publish(
        self, updates: tuple[BlockUpdate, ...], model: Row, duties: Duties, now: float
    ) -> None:
        self._desk.passed_on = True
        unsigned = BiscottiBlock(
            self._round,
            self._tip,
            self._me,
            model_payload(self._federation, model),
            updates,
            next_stakes(self._stakes, updates),
            tuple(self._desk.verdicts[v] for v in sorted(self._desk.verdicts)),
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
            commitments_only=self._secure,
        )
        if not self._secure:
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
