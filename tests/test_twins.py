"""Twins: a member that runs twice with one key, through every small network and leader schedule.

The exhaustive sets (for each rule set 25,740 cases of three views without a crash, and 33,260
of two views with one crash at any moment) are run by `python tests/test_twins.py`; here fixed
slices of them, and random cases of a larger federation.
"""

import sys
from collections.abc import Iterable
from dataclasses import replace
from itertools import product
from time import process_time

import pytest

from defl.committee import Rules
from defl.consensus.effects import ConsensusEffects
from defl.ids import NodeId
from defl.sim.twins import (
    SYMMETRIES,
    Run,
    Step,
    TwinsCase,
    choices,
    crash_points,
    exhaustive,
    measure,
    random_case,
    renamed,
    search,
    spread,
    with_one_crash,
    with_two_crashes,
)

BOTH = pytest.mark.parametrize("rules", list(Rules))
WHOLE = (0, 0, 0, 0, 0)
EVERY = 41  # about 630 cases


def summary(broken: list[tuple[TwinsCase, list[str]]]) -> str:
    return "\n".join(f"{case}: {violations}" for case, violations in broken[:3])


@BOTH
@pytest.mark.parametrize("first", [0, EVERY // 2])
def test_four_members_with_one_twin_pair_agree_and_make_progress(rules: Rules, first: int) -> None:
    count, broken = search(spread(exhaustive(3), 2 * EVERY, first), rules)

    assert count > 300
    assert not broken, summary(broken)


@BOTH
def test_seven_members_with_two_twin_pairs_agree_and_make_progress(rules: Rules) -> None:
    _, broken = search((random_case(seed) for seed in range(60)), rules)

    assert not broken, summary(broken)


def test_the_exhaustive_set_has_each_case_once_up_to_symmetry() -> None:
    generated = {case.steps for case in exhaustive(2)}
    classes = {
        frozenset((renamed(one, names), renamed(two, names)) for names in SYMMETRIES)
        for one, two in product(choices(), repeat=2)
    }

    assert len(generated) == len(classes) == 510
    assert all(len(generated & alike) == 1 for alike in classes)


def test_twin_leaders_contradict_each_other_and_leave_evidence() -> None:
    """Two proposals, and two votes, of one member for one view."""
    run = Run(TwinsCase(4, (NodeId(0),), (Step(NodeId(0), WHOLE),) * 2), Rules.HOTSTUFF)
    run.run()

    assert not run.violations
    assert run.evidence == {(0, "SignedHeader"), (0, "Vote")}


def test_a_cut_without_a_quorum_lasts_until_all_replicas_time_out() -> None:
    both_twins_and_one = (0, 0, 1, 1, 0)
    run = Run(
        TwinsCase(4, (NodeId(0),), (Step(NodeId(1), both_twins_and_one),)), Rules.HOTSTUFF
    ).run()

    assert not run.violations
    assert all(replica.head.view > 1 for replica in run.replicas[1:4])


def test_two_twin_pairs_among_four_members_break_agreement_and_the_checks_detect_it() -> None:
    """With f + 1 liars some case must end in two logs, or the checks are blind."""
    cases = (random_case(seed, members=4, pairs=2) for seed in range(400))
    runs = (Run(case, Rules.JOLTEON).run() for case in cases)
    violations = (violation for run in runs for violation in run.violations)

    assert any("committed another block" in violation for violation in violations)


@BOTH
def test_a_replica_killed_at_any_moment_resumes_from_durable_state(
    rules: Rules,
) -> None:
    count, broken = search(with_one_crash(spread(exhaustive(2), 40), rules), rules)

    assert count > 700
    assert not broken, summary(broken)


@BOTH
def test_two_crashes_in_three_views_break_nothing(rules: Rules) -> None:
    cases = spread(exhaustive(3), 120)
    count, broken = search(with_two_crashes(cases, rules, each=2), rules)

    assert count > 400
    assert not broken, summary(broken)


class Amnesia(Run):
    """Nothing that a replica writes is durable."""

    def _write(self, place: int, effects: ConsensusEffects) -> None:
        pass


def test_the_checks_detect_a_replica_that_forgets_what_it_signed() -> None:
    cases = with_one_crash(spread(exhaustive(2), 60), Rules.JOLTEON)
    runs = (Amnesia(case, Rules.JOLTEON).run() for case in cases)
    violations = (violation for run in runs for violation in run.violations)

    assert any("fell silent" in violation or "signed two" in violation for violation in violations)


def test_every_replica_can_die_before_and_after_each_of_its_events() -> None:
    case = TwinsCase(4, (NodeId(0),), (Step(NodeId(1), (0, 0, 1, 1, 0)),))
    points = crash_points(case, Rules.HOTSTUFF)

    ends = Run(case, Rules.HOTSTUFF).run().events_scripted
    assert {point.replica for point in points} == {0, 1, 2}, "3 is like 2, and the copy like 0"
    assert [point.after for point in points if point.replica == 2] == list(range(1, ends[2] + 1))


def test_a_crash_takes_place_and_the_replica_starts_again() -> None:
    case = TwinsCase(4, (NodeId(0),), (Step(NodeId(1), WHOLE),) * 2)
    before = Run(case, Rules.HOTSTUFF).run()
    run = Run(replace(case, crashes=(crash_points(case, Rules.HOTSTUFF)[-1],)), Rules.HOTSTUFF)
    first = list(run.replicas)
    run.run()

    assert not run.violations
    assert not before.violations
    assert [one is other for one, other in zip(first, run.replicas, strict=True)].count(False) == 1


# Cases with two crashes are too many to run all: `make twins` runs this share.
TWO_CRASHES_EVERY, TWO_CRASHES_EACH = 10, 6


def report(name: str, cases: Iterable[TwinsCase], rules: Rules, of: str) -> None:
    began = process_time()
    count, broken = search(cases, rules)
    seconds = process_time() - began
    sys.stdout.write(f"{rules}, {name}: {count} of {of} cases, {len(broken)} broken; ")
    sys.stdout.write(f"{count / seconds:.0f} cases per second\n{summary(broken)}")
    sys.stdout.flush()


def main() -> None:
    for rules in Rules:
        three = list(exhaustive(3))
        report("three views", three, rules, f"{len(three)}")
        two = list(exhaustive(2))
        points = sum(len(crash_points(case, rules)) for case in two)
        report("two views, one crash", with_one_crash(two, rules), rules, f"{points}")
        sample = three[::TWO_CRASHES_EVERY]
        pairs = sum(len(crash_points(case, rules)) ** 2 for case in sample) * TWO_CRASHES_EVERY
        cases = with_two_crashes(sample, rules, TWO_CRASHES_EACH)
        report("three views, two crashes", cases, rules, f"about {pairs:,}")
        sys.stdout.write(f"{rules}, without crashes: {measure(10.0, rules):.0f} cases per second\n")


if __name__ == "__main__":
    main()
