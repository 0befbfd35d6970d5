"""With f + 1 liars the guarantees end, and the checker must detect it.

Each scenario breaks one assumption. A scenario without a violation fails its test: the checker
would then be blind.
"""

import random
from collections.abc import Iterator
from itertools import product

import pytest
from msgspec.structs import replace

from defl.changes import Rounds
from defl.committee import Rules
from defl.crypto import Signer
from defl.ids import Digest, NodeId, Round
from defl.messages import Gossip, Offer, StoreAck, Upd
from defl.output import (
    Aggregate,
    Aggregated,
    ApproveChange,
    Durable,
    Envelope,
    Event,
    Faulted,
    Output,
    Propose,
    Received,
    ServeChunk,
    ServeHandover,
    Train,
    Trained,
    Validate,
    Validated,
    Work,
    WorkFailed,
)
from defl.participant import Participant
from defl.participant_parts import first_durable
from defl.pool.blob_index import BlobIndex
from defl.pool.certify import Certifier
from defl.sim import verdicts
from defl.sim.byzantine import KINDS
from defl.sim.byzantine.liar import Item, Liar
from defl.sim.byzantine.pool import BlobLiar
from defl.sim.cluster import Cluster
from defl.sim.conditions import Conditions, Partition
from defl.sim.disk import Disk
from defl.sim.scenario import cluster_of
from defl.sim.sim_node import Honest, Wrap
from defl.wire import encode

BOTH_RULES = pytest.mark.parametrize("rules", list(Rules))
COLLUDERS = (NodeId(1), NodeId(2))  # f + 1 of four
X, Y = NodeId(0), NodeId(3)


def failed(cluster: Cluster) -> set[str]:
    """The checks that failed by the end of the run."""
    cluster.conclude()
    return {check for check, holds in cluster.checker.verdicts.items() if not holds}


class Plot:
    """What the colluders share: which of the two worlds each of their messages belongs to."""

    def __init__(self) -> None:
        self.worlds: dict[bytes, set[NodeId]] = {}

    def record(self, world: NodeId, frame: bytes) -> None:
        self.worlds.setdefault(frame, set()).add(world)

    def of(self, frame: bytes) -> set[NodeId]:
        return self.worlds.get(frame, {X, Y})


def ends(event: Validated | Aggregated | Trained | WorkFailed, work: Work) -> bool:
    match event:
        case Validated(digest=digest):
            return isinstance(work, Validate) and work.manifest.digest == digest
        case Aggregated(round=round_):
            return isinstance(work, Aggregate) and work.round == round_
        case Trained(round=round_):
            return isinstance(work, Train) and work.round == round_
        case WorkFailed(work=failed):
            return work == failed


class TwoWorlds:
    """One member as two participants: X sees one of them and Y the other."""

    def __init__(self, plot: Plot, participant: Participant, signer: Signer) -> None:
        federation, me = participant.federation, participant.me
        self._plot = plot
        self.participant = participant
        initial = participant.client.model(participant.state.round)
        assert initial is not None
        other = Participant(federation, me, signer, first_durable(federation, initial))
        self._participants = {X: participant, Y: other}
        self._working: set[Work] = set()  # both may order the same; one worker does it for both

    def handle(self, event: Event, now: float) -> Output:
        outputs = {w: self._participants[w].handle(event, now) for w in self._worlds(event)}
        idle = self._participants.keys() - outputs.keys()
        times = [o.wake_at for o in outputs.values() if o.wake_at is not None]
        # The other participant may be due earlier; an early tick does no harm.
        times += [now + 0.1 for _ in idle]
        if isinstance(event, Validated | Aggregated | Trained | WorkFailed):
            self._working = {work for work in self._working if not ends(event, work)}
        ordered = dict.fromkeys(work for output in outputs.values() for work in output.work)
        work = tuple(work for work in ordered if work not in self._working)
        self._working.update(work)
        return Output(
            store=tuple(chunk for output in outputs.values() for chunk in output.store),
            send=tuple(item for w, o in outputs.items() for item in self._split(w, o.send)),
            work=work,
            wake_at=min(times, default=None),
        )

    def _worlds(self, event: Event) -> set[NodeId]:
        """Work, ticks and chunks go to both participants."""
        match event:
            case Received(peer=peer) | Faulted(peer=peer) if peer in (X, Y):
                return {peer}
            case Received(message=message):
                return self._plot.of(encode(message))
        return {X, Y}

    def _split(self, world: NodeId, items: tuple[Item, ...]) -> Iterator[Item]:
        other = Y if world == X else X
        for item in items:
            if isinstance(item, ServeHandover):
                continue  # nothing of the two worlds is on its disk
            if isinstance(item, ServeChunk):
                if item.to != other:
                    yield item
                continue
            to = self.participant.federation.committee.members if item.to is None else item.to
            self._plot.record(world, encode(item.message))
            yield replace(item, to=tuple(member for member in to if member != other))


def two_worlds(
    rules: Rules, colluders: tuple[NodeId, ...], rounds: int = 3, seed: int = 1
) -> Cluster:
    """X and Y are cut off from each other for a minute; both hear the colluders."""
    plot = Plot()

    def wrap(participant: Participant, signer: Signer, rng: random.Random) -> TwoWorlds:
        return TwoWorlds(plot, participant, signer)

    apart = Partition((frozenset({X, *COLLUDERS}), frozenset({Y, *COLLUDERS})), 0.0, 60.0)
    return cluster_of(
        4,
        rules=rules,
        rounds=rounds,
        seed=seed,
        conditions=Conditions(partitions=(apart,)),
        byzantine=dict.fromkeys(colluders, wrap),
    )


@BOTH_RULES
def test_two_twins_among_four_make_honest_nodes_commit_different_blocks(
    rules: Rules,
) -> None:
    """Breaks "at most f members sign two statements for one view": two quorums of three share two
    members, none of them honest. X and Y are cut off from each other, and the colluders
    run one federation with each."""
    cluster = two_worlds(rules, COLLUDERS)
    cluster.run(until=lambda: cluster.now > 90)

    found = failed(cluster)
    assert verdicts.NO_CONFLICTING_COMMITS in found
    assert found & {verdicts.SAME_LEDGER, verdicts.SAME_LOG, verdicts.SAME_MODEL}
    assert any("differs from the first block" in what for what in cluster.checker.violations)
    assert verdicts.NOTHING_SIGNED_TWICE not in found, "the honest ones kept to the rules"


def test_two_twins_among_four_lead_honest_nodes_into_two_next_epochs() -> None:
    """The same across a boundary: X and the twins agree on one end of the training, Y and the twins
    on another. Both boundaries are proven by a quorum."""
    for seed in range(1, 11):
        cluster, honest = _two_next_epochs(seed)
        if all(one.epoch == 1 for one in honest):
            break  # else one world came so far ahead that the twins lost the other one

    assert [one.federation.rounds for one in honest] == [20, 30]
    found = failed(cluster)
    assert verdicts.ONE_HANDOVER in found
    assert verdicts.NOTHING_SIGNED_TWICE not in found, "the honest ones kept to the rules"


def _two_next_epochs(seed: int) -> tuple[Cluster, list[Participant]]:
    cluster = two_worlds(Rules.HOTSTUFF, COLLUDERS, rounds=8, seed=seed)
    honest = [cluster.nodes[member].behaviour.participant for member in (X, Y)]
    changes = {X: Rounds(Round(20)), Y: Rounds(Round(30))}
    for member, change in changes.items():
        cluster.operator(member, Propose((change,)))
    cluster.run(until=lambda: all(one.state.changes for one in honest))
    digests = [one.state.changes[0].digest for one in honest]
    for colluder, digest in product(COLLUDERS, digests):
        cluster.operator(colluder, ApproveChange(digest))
    cluster.run(until=lambda: cluster.now > 60 or all(one.epoch == 1 for one in honest))
    return cluster, honest


def test_one_twin_among_four_leads_nobody_into_another_epoch() -> None:
    """At most f: of two ends of the training at most one can be agreed."""
    cluster = two_worlds(Rules.HOTSTUFF, COLLUDERS[:1])
    cluster.run(until=lambda: cluster.now > 5)
    cluster.operator(X, Propose((Rounds(Round(4)),)))
    cluster.operator(Y, Propose((Rounds(Round(5)),)))
    honest = [cluster.nodes[member].behaviour.participant for member in (X, COLLUDERS[1], Y)]
    cluster.run(until=lambda: all(len(one.state.changes) == 2 for one in honest))
    for colluder, pending in product((X, *COLLUDERS, Y), honest[0].state.changes):
        cluster.operator(colluder, ApproveChange(pending.digest))
    cluster.run(until=lambda: all(one.epoch == 1 for one in honest) or cluster.now > 300)

    assert {one.epoch for one in honest} == {1}
    assert len({one.federation.chain for one in honest}) == 1
    assert not cluster.checker.violations


def alone(member: NodeId, start_s: float, end_s: float) -> Partition:
    others = frozenset(NodeId(i) for i in range(4)) - {member}
    return Partition((others, frozenset({member})), start_s, end_s)


def run_with_lost_records(rules: Rules, forgetful: tuple[NodeId, ...]) -> Cluster:
    """First Y is cut off and the others continue. Then X is cut off, and the forgetful members
    return with empty disks to a Y that knows nothing either."""
    conditions = Conditions(partitions=(alone(Y, 0.0, 30.0), alone(X, 30.0, 90.0)))
    byzantine = {member: lambda participant, *_: Honest(participant) for member in forgetful}
    cluster = cluster_of(4, rules=rules, rounds=2, conditions=conditions, byzantine=byzantine)
    cluster.run(until=lambda: cluster.now > 29.0)
    initial = cluster.nodes[Y].disk.blobs[cluster.federation.initial]
    for member in forgetful:
        cluster.crash(member, power=False, downtime_s=1.5)
        empty = Disk(first_durable(cluster.federation, initial.manifest))
        empty.store_blob(initial.manifest, initial.payload, cluster.federation.chunk_bytes)
        cluster.nodes[member].disk = empty
    cluster.run(until=lambda: cluster.now > 400)
    return cluster


@BOTH_RULES
def test_two_of_four_without_safety_records_commit_a_second_history(rules: Rules) -> None:
    """Breaks "the safety record is durable before a signature leaves" at f + 1 members, which need
    not even be malicious: their disks were reset."""
    failures = failed(run_with_lost_records(rules, COLLUDERS))

    assert verdicts.NO_CONFLICTING_COMMITS in failures
    assert verdicts.NOTHING_SIGNED_TWICE not in failures, "the honest members follow the rules"


@BOTH_RULES
def test_two_silent_members_of_four_stop_every_round(rules: Rules) -> None:
    """Breaks "at most f members are faulty" for progress: the remaining two are not a quorum."""
    byzantine = dict.fromkeys(COLLUDERS, KINDS["silent"])
    cluster = cluster_of(4, rules=rules, rounds=1, byzantine=byzantine)
    cluster.run(until=lambda: cluster.now > 300)

    assert failed(cluster) == {verdicts.ROUNDS_CLOSE}


class Accomplice(Liar):
    """Acknowledges every offer of a colluder without checking the bytes."""

    def besides(self, event: Event, now: float) -> Iterator[Item]:  # noqa: ARG002
        match event:
            case Received(message=Offer(author=author) as offer) if author in COLLUDERS:
                blank, index = Durable(record=None), BlobIndex()
                index.add_whole(offer.manifest)
                index.mark_checked(offer.manifest.digest)
                certifier = Certifier(self._federation, self._me, self._signer, blank, index)
                yield Envelope((author,), certifier.sign_ack(offer))

    def instead(self, item: Item) -> tuple[Item, ...]:
        match item:
            case Envelope(message=StoreAck(author=author)) if author in COLLUDERS:
                return ()  # `besides` sends it
            case ServeChunk():
                return ()
        return (item,)


class TwoBlobs(BlobLiar):
    """One blob for X, another for Y, and the accomplice acknowledges both."""

    def instead(self, item: Item) -> tuple[Item, ...]:
        match item:
            case Envelope(message=Offer(author=author) as offer) if author == self._me:
                twin = self._existing_offer(offer.round)
                if twin is None:
                    twin = self._build(offer.round, offer.manifest.base, self._row()).offer
                return Envelope((X, COLLUDERS[1]), offer), Envelope((Y, COLLUDERS[1]), twin)
        return tuple(super().instead(item))

    def _certified(self, upd: Upd) -> tuple[Item, ...]:
        return (Envelope(None, Gossip((upd,))),)


@BOTH_RULES
def test_two_colluding_ackers_of_four_certify_two_blobs_for_one_round(rules: Rules) -> None:
    """Breaks "two certificates share an honest acker, which acks one blob per author and round"."""
    byzantine = {COLLUDERS[0]: TwoBlobs, COLLUDERS[1]: Accomplice}
    cluster = cluster_of(4, rules=rules, rounds=1, byzantine=byzantine)
    cluster.run()

    assert failed(cluster) == {verdicts.ONE_UPDATE}
    assert any("two certified updates of 1" in line for line in cluster.checker.violations)


class OnlyToX(Liar):
    """Offers its blob to X and the accomplice only, and stops serving it once X has acked."""

    def __init__(self, participant: Participant, signer: Signer, rng: random.Random) -> None:
        super().__init__(participant, signer, rng)
        self._acked: set[Digest] = set()

    def instead(self, item: Item) -> tuple[Item, ...]:
        match item:
            case Envelope(message=Offer(author=author) as offer) if author == self._me:
                return (Envelope((X, COLLUDERS[1]), offer),)
            case ServeChunk(to=to, digest=digest) if to != X or digest in self._acked:
                return ()
        return (item,)

    def besides(self, event: Event, now: float) -> Iterator[Item]:  # noqa: ARG002
        match event:
            case Received(peer=peer, message=StoreAck(digest=digest)) if peer == X:
                self._acked.add(digest)
        yield from ()


@BOTH_RULES
def test_two_withholders_of_four_and_one_broken_disk_lose_a_committed_update(rules: Rules) -> None:
    """Breaks "a certificate means f + 1 honest holders": here it means f, and the one honest
    holder's disk fails before any other member requests the blob."""
    cluster = run_with_lost_blobs(rules, {COLLUDERS[0]: OnlyToX, COLLUDERS[1]: Accomplice})

    failures = failed(cluster)
    assert verdicts.RETRIEVABLE in failures
    assert verdicts.ROUNDS_CLOSE in failures, "no member can aggregate without it"
    assert any("update of 1 is lost" in line for line in cluster.checker.violations)


def run_with_lost_blobs(rules: Rules, byzantine: dict[NodeId, Wrap]) -> Cluster:
    """X loses its blobs as soon as the update of the first colluder is committed."""
    cluster = cluster_of(4, rules=rules, rounds=2, seed=2, byzantine=byzantine)

    def committed() -> bool:
        state = cluster.nodes[X].behaviour.participant.state
        return state.update_of(COLLUDERS[0]) is not None

    cluster.run(until=committed)
    assert committed()
    cluster.crash(X, power=True, downtime_s=1.0)
    cluster.nodes[X].disk.blobs.clear()
    cluster.run(until=lambda: cluster.now > 1500)
    return cluster


class ToXAndY(OnlyToX):
    """A single colluder must serve its blob to both, or it is never certified."""

    def instead(self, item: Item) -> tuple[Item, ...]:
        match item:
            case Envelope(message=Offer(author=author) as offer) if author == self._me:
                return (Envelope((X, Y), offer),)
            case ServeChunk(to=to) if to == Y:
                return (item,)
        return super().instead(item)


@BOTH_RULES
def test_the_same_collusions_with_only_f_liars_fail(rules: Rules) -> None:
    """So the violations above are due to the one liar too many."""
    split = two_worlds(rules, COLLUDERS[:1])
    split.run()
    assert split.conclude() == []

    for wrap in (KINDS["silent"], TwoBlobs):
        cluster = cluster_of(4, rules=rules, rounds=1, byzantine={COLLUDERS[0]: wrap})
        cluster.run()
        assert cluster.conclude() == []

    assert run_with_lost_records(rules, COLLUDERS[:1]).conclude() == []

    broken = run_with_lost_blobs(rules, {COLLUDERS[0]: ToXAndY})
    assert broken.conclude() == []
