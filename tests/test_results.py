"""Results are frozen values that print well in a terminal and safely in a notebook."""

import dataclasses
import json
import pickle
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from defl.errors import UserError
from defl.results import (
    History,
    MemberTraffic,
    Omission,
    OmissionReason,
    Result,
    RoundRecord,
    Simulation,
)
from defl.running import RunFailed, RunInterrupted

HOSTILE = "<script>alert(1)</script>"
NAMES = ("alice", "bob", "carol", HOSTILE)


def record(number: int, **fields: Any) -> RoundRecord:
    metrics = {"alice": {"accuracy": number / 10}, "bob": {"accuracy": number / 10 + 0.2}}
    return RoundRecord(number=number, digest=f"d{number}", metrics=metrics, seconds=1.5, **fields)


def history(**fields: Any) -> History:
    rounds = (
        record(1, omissions=(Omission("carol", OmissionReason.LATE, "2.0 s too late"),)),
        record(2, omissions=(Omission(HOSTILE, OmissionReason.BY_RULE, HOSTILE),)),
        record(3, omissions=(Omission("bob", OmissionReason.NO_UPDATE, "it was down"),)),
    )
    facts: dict[str, Any] = {
        "members": NAMES,
        "rounds": rounds,
        "rounds_planned": 3,
        "digests": dict.fromkeys(NAMES, "d3"),
        "traffic": {"alice": MemberTraffic(999, 1_234_567)},
        "seconds": 12.0,
        **fields,
    }
    return History(**facts)


def result(**fields: Any) -> Result:
    plain = history()
    facts = {field.name: getattr(plain, field.name) for field in dataclasses.fields(plain)}
    return Result(**{**facts, "folder": Path("/somewhere"), **fields})


def simulation(**fields: Any) -> Simulation:
    plain = history()
    facts = {field.name: getattr(plain, field.name) for field in dataclasses.fields(plain)}
    extra = {"seed": 1, "weights": {"w": np.zeros(3)}, "checks": {"same model": True}}
    return Simulation(**{**facts, **extra, **fields})


def test_a_result_cannot_be_changed() -> None:
    for value in (history(), result(), simulation(), history().rounds[0], history().attendance[0]):
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(value, dataclasses.fields(value)[0].name, None)
        assert not hasattr(value, "__dict__")


def test_attendance_counts_each_reason_separately() -> None:
    alice, bob, carol, hostile = history().attendance

    assert (alice.taken_part, alice.left_out, alice.late, alice.missing) == (3, 0, 0, 0)
    assert (bob.taken_part, bob.left_out, bob.late, bob.missing) == (2, 0, 0, 1)
    assert (carol.taken_part, carol.left_out, carol.late, carol.missing) == (2, 0, 1, 0)
    assert (hostile.taken_part, hostile.left_out, hostile.late, hostile.missing) == (2, 1, 0, 0)


def test_the_text_ends_with_the_attendance_of_every_member() -> None:
    text = str(history())

    lines = text.splitlines()
    assert lines[0] == "4 members, 3 of 3 rounds closed in 12.0 s"
    head = lines.index(
        "member                     took part  left out  late  missing   sent  received  accuracy"
    )
    assert lines[head + 1].startswith("alice ")
    assert lines[head + 1].endswith(" 3         0     0        0  999 B    1.2 MB    0.3000")
    assert lines[head + 3].split() == ["carol", "2", "0", "1", "0"]
    assert "    1    0.2000      1.5  carol (late)" in lines
    assert "all members hold the same model: d3" in lines
    assert text.endswith("bob had no update: it was down")


def training(**by_member: dict[str, float]) -> tuple[RoundRecord, ...]:
    left_out = (Omission("bob", OmissionReason.BY_RULE),)
    return tuple(record(n, training=by_member, omissions=left_out) for n in (1, 2, 3))


def test_unequal_work_is_named_when_an_honest_member_was_left_out() -> None:
    unequal = training(alice={"steps": 10}, bob={"steps": 45})

    assert str(history(rounds=unequal)).endswith(
        "bob trained 45 steps per round and alice 10, and the rule left bob out in 3 of 3 rounds: "
        "give all members the same number of steps"
    )
    assert "steps per round" not in str(history(rounds=unequal, byzantine={"bob": "sign_flip"}))
    equal = training(alice={"steps": 10}, bob={"steps": 20})
    assert "steps per round" not in str(history(rounds=equal))
    nobody = tuple(dataclasses.replace(one, omissions=()) for one in unequal)
    assert "steps per round" not in str(history(rounds=nobody))


def test_members_with_labels_of_one_class_are_named_and_more_than_f_are_a_danger() -> None:
    one = str(history(rounds=training(alice={"classes": 1}, bob={"classes": 2})))
    two = str(history(rounds=training(alice={"classes": 1}, bob={"classes": 1})))
    none = str(history(rounds=training(alice={"classes": 2}, bob={"loss": 1})))

    assert one.endswith("alice trained on labels of one class: little to teach others")
    assert "alice, bob trained on labels of one class, more than f = 1 members: the shared" in two
    assert "one class" not in none


def test_html_escapes_names_and_messages() -> None:
    shown = result(
        worker_errors={HOSTILE: f"Traceback\n{HOSTILE}"}, byzantine={HOSTILE: HOSTILE}
    )._repr_html_()

    assert "<script" not in shown
    assert "&lt;script&gt;" in shown
    assert "<table>" in shown


def test_honest_members_decide_whether_all_agree() -> None:
    digests = {**dict.fromkeys(NAMES, "d3"), "bob": "other"}

    assert not history(digests=digests).agreed
    assert history(digests=digests, byzantine={"bob": "forger"}).agreed
    assert not history(digests=dict.fromkeys(NAMES)).agreed
    assert "different models" in str(history(digests=digests))
    assert "the model of bob is not known" in str(history(digests={**digests, "bob": None}))
    assert "no round closed" in str(history(rounds=(), digests=dict.fromkeys(NAMES)))


def test_a_series_is_one_members_or_the_mean() -> None:
    measured = history(initial_metrics={"alice": {"accuracy": 0.05, "loss": 9.0}})

    assert measured.metric_names == ("accuracy", "loss")
    assert measured.series("accuracy") == pytest.approx({0: 0.05, 1: 0.2, 2: 0.3, 3: 0.4})
    assert measured.series("accuracy", "bob") == pytest.approx({1: 0.3, 2: 0.4, 3: 0.5})
    assert measured.series("loss") == {0: 9.0}
    with pytest.raises(UserError, match="no metric is named 'auc'; there are: accuracy, loss"):
        measured.series("auc")
    with pytest.raises(UserError, match="no member is named 'dave'; there are: alice, bob"):
        measured.series("accuracy", "dave")


def test_json_has_everything_but_arrays_and_no_nan() -> None:
    broken = record(1, training={"alice": {"loss": float("nan")}})
    data = simulation(rounds=(broken,), violations=("x",)).as_json()

    text = json.dumps(data, allow_nan=False)
    assert "weights" not in data
    assert data["rounds"][0]["training"] == {"alice": {"loss": None}}
    assert data["complete"] is False
    assert data["attendance"][0] == {
        "member": "alice", "taken_part": 1, "left_out": 0, "late": 0, "missing": 0
    }  # fmt: skip
    assert json.loads(text) == data
    reasons = [o["reason"] for r in result().as_json()["rounds"] for o in r["omissions"]]
    assert reasons == ["late", "by_rule", "no_update"]


def test_a_failed_check_of_the_simulator_is_shown() -> None:
    failed = simulation(checks={"same ledger": False}, violations=("node 1 differs",))

    assert not failed.ok
    assert "CHECKS THAT DO NOT HOLD: same ledger\nnode 1 differs" in str(failed)


def test_a_run_names_the_log_with_the_clients_full_failure() -> None:
    failed = result(worker_errors={"bob": "Traceback ...\nValueError: shape"}, interrupted=True)

    assert "bob's client failed at least once, last: ValueError: shape" in str(failed)
    assert "/somewhere/bob/node.log" in str(failed)
    assert "interrupted before the last round closed; members may be a round apart" in str(failed)
    assert failed.folder_of("bob") == Path("/somewhere/bob")
    with pytest.raises(UserError, match="no member is named 'dave'"):
        failed.folder_of("dave")


def test_results_can_be_pickled() -> None:
    kept = pickle.loads(pickle.dumps(result()))  # noqa: S301 - our own

    assert kept == result()


# --- Plots ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("suffix", [".png", ".svg"])
def test_a_plot_is_drawn_and_written(tmp_path: Path, suffix: str) -> None:
    pytest.importorskip("matplotlib")
    path = tmp_path / f"picture{suffix}"

    figure = history(byzantine={HOSTILE: "cost$"}).plot(path=path)

    assert path.stat().st_size > 1000
    upper, lower = figure.axes
    assert upper.get_ylabel() == "accuracy"
    assert [label.get_text() for label in lower.get_yticklabels()][:3] == list(NAMES[:3])
    legend = {text.get_text() for text in lower.get_legend().get_texts()}
    assert legend == {"left out by the rule", "late", "no update"}


def test_a_plot_without_matplotlib_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)

    with pytest.raises(UserError, match=r"plot needs matplotlib.*: pip install matplotlib"):
        history().plot()


def test_an_impossible_plot_is_refused_with_the_reason(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"ends in one of \.png, \.svg, \.pdf"):
        history().plot(path=tmp_path / "picture.gif")
    with pytest.raises(UserError, match="no such folder; make it first"):
        history().plot(path=tmp_path / "missing" / "picture.png")
    with pytest.raises(UserError, match="no model was evaluated"):
        history(rounds=()).plot()


def test_the_text_shows_control_characters_as_escapes() -> None:
    name = "a\n\x1b[31m\u202e"
    rounds = (RoundRecord(number=1, metrics={"alice": {name: 1.0}}, seconds=1.0),)

    text = str(result(rounds=rounds, worker_errors={"bob": "\x1b[2A failed"}))

    assert r"a\n\x1b[31m\u202e" in text
    assert r"last: \x1b[2A failed" in text
    assert all(line.isprintable() for line in text.split("\n"))


def test_a_long_error_of_a_client_is_cut_in_the_text_alone() -> None:
    long = result(worker_errors={"bob": f"Traceback:\nValueError: {'x' * 10_000}"})

    assert len(str(long)) < 2000
    assert len(long.worker_errors["bob"]) > 10_000


@pytest.mark.parametrize("error", [RunFailed("why", result()), RunInterrupted(result())])
def test_an_error_with_a_result_survives_a_process_pool(error: RunFailed | RunInterrupted) -> None:
    copied = pickle.loads(pickle.dumps(error))  # noqa: S301 - our own bytes

    assert type(copied) is type(error)
    assert str(copied) == str(error)
    assert copied.result == error.result
