"""defl.simulate: live clients, the real protocol, a result determined by the seed."""

import io
import sys
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import defl
from defl.aggregation.rules import RULES
from defl.committee import DEFAULTS
from defl.lab.attacks.attacks import ATTACKS
from defl.results import OmissionReason
from defl.sim.byzantine import KINDS
from defl.sim.live import LiveRun
from support.live_clients import VALUES, PointClient, point_clients

NAN = ({"point": np.full(VALUES, np.nan, dtype=np.float32)}, {})


def test_clients_learn_the_mean_of_their_points_and_all_hold_the_same_model() -> None:
    clients = point_clients(4)

    history = defl.simulate(clients, rounds=8)

    assert history.complete
    assert history.agreed
    assert history.ok
    mean = np.mean([client.point for client in clients], axis=0)
    # Near the mean, members' changes oppose each other, and the rule shortens the longest.
    np.testing.assert_allclose(history.weights["point"], mean, atol=0.25)
    assert list(history.weights) == ["point"]
    assert history.rounds[-1].digest == history.digest
    assert all(a.taken_part == 8 for a in history.attendance)
    assert all(t.sent_bytes > 4 * VALUES for t in history.traffic.values())


def test_the_same_clients_and_seed_give_an_equal_result_and_another_seed_does_not() -> None:
    attacked = {1: "gaussian"}

    first, second, other = (
        defl.simulate(point_clients(4), rounds=3, seed=seed, byzantine=attacked)
        for seed in (5, 5, 6)
    )

    assert first == second
    assert first.as_json()["rounds"] == second.as_json()["rounds"]
    np.testing.assert_array_equal(first.weights["point"], second.weights["point"])
    assert first != other


def test_metrics_that_are_not_numbers_do_not_make_equal_runs_differ() -> None:
    class Unmeasured(PointClient):
        def evaluate(self, weights: dict[str, Any], /) -> dict[str, float]:
            return {"accuracy": float("nan") if weights else 0.0}

    first, second = (
        defl.simulate([Unmeasured(number) for number in range(4)], rounds=1) for _ in range(2)
    )

    assert first == second


def test_the_default_rule_leaves_an_attacker_out_and_plain_averaging_does_not() -> None:
    robust, plain = (
        defl.simulate(point_clients(7), rounds=4, byzantine={6: "sign_flip_10"}, aggregation=rule)
        for rule in (DEFAULTS.aggregation, "fed_avg")
    )

    assert robust.attendance[6].left_out == 4
    assert all(a.taken_part == 4 for a in robust.attendance[:6])
    assert robust.rounds[-1].mean("distance") < 1.0
    assert plain.rounds[-1].mean("distance") > 5.0
    assert plain.attendance[6].left_out == 0


@pytest.mark.parametrize("name", [*ATTACKS, *KINDS])
def test_every_attack_and_byzantine_kind_can_be_selected_by_name(name: str) -> None:
    history = defl.simulate(point_clients(4), rounds=2, byzantine={3: name})

    assert history.complete
    assert history.agreed
    assert history.ok, history.violations
    assert history.byzantine == {"node-3": name}
    assert all("node-3" not in record.metrics for record in history.rounds)


@pytest.mark.parametrize("rule", [name for name in RULES if name != "bulyan"])
def test_every_rule_closes_a_round(rule: str) -> None:
    assert defl.simulate(point_clients(7), rounds=1, aggregation=rule, faults_max=1).complete


def test_a_silent_member_is_missing_and_a_slow_one_late() -> None:
    conditions = defl.Conditions(work_s=1.0, work_sigma=0.05, work_factors=((2, 40.0),))
    timing = defl.Timing(gst_lt_min_s=1.0, gst_lt_max_s=4.0)

    history = defl.simulate(
        point_clients(7), rounds=4, byzantine={5: "silent"}, conditions=conditions, timing=timing
    )

    assert history.attendance[5].missing == 4
    reasons = {o.reason for r in history.rounds for o in r.omissions if o.member == "node-2"}
    assert OmissionReason.LATE in reasons
    assert OmissionReason.BY_RULE not in reasons
    late = next(o for r in history.rounds for o in r.omissions if o.reason is OmissionReason.LATE)
    assert "virtual seconds after the round closed" in late.detail


def test_simulated_faults_do_not_break_agreement() -> None:
    conditions = defl.Conditions(loss=0.05, crash_rate=0.003, work_s=0.5)

    history = defl.simulate(point_clients(4), rounds=4, conditions=conditions, seed=3)

    assert history.complete
    assert history.agreed
    assert history.ok, history.violations


def test_honest_members_evaluate_each_model_once() -> None:
    clients = point_clients(4)

    history = defl.simulate(clients, rounds=3, byzantine={3: "zero"})

    assert [client.evaluated for client in clients] == [4, 4, 4, 0]
    assert sorted(history.series("distance")) == [0, 1, 2, 3]
    assert sorted(history.initial_metrics) == ["node-0", "node-1", "node-2"]
    assert sorted(history.rounds[0].training["node-1"]) == ["loss"]


def test_with_evaluation_off_no_client_evaluates() -> None:
    clients = point_clients(4)

    history = defl.simulate(clients, rounds=2, evaluate=False)

    assert sum(client.evaluated for client in clients) == 0
    assert history.metric_names == ()
    assert "loss (training)" in str(history)


def test_each_round_is_aggregated_once_for_all_nodes(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[int] = []
    real = sys.modules[LiveRun.__module__].aggregate

    def counted(federation: Any, work: Any, read: Any) -> Any:
        calls.append(work.round)
        return real(federation, work, read)

    monkeypatch.setattr(f"{LiveRun.__module__}.aggregate", counted)
    defl.simulate(point_clients(7), rounds=3)

    assert calls == [1, 2, 3]


# --- Errors ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"clients": point_clients(3)}, "a federation has 4 to 100 members, not 3"),
        ({"clients": []}, "4 to 100 members, not 0"),
        ({"clients": None}, "clients is a list of client objects, not a NoneType"),
        ({"clients": dict(enumerate(point_clients(4)))}, "clients is a list .*, not a dict"),
        ({"rounds": 0}, "at least one round, not 0"),
        ({"rounds": 2.5}, "rounds is a whole number, not 2.5"),
        ({"seed": "x"}, "seed is a whole number, not 'x'"),
        ({"clients": [PointClient] * 4}, r"clients\[0\] is the class PointClient; pass instances"),
        ({"clients": "abcd"}, r"clients\[0\] is a str without initial_weights, train, evaluate"),
        (
            {"clients": [*point_clients(3), PointClient(3, values=VALUES + 1)]},
            r"clients\[3\] has a different model than clients\[0\]: entry 'point' is .* \[21\]",
        ),
        ({"byzantine": {3: "signflip"}}, "'signflip'. Attacks on updates: .* protocol: silent"),
        ({"byzantine": {4: "zero"}}, "names member 4; members are numbered 0 to 3, for example"),
        ({"byzantine": {"node-3": "zero"}}, "member 'node-3'; members are numbered 0 to 3"),
        ({"byzantine": [3]}, "members to their attacks, for example byzantine={3: 'sign_flip'}"),
        ({"byzantine": {2: "zero", 3: "silent"}}, "4 members tolerate 1 .* at least 7 clients"),
        ({"aggregation": "krumm"}, "no aggregation rule is named 'krumm'; there are: fed_avg"),
        ({"rules": "paxos"}, "there is no 'paxos'; choose one of: hotstuff, jolteon"),
        ({"codec": "fp64"}, "there is no 'fp64'; choose one of: fp32"),
        ({"conditions": {"loss": 0.1}}, "conditions is a defl.Conditions, not a dict"),
        ({"timing": 5.0}, "timing is a defl.Timing, not a float"),
        ({"conditions": defl.Conditions(slow=frozenset({4}))}, "conditions name member 4; members"),
        ({"faults_max": 2}, "faults_max is 2, but consensus among 4 members tolerates at most 1"),
    ],
)  # fmt: skip
def test_invalid_arguments_are_refused_with_the_allowed_values(
    arguments: dict[str, Any], message: str
) -> None:
    with pytest.raises(defl.UserError, match=message):
        defl.simulate(**{"clients": point_clients(4), "rounds": 2, **arguments})


@pytest.mark.parametrize(
    "fields", [{"work_s": -1.0}, {"latency_s": float("nan")}, {"bandwidth_bytes_s": 0.0}]
)
def test_impossible_conditions_are_refused(fields: dict[str, float]) -> None:
    with pytest.raises(defl.UserError, match=f"{next(iter(fields))} is "):
        defl.Conditions(**fields)


def test_a_clients_exception_propagates_with_the_member_and_the_round() -> None:
    def fail(round_: int) -> None:
        if round_ == 2:
            raise KeyError("no such column")

    with pytest.raises(KeyError, match="no such column") as caught:
        defl.simulate([*point_clients(3), PointClient(3, on_train=fail)], rounds=3)

    assert caught.value.__notes__ == ["raised by the train of client 3 (node-3, round 2)"]


def test_a_result_of_the_wrong_shape_is_refused_with_the_member_and_the_round() -> None:
    malformed = ({"point": np.zeros(3, dtype=np.float32)}, {})

    with pytest.raises(defl.WeightsError, match="node-3, round 1: train returned entry 'point'"):
        defl.simulate([*point_clients(3), PointClient(3, on_train=lambda _: malformed)], rounds=3)


def test_a_member_whose_training_diverges_has_no_update_and_the_result_says_why() -> None:
    diverging = PointClient(3, on_train=lambda round_: NAN if round_ == 2 else None)

    history = defl.simulate([*point_clients(3), diverging], rounds=3)

    assert history.complete
    assert history.attendance[3].missing == 1
    assert "node-3 had no update: node-3, round 2: train returned entry 'point' with NaN" in str(
        history
    )


def test_a_round_that_cannot_close_stops_the_simulation_with_the_reason() -> None:
    clients = [PointClient(i, on_train=lambda r: NAN if r == 2 else None) for i in range(4)]

    history = defl.simulate(clients, rounds=5)

    assert not history.complete
    assert len(history.rounds) == 1
    assert history.ok  # covers the rounds that closed
    assert "round 2 cannot close, since" in history.stopped
    assert "the training diverged" in str(history)
    assert all(client.trained.count(2) <= 1 for client in clients)


def test_an_interrupt_ends_the_simulation_at_once_and_terminates_the_progress_line(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def interrupt(round_: int) -> None:
        if round_ == 2:
            raise KeyboardInterrupt

    written = io.StringIO()
    monkeypatch.setattr(sys, "stderr", written)
    clients = [*point_clients(3), PointClient(3, on_train=interrupt)]
    with pytest.raises(KeyboardInterrupt):
        defl.simulate(clients, rounds=3, progress=True)

    assert written.getvalue().endswith("\n")
    assert max(round_ for client in clients for round_ in client.trained) == 2


# --- Progress ------------------------------------------------------------------------------------


def test_progress_is_one_line_updated_in_place(monkeypatch: pytest.MonkeyPatch) -> None:
    written = io.StringIO()
    monkeypatch.setattr(sys, "stderr", written)

    defl.simulate(point_clients(4), rounds=2, progress=True, byzantine={3: "sign_flip_10"})

    lines = written.getvalue().removesuffix("\n").split("\r")
    assert lines[1].startswith("0 of 2 rounds closed")
    assert lines[-1].startswith("2 of 2 rounds closed, distance ")
    assert lines[-1].endswith(", without node-3")
    assert "\n" not in "".join(lines)


@pytest.mark.parametrize("progress", [None, False])
def test_without_a_terminal_no_progress_is_written(
    monkeypatch: pytest.MonkeyPatch, progress: bool | None
) -> None:
    written = io.StringIO()
    monkeypatch.setattr(sys, "stderr", written)

    defl.simulate(point_clients(4), rounds=1, progress=progress)

    assert written.getvalue() == ""


def test_a_progress_function_is_called_for_each_closed_round_in_order() -> None:
    records: list[defl.RoundRecord] = []

    history = defl.simulate(point_clients(4), rounds=3, progress=records.append)

    assert [record.number for record in records] == [1, 2, 3]
    assert [record.metrics for record in records] == [r.metrics for r in history.rounds]


def test_a_notebook_shows_progress_in_place(monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[str] = []
    handle = SimpleNamespace(update=lambda data, **_raw: shown.append(data["text/plain"]))
    notebook = SimpleNamespace(get_ipython=lambda: SimpleNamespace(kernel=object()))
    display = SimpleNamespace(display=lambda *_args, **_options: handle)
    monkeypatch.setitem(sys.modules, "IPython", notebook)
    monkeypatch.setitem(sys.modules, "IPython.display", display)

    defl.simulate(point_clients(4), rounds=2)

    assert shown[0] == "0 of 2 rounds closed"
    assert shown[-1].startswith("2 of 2 rounds closed, distance ")
