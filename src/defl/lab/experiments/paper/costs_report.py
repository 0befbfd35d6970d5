"""Figures 2 and 3 in numbers: a table of costs, and the paper's statements about them."""

import csv
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from io import StringIO
from typing import Any

from defl.lab.experiments.analysis import exponent
from defl.lab.experiments.paper.costs import CostCell, CostResult
from defl.lab.experiments.paper.findings import LINEAR_MAX, Finding
from defl.lab.experiments.paper.settings import SYSTEM_WORDS

Results = Mapping[CostCell, CostResult]
MB = 1e6
QUADRATIC_MIN = 1.5  # an exponent of growth above this counts as quadratic
CLOSE = 1.25  # values are close whose ratio is no larger


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
    """At the largest number of nodes, and by the exponent of growth with their number."""
    found = {(cost.system, cost.nodes): cost for cost in costs(results)}
    sizes = sorted({nodes for _, nodes in found})
    at_most = {system: found[system, sizes[-1]] for system in SYSTEM_WORDS}
    growths = {
        name: {
            system: exponent(sizes, [float(getattr(found[system, n], name)) for n in sizes])
            for system in SYSTEM_WORDS
        }
        for name in ("received_bytes", "sent_bytes", "sent_by_node")
    }
    made = [*_of_traffic(growths, at_most, sizes[-1]), _of_storage(at_most)]
    if all(cost.memory_bytes for cost in found.values()):
        memory = {
            system: [float(found[system, n].memory_bytes or 0) for n in sizes]
            for system in SYSTEM_WORDS
        }
        made += _of_memory(sizes, memory)
    if all(cost.gpu_bytes for cost in at_most.values()):
        gpu = {system: cost.gpu_bytes or 0 for system, cost in at_most.items()}
        statement = "GPU memory is the same in all systems"
        made.append(Finding(statement, _close(gpu.values()), _megabytes(gpu)))
    return made


def _of_traffic(
    growths: Mapping[str, Mapping[str, float]], at_most: Mapping[str, Cost], nodes: int
) -> list[Finding]:
    received, sent = growths["received_bytes"], growths["sent_bytes"]
    times_less = at_most["biscotti"].received_bytes / at_most["defl"].received_bytes
    in_all = {system: cost.received_bytes for system, cost in at_most.items()}
    sent_in_all = {system: at_most[system].sent_bytes for system in ("defl", "fl")}
    return [
        Finding(
            "Receiving grows quadratically in DeFL and Biscotti, linearly in FL and SL",
            min(received["defl"], received["biscotti"]) > QUADRATIC_MIN
            and max(received["fl"], received["swarm"]) < LINEAR_MAX,
            ", ".join(f"{SYSTEM_WORDS[s]} n^{power:.2f}" for s, power in received.items()),
        ),
        Finding(
            f"DeFL receives far less than Biscotti (at n = {nodes} at least 10 times less)",
            times_less >= 10,
            f"{times_less:.1f} times less",
        ),
        Finding(
            "DeFL receives more than FL and SL",
            in_all["defl"] > max(in_all["fl"], in_all["swarm"]),
            _megabytes(in_all),
        ),
        Finding(
            "DeFL's sending grows linearly, thanks to a shared memory pool",
            sent["defl"] < LINEAR_MAX,
            f"all nodes together n^{sent['defl']:.2f}, one node "
            f"n^{growths['sent_by_node']['defl']:.2f}: every byte received was sent by somebody",
        ),
        Finding(
            "DeFL's sending is similar to FL's or lower",
            sent_in_all["defl"] <= CLOSE * sent_in_all["fl"],
            _megabytes(sent_in_all),
        ),
    ]


def _of_storage(at_most: Mapping[str, Cost]) -> Finding:
    log = {system: cost.log_bytes for system, cost in at_most.items()}
    return Finding(
        "DeFL's storage (log alone) is nearly nothing and far below Biscotti's",
        log["defl"] < log["biscotti"] / 10,
        f"{_megabytes(log)}; with its pool DeFL has {at_most['defl'].stored_bytes / MB:.2f} MB, "
        f"whatever the rounds; Biscotti's chain grows with each of the {at_most['defl'].rounds}",
    )


def _of_memory(sizes: Sequence[int], memory: Mapping[str, Sequence[float]]) -> list[Finding]:
    growth = {system: exponent(sizes, values) for system, values in memory.items()}
    most = {system: values[-1] for system, values in memory.items()}
    return [
        Finding(
            "Memory grows linearly with the nodes",
            max(growth.values()) < LINEAR_MAX,
            ", ".join(f"{SYSTEM_WORDS[s]} n^{power:.2f}" for s, power in growth.items()),
        ),
        Finding(
            "DeFL's memory is close to Biscotti's and FL's",
            _close([most[system] for system in ("defl", "biscotti", "fl")]),
            _megabytes(most),
        ),
        Finding("DeFL's memory is below SL's", most["defl"] < most["swarm"], _megabytes(most)),
    ]


def _close(values: Collection[float]) -> bool:
    return max(values) <= CLOSE * min(values)


def _megabytes(values: Mapping[str, float]) -> str:
    def shown(value: float) -> str:
        return f"{value / MB:.0f}" if value >= 100 * MB else f"{value / MB:.2f}"

    return ", ".join(f"{SYSTEM_WORDS[s]} {shown(value)} MB" for s, value in values.items())
