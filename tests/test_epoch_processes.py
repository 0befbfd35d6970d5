"""Members and keys change in a federation of real processes, some of which are killed meanwhile."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from support.changing_nodes import LIMIT_S, ChangingNodes
from support.founding import defl

FOUNDERS = (0, 1, 2, 3)


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[ChangingNodes]:
    federation = ChangingNodes(tmp_path / "federation")
    yield federation
    federation.close()


def require_health(nodes: ChangingNodes, *members: int) -> None:
    for member in members:
        status = nodes.known(member)
        assert (status.observing, status.evidence, status.refused) == (None, [], {})
    assert all(len(models) == 1 for models in nodes.digests().values())


def test_a_member_joins_and_leaves_and_nodes_are_killed_at_both_boundaries(
    nodes: ChangingNodes, tmp_path: Path
) -> None:
    nodes.start()
    nodes.until(lambda: nodes.round(0) >= 1)
    eve, card = nodes.join("eve", "eve")
    nodes.start(eve)
    nodes.change("--add", card)
    nodes.until(lambda: nodes.epoch_logged(1))
    nodes.kill(*FOUNDERS, eve)  # some have written the boundary, some have not
    nodes.start()
    nodes.until(lambda: nodes.reached(1, *FOUNDERS, eve))
    joined = nodes.round(0)
    nodes.until(lambda: nodes.round(eve) >= joined + 2)
    assert (nodes.known(eve).role, nodes.known(0).counts.n) == ("member", 5)

    nodes.command("node", "leave", eve, "--yes")
    nodes.until(lambda: nodes.epoch_logged(2))
    nodes.kill(1, eve)
    nodes.start(1, eve)
    nodes.until(lambda: not nodes.running(eve))  # it ends by itself, and with 0
    assert nodes.known(eve).departed
    nodes.until(lambda: nodes.reached(2, *FOUNDERS))

    nodes.change("--rounds", nodes.round(0) + 4)
    nodes.until(lambda: not nodes.any_running)
    require_health(nodes, *FOUNDERS)
    assert len({nodes.known(member).model for member in FOUNDERS}) == 1
    lineage, federation = tmp_path / "lineage.json", nodes.local.folder / "federation.toml"
    assert defl("export", nodes.local.nodes[0], lineage, "--lineage").code == 0
    proof = defl("verify", federation, "--lineage", lineage, "--json")
    assert proof.code == 0, proof.text


def test_a_key_is_replaced_while_its_owner_is_down(nodes: ChangingNodes) -> None:
    nodes.start()
    nodes.until(lambda: nodes.round(0) >= 1)
    nodes.kill(3)
    machine, card = nodes.join("node-3", "node-3-again")
    nodes.start(machine)
    nodes.change("--replace-key", card)
    nodes.until(lambda: nodes.reached(1, 0, 1, 2, machine))
    assert nodes.known(machine).member == 3
    began = nodes.round(0)
    nodes.until(lambda: nodes.round(machine) >= began + 2)

    nodes.start(3)  # the old machine comes back with the old key
    nodes.until(lambda: not nodes.running(3), LIMIT_S)

    old = nodes.known(3)
    assert (old.role, old.departed, old.member) == ("former member", True, None)
    require_health(nodes, 0, 1, 2, machine)


def test_a_member_that_slept_while_all_others_were_replaced_finds_the_new_ones(
    nodes: ChangingNodes,
) -> None:
    """It knows none of their keys, and they wait at its door."""
    nodes.start()
    nodes.until(lambda: nodes.round(0) >= 1)
    nodes.kill(3)
    present = [0, 1, 2]
    for place in (0, 1, 2):
        old, witness = present[place], present[place - 1]
        machine, card = nodes.join(f"node-{place}", f"new-{place}", told_by=witness)
        nodes.start(machine)
        nodes.change("--replace-key", card, by=tuple(present))
        present[place] = machine
        nodes.until(lambda new=tuple(present), k=place + 1: nodes.reached(k, *new))
        nodes.until(lambda gone=old: not nodes.running(gone))
        nodes.until(lambda new=machine: nodes.known(new).model is not None)

    nodes.start(3)
    nodes.until(lambda: nodes.reached(3, 3))

    closed = nodes.round(present[0])
    nodes.until(lambda: nodes.round(3) >= closed + 2)
    require_health(nodes, *present, 3)
