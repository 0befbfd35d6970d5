"""Figures 2 and 3 in numbers: a table of costs, and the paper's statements about them."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from defl.lab.experiments.analysis import exponent
from defl.lab.experiments.paper.costs import CostCell, CostResult
from defl.lab.experiments.paper.findings import LINEAR_MAX
from defl.lab.experiments.paper.settings import SYSTEM_WORDS
from defl.lab.experiments.paper.verdicts import Finding

Results = Mapping[CostCell, CostResult]
MB = 1e6
QUADRATIC_MIN = 1.5  # growth exponents above this count as quadratic
CLOSE = 1.25  # values are close if their ratio is no larger

SENDING_LIKE_FL = "DeFL sends as many bytes as FL, or fewer"
MEMORY_BELOW_SL = "DeFL's memory is below SL's"
# One sentence for one claim; the summary, the figures and the analysis all check it.
SENDING_LINEAR = "DeFL's sending grows linearly with the nodes, thanks to a shared memory pool"


@dataclass(frozen=True, slots=True)
class Cost:
    """What one system with so many nodes uses; bytes are summed over all processes."""

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


def as_markdown(results: Results, model: str, *, largest_only: bool = False) -> list[str]:
    """In MB; only the federations with the most nodes if `largest_only`."""
    table = costs(results)
    rounds, size = table[0].rounds, table[0].model_bytes / MB
    gpu = any(cost.gpu_bytes for cost in table)
    if largest_only:
        most = max(cost.nodes for cost in table)
        table = [cost for cost in table if cost.nodes == most]
    lines = [
        (
            f"Real processes over TLS; {model}, {size:.3f} MB; {rounds} rounds. In MB, summed over "
            "all processes (including a server or ordering service) except in the last two "
            "columns. Memory is the peak of the sum, with shared pages counted once. Log is the "
            "chain or log alone, which is what the paper counts as storage."
        ),
        "",
        "| nodes | system | memory | "
        + ("GPU memory | " if gpu else "")
        + "log | all stored | received | sent | sent by a node (mean) | by the busiest process |",
        "|---" * (10 if gpu else 9) + "|",
    ]
    for cost in table:
        memory = "-" if cost.memory_bytes is None else f"{cost.memory_bytes / MB:.0f}"
        lines.append(
            f"| {cost.nodes} | {SYSTEM_WORDS[cost.system]} | {memory} | "
            + (f"{(cost.gpu_bytes or 0) / MB:.0f} | " if gpu else "")
            + f"{cost.log_bytes / MB:.3f} | {cost.stored_bytes / MB:.2f} | "
            f"{cost.received_bytes / MB:.2f} | {cost.sent_bytes / MB:.2f} | "
            f"{cost.sent_by_node / MB:.2f} | {cost.sent_by_busiest / MB:.2f} |"
        )
    return lines


def findings(results: Results) -> list[Finding]:
    """Values at the largest number of nodes, and exponents of growth with that number."""
    by_place = {(cost.system, cost.nodes): cost for cost in costs(results)}
    sizes = sorted({nodes for _, nodes in by_place})
    largest = {system: by_place[system, sizes[-1]] for system in SYSTEM_WORDS}
    growths = {
        name: {
            system: exponent(sizes, [float(getattr(by_place[system, n], name)) for n in sizes])
            for system in SYSTEM_WORDS
        }
        for name in ("received_bytes", "sent_bytes", "sent_by_node")
    }
    answers = [*_traffic(growths, largest, sizes[-1]), _storage(largest)]
    if all(cost.memory_bytes for cost in by_place.values()):
        memory = {
            system: [float(by_place[system, n].memory_bytes or 0) for n in sizes]
            for system in SYSTEM_WORDS
        }
        answers += _memory(sizes, memory)
    if all(cost.gpu_bytes for cost in largest.values()):
        gpu = {system: cost.gpu_bytes or 0 for system, cost in largest.items()}
        statement = "GPU memory is the same in all systems"
        answers.append(Finding(statement, _close(gpu.values()), _megabytes(gpu)))
    return answers


def _traffic(
    growths: Mapping[str, Mapping[str, float]], largest: Mapping[str, Cost], nodes: int
) -> list[Finding]:
    received, sent = growths["received_bytes"], growths["sent_bytes"]
    times_less = largest["biscotti"].received_bytes / largest["defl"].received_bytes
    in_all = {system: cost.received_bytes for system, cost in largest.items()}
    sent_in_all = {system: largest[system].sent_bytes for system in ("defl", "fl")}
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
            SENDING_LINEAR,
            sent["defl"] < LINEAR_MAX,
            f"all nodes together n^{sent['defl']:.2f}, one node "
            f"n^{growths['sent_by_node']['defl']:.2f}; every byte received is sent by some node",
        ),
        Finding(
            SENDING_LIKE_FL,
            sent_in_all["defl"] <= CLOSE * sent_in_all["fl"],
            _megabytes(sent_in_all),
        ),
    ]


def _storage(largest: Mapping[str, Cost]) -> Finding:
    log = {system: cost.log_bytes for system, cost in largest.items()}
    return Finding(
        "DeFL's storage (log alone) is nearly nothing and far below Biscotti's",
        log["defl"] < log["biscotti"] / 10,
        f"{_megabytes(log)}; DeFL's pool included, {largest['defl'].stored_bytes / MB:.2f} MB for "
        "any number of rounds, while Biscotti's chain grows with each of the "
        f"{largest['defl'].rounds} rounds",
    )


def _memory(sizes: Sequence[int], memory: Mapping[str, Sequence[float]]) -> list[Finding]:
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
        Finding(MEMORY_BELOW_SL, most["defl"] < most["swarm"], _megabytes(most)),
    ]


def _close(values: Collection[float]) -> bool:
    return max(values) <= CLOSE * min(values)


def _megabytes(values: Mapping[str, float]) -> str:
    def shown(value: float) -> str:
        return f"{value / MB:.0f}" if value >= 100 * MB else f"{value / MB:.2f}"

    return ", ".join(f"{SYSTEM_WORDS[s]} {shown(value)} MB" for s, value in values.items())
