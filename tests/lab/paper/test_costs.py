"""Memory, storage and traffic of real processes, and the report on them."""

from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
from tiny import LEARNING

from defl.lab.experiments import analysis
from defl.lab.experiments.paper import costs_report
from defl.lab.experiments.paper.costs import NODES, CostCell, CostResult
from defl.lab.experiments.paper.memory import MemoryWatch, family, pss_bytes
from defl.lab.experiments.paper.plots import plot_costs
from defl.lab.experiments.paper.settings import SYSTEM_WORDS

FORMULAS = {
    "fl": analysis.fl,
    "swarm": analysis.swarm,
    "biscotti": analysis.biscotti,
    "defl": analysis.defl,
}
SIZE = 100_000
ROUNDS = 10


def by_formula() -> dict[CostCell, CostResult]:
    """Costs if nothing but weights were sent and stored."""
    results = {}
    for nodes in NODES:
        for system, formula in FORMULAS.items():
            due = formula(nodes, SIZE, ROUNDS)
            sent = (due.sent // nodes,) * nodes
            chain = due.stored if system == "biscotti" else 0
            cell = CostCell(system, nodes, ROUNDS, LEARNING)
            results[cell] = CostResult(
                SIZE,
                nodes * (2 * 10**8 if system == "swarm" else 10**8),
                None,
                (due.stored,) * nodes,
                (chain or 1,) * nodes,
                sent,
                sent,
                1.0,
            )
    return results


def test_costs_by_the_formulas_confirm_all_statements_except_on_sending() -> None:
    checked = costs_report.findings(by_formula())

    assert [f.statement for f in checked if not f.confirmed] == [
        costs_report.SENDING_LINEAR,
        costs_report.SENDING_LIKE_FL,
    ]
    [sending, _] = [f for f in checked if not f.confirmed]
    assert "all nodes together n^2.2" in sending.numbers
    assert "one node n^1.2" in sending.numbers
    [traffic] = [f for f in checked if "10 times less" in f.statement]
    assert traffic.numbers == "11.2 times less"


def test_large_or_superlinear_memory_contradicts_the_statements() -> None:
    def heavy(cell: CostCell, result: CostResult) -> CostResult:
        return msgspec.structs.replace(result, memory_bytes=3 * 10**7 * cell.nodes**2)

    results = {
        cell: heavy(cell, result) if cell.system == "defl" else result
        for cell, result in by_formula().items()
    }
    contradicted = {f.statement for f in costs_report.findings(results) if not f.confirmed}

    assert {
        "Memory grows linearly with the nodes",
        "DeFL's memory is close to Biscotti's and FL's",
        "DeFL's memory is below SL's",
    } <= contradicted


def test_costs_are_tabulated_by_system_and_nodes_and_plotted(tmp_path: Path) -> None:
    results = by_formula()
    lines = costs_report.as_markdown(results, "mlp-32")
    brief = costs_report.as_markdown(results, "mlp-32", largest_only=True)
    plot_costs("Figure 2", results, "by formula", tmp_path / "figure2")

    assert sum(line.startswith("| 10 |") for line in lines) == len(SYSTEM_WORDS)
    assert sum(line.startswith("| 4 |") for line in lines) == len(SYSTEM_WORDS)
    assert [line for line in brief if line.startswith(("| 4 |", "| 7 |"))] == []
    assert "GPU" not in "".join(lines)
    assert (tmp_path / "figure2.png").stat().st_size > 10_000
    assert "received by all" in (tmp_path / "figure2.svg").read_text(encoding="utf-8")


def test_gpu_memory_has_a_column_if_there_is_a_gpu() -> None:
    results = {
        cell: CostResult(
            result.model_bytes,
            result.memory_bytes,
            5 * 10**9,
            *(getattr(result, name) for name in result.__struct_fields__[3:]),
        )
        for cell, result in by_formula().items()
    }

    assert any("| 5000 |" in line for line in costs_report.as_markdown(results, "mlp-32"))


@pytest.mark.parametrize("system", ["defl", "fl"])
def test_real_processes_run_and_are_measured(system: str) -> None:
    cell = CostCell(system, 4, 1, replace(LEARNING, steps=1))
    result = cell.run(None)
    due = FORMULAS[system](4, result.model_bytes, 1)

    assert result.model_bytes == 4 * (64 * 32 + 32 + 32 * 10 + 10)
    assert sum(result.sent_bytes) > due.sent
    assert sum(result.sent_bytes) == pytest.approx(sum(result.received_bytes), rel=0.1)
    assert all(all_ > log for all_, log in zip(result.stored_bytes, result.log_bytes, strict=True))
    assert result.memory_bytes is None or result.memory_bytes > 4 * 50 * 10**6


def process(proc: Path, pid: int, parent: int, kilobytes: int) -> None:
    folder = proc / str(pid)
    folder.mkdir(parents=True)
    (folder / "stat").write_text(f"{pid} (a (b) c) S {parent} 1 1", encoding="ascii")
    smaps = f"00-ff ---p [rollup]\nRss: 999 kB\nPss: {kilobytes} kB\nPss_Dirty: 7 kB\n"
    (folder / "smaps_rollup").write_text(smaps, encoding="ascii")


def test_memory_is_the_peak_over_the_processes_and_their_descendants(tmp_path: Path) -> None:
    process(tmp_path, 10, 1, 100)
    process(tmp_path, 11, 10, 20)
    process(tmp_path, 12, 11, 3)
    process(tmp_path, 13, 1, 5000)  # of another program
    (tmp_path / "self").mkdir()
    (tmp_path / "self" / "smaps_rollup").touch()
    watch = MemoryWatch(tmp_path)

    watch.look([10])
    assert family([10], tmp_path) == {10, 11, 12}
    assert watch.peak_bytes == 123 * 1024
    (tmp_path / "11" / "smaps_rollup").unlink()  # it has ended
    watch.look([10])
    assert pss_bytes(11, tmp_path) == 0
    assert watch.peak_bytes == 123 * 1024


def test_unreadable_memory_is_reported_as_unknown(tmp_path: Path) -> None:
    watch = MemoryWatch(tmp_path)
    watch.look([1])

    assert watch.peak_bytes is None
