"""Algorithm 1: what this node does in each round, as a pure machine.

When a round closes: get the blobs of `last` and their base, aggregate, train, offer. The GST_LT
timer gates only this node's own AGG. The last round's model is attested instead of trained from.
Training and aggregation are work for others to do; only when to do what is decided here.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

from defl.committee import Federation
from defl.crypto import Signer
from defl.finish import Finish
from defl.ids import NodeId, Round
from defl.ledger import State
from defl.messages import Agg, Manifest, Transaction, Upd, members_in
from defl.output import (
    Aggregate,
    Aggregated,
    ModelReady,
    Notice,
    Reference,
    Train,
    Trained,
    Validate,
    Work,
    WorkFailed,
    WorkFailing,
)
from defl.pool.pool import Pool

# A member that was shut out by its slowness is waited for this much longer next time ...
GST_LT_GROWTH = 1.5
# ... and each round in which nobody was late takes a little of it back.
GST_LT_DECAY = 0.98
# A failed training or aggregation is tried again after this long, doubling up to the maximum: the
# cause (memory, a device) may pass, and a round is long against it.
WORK_RETRY_S = 1.0
WORK_RETRY_MAX_S = 60.0


@dataclass(slots=True)
class Effects:
    model: tuple[Round, Manifest] | None = None
    submit: list[Transaction] = field(default_factory=list)
    work: list[Work] = field(default_factory=list)
    notices: list[Notice] = field(default_factory=list)


class Client:
    def __init__(
        self,
        federation: Federation,
        me: NodeId,
        signer: Signer,
        pool: Pool,
        models: tuple[tuple[Round, Manifest], ...],
        finish: Finish,
    ) -> None:
        self._federation = federation
        self._me = me
        self._signer = signer
        self._pool = pool
        self._finish = finish
        # A power cut may have taken the bytes; then the model is made or fetched again.
        self._models = {r: model for r, model in models if pool.has(model.digest)}
        self._state: State | None = None
        self._gst_lt_s = federation.timing.gst_lt_min_s
        self._agg_at: float | None = None
        self._late: set[tuple[Round, NodeId]] = set()
        self._working: set[Work] = set()
        self._retry: dict[Work, tuple[int, float]] = {}  # failures so far, when to try again
        self._effects = Effects()
        self.muted = False

    @property
    def wake_at(self) -> float | None:
        times = [at for work, (_, at) in self._retry.items() if work not in self._working]
        if self._agg_at is not None and not self.muted:
            times.append(self._agg_at)
        return min(times, default=None)

    @property
    def gst_lt_s(self) -> float:
        return self._gst_lt_s

    def model(self, round_: Round) -> Manifest | None:
        """The aggregate of a round, if this node has made or fetched it."""
        return self._models.get(round_)

    def take(self) -> Effects:
        effects = self._effects
        self._effects = Effects()
        return effects

    def state_is(self, state: State, now: float) -> None:
        """The ledger's state after the newest committed block."""
        started, opened = self._state is None, state.round != self.round
        self._state = state
        if started or opened:
            self._open_round(state, now)
        # A committed update is fetched at once, not when the round closes: until then its
        # holders may fail one after the other. After a restart also what a power cut took.
        self._need(Round(state.round + 1), state.current)
        if started:
            for closed in state.closed:
                self._need(closed.round, closed.updates)

    @property
    def round(self) -> Round:
        return self._state.round if self._state is not None else Round(0)

    def _need(self, round_: Round, updates: tuple[Reference, ...]) -> bool:
        """Keep these updates and fetch what is missing; True if all are here."""
        here = [
            self._pool.need((round_, ref.author), ref.digest, (ref.author, *members_in(ref.ackers)))
            for ref in updates
        ]
        return all(here)

    def _open_round(self, state: State, now: float) -> None:
        self._pool.round_is(state.round)
        timing = self._federation.timing
        self._gst_lt_s = max(timing.gst_lt_min_s, self._gst_lt_s * GST_LT_DECAY)
        self._agg_at = now + self._gst_lt_s if state.round < self._federation.rounds else None
        oldest = state.round - self._federation.tau
        self._late = {slot for slot in self._late if slot[0] > oldest}
        self._models = {r: m for r, m in self._models.items() if r >= oldest}
        self._retry.clear()

    def learns_from(self, transaction: Transaction) -> bool:
        """Is it a certified update of a closed round that left its author out, and news?"""
        if not isinstance(transaction, Upd) or self._state is None:
            return False
        if (transaction.round, transaction.author) in self._late:
            return False
        return any(
            closed.round == transaction.round
            and transaction.author not in {ref.author for ref in closed.updates}
            for closed in self._state.closed
        )

    def saw(self, transaction: Transaction) -> None:
        """Who was shut out is waited for longer next time."""
        if self.learns_from(transaction):
            self._late.add((transaction.round, transaction.author))
            longest = self._federation.timing.gst_lt_max_s
            self._gst_lt_s = min(longest, self._gst_lt_s * GST_LT_GROWTH)

    def advance(self, now: float) -> None:
        """Do whatever the present state allows and asks for."""
        if self._state is None:
            return
        if self._agg_at is not None and now >= self._agg_at and not self.muted:
            self._agg_at = None
            self._submit_agg(Round(self._state.round + 1))
        model = self._models.get(self._state.round)
        if model is None:
            self._aggregate(now)
        elif self._state.round == self._federation.rounds:
            self._finish.attest(self._state.round, model.digest, now)
        else:
            self._train(Round(self._state.round + 1), model, now)

    def _submit_agg(self, round_: Round) -> None:
        unsigned = Agg(round_, self._me, b"")
        message = unsigned.statement(self._federation.chain, self._federation.epoch)
        self._effects.submit.append(Agg(round_, self._me, self._signer.sign(message)))

    def _aggregate(self, now: float) -> None:
        last = self._state.last if self._state is not None else None
        if last is None:
            return  # round 0: its model comes with the federation's file
        everybody = self._federation.committee.members
        ready = self._pool.need((Round(last.round - 1), None), last.base, everybody)
        if self._need(last.round, last.updates) and ready:
            self._start(Aggregate(last.round, last.base, last.updates, last.block), now)

    def _train(self, round_: Round, model: Manifest, now: float) -> None:
        if self.muted or self._pool.offer_for(round_) is not None:
            return
        if self._state is not None and self._state.update_of(self._me) is not None:
            return
        self._start(Train(round_, model.digest), now)

    def _start(self, work: Work, now: float) -> None:
        failures_and_time = self._retry.get(work)
        if work in self._working or (failures_and_time and now < failures_and_time[1]):
            return
        self._working.add(work)
        self._effects.work.append(work)

    def aggregated(self, event: Aggregated) -> None:
        self._done(lambda work: isinstance(work, Aggregate) and work.round == event.round)
        if self._state is None or event.round != self._state.round:
            self._pool.discard(event.manifest.digest)  # the federation has moved on
            return
        self._models[event.round] = event.manifest
        self._pool.keep_model(event.round, event.manifest)
        self._effects.model = (event.round, event.manifest)
        self._effects.notices.append(ModelReady(event.round, event.manifest.digest))

    def trained(self, event: Trained) -> None:
        self._done(lambda work: isinstance(work, Train) and work.round == event.round)
        model = self._models.get(Round(event.round - 1))
        in_time = self._state is not None and event.round == self._state.round + 1
        if in_time and model is not None and event.manifest.base == model.digest:
            self._pool.publish(event.round, event.manifest)
        self._pool.discard(event.manifest.digest)

    def failed(self, event: WorkFailed, now: float) -> None:
        self._effects.notices.append(WorkFailing(event.work, event.reason))
        self._working.discard(event.work)
        if not self._is_current(event.work):
            return
        failures = self._retry.get(event.work, (0, 0.0))[0] + 1
        wait = min(WORK_RETRY_MAX_S, WORK_RETRY_S * 2.0 ** min(failures - 1, 8))
        self._retry[event.work] = (failures, now + wait)

    def _is_current(self, work: Work) -> bool:
        match work:
            case Aggregate(round=round_):
                return round_ == self.round
            case Train(round=round_):
                return round_ == self.round + 1
            case Validate():
                return False  # the pool asks for it again when the blob is offered again

    def _done(self, which: Callable[[Work], bool]) -> None:
        self._working = {work for work in self._working if not which(work)}
