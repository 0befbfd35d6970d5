"""Figures 2 and 3 in numbers: a table of costs, and the paper's statements about them."""

import csv
from collections.abc import Mapping
from dataclasses import dataclass
from io import StringIO
from typing import Any

from defl.experiments.analysis import exponent
from defl.experiments.paper.costs import CostCell, CostResult
from defl.experiments.paper.findings import Finding
from defl.experiments.paper.settings import SYSTEM_WORDS

Results = Mapping[CostCell, CostResult]
MB = 1e6
STATEMENT_LINEAR = 1.3  # an exponent up to this still counts as linear growth


@dataclass(frozen=True, slots=True)
class Cost:
    """Of one system with so many nodes; bytes of all seats together, and of one at most."""

    system: str
    nodes: int
    rounds: int
    model_bytes: int
    memory_bytes: int | None
    gpu_bytes: int | None
    stored_bytes: int
    log_bytes: int
    received_bytes: int
    sent_bytes: int
    sent_by_busiest: int
    sent_by_node: float  # mean over the nodes, without a server or ordering service


def costs(results: Results) -> list[Cost]:
    return [
        Cost(
            cell.system,
            cell.nodes,
            cell.rounds,
            result.model_bytes,
            result.memory_bytes,
            result.gpu_bytes,
            sum(result.stored_bytes),
            sum(result.log_bytes),
            sum(result.received_bytes),
            sum(result.sent_bytes),
            max(result.sent_bytes),
            sum(result.sent_bytes[: cell.nodes]) / cell.nodes,
        )
        for cell, result in results.items()
    ]


def as_json(results: Results) -> list[dict[str, Any]]:
    return [{name: getattr(cost, name) for name in Cost.__slots__} for cost in costs(results)]


def as_csv(results: Results) -> str:
    text = StringIO()
    writer = csv.DictWriter(text, list(Cost.__slots__), lineterminator="\n")
    writer.writeheader()
    writer.writerows(as_json(results))
    return text.getvalue()


def as_markdown(title: str, results: Results) -> str:
    """In MB, of all seats together where nothing else is said."""
    found = costs(results)
    rounds, size = found[0].rounds, found[0].model_bytes / MB
    gpu = any(cost.gpu_bytes for cost in found)
    lines = [
        f"### {title}",
        "",
        (
            f"Real processes over TLS, {rounds} rounds, a model of M = {size:.3f} MB. In MB, of "
            "all seats together (a server or ordering service included) where nothing else is "
            "said. Memory is the peak of all processes with shared pages counted once; log is the "
            "chain or log alone, as the paper measured storage."
        ),
        "",
        "| nodes | system | memory | "
        + ("GPU memory | " if gpu else "")
        + "log | all stored | received | sent | sent by a node | by the busiest seat |",
        "|---" * (10 if gpu else 9) + "|",
    ]
    for cost in found:
        memory = "-" if cost.memory_bytes is None else f"{cost.memory_bytes / MB:.0f}"
        lines.append(
            f"| {cost.nodes} | {SYSTEM_WORDS[cost.system]} | {memory} | "
            + (f"{(cost.gpu_bytes or 0) / MB:.0f} | " if gpu else "")
            + f"{cost.log_bytes / MB:.3f} | {cost.stored_bytes / MB:.2f} | "
            f"{cost.received_bytes / MB:.2f} | {cost.sent_bytes / MB:.2f} | "
            f"{cost.sent_by_node / MB:.2f} | {cost.sent_by_busiest / MB:.2f} |"
        )
    return "\n".join(lines) + "\n"


def findings(results: Results) -> list[Finding]:
    found = {(cost.system, cost.nodes): cost for cost in costs(results)}
    sizes = sorted({nodes for _, nodes in found})
    most = sizes[-1]

    def growth(system: str, name: str) -> float:
        return exponent(sizes, [float(getattr(found[system, n], name)) for n in sizes])

    defl, biscotti = found["defl", most], found["biscotti", most]
    traffic = biscotti.received_bytes / defl.received_bytes
    sending = growth("defl", "sent_bytes")
    made = [
        Finding(
            "Receiving grows quadratically in DeFL and Biscotti, linearly in FL and SL",
            growth("defl", "received_bytes") > 1.5
            and growth("biscotti", "received_bytes") > 1.5
            and max(growth(name, "received_bytes") for name in ("fl", "swarm")) < STATEMENT_LINEAR,
            ", ".join(
                f"{words} n^{growth(system, 'received_bytes'):.2f}"
                for system, words in SYSTEM_WORDS.items()
            ),
        ),
        Finding(
            f"DeFL receives far less than Biscotti (at n = {most} at least 10 times less)",
            traffic >= 10,
            f"{traffic:.1f} times less",
        ),
        Finding(
            "DeFL's sending grows linearly, thanks to a shared memory pool",
            sending < STATEMENT_LINEAR,
            f"all nodes together n^{sending:.2f}, one node n^"
            f"{growth('defl', 'sent_by_node'):.2f}: every byte received was sent by somebody",
        ),
        Finding(
            "DeFL's storage (log alone) is far below Biscotti's",
            defl.log_bytes < biscotti.log_bytes / 2,
            f"{defl.log_bytes / MB:.2f} and {biscotti.log_bytes / MB:.2f} MB; with DeFL's pool "
            f"{defl.stored_bytes / MB:.2f} MB",
        ),
    ]
    if defl.memory_bytes is not None:
        memory = {name: found[name, most].memory_bytes or 0 for name in SYSTEM_WORDS}
        least, largest = min(memory.values()), max(memory.values())
        made.append(
            Finding(
                "Memory grows linearly with the nodes and is similar in all systems",
                all(growth(name, "memory_bytes") < STATEMENT_LINEAR for name in SYSTEM_WORDS)
                and largest < 1.5 * least,
                ", ".join(
                    f"{SYSTEM_WORDS[name]} {value / MB:.0f} MB" for name, value in memory.items()
                ),
            )
        )
    return made
