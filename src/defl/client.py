"""Algorithm 1: what this node does in each round, as a pure machine.

When a round closes: get the blobs of `last` and their base, aggregate, train, offer. Waiting for
slow members (waiting.py) delays only this node's own AGG. After the last round the model is
attested instead. This module decides when to do what; the driver's workers train and aggregate.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

from msgspec.structs import replace

from defl.committee import Federation
from defl.crypto import Signer
from defl.fields import members_in
from defl.finish import Finish
from defl.ids import Digest, NodeId, Round
from defl.ledger import LedgerState
from defl.messages import Agg, Manifest, Pace, Transaction
from defl.output import (
    Aggregate,
    Aggregated,
    ClosedRound,
    Envelope,
    ModelReady,
    Notice,
    OwnUpdateLate,
    Reference,
    Train,
    Trained,
    Validate,
    WaitsFor,
    Work,
    WorkFailed,
    WorkFailing,
)
from defl.pool.pool import Pool
from defl.waiting import MILLISECONDS_PER_S, OwnPace, Waiting

# A failed training or aggregation is retried after this long, doubling up to the maximum: the cause
# (memory, a device) may pass, and a round is long in comparison.
WORK_RETRY_S = 1.0
WORK_RETRY_MAX_S = 60.0
NEVER_HELD = float("-inf")


@dataclass(slots=True)
class ClientEffects:
    model: tuple[Round, Manifest] | None = None
    submit: list[Transaction] = field(default_factory=list)
    send: list[Envelope] = field(default_factory=list)
    work: list[Work] = field(default_factory=list)
    notices: list[Notice] = field(default_factory=list)


class RoundClient:
    def __init__(
        self,
        federation: Federation,
        me: NodeId,
        signer: Signer,
        pool: Pool,
        models: tuple[tuple[Round, Manifest], ...],
        finish: Finish,
        leavers: tuple[NodeId, ...] = (),
    ) -> None:
        """`leavers`: contacts that left with the last epoch, and may still have its blobs."""
        self._federation = federation
        self._leavers = leavers
        self._me = me
        self._signer = signer
        self._pool = pool
        self._finish = finish
        # A power cut may have lost the bytes; then the model is computed or fetched again.
        self._models = {r: model for r, model in models if pool.has(model.digest)}
        self._state: LedgerState | None = None
        self._has_delivered = False  # this node's update for the open round is committed
        self._left_out = True  # the last closed round lacks it; before round 1 it does for all
        self._opened_at = 0.0
        self._waiting = Waiting(federation.committee, federation.timing)
        self._waits_for: frozenset[NodeId] = frozenset()  # as last announced
        self._voted = False
        self._own_pace = OwnPace()
        self._pace: Pace | None = None  # this node's, for the open round
        self._just_started = True  # the open round is the first since the start
        self._late_since: float | None = (
            None  # when the round that this node still trains for closed
        )
        self._working: set[Work] = set()
        self._retry: dict[Work, tuple[int, float]] = {}  # failures so far, when to retry
        self._advanced_at = 0.0
        self._fetch_at = NEVER_HELD  # blobs are not fetched before
        self._effects = ClientEffects()
        self._trained: Trained | None = None  # held back until this node may sign
        self._held_since = 0.0
        self.muted = False  # signs nothing for now
        self.observing = False  # never signs again, so it does not train

    def enter(
        self, federation: Federation, me: NodeId, finish: Finish, leavers: tuple[NodeId, ...]
    ) -> None:
        """Another epoch begins; what this node knows, trains and aggregates stays."""
        self._federation = federation
        self._leavers = leavers
        self._me = me
        self._finish = finish
        self._waiting.enter(federation.committee)
        self._pace = None
        self._waits_for = frozenset()
        self._voted = self.round >= federation.rounds

    def fetch_from(self, at: float) -> None:
        """Fetch nothing before: the next handover may make it worthless."""
        self._fetch_at = at

    @property
    def wake_at(self) -> float | None:
        # What was due at the last advance has been tried, or waits for something else.
        times = [at for _, at in self._retry.values() if at > self._advanced_at]
        if self._vote_at is not None and not self.muted:
            times.append(self._vote_at)
        if self._fetch_at > NEVER_HELD:
            times.append(self._fetch_at)
        return min(times, default=None)

    @property
    def deadlines(self) -> dict[NodeId, float]:
        """How long this node waits for each member; empty before a quorum has delivered."""
        if self._vote_at is None:
            return {}
        return {member: self._waiting.deadline(member) for member in self._waiting.awaited}

    @property
    def _vote_at(self) -> float | None:
        return None if self._voted else self._waiting.vote_at

    @property
    def waiting(self) -> Waiting:
        """For people: how the open round goes and the last one went."""
        return self._waiting

    def model(self, round_: Round) -> Manifest | None:
        """The aggregate of a round, if this node has computed or fetched it."""
        return self._models.get(round_)

    @property
    def can_do_without_leavers(self) -> bool:
        """Has this node all that it needs of the last epoch's rounds, even after a power cut? An
        aggregate is synced before the update that was trained from it is offered."""
        first = Round(self._federation.first_round)
        return self.round >= first or self._pool.offer_for(first) is not None

    def take(self) -> ClientEffects:
        effects = self._effects
        self._effects = ClientEffects()
        return effects

    def set_state(self, state: LedgerState, now: float) -> None:
        """The ledger's state after the newest committed block."""
        started, opened = self._state is None, state.round != self.round
        delivered_before = self._has_delivered
        self._state = state
        self._has_delivered = state.update_of(self._me) is not None
        self._left_out = state.last is None or all(
            ref.author != self._me for ref in state.last.updates
        )
        self._just_started = started or (self._just_started and not opened)
        # The first round opens when a quorum is up; this node may have started long before.
        before = self._waiting.open
        opened_at = self._opened_at
        if before is not None:
            opened_at = max(opened_at, before.opened_at)
        self._waiting.set_state(state, now)
        if started or opened:
            self._open_round(state, opened_at, now)
        elif self._has_delivered and not delivered_before:
            self._own_pace.record(now - opened_at)
        # Fetch a committed update at once, not when the round closes: by then its holders may have
        # failed one by one. After a restart, also fetch what a power cut has lost.
        if now >= self._fetch_at:
            self._need(Round(state.round + 1), state.current)
        if started:
            for closed in state.closed:
                self._need(closed.round, closed.updates)

    @property
    def round(self) -> Round:
        return self._state.round if self._state is not None else Round(0)

    def _need(self, round_: Round, updates: tuple[Reference, ...]) -> bool:
        """Keep these updates and fetch the missing ones; True if all are present."""
        pool = self._pool
        missing = [ref for ref in updates if not pool.keep((round_, ref.author), ref.digest)]
        for ref in missing:
            pool.need((round_, ref.author), ref.digest, self._sources(round_, ref))
        return not missing

    def _sources(self, round_: Round, ref: Reference) -> tuple[NodeId, ...]:
        """Who has this update: its author and who acknowledged it. Of an earlier epoch some may
        have left, and others may have fetched it. If all others lost power, only those that
        acknowledged it have it, and most of them may be leavers."""
        holders = (ref.author, *members_in(ref.ackers))
        if round_ >= self._federation.first_round:
            return holders
        members = self._federation.committee.members
        present = (m for m in (*holders, *members) if m in members)
        return (*dict.fromkeys(present), *self._leavers)

    def _open_round(self, state: LedgerState, last_opened_at: float, now: float) -> None:
        if self._left_out and self._pool.offer_for(state.round) is not None:
            # Trained in time but not committed: a round takes this node at least this long.
            self._own_pace.record(now - last_opened_at)
        self._pool.set_round(state.round)
        if self._late_since is None and any(isinstance(work, Train) for work in self._working):
            self._late_since = now
        self._opened_at = now
        self._pace = None
        self._waits_for = frozenset()
        self._voted = state.round >= self._federation.rounds
        oldest = state.round - self._federation.tau
        self._models = {r: m for r, m in self._models.items() if r >= oldest}
        self._retry.clear()

    def wants_pace(self, pace: Pace) -> bool:
        return self._waiting.wants(pace.author, pace.round)

    def receive_pace(self, peer: NodeId, pace: Pace, now: float) -> None:
        """Count and relay each author's first promise for the open round: a promise sent to only
        some members must not cost only those members."""
        takes_s = pace.milliseconds / MILLISECONDS_PER_S
        if not self._waiting.add_promise(pace.author, pace.round, takes_s, now):
            return
        # In a node's first round every member announces itself and nothing is charged.
        if not self._just_started:
            self._effects.send.append(Envelope(self._all_but(peer, pace.author), pace))

    def _all_but(self, *known: NodeId) -> tuple[NodeId, ...]:
        members = self._federation.committee.members
        return tuple(member for member in members if member != self._me and member not in known)

    def connected(self, peer: NodeId, now: float) -> None:
        """Announce this node: a peer that has just started expects only members that do so."""
        if self._pace is not None:
            self._effects.send.append(Envelope((peer,), self._pace))
        elif self._may_announce_pace and self._own_pace.statement_s(now) is not None:
            pace = self._sign_pace(self._own_pace.slowest_s)
            self._effects.send.append(Envelope((peer,), pace))

    def advance(self, now: float) -> None:
        """Do whatever the present state allows and requires."""
        if self._state is None:
            return
        self._advanced_at = now
        self._announce_pace(now)
        self._note_held(now)
        if self._vote_at is not None and now >= self._vote_at and not self.muted:
            self._voted = True
            self._waiting.record_vote(now)
            self._submit_agg(Round(self._state.round + 1))
        self._announce_waiting(now)
        if self._trained is not None and not self._may_sign_later:
            event, self._trained = self._trained, None
            # Others decided how long it was held back: that is not this node's own pace.
            self._opened_at += now - max(self._held_since, self._opened_at)
            self.trained(event, now)
        if now < self._fetch_at:
            return
        if self._fetch_at > NEVER_HELD:
            self._fetch_at = NEVER_HELD
            self._need(Round(self._state.round + 1), self._state.current)
        if self._state.round == 0 and Round(0) not in self._models:
            self._get_initial_back()
        model = self._models.get(self._state.round)
        if model is None or not self._pool.has(model.digest):  # not yet, or the disk lost it
            self._aggregate(now)
        if model is None:
            return
        if self._state.round == self._federation.rounds and not self._state.ended:
            self._finish.attest(self._state.round, model.digest, now)
        elif self._pool.has(model.digest):
            self._train(Round(self._state.round + 1), model, now)

    @property
    def _may_announce_pace(self) -> bool:
        over = self.round >= self._federation.rounds
        return not (self.muted or over or self._has_delivered) and self._pace is None

    def _announce_pace(self, now: float) -> None:
        if not self._may_announce_pace or not (self._left_out or self._just_started):
            return
        takes_s = self._own_pace.statement_s(now)
        if takes_s is None and self._waiting.is_blind:
            # Its pace may be unknown, but all must know that it is working, and for how long: it
            # has trained all the while that it was muted.
            takes_s = self._own_pace.elapsed_s(now)
        if takes_s is None:
            return
        pace = self._sign_pace(takes_s)
        self._waiting.add_promise(self._me, pace.round, takes_s, now)
        self._effects.send.append(Envelope(None, pace))

    def _note_held(self, now: float) -> None:
        """Note whose updates have arrived, as long as nobody's pace is known."""
        if self._waiting.is_blind:
            for member in self._federation.committee.members:
                if self._pool.has_update(Round(self.round + 1), member):
                    self._waiting.add_held(member, now, is_own=member == self._me)

    def _sign_pace(self, takes_s: float) -> Pace:
        unsigned = Pace(Round(self.round + 1), self._me, round(takes_s * MILLISECONDS_PER_S), b"")
        message = unsigned.statement(self._federation.chain, self._federation.epoch)
        self._pace = replace(unsigned, signature=self._signer.sign(message))
        return self._pace

    def _announce_waiting(self, now: float) -> None:
        """Announce new members to wait for; a delivery is not news."""
        if self._vote_at is None or self._waits_for.issuperset(self._waiting.awaited):
            return
        waits_for = {member: at - now for member, at in self.deadlines.items() if at > now}
        if waits_for.keys() - self._waits_for and self._state is not None:
            self._waits_for = frozenset(waits_for)
            round_ = Round(self._state.round + 1)
            self._effects.notices.append(WaitsFor(round_, tuple(sorted(waits_for.items()))))

    def _submit_agg(self, round_: Round) -> None:
        unsigned = Agg(round_, self._me, b"")
        message = unsigned.statement(self._federation.chain, self._federation.epoch)
        self._effects.submit.append(Agg(round_, self._me, self._signer.sign(message)))

    def _get_initial_back(self) -> None:
        """The model of round 0 comes with the federation's files, but this disk has lost it."""
        initial = self._federation.initial
        if self._pool.need((Round(0), None), initial, self._federation.committee.members):
            manifest = self._pool.manifest(initial)
            if manifest is not None:
                self._models[Round(0)] = manifest

    def _aggregate(self, now: float) -> None:
        last = self._state.last if self._state is not None else None
        if last is None:
            return
        members = self._federation.committee.members
        has_base = self._pool.need((Round(last.round - 1), None), last.base, members)
        if self._need(last.round, last.updates) and has_base:
            self._start(self._aggregation_of(last), now)

    def _aggregation_of(self, last: ClosedRound) -> Aggregate:
        weights = tuple(self._federation.members[ref.author].weight for ref in last.updates)
        return Aggregate(last.round, last.base, last.updates, last.block, last.faults_max, weights)

    def lost(self, digest: Digest, now: float) -> None:
        """The disk lost a blob, which is fetched back. If it is the model, all others may have lost
        it too: this node computes it again, but leaves some time to the fetch."""
        model = self._models.get(self.round)
        last = self._state.last if self._state is not None else None
        if last is not None and model is not None and model.digest == digest:
            self._postpone(self._aggregation_of(last), now)

    def _train(self, round_: Round, model: Manifest, now: float) -> None:
        if self.observing or self._pool.offer_for(round_) is not None:
            return
        # One at a time: nothing interrupts a late training, and others must not queue behind it.
        if self._has_delivered or any(isinstance(work, Train) for work in self._working):
            return
        if self._start(Train(round_, model.digest), now):
            self._own_pace.start(self._opened_at)

    def _start(self, work: Work, now: float) -> bool:
        failures_and_time = self._retry.get(work)
        if work in self._working or (failures_and_time and now < failures_and_time[1]):
            return False
        self._working.add(work)
        self._effects.work.append(work)
        return True

    def aggregated(self, event: Aggregated) -> None:
        self._done(lambda work: isinstance(work, Aggregate) and work.round == event.round)
        if self._state is None or event.round != self._state.round:
            self._pool.discard(event.manifest.digest)  # a stale aggregate
            return
        is_known = event.round in self._models  # and was lost
        self._models[event.round] = event.manifest
        self._pool.keep_model(event.round, event.manifest)
        if is_known:
            return
        self._effects.model = (event.round, event.manifest)
        self._effects.notices.append(ModelReady(event.round, event.manifest.digest))

    @property
    def _may_sign_later(self) -> bool:
        return self.muted and not self.observing

    def trained(self, event: Trained, now: float) -> None:
        self._own_pace.finish(now)
        if self._may_sign_later:
            self._trained = event
            self._held_since = now
            return
        self._done(lambda work: isinstance(work, Train) and work.round == event.round)
        if self._late_since is not None:
            self._effects.notices.append(OwnUpdateLate(event.round, now - self._late_since))
            self._late_since = None
        model = self._models.get(Round(event.round - 1))
        in_time = self._state is not None and event.round == self._state.round + 1
        if in_time and model is not None and event.manifest.base == model.digest:
            self._pool.publish(event.round, event.manifest)
        self._pool.discard(event.manifest.digest)

    def failed(self, event: WorkFailed, now: float) -> None:
        self._effects.notices.append(WorkFailing(event.work, event.reason))
        if event.made is not None:
            self._pool.discard(event.made)
        self._working.discard(event.work)
        if isinstance(event.work, Train):
            self._own_pace.fail()
            self._late_since = None
        if not self._is_current(event.work):
            return
        if isinstance(event.work, Train):
            self._waiting.give_up(self._me)
        self._postpone(event.work, now)

    def _postpone(self, work: Work, now: float) -> None:
        failures = self._retry.get(work, (0, 0.0))[0] + 1
        wait = min(WORK_RETRY_MAX_S, WORK_RETRY_S * 2.0 ** min(failures - 1, 8))
        self._retry[work] = (failures, now + wait)

    def _is_current(self, work: Work) -> bool:
        match work:
            case Aggregate(round=round_):
                return round_ == self.round
            case Train(round=round_):
                return round_ == self.round + 1
            case Validate():
                return False  # the pool requests it again when the blob is offered again

    def _done(self, which: Callable[[Work], bool]) -> None:
        self._working = {work for work in self._working if not which(work)}
