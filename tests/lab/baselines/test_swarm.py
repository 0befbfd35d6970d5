"""Swarm Learning's rules: what the log admits, whom the log designates, what a leader takes."""

import numpy as np
import pytest
from msgspec.structs import replace
from points import World, distance, points

from defl.errors import BadBlob, BadSignature, WrongAuthor
from defl.ids import NO_DIGEST, NodeId, Round, digest_of
from defl.lab.baselines import swarm
from defl.lab.baselines.machine import SeatEnvelope, SeatReceived, SeatTrained
from defl.lab.baselines.ordering import LogBlock, OrderingKind, Record
from defl.lab.baselines.swarm import Weights, WeightsRequest, leader_of
from defl.lab.experiments.cells import Cell, run_cell
from defl.lab.experiments.threats import attacked

ORDERER = 4


def record(
    world: World, author: int, kind: OrderingKind, round_: int = 1, digest=NO_DIGEST
) -> Record:
    return world.machines[author]._replica.record(kind, Round(round_), digest, 0)


def ordered(world: World, submitted: Record) -> LogBlock | None:
    """The block that the ordering service makes of a record, if it makes one."""
    output = world.machines[ORDERER].handle(SeatReceived(submitted.author, submitted), 0.0)
    return output.send[0].message if output.send else None


def ready(world: World) -> tuple[NodeId, list[SeatEnvelope]]:
    """All nodes are READY for round 1 with a model of their number: the leader and its output."""
    size = world.initial.size
    requests: dict[int, list[SeatEnvelope]] = {}
    for node in range(4):
        machine = world.machines[node]
        machine._learner.begin()
        row = np.full(size, node, dtype=np.float32)
        submitted = machine.handle(SeatTrained(Round(1), row), 0.0).send[0].message
        block = ordered(world, submitted)
        for peer in range(4):
            output = world.machines[peer].handle(SeatReceived(NodeId(ORDERER), block), 0.0)
            requests[peer] = list(output.send)
    leader = world.machines[0].leader
    assert leader is not None
    return leader, requests[leader]


def test_record_is_ordered_once_and_only_from_its_author() -> None:
    world = World(swarm.SwarmProfile(), real_signatures=True)
    enrolled = record(world, 1, OrderingKind.ENROLL)

    assert ordered(world, enrolled) is not None
    assert ordered(world, enrolled) is None
    assert ordered(world, record(world, 1, OrderingKind.READY, round_=99)) is None
    with pytest.raises(WrongAuthor):
        world.machines[ORDERER].handle(SeatReceived(NodeId(2), enrolled), 0.0)
    with pytest.raises(BadSignature):
        ordered(world, replace(enrolled, round=Round(2)))


def test_blocks_execute_in_order_and_forged_ones_are_rejected() -> None:
    world = World(swarm.SwarmProfile(), real_signatures=True)
    blocks = [ordered(world, record(world, node, OrderingKind.ENROLL)) for node in range(3)]
    peer = world.machines[0]

    late = peer.handle(SeatReceived(NodeId(ORDERER), blocks[1]), 0.0)
    both = peer.handle(SeatReceived(NodeId(ORDERER), blocks[0]), 0.0)

    assert late.store == ()
    assert [store.name for store in both.store] == ["log/00000000", "log/00000001"]
    with pytest.raises(WrongAuthor):
        peer.handle(SeatReceived(NodeId(1), blocks[2]), 0.0)
    with pytest.raises(BadSignature):
        peer.handle(SeatReceived(NodeId(ORDERER), replace(blocks[2], height=7)), 0.0)


def test_leader_requests_exactly_the_announced_models() -> None:
    leader, sent = ready(World(swarm.SwarmProfile()))

    peers = {envelope.to[0] for envelope in sent if isinstance(envelope.message, WeightsRequest)}
    assert peers == {0, 1, 2, 3} - {leader}


def test_model_that_differs_from_its_announcement_is_not_merged() -> None:
    world = World(swarm.SwarmProfile())
    leader, _ = ready(world)
    liar = next(NodeId(node) for node in range(4) if node != leader)
    payload = np.full(world.initial.size, 9, dtype="<f4").tobytes()

    with pytest.raises(BadBlob, match="another model"):
        world.machines[leader].handle(SeatReceived(liar, Weights(payload)), 0.0)


def test_merge_counts_only_from_the_designated_leader() -> None:
    world = World(swarm.SwarmProfile())
    leader, _ = ready(world)
    other = next(node for node in range(4) if node != leader)
    bystander = next(node for node in range(4) if node not in (leader, other))

    def requests_after(author: int) -> list[object]:
        block = ordered(
            world, record(world, author, OrderingKind.MERGED, digest=digest_of(b"model"))
        )
        output = world.machines[bystander].handle(SeatReceived(NodeId(ORDERER), block), 0.0)
        return [envelope.message for envelope in output.send]

    assert requests_after(other) == []
    assert requests_after(leader) == [WeightsRequest(digest_of(b"model"))]


def test_hash_gives_every_node_its_share_of_leadership() -> None:
    members = tuple(map(NodeId, range(4)))
    chosen = [leader_of(digest_of(b"%d" % i), Round(1), members) for i in range(2000)]

    shares = [chosen.count(member) / 2000 for member in members]
    assert shares == pytest.approx([0.25] * 4, abs=0.05)


@pytest.mark.parametrize("rule", ["coordinate_median", "geometric_median"])
def test_median_withstands_attacks_that_break_the_mean(rule: str) -> None:
    threats = attacked(4, "sign_flip_4", 1)
    profile = swarm.SwarmProfile(fail_over=True)
    task = points(500)

    robust = run_cell(Cell("swarm", 4, 4, threats=threats, aggregation=rule, profile=profile), task)
    mean = run_cell(Cell("swarm", 4, 4, threats=threats), task)

    assert distance(robust.model, 4) < 0.1
    assert distance(mean.model, 4) > 1.0
