"""What a federation asks of each node, and which proofs cover it: consequences of the facts.

Figures are for planning: bytes of weights exactly, the rest by stated allowances.
"""

from dataclasses import dataclass

import numpy as np

from defl.aggregation.rules import rule_named
from defl.committee import Federation
from defl.errors import PreconditionBroken
from defl.node.check import Check
from defl.pool.weights import FP32, payload_bytes

# Interpreter, libraries and buffers of a node and its worker, before any weights.
PROCESS_BYTES = 200 * 2**20
# The log since the newest snapshot, the safety record and evidence.
LOG_BYTES = 64 * 2**20
# Rounds held beyond tau: one of grace, the open one, and the next for a receiver that lags.
ROUNDS_BEYOND_TAU = 3
# A block's header with its QC and the votes for it, for each member of a view.
CONTROL_BYTES_PER_MEMBER = 400
# Views that a round takes when all is well: updates, AGGs, and the chain that commits them.
VIEWS_PER_ROUND = 8

# Rules that no Byzantine update may enter: one is enough to move the result anywhere.
UNPROTECTED = ("fed_avg",)


@dataclass(frozen=True, slots=True)
class Needs:
    update_bytes: int  # one update as it travels
    model_bytes: int  # one aggregate
    disk_bytes: int  # at most, per node
    memory_bytes: int  # about, per node with its worker, while aggregating
    sent_bytes_per_round: int  # per node, if nothing is lost
    received_bytes_per_round: int


def needs_of(federation: Federation) -> Needs:
    members = federation.committee.size
    update = payload_bytes(federation.schema, federation.codec)
    model = payload_bytes(federation.schema, FP32)
    rounds = federation.tau + ROUNDS_BEYOND_TAU
    control = VIEWS_PER_ROUND * members * CONTROL_BYTES_PER_MEMBER
    traffic = (members - 1) * (update + control)
    return Needs(
        update_bytes=update,
        model_bytes=model,
        # Models: tau + 1 rounds', the initial one, and the file that is written for people.
        disk_bytes=rounds * members * update + (federation.tau + 3) * model + LOG_BYTES,
        # All rows of a round, the base, the result, and a working copy.
        memory_bytes=(members + 3) * model
        + 2 * (members - 1) * federation.chunk_bytes
        + PROCESS_BYTES,
        sent_bytes_per_round=traffic,
        received_bytes_per_round=traffic,
    )


def coverage(federation: Federation) -> list[Check]:
    """Which theorem covers these numbers, and which does not; `strict` needs all of them."""
    n, f = federation.committee.size, federation.committee.faults
    b = federation.updates_faults_max
    checks = [
        Check(
            "consensus, n >= 3f + 1",
            n >= 3 * f + 1,
            f"{n} >= {3 * f + 1}: agreement holds with up to {f} Byzantine members of {n}",
        ),
        _rule_condition(federation),
    ]
    if federation.aggregation in UNPROTECTED:
        told = "and it is told of none" if b == 0 else f"but it is told to tolerate {b}"
        checks.append(
            Check(
                f"{federation.aggregation} and Byzantine updates",
                b == 0,
                f"one poisoned update moves the model anywhere, no theorem protects it; {told}",
            )
        )
    krum, defl = 2 * b + 3, 3 * b + 3
    checks += [
        Check("Krum's proof, n >= 2 faults_max + 3", n >= krum, _compared(federation, krum)),
        Check("DeFL's proof, n >= 3 faults_max + 3", n >= defl, _compared(federation, defl)),
    ]
    return checks


def _compared(federation: Federation, needed: int) -> str:
    n, b = federation.committee.size, federation.updates_faults_max
    if federation.aggregation in UNPROTECTED:
        return f"{n} against {needed}; about Krum's rules, which {federation.aggregation} is not of"
    if n >= needed:
        return f"{n} >= {needed}: covered for {b} Byzantine updates"
    return (
        f"{n} < {needed}: it does not cover {b} Byzantine updates here; they may do no harm, as "
        "in the paper's experiments, but nobody has shown that they cannot"
    )


def _rule_condition(federation: Federation) -> Check:
    """Asked of the rule itself, on the fewest rows that a round can close with."""
    rows, b = federation.committee.quorum, federation.updates_faults_max
    name = f"{federation.aggregation}'s own condition at m = n - f = {rows}"
    samples = [np.array([float(i)], dtype=np.float32) for i in range(rows)]
    ties = [bytes([i]) * 32 for i in range(rows)]
    try:
        rule_named(federation.aggregation)(samples, np.zeros(1, dtype=np.float32), b, ties)
    except PreconditionBroken as error:
        return Check(name, False, f"{error}; add members or lower faults_max")
    return Check(name, True, f"it works on {rows} rows with faults_max = {b}")
