"""OPERATING.md lists every file, status field and metric of a node."""

import fnmatch
import re
from pathlib import Path
from typing import get_args

from defl.lab.experiments.processes import Nodes
from defl.node.report.log import Log
from defl.node.report.round_facts import Fact
from defl.node.report.status import NodeStatus
from defl.node.startup import open_node

OPERATING = Path(__file__).parent.parent / "docs" / "OPERATING.md"
LIMIT_S = 120.0
# Too short-lived to be seen in every run, or written only if node.toml asks for it or members
# change.
PASSING = {
    "best.safetensors",
    "best-certificate.json",
    "best-local.npz",
    "birth",
    "certificates/handover-*.defl",
    "evidence/evidence-*.json",
    "state/blobs/*.part",
    "state/blobs/*.new",
    "state/work/*",
    "state/*-journal",
    "state/state.db*.new",
}
# The test's federation file is beside the nodes, and `defl run` keeps the logs.
OTHERS = {"node.log"}


def section(heading: str) -> str:
    text = OPERATING.read_text(encoding="utf-8")
    return text.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]


def first_cells(heading: str) -> list[str]:
    """The names in the first column of the section's table."""
    _, _, *rows = re.findall(r"^\|(.+?)\|", section(heading), re.MULTILINE)
    return [name.strip(" `") for row in rows for name in row.split(",")]


def test_every_status_field_is_documented_in_order() -> None:
    assert first_cells("Status fields") == list(NodeStatus.__struct_fields__)


def test_every_fact_of_the_history_is_documented_with_its_fields() -> None:
    rows = re.findall(r"^\| `(\w+)` \|(.+)$", section("The history of rounds"), re.MULTILINE)
    documented = {tag: set(re.findall(r"`(\w+)`", text)) for tag, text in rows}

    kinds = {kind.__struct_config__.tag: kind for kind in get_args(Fact)}
    assert documented.keys() == kinds.keys()
    for tag, kind in kinds.items():
        assert set(kind.__struct_fields__) <= documented[tag], tag


def test_every_metric_is_documented(tmp_path: Path) -> None:
    node = open_node(Nodes(tmp_path / "federation", 4, 1).local.nodes[0], Log())
    families = {
        f"{family.name}_total" if family.type == "counter" else family.name
        for family in node.measures.registry.collect()
    }
    node.writing.close()
    node.storage.close()

    assert sorted(first_cells("Metrics")) == sorted(families)


def test_every_file_that_a_node_writes_is_documented(tmp_path: Path) -> None:
    documented = set(first_cells("Files on disk"))
    nodes = Nodes(tmp_path / "federation", 4, 2)
    folder = nodes.local.nodes[0]
    written: set[str] = set()

    def ended() -> bool:
        written.update(str(p.relative_to(folder)) for p in folder.rglob("*") if not p.is_dir())
        nodes.require_no_failure()
        return not nodes.any_running

    try:
        nodes.start()
        nodes.wait(ended, LIMIT_S)
    finally:
        nodes.close()
    files = {file for file in written if not Path(file).name.startswith(".")} - OTHERS

    undocumented = {f for f in files if not any(fnmatch.fnmatch(f, d) for d in documented)}
    assert undocumented == set()
    assert {d for d in documented if not fnmatch.filter(files, d)} <= PASSING


def test_alarms_and_advice_name_only_fields_and_metrics_that_exist() -> None:
    text = OPERATING.read_text(encoding="utf-8")
    metrics = set(first_cells("Metrics"))

    assert set(re.findall(r"`(defl_[a-z_]+)`", text)) <= metrics
    in_status = set(re.findall(r"`(\w+)` in (?:the )?status", text))
    assert in_status
    assert in_status <= set(NodeStatus.__struct_fields__)
