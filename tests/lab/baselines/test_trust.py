"""Whom each system must trust: its server, its leader, its chain; and who stops it by dying."""

from itertools import pairwise

import numpy as np
import pytest
from points import World, distance, points

from defl.ids import NodeId, Round
from defl.lab.baselines import blockchain, fl, swarm
from defl.lab.baselines.swarm import Peer
from defl.lab.experiments.cells import Cell, run_cell
from defl.lab.experiments.threats import attacked

FALSE_MODEL = np.float32(-7.0)


def replace_model(updates, base, round_):
    """What a Byzantine server or leader publishes, whatever it was sent."""
    return np.full_like(base, FALSE_MODEL)


def test_byzantine_server_replaces_the_model_unnoticed() -> None:
    world = World(fl.FlProfile(), rounds=3, merges={4: replace_model}).run()

    assert all(machine.finished for machine in world.machines)
    assert all((world.models[node, 3] == FALSE_MODEL).all() for node in range(4))
    assert world.virtual.refused == 0


def test_multi_krum_does_not_help_against_a_byzantine_server() -> None:
    world = World(
        fl.FlProfile(), rounds=3, aggregation="multi_krum", merges={4: replace_model}
    ).run()

    assert all((world.models[node, 3] == FALSE_MODEL).all() for node in range(4))


def test_byzantine_leader_in_swarm_learning_replaces_the_model_unnoticed() -> None:
    liar = 2
    world = World(swarm.SwarmProfile(), rounds=12, merges={liar: replace_model}).run()

    replaced = [r for r in range(1, 13) if (world.models[0, r] == FALSE_MODEL).all()]
    assert replaced, "the liar was never leader: choose another seed"
    assert len(replaced) < 12
    for round_ in replaced:
        assert all((world.models[node, round_] == FALSE_MODEL).all() for node in range(4))
    assert world.virtual.refused == 0


def test_byzantine_leader_in_biscotti_is_rejected_and_costs_a_round() -> None:
    liar = 2
    rounds = 24
    world = World(
        blockchain.PAPER, rounds=rounds, aggregation="multi_krum", merges={liar: replace_model}
    ).run()

    assert world.virtual.refused > 0
    assert world.rounds_of(0) == rounds
    assert not any((world.models[0, r] == FALSE_MODEL).any() for r in range(1, rounds + 1))
    models = [world.models[0, r] for r in range(1, rounds + 1)]
    empty = [1 for before, after in pairwise(models) if (before == after).all()]
    assert empty, "the liar led no round: choose another seed"


@pytest.mark.parametrize("threat", ["equivocating_leader", "forging_leader"])
def test_byzantine_leader_does_not_harm_defl(threat: str) -> None:
    rounds = 5
    result = run_cell(
        Cell("defl", 4, rounds, threats=attacked(4, threat, 1), chunk_bytes=4096), points(500)
    )

    assert result.rounds_closed == rounds
    assert distance(result.model, rounds) < 0.05


def test_dead_server_stops_fl() -> None:
    world = World(fl.FlProfile(), rounds=5)
    world.run_until_round(2)
    world.virtual.kill(NodeId(4))
    world.run()

    assert max(world.rounds_of(node) for node in range(4)) == 2


def leader_of(world: World) -> NodeId | None:
    peers = [machine for machine in world.machines if isinstance(machine, Peer)]
    return next((peer.leader for peer in peers if peer.leader is not None), None)


def killed_leader(profile: swarm.SwarmProfile) -> tuple[World, int]:
    """Killed when it is chosen to merge round 3, and everybody has the model of round 2."""
    world = World(profile, rounds=5)
    world.virtual.run(until=lambda: all(world.rounds_of(node) == 2 for node in range(4)))
    world.virtual.run(until=lambda: leader_of(world) is not None)
    dead = leader_of(world)
    assert dead is not None
    world.virtual.kill(dead)
    return world.run(), dead


def test_dead_leader_stops_swarm_learning_without_fail_over() -> None:
    world, _ = killed_leader(swarm.SwarmProfile())

    assert max(world.rounds_of(node) for node in range(4)) < 5


def test_swarm_learning_with_fail_over_survives_its_leader() -> None:
    world, dead = killed_leader(swarm.SwarmProfile(peers_min=3, fail_over=True))

    living = [node for node in range(4) if node != dead]
    assert [world.rounds_of(node) for node in living] == [5, 5, 5]
    assert all((world.models[node, 5] == world.models[living[0], 5]).all() for node in living)


def test_swarm_learning_below_its_minimum_of_peers_blocks_even_with_fail_over() -> None:
    world = World(swarm.SwarmProfile(peers_min=4, fail_over=True), rounds=3)
    world.virtual.kill(NodeId(1))
    world.run()

    assert world.models == {}


@pytest.mark.parametrize("dead", [1, 2, 3])
def test_defl_survives_the_death_of_any_node(dead: int) -> None:
    rounds = 5
    result = run_cell(
        Cell("defl", 4, rounds, dead={NodeId(dead): Round(2)}, chunk_bytes=4096), points(500)
    )

    assert result.rounds_closed == rounds
    assert distance(result.model, rounds) < 0.05


def test_silent_client_costs_the_server_only_a_timeout() -> None:
    result = run_cell(Cell("fl", 4, 3, threats=attacked(4, "silent", 1)), points(500))

    assert result.rounds_closed == 3
    assert result.virtual_s > 3 * fl.FlProfile().round_timeout_s * 0.99
