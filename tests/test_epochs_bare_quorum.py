"""A boundary crossed by exactly a quorum, after a Byzantine member acted just before it.

Whatever the member offered, signed or promised in the ending epoch must not count in the next one,
where every honest member is needed for every round.
"""

import pytest

from defl.output import ModelReady
from defl.sim.byzantine import KINDS
from support.boundaries import (
    ACTS,
    BOUNDARIES,
    BYZANTINE,
    AcksOfTheOldEpoch,
    acting,
    cross,
    silent_after,
)
from support.epochs import Churn


def assert_all_is_well(churn: Churn, live: tuple[int, ...]) -> None:
    """The honest members have the same rounds and models, and none is accused."""
    first = churn.newest.federation.first_round
    models = {
        (machine, notice.digest)
        for machine, notice in churn.notices_of(ModelReady, *live)
        if notice.round == first
    }
    assert [machine for machine, _ in sorted(models)] == sorted(live)
    assert len({digest for _, digest in models}) == 1
    assert churn.one_history()
    assert churn.cluster.checker.violations == []
    by_honest = [accused for machine, accused in churn.accused.items() if machine != BYZANTINE]
    assert set().union(*by_honest) <= {BYZANTINE}


# The quickest boundaries at which a rule that is not reset costs a round; the others are slow.
QUICK = {"join", "new key of the Byzantine member", "extension"}
EVERY_BOUNDARY = [
    pytest.param(kind, marks=() if kind in QUICK else pytest.mark.slow) for kind in BOUNDARIES
]


@pytest.mark.parametrize("act", ACTS)
@pytest.mark.parametrize("kind", EVERY_BOUNDARY)
def test_a_bare_quorum_goes_on_after_a_byzantine_member_acted(kind: str, act: str) -> None:
    boundary = BOUNDARIES[kind]
    churn = cross(boundary, acting(act))

    assert_all_is_well(churn, boundary.live)


@pytest.mark.parametrize("kind", EVERY_BOUNDARY)
def test_acks_of_the_old_epoch_certify_nothing_in_the_next(kind: str) -> None:
    boundary = BOUNDARIES[kind]
    churn = cross(boundary, AcksOfTheOldEpoch)

    assert_all_is_well(churn, boundary.live)


# One leaves by a CHANGE of its own, so another boundary comes first; floods are judged elsewhere.
EXCLUDED = {"revenant", "flooder", "exhauster"}


@pytest.mark.slow
@pytest.mark.parametrize("behaviour", sorted(KINDS.keys() - EXCLUDED))
@pytest.mark.parametrize("kind", ["leave", "new key of the Byzantine member", "extension"])
def test_a_bare_quorum_goes_on_after_any_byzantine_behaviour(kind: str, behaviour: str) -> None:
    boundary = BOUNDARIES[kind]
    churn = cross(boundary, silent_after(KINDS[behaviour]))

    assert_all_is_well(churn, boundary.live)
