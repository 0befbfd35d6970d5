"""How a node spent a round, from what it was told when it happened."""

from defl.node.report.phases import PhaseClock, PhaseTime


def shown(phases: list[PhaseTime]) -> list[tuple[str, float, float | None]]:
    return [(phase.phase.value, phase.start_s, phase.end_s) for phase in phases]


def open_round(
    clock: PhaseClock,
    opened_at: float,
    *,
    round_: int = 7,
    has_model: bool = True,
    has_update: bool = False,
) -> list[tuple[str, float, float | None]]:
    return shown(clock.open_round(round_, opened_at, has_model=has_model, has_update=has_update))


def test_a_round_as_most_are() -> None:
    """Round 7 opens at 100 with the close of round 6."""
    clock = PhaseClock()
    clock.closed(6, 70.0, 100.0)
    assert open_round(clock, 100.0, has_model=False) == [("prepare", 0.0, None)]

    clock.aggregating(6, 101.0)
    clock.aggregated(6, 102.0)
    clock.training(7, 102.0)
    assert open_round(clock, 100.0) == [("prepare", 0.0, 2.0), ("train", 2.0, None)]

    clock.trained(7, 118.4)
    clock.committed(7, 123.1)
    assert open_round(clock, 100.0, has_update=True)[-1] == ("close", 23.1, None)

    clock.closed(7, 100.0, 138.9)
    clock.aggregating(7, 140.6)
    clock.aggregated(7, 143.8)
    assert shown(clock.closed_round(7)) == [
        ("prepare", 0.0, 2.0),
        ("train", 2.0, 18.4),
        ("certify", 18.4, 23.1),
        ("close", 23.1, 38.9),
        ("fetch", 38.9, 40.6),
        ("aggregate", 40.6, 43.8),
    ]


def test_a_training_that_outlasts_the_round_is_cut_off_where_it_closes() -> None:
    clock = PhaseClock()
    clock.training(7, 101.0)
    clock.closed(7, 100.0, 120.0)
    clock.aggregating(7, 121.0)
    clock.trained(7, 122.0)
    clock.aggregated(7, 123.0)

    assert shown(clock.closed_round(7)) == [
        ("prepare", 0.0, 1.0),
        ("train", 1.0, 20.0),
        ("fetch", 20.0, 21.0),
        ("aggregate", 21.0, 23.0),
    ]


def test_an_update_that_is_not_committed_when_the_round_closes() -> None:
    clock = PhaseClock()
    clock.training(7, 100.0)
    clock.trained(7, 110.0)
    clock.closed(7, 100.0, 120.0)
    clock.committed(7, 121.0)

    assert shown(clock.closed_round(7))[:2] == [("train", 0.0, 10.0), ("certify", 10.0, 20.0)]


def test_a_training_that_fails_and_is_tried_again_is_one_phase() -> None:
    clock = PhaseClock()
    clock.training(7, 101.0)
    clock.training(7, 105.0)
    clock.trained(7, 110.0)

    assert open_round(clock, 100.0)[1] == ("train", 1.0, 10.0)


def test_an_observer_prepares_the_model_and_waits_for_the_others() -> None:
    clock = PhaseClock()
    clock.aggregated(6, 103.0)

    assert open_round(clock, 100.0) == [("prepare", 0.0, 3.0), ("close", 3.0, None)]


def test_a_node_that_starts_in_mid_round_shows_what_it_does_since_then() -> None:
    """Its update was committed before the restart; of the whole round it knows nothing."""
    clock = PhaseClock()
    assert open_round(clock, 100.0, has_update=True) == [("close", 0.0, None)]

    clock.aggregating(7, 111.0)
    clock.aggregated(7, 112.0)
    assert clock.closed_round(7) == []


def test_a_node_that_catches_up_has_no_phases_of_the_rounds_that_it_missed() -> None:
    clock = PhaseClock()
    clock.aggregating(9, 101.0)
    clock.aggregated(9, 102.0)

    assert clock.closed_round(9) == []
    assert open_round(clock, 100.0, round_=10) == [("prepare", 0.0, 2.0), ("close", 2.0, None)]


def test_the_first_round_begins_when_a_quorum_is_up_and_no_phase_before() -> None:
    """This node began to train 50 s before enough others were there."""
    clock = PhaseClock()
    clock.training(1, 50.0)
    clock.trained(1, 60.0)

    assert open_round(clock, 100.0, round_=1) == [("certify", 0.0, None)]


def test_no_phase_has_a_negative_length_whatever_the_order() -> None:
    clock = PhaseClock()
    clock.aggregated(7, 90.0)
    clock.trained(7, 104.0)
    clock.committed(7, 102.0)
    clock.closed(7, 100.0, 103.0)
    clock.aggregating(7, 101.0)

    phases = clock.closed_round(7)
    assert all(phase.start_s >= 0 for phase in phases)
    assert all(phase.end_s is None or phase.end_s >= phase.start_s for phase in phases)


def test_a_thousand_rounds_take_no_more_space_than_three() -> None:
    clock = PhaseClock()
    for round_ in range(1000):
        clock.training(round_, float(round_))

    assert len(clock._marks) == 3
