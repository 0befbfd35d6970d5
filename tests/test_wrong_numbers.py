"""Numbers without sense, in files and options, are refused with a sentence."""

import re
from pathlib import Path

import pytest

from defl.committee import SECONDS_MAX, Timing
from defl.errors import UserError
from defl.fields import NUMBER_MAX
from defl.node.report.tracking import Track
from defl.node.setup.agreement import read_federation
from defl.node.setup.config import read_node
from defl.node.setup.requirements import requirements_of
from defl.running.plan import RunPlan, read_settings, timing_of
from support.founding import agree, defl, init_nodes

VALUES = (
    "-1",
    "0",
    "-0.0",
    "1.5",
    "1e20",
    "1e300",
    "-1e300",
    "5e-324",
    "nan",
    "inf",
    "-inf",
    str(NUMBER_MAX),
    str(NUMBER_MAX + 1),
    str(2**64),
    "9" * 400,
    "-" + "9" * 400,
    "0x" + "f" * 100,
    "true",
    '"7"',
    "[]",
    "{}",
    "1979-05-27",
)
NUMBER = re.compile(r"^(?P<key>\w+) = -?[0-9][0-9._]*(?=\s|$)", re.MULTILINE)


def numeric_keys(text: str) -> list[str]:
    return sorted({match["key"] for match in NUMBER.finditer(text)})


def changed(text: str, key: str, value: str) -> str:
    return re.sub(rf"^{key} = \S+", f"{key} = {value}", text, count=1, flags=re.MULTILINE)


@pytest.fixture(scope="module")
def members(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("members")
    agree(folder, init_nodes(folder))
    return folder


def outcome(path: Path, text: str) -> str:
    path.write_text(text, encoding="utf-8")
    try:
        if path.name == "federation.toml":
            facts = read_federation(path).federation
            assert facts.chain
            assert requirements_of(facts).disk_bytes > 0
            assert defl("federation", "show", path).code == 0
        elif path.name == "node.toml":
            assert repr(read_node(path.parent))
        else:
            plan_of(path.parent)
    except UserError as error:
        return str(error)
    return ""


def plan_of(project: Path) -> RunPlan:
    settings = read_settings(project)
    return RunPlan(
        project=str(project),
        client=settings.client,
        nodes=settings.nodes,
        rounds=settings.rounds,
        aggregation="adaptive",
        timing=timing_of(settings, None, None),
        work_time_max_s=settings.work_time_max_s,
        track=Track.NONE,
        attacks={},
    )


DEFL_TOML = """\
nodes = 4
rounds = 10
work_time_max_s = 60.0
gst_lt_min_s = 1.0
gst_lt_max_s = 3600.0
"""
FILES = {
    "federation.toml": (
        "chunk_bytes",
        "faults_max",
        "grace_s",
        "gst_lt_max_s",
        "gst_lt_min_s",
        "rounds",
        "serial",
        "tau",
        "view_base_s",
        "view_cap_s",
        "weight",
    ),
    "node.toml": ("evaluation_time_max_s", "telemetry_port", "work_time_max_s"),
    "defl.toml": ("gst_lt_max_s", "gst_lt_min_s", "nodes", "rounds", "work_time_max_s"),
}


def text_of(members: Path, file: str) -> str:
    if file == "defl.toml":
        return DEFL_TOML
    folder = members / "alice" if file == "node.toml" else members
    return (folder / file).read_text(encoding="utf-8")


@pytest.mark.parametrize("file", FILES)
def test_every_number_of_the_files_is_tried(members: Path, file: str) -> None:
    assert tuple(numeric_keys(text_of(members, file))) == FILES[file]


@pytest.mark.parametrize(("file", "key"), [(file, key) for file in FILES for key in FILES[file]])
def test_a_number_without_sense_is_refused_in_words(
    members: Path, tmp_path: Path, file: str, key: str
) -> None:
    text = text_of(members, file)
    assert outcome(tmp_path / file, text) == ""
    for value in VALUES:
        why = outcome(tmp_path / file, changed(text, key, value))
        if value in ("nan", "inf", "-inf", "1e20", "1e300", "-1e300", "9" * 400, '"7"', "[]"):
            assert why, (key, value)
        if why and file != "defl.toml":
            assert file in why, (key, value, why)


@pytest.mark.parametrize("value", ["-1", "0", "1e20", "nan", "inf", str(2**64), "9" * 400, "x"])
@pytest.mark.parametrize("option", ["--rounds", "--gst-lt-min-s", "--gst-lt-max-s", "--faults-max"])
def test_an_option_without_sense_is_refused_when_a_federation_is_founded(
    members: Path, tmp_path: Path, option: str, value: str
) -> None:
    cards = [members / name / f"{name}.card.toml" for name in ("alice", "bob", "carol", "dan")]
    out = tmp_path / "federation.toml"
    result = defl(
        *("federation", "create", *cards, "--model", members / "start.npz", "-o", out),
        *(option, value),
    )
    if (option, value) != ("--faults-max", "0"):
        assert result.code == 2, result.text
        assert not out.exists()


@pytest.mark.parametrize("value", ["-1", "0", "1e20", "nan", str(2**64), "9" * 400])
@pytest.mark.parametrize("option", ["--rounds", "--nodes", "--gst-lt-min-s", "--gst-lt-max-s"])
def test_an_option_without_sense_is_refused_before_a_run(
    tmp_path: Path, option: str, value: str
) -> None:
    result = defl("run", tmp_path, option, value, "--out", tmp_path / "out")

    assert result.code == 2, result.text
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    "command",
    [
        ("demo", "--nodes", 2**64),
        ("demo", "--rounds", 2**64),
        ("demo", "--seed", -1),
        ("demo", "--seed", 2**64),
        ("sim", "--work-sigma", "1e300"),
        ("sim", "--work-sigma", "nan"),
        ("federation", "propose", "nowhere", "--rounds", 2**64),
    ],
    ids=lambda command: " ".join(map(str, command)),
)
def test_an_option_without_sense_is_refused_before_work_begins(command: tuple[object, ...]) -> None:
    assert defl(*command).code == 2


def test_the_largest_numbers_that_have_sense_are_accepted(members: Path, tmp_path: Path) -> None:
    text = (members / "federation.toml").read_text(encoding="utf-8")
    path = tmp_path / "federation.toml"
    text = changed(text, "rounds", str(NUMBER_MAX))
    assert outcome(path, changed(text, "gst_lt_max_s", str(SECONDS_MAX))) == ""
    assert str(NUMBER_MAX) in outcome(path, changed(text, "rounds", str(NUMBER_MAX + 1)))
    with pytest.raises(UserError, match="grace_s"):
        Timing(grace_s=SECONDS_MAX * 2)
