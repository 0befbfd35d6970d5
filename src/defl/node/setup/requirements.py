"""What a federation requires of each node, and which theorems cover it: consequences of the facts.

Figures are for planning: bytes of weights are exact, the rest are stated allowances.
"""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from defl.aggregation.rules import rule_named
from defl.committee import Federation
from defl.errors import PreconditionBroken
from defl.pool.weights import FP32, payload_bytes
from defl.printable import printable_lines

# Interpreter, libraries and buffers of a node and its worker, before any weights.
PROCESS_BYTES = 200 * 2**20
# The log since the newest snapshot, the safety record and evidence.
LOG_BYTES = 64 * 2**20
# Rounds kept beyond tau: one of grace, the open one, and the next for a receiver that lags.
ROUNDS_BEYOND_TAU = 3
# Per member and view: a block's header with its QC, and the votes for it.
CONTROL_BYTES_PER_MEMBER = 400
# Views per round without failures: updates, AGGs, and the chain that commits them.
VIEWS_PER_ROUND = 8


@dataclass(frozen=True, slots=True)
class Check:
    """One condition, whether it holds, and why; the element of every list of checks."""

    name: str
    holds: bool
    detail: str  # the observation; where the condition fails, also what to do
    kind: str = ""  # for programs: which of several outcomes it is

    @property
    def line(self) -> str:
        return printable_lines(f"{'ok ' if self.holds else 'NO '} {self.name}: {self.detail}")

    @property
    def json(self) -> dict[str, object]:
        kind = {"kind": self.kind} if self.kind else {}
        return {"check": self.name, "holds": self.holds, "detail": self.detail, **kind}


def all_hold(checks: Iterable[Check]) -> bool:
    return all(check.holds for check in checks)


@dataclass(frozen=True, slots=True)
class Requirements:
    update_bytes: int  # one update on the wire
    model_bytes: int  # one aggregate
    disk_bytes: int  # at most, per node
    memory_bytes: int  # approximately, per node with its worker, without mapped files
    sent_bytes_per_round: int  # per node, without retransmissions
    received_bytes_per_round: int


def requirements_of(federation: Federation) -> Requirements:
    members = federation.committee.size
    update = payload_bytes(federation.schema, federation.codec)
    model = payload_bytes(federation.schema, FP32)
    rounds = federation.tau + ROUNDS_BEYOND_TAU
    control = VIEWS_PER_ROUND * members * CONTROL_BYTES_PER_MEMBER
    traffic = (members - 1) * (update + control)
    return Requirements(
        update_bytes=update,
        model_bytes=model,
        # Models: tau + 1 rounds, the initial one, and the file that is written for people.
        disk_bytes=rounds * members * update + (federation.tau + 3) * model + LOG_BYTES,
        memory_bytes=_models_in_memory(federation) * model
        + 2 * (members - 1) * federation.chunk_bytes
        + PROCESS_BYTES,
        sent_bytes_per_round=traffic,
        received_bytes_per_round=traffic,
    )


def _models_in_memory(federation: Federation) -> int:
    if federation.codec is FP32:
        return 2  # blobs are mapped; what the client trains, and the row that it becomes
    return federation.committee.size + 3  # all decoded rows of a round, the base, result, a copy


def coverage(federation: Federation) -> list[Check]:
    """Which guarantees are proven for these facts, and which are not."""
    return [*required(federation), *_krum_proofs(federation)]


def required(federation: Federation) -> list[Check]:
    """The conditions under which the whole federation is proven; `--strict` demands them all."""
    n, f = federation.committee.size, federation.committee.faults
    rows, b = federation.committee.quorum, federation.updates_faults_max
    rule = federation.aggregation
    outside = rule_named(rule).condition.outside(rows, b)
    return [
        Check(
            "consensus, n >= 3f + 1",
            n >= 3 * f + 1,
            f"{n} >= {3 * f + 1}: agreement holds with up to {f} Byzantine members of {n}",
        ),
        computable(federation),
        Check(
            f"{rule}'s theorem at m = n - f = {rows}",
            outside is None,
            outside or f"covered: {rows} updates, of which up to {b} may be Byzantine",
        ),
    ]


def require_conditions(federation: Federation, *, strict: bool) -> None:
    """A rule that cannot be computed would stop every round. Whether to run without a proof is for
    the members to decide, by `strict`."""
    for check in required(federation) if strict else [computable(federation)]:
        if not check.holds:
            raise PreconditionBroken(f"{check.name}: {check.detail}")


def computable(federation: Federation) -> Check:
    """Whether the rule runs on the fewest rows that a round can close with, by running it."""
    rows, b = federation.committee.quorum, federation.updates_faults_max
    name = f"{federation.aggregation} can be computed at m = n - f = {rows}"
    samples = [np.array([float(i)], dtype=np.float32) for i in range(rows)]
    ties = [bytes([i]) * 32 for i in range(rows)]
    try:
        rule_named(federation.aggregation)(samples, np.zeros(1, dtype=np.float32), b, ties)
    except PreconditionBroken as error:
        return Check(name, False, f"{error}; add members or lower faults_max")
    return Check(name, True, f"it works on {rows} updates with faults_max = {b}")


def _krum_proofs(federation: Federation) -> list[Check]:
    """Both proofs as their papers count: by members, not by the updates of one round."""
    if "krum" not in federation.aggregation:
        return []
    n, b = federation.committee.size, federation.updates_faults_max
    return [
        Check(
            f"{whose} proof as its paper counts, n >= {factor} faults_max + 3",
            n >= factor * b + 3,
            f"{n} members, {factor * b + 3} are needed for {b} Byzantine updates",
        )
        for whose, factor in (("Krum's", 2), ("DeFL's", 3))
    ]
