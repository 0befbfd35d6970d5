"""Twins: a member that runs twice with one key, through every small network and leader schedule.

The exhaustive set (25,740 cases for each rule set) is run by `python tests/test_twins.py`; here a
fixed slice of it, and random cases of a larger federation.
"""

import sys
from itertools import product

import pytest

from defl.committee import Rules
from defl.ids import NodeId
from defl.sim.twins import (
    SYMMETRIES,
    Case,
    Run,
    Step,
    choices,
    exhaustive,
    measure,
    random_case,
    renamed,
    search,
    spread,
)

BOTH = pytest.mark.parametrize("rules", list(Rules))
WHOLE = (0, 0, 0, 0, 0)
EVERY = 41  # about 630 cases


def told(broken: list[tuple[Case, list[str]]]) -> str:
    return "\n".join(f"{case}: {violations}" for case, violations in broken[:3])


@BOTH
@pytest.mark.parametrize("first", [0, EVERY // 2])
def test_four_members_with_one_twin_pair_agree_and_go_on(rules: Rules, first: int) -> None:
    count, broken = search(spread(exhaustive(3), 2 * EVERY, first), rules)

    assert count > 300
    assert not broken, told(broken)


@BOTH
def test_seven_members_with_two_twin_pairs_agree_and_go_on(rules: Rules) -> None:
    _, broken = search((random_case(seed) for seed in range(60)), rules)

    assert not broken, told(broken)


def test_the_exhaustive_set_holds_each_case_once_up_to_names() -> None:
    found = {case.steps for case in exhaustive(2)}
    classes = {
        frozenset((renamed(one, names), renamed(two, names)) for names in SYMMETRIES)
        for one, two in product(choices(), repeat=2)
    }

    assert len(found) == len(classes) == 510
    assert all(len(found & alike) == 1 for alike in classes)


def test_twin_leaders_contradict_each_other_and_are_found_out() -> None:
    """Two proposals, and two votes, of one member for one view."""
    run = Run(Case(4, (NodeId(0),), (Step(NodeId(0), WHOLE),) * 2), Rules.HOTSTUFF)
    run.run()

    assert not run.violations
    assert run.evidence == {(0, "SignedHeader"), (0, "Vote")}


def test_a_cut_without_a_quorum_on_either_side_lasts_until_all_gave_the_view_up() -> None:
    both_twins_and_one = (0, 0, 1, 1, 0)
    run = Run(Case(4, (NodeId(0),), (Step(NodeId(1), both_twins_and_one),)), Rules.HOTSTUFF).run()

    assert not run.violations
    assert all(replica.head.view > 1 for replica in run.replicas[1:4])


def test_two_twin_pairs_among_four_members_are_too_many_and_the_checks_see_it() -> None:
    """f + 1 liars: some case must end in two logs, or the checks are blind."""
    cases = (random_case(seed, members=4, pairs=2) for seed in range(400))
    violations = (said for case in cases for said in Run(case, Rules.JOLTEON).run().violations)

    assert any("committed another block" in said for said in violations)


def main() -> None:
    for rules in Rules:
        count, broken = search(exhaustive(3), rules)
        sys.stdout.write(f"{rules}: {count} cases, {len(broken)} broken; ")
        sys.stdout.write(f"{measure(10.0, rules):.0f} cases per second\n{told(broken)}")


if __name__ == "__main__":
    main()
