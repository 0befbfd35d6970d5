"""Bytes on the wire and on disk are those of the formulas (lab/experiments/analysis.py)."""

import pytest
from points import points

from defl.lab.baselines import blockchain
from defl.lab.experiments import analysis
from defl.lab.experiments.analysis import Predicted, deviation, exponent
from defl.lab.experiments.cells import Cell, CellResult, run_cell

VALUES = 4000
SIZE = 4 * VALUES
TOLERANCE = 0.03
SIZES = [(4, 2), (4, 10), (7, 4), (10, 3)]


def run(system: str, nodes: int, rounds: int, **more) -> CellResult:
    return run_cell(Cell(system, nodes, rounds, chunk_bytes=8192, **more), points(VALUES))


def predicted(system: str, nodes: int, rounds: int) -> Predicted:
    formula = {
        "fl": analysis.fl,
        "fl_multi_krum": analysis.fl,
        "swarm": analysis.swarm,
        "biscotti": analysis.biscotti,
        "defl": analysis.defl,
    }[system]
    return formula(nodes, SIZE, rounds)


@pytest.mark.parametrize(("nodes", "rounds"), SIZES)
@pytest.mark.parametrize("system", ["fl", "fl_multi_krum", "swarm", "biscotti", "defl"])
def test_sent_and_stored_weights_match_the_formulas(system: str, nodes: int, rounds: int) -> None:
    result = run(system, nodes, rounds)
    due = predicted(system, nodes, rounds)

    assert result.rounds_closed == rounds
    assert abs(deviation(result.weights_sent, due.sent)) < TOLERANCE
    assert sum(seat.weights_received for seat in result.traffic) == result.weights_sent
    assert max(seat.weights_sent for seat in result.traffic) <= due.sent_by_busiest
    for stored in result.weights_stored[:nodes]:
        assert abs(deviation(stored, due.stored)) < TOLERANCE


@pytest.mark.parametrize("nodes", [4, 7, 10])
def test_formulas_agree_with_the_original_papers(nodes: int) -> None:
    """FL 2nM; Swarm 2(m-1)M; Biscotti C(z+v)M + kM + n(n-1)(k+1)M with k = C = n, v = 1."""
    block = nodes + 1
    stated = nodes + nodes + nodes * (nodes - 1) * block

    assert analysis.fl(nodes, 1, 1).sent == 2 * nodes
    assert analysis.swarm(nodes, 1, 1).sent == 2 * (nodes - 1)
    assert abs(deviation(analysis.biscotti(nodes, 1, 1).sent, stated)) < TOLERANCE
    assert analysis.biscotti(nodes, 1, 200).stored == 200 * block
    assert analysis.defl_stored_paper(nodes, 1) == 2 * nodes


@pytest.mark.parametrize(
    ("profile", "more"),
    [
        (
            blockchain.BiscottiProfile(verifiers=1, wait_share=1.0, keep_refused=True, flood=False),
            {},
        ),
        (blockchain.BiscottiProfile(verifiers=3, wait_share=1.0), {"in_block": 5, "verifiers": 3}),
        (
            blockchain.BiscottiProfile(verifiers=2, wait_share=1.0, keep_refused=True, noisers=2),
            {"verifiers": 2, "noisers": 2},
        ),
    ],
    ids=["leader broadcast", "accepted only, three verifiers", "two noisers"],
)
def test_biscotti_options_cost_what_the_formula_predicts(
    profile: blockchain.BiscottiProfile, more: dict[str, int]
) -> None:
    result = run("biscotti", 7, 3, profile=profile)
    due = analysis.biscotti(7, SIZE, 3, flood=profile.flood, **more)

    assert abs(deviation(result.weights_sent, due.sent)) < TOLERANCE
    assert abs(deviation(result.weights_stored[0], due.stored)) < TOLERANCE


def test_secure_aggregation_leaves_one_model_in_each_block() -> None:
    profile = blockchain.BiscottiProfile(miners=3, wait_share=1.0, secure_aggregation=True)
    result = run("biscotti", 4, 5, profile=profile)

    assert result.rounds_closed == 5
    assert result.weights_stored[0] == 5 * SIZE


def test_traffic_and_storage_grow_as_the_paper_states() -> None:
    nodes, rounds = [4, 7, 10], [5, 10, 20]
    traffic = [run("defl", n, 2).weights_sent for n in nodes]
    by_formula = [predicted("defl", n, 2).sent for n in nodes]
    storage = [run("defl", 4, t).weights_stored[0] for t in rounds]
    chain = [run("biscotti", 4, t).weights_stored[0] for t in rounds]

    assert exponent(nodes, traffic) == pytest.approx(exponent(nodes, by_formula), abs=0.02)
    assert exponent(rounds, storage) == pytest.approx(0, abs=0.01)
    assert exponent(rounds, chain) == pytest.approx(1, abs=0.01)


def test_most_traffic_is_weights() -> None:
    """Metadata must not hide behind the formulas: frames are at most a fifth more, here."""
    for system in ("fl", "swarm", "biscotti", "defl"):
        result = run(system, 4, 3)
        frames = sum(sum(seat.sent.values()) for seat in result.traffic)
        assert result.weights_sent < frames < (2.0 if system != "fl" else 1.2) * result.weights_sent


@pytest.mark.parametrize("system", ["fl", "swarm", "biscotti", "defl"])
def test_the_same_seed_gives_the_same_bytes(system: str) -> None:
    once, again = run(system, 4, 3, seed=5), run(system, 4, 3, seed=5)

    assert (once.model == again.model).all()
    assert once.traffic == again.traffic
    assert once.stored == again.stored
    assert once.virtual_s == again.virtual_s
    assert run(system, 4, 3, seed=6).virtual_s != once.virtual_s
