"""Biscotti's rules: who is accepted, who wins the lottery, what a valid block is."""

import numpy as np
import pytest
from msgspec.structs import replace
from points import World, distance, points

from defl.committee import faults_of
from defl.errors import BadBlob, BadBlock, BadSignature, PeerFault, UserError
from defl.ids import NodeId, digest_of
from defl.lab.baselines.blockchain import (
    PAPER,
    STAKE_LEAST,
    BiscottiBlock,
    BiscottiProfile,
    BlockUpdate,
    Opinion,
    Shown,
    Verdicts,
    decided,
    lottery,
    next_stakes,
)
from defl.lab.baselines.machine import SeatReceived
from defl.lab.experiments.cells import Cell, run_cell
from defl.lab.experiments.threats import attacked

ROUNDS = 4


@pytest.mark.parametrize("threat", ["sign_flip_1", "sign_flip_4", "gaussian_1", "label_flip"])
@pytest.mark.parametrize("nodes", [4, 7])
def test_biscotti_leaves_attackers_out_and_fl_does_not(threat: str, nodes: int) -> None:
    threats = attacked(nodes, threat, faults_of(nodes))
    task = points(500)
    kept_out = run_cell(Cell("biscotti", nodes, ROUNDS, threats=threats), task)
    swallowed = run_cell(Cell("fl", nodes, ROUNDS, threats=threats), task)

    assert kept_out.rounds_closed == ROUNDS
    assert distance(kept_out.model, ROUNDS) < 0.02
    assert distance(swallowed.model, ROUNDS) > 0.1


def test_blocks_record_refusals_and_the_loss_of_stake() -> None:
    blocks = blocks_of(World(PAPER, rounds=3, aggregation="multi_krum"))

    for block in blocks.values():
        assert [update.author for update in block.updates] == [0, 1, 2, 3]
        assert sum(update.accepted for update in block.updates) == 3
    assert sum(blocks[3].stakes) == sum(blocks[1].stakes) + 2 * (3 - 1)


def blocks_of(world: World) -> dict[int, BiscottiBlock]:
    """Every block that node 0 heard, by its round."""
    heard: dict[int, BiscottiBlock] = {}
    node = world.machines[0]
    handle = node.handle

    def listening(event, now):
        if isinstance(event, SeatReceived) and isinstance(event.message, BiscottiBlock):
            heard[event.message.round] = event.message
        return handle(event, now)

    node.handle = listening
    world.run()
    world.virtual.drain()
    return heard


def test_lottery_draws_distinct_winners_in_proportion_to_stakes() -> None:
    stakes = [0, 10, 30, 60]
    draws = [lottery(digest_of(bytes([i, i // 256])), b"role", stakes, 1)[0] for i in range(256)]
    draws += [lottery(digest_of(b"%d" % i), b"role", stakes, 1)[0] for i in range(3744)]

    shares = [draws.count(NodeId(node)) / len(draws) for node in range(4)]
    assert shares == pytest.approx([0, 0.1, 0.3, 0.6], abs=0.03)
    assert sorted(lottery(digest_of(b"x"), b"role", stakes, 3)) == [1, 2, 3]


def opinions(*accepted: bool | None) -> list[Verdicts]:
    """Verdicts of as many verifiers on node 0: accepted, refused, or not seen."""
    return [
        Verdicts(
            1,
            NodeId(i),
            () if good is None else (Opinion(NodeId(0), digest_of(b"update"), good),),
            b"",
        )
        for i, good in enumerate(accepted)
    ]


@pytest.mark.parametrize(
    ("accepted", "verdict"),
    [
        ([True, True], digest_of(b"update")),
        ([True, False], None),
        ([True], None),
        ([False, False], False),
        ([None, False], False),
        ([True, False, True], digest_of(b"update")),
        ([True, None, None], False),
        ([], None),
    ],
)
def test_majority_of_three_verifiers_decides(accepted, verdict) -> None:
    assert decided(opinions(*accepted), 3, NodeId(0)) == verdict


def test_stakes_rise_and_fall_but_never_reach_zero() -> None:
    updates = [BlockUpdate(NodeId(i), digest_of(b""), i == 0, b"") for i in range(2)]

    assert next_stakes((5, STAKE_LEAST, 5), updates) == (6, STAKE_LEAST, 5)


def resigned(world: World, block: BiscottiBlock, **changes) -> BiscottiBlock:
    """A block of the true leader, properly signed, with something else in it."""
    changed = replace(block, **changes)
    signer = world.machines[block.author]._signer
    return replace(changed, signature=signer.sign(changed.id))


FALSE_BLOCKS = {
    "another model": (BadBlock, lambda b: {"model": bytes(len(b.model))}),
    "richer stakes": (BadBlock, lambda b: {"stakes": (99, *b.stakes[1:])}),
    "an update forgotten": (BadBlock, lambda b: {"updates": b.updates[1:]}),
    "an update twice": (BadBlock, lambda b: {"updates": (b.updates[0], *b.updates)}),
    "a refusal turned into praise": (
        BadBlock,
        lambda b: {"updates": tuple(replace(u, accepted=True) for u in b.updates)},
    ),
    "another update": (
        BadBlock,
        lambda b: {
            "updates": (
                replace(b.updates[0], payload=bytes(len(b.updates[0].payload))),
                *b.updates[1:],
            )
        },
    ),
    "no verdicts": (BadBlock, lambda _: {"verdicts": ()}),
    "verdicts that nobody signed": (
        BadSignature,
        lambda b: {"verdicts": tuple(replace(v, signature=bytes(64)) for v in b.verdicts)},
    ),
    "a model of another size": (PeerFault, lambda b: {"model": b.model[:-4]}),
    "another parent": (BadBlock, lambda _: {"previous": digest_of(b"elsewhere")}),
    "another author": (BadBlock, lambda b: {"author": NodeId((b.author + 1) % 4)}),
}


@pytest.fixture(scope="module")
def first_block() -> tuple[World, BiscottiBlock]:
    world = World(PAPER, rounds=1, aggregation="multi_krum", real_signatures=True)
    others = World(PAPER, rounds=1, aggregation="multi_krum", real_signatures=True)
    return world, blocks_of(others)[1]


@pytest.mark.parametrize("lie", FALSE_BLOCKS)
def test_invalid_block_is_rejected(lie: str, first_block) -> None:
    world, block = first_block
    fault, changes = FALSE_BLOCKS[lie]
    false = resigned(world, block, **changes(block))

    with pytest.raises(fault):
        world.machines[0].handle(SeatReceived(NodeId(1), false), 1.0)
    assert not world.machines[0].finished


def test_block_without_its_leaders_signature_is_rejected(first_block) -> None:
    world, block = first_block

    with pytest.raises(BadSignature):
        world.machines[0].handle(SeatReceived(NodeId(1), replace(block, signature=bytes(64))), 1.0)


def test_valid_block_is_appended_and_flooded_once() -> None:
    world = World(PAPER, rounds=1, aggregation="multi_krum")
    block = blocks_of(World(PAPER, rounds=1, aggregation="multi_krum"))[1]
    node = world.machines[0]

    output = node.handle(SeatReceived(NodeId(1), block), 1.0)

    assert [envelope.to for envelope in output.send] == [(1, 2, 3)]
    assert [store.name for store in output.store] == ["chain/00000001"]
    assert node.handle(SeatReceived(NodeId(2), block), 2.0).send == ()


def test_secure_aggregation_gives_the_mean_of_the_accepted_changes() -> None:
    shared = {"verifiers": 1, "wait_share": 1.0}
    open_ = World(BiscottiProfile(**shared), rounds=2, aggregation="multi_krum").run()
    hidden = World(
        BiscottiProfile(**shared, miners=3, secure_aggregation=True),
        rounds=2,
        aggregation="multi_krum",
    ).run()

    np.testing.assert_allclose(hidden.models[0, 1], open_.models[0, 1], atol=2**-18)
    assert all((hidden.models[node, 2] == hidden.models[0, 2]).all() for node in range(4))


def test_noise_hides_updates_from_verifiers_but_not_in_the_model() -> None:
    quiet = World(BiscottiProfile(verifiers=1, wait_share=1.0), rounds=1).run()
    noisy = World(
        BiscottiProfile(verifiers=1, wait_share=1.0, noisers=2, noise_sigma=1.0), rounds=1
    ).run()

    assert (quiet.models[0, 1] == noisy.models[0, 1]).all()


def test_dead_node_costs_only_the_rounds_that_it_leads() -> None:
    world = World(PAPER, rounds=8, aggregation="multi_krum", seed=3)
    world.virtual.kill(NodeId(2))
    world.run()

    moved = [r for r in range(2, 9) if (world.models[0, r] != world.models[0, r - 1]).any()]
    assert world.rounds_of(0) == 8
    assert 1 <= len(moved) < 8
    assert distance(world.models[0, 8], len(moved) + 1) < 1.0


def test_update_of_wrong_size_or_with_infinity_is_rejected() -> None:
    node = World(PAPER, rounds=1, aggregation="multi_krum").machines[0]
    for payload in (bytes(4), np.full(500, np.inf, dtype="<f4").tobytes()):
        with pytest.raises(BadBlob):
            node.handle(SeatReceived(NodeId(1), Shown(1, digest_of(payload), payload)), 0.0)


@pytest.mark.parametrize(
    "profile", [BiscottiProfile(verifiers=5), BiscottiProfile(miners=0), BiscottiProfile(noisers=4)]
)
def test_more_roles_than_nodes_are_refused_with_an_explanation(profile: BiscottiProfile) -> None:
    with pytest.raises(UserError, match="among 4 nodes"):
        World(profile)
