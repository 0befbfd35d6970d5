"""The paper's analysis (its Section 4) as functions, and comparisons with measured bytes.

Bytes are those of weights alone: M is one update's payload, n the nodes, T the rounds, tau the
rounds that DeFL keeps. Metadata comes on top and is measured. The formulas count only what crosses
the network, not what a node passes to itself.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import log, sqrt

from defl.errors import PreconditionBroken


def krum_holds(nodes: int, faults: int) -> bool:
    """Lemma 2 (Blanchard et al. 2017): n > 2f + 2."""
    return nodes > 2 * faults + 2


def defl_holds(nodes: int, faults: int) -> bool:
    """Theorems 1 and 2: n >= 3f + 3, so that n - f updates are still enough for Krum."""
    return nodes >= 3 * faults + 3


def consensus_holds(nodes: int, faults: int) -> bool:
    """Lemma 1 (HotStuff): n >= 3f + 1."""
    return nodes >= 3 * faults + 1


def eta(nodes: int, faults: int) -> float:
    """Equation 1: how much smaller than the gradient the deviation of updates must be."""
    n, f = nodes, faults
    if f < 0 or not krum_holds(n, f):
        raise PreconditionBroken(f"eta(n, f) needs n > 2f + 2, and n = {n}, f = {f}")
    return sqrt(2 * (n - f + (f * (n - f - 2) + f * f * (n - f - 1)) / (n - 2 * f - 2)))


# --- Predicted bytes -----------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Predicted:
    sent: int  # by all seats, in all rounds; as much is received
    sent_by_busiest: int  # at most, by one seat
    stored: int  # at one node, at the end


def fl(nodes: int, size: int, rounds: int) -> Predicted:
    """The server receives n updates and sends n models a round."""
    return Predicted(2 * nodes * size * rounds, nodes * size * rounds, size)


def swarm(nodes: int, size: int, rounds: int, *, ready: int | None = None) -> Predicted:
    """The leader pulls m - 1 models; all n - 1 others pull the merged one."""
    ready = nodes if ready is None else ready
    sent = (ready - 1) + (nodes - 1)
    # A node that leads every round sends the model n - 1 times, never its own update.
    return Predicted(sent * size * rounds, (nodes - 1) * size * rounds, 2 * size)


def biscotti(
    nodes: int,
    size: int,
    rounds: int,
    *,
    in_block: int | None = None,
    verifiers: int = 1,
    noisers: int = 0,
    flood: bool = True,
) -> Predicted:
    """Noise and updates to be judged, k updates to the leader, blocks of k updates and a model.

    All nodes contribute. A verifier and the leader already hold their own updates.
    """
    k = nodes if in_block is None else in_block
    block = k + 1
    judged = nodes * noisers + (nodes - 1) * verifiers + (k - 1)
    spread = nodes * (nodes - 1) if flood else nodes - 1
    # Every node in every role at once: asked for noise by all, and the leader.
    busiest = (nodes - 1) * noisers + verifiers + 1 + (nodes - 1) * block
    return Predicted(
        (judged + spread * block) * size * rounds,
        busiest * size * rounds,
        block * size * rounds,
    )


def defl(nodes: int, size: int, rounds: int, *, tau: int = 2) -> Predicted:
    """Every update once to every other node: O(MTn^2); stored M tau n, whatever T is.

    Beyond the paper's tau rounds of updates this implementation keeps a grace round (for nodes
    that are still fetching) and the model of each kept round (for nodes that catch up).
    """
    kept = tau + 1
    stored = min(rounds, kept) * nodes + min(rounds + 1, kept)
    return Predicted(
        nodes * (nodes - 1) * size * rounds, (nodes - 1) * size * rounds, stored * size
    )


def defl_stored_paper(nodes: int, size: int, *, tau: int = 2) -> int:
    """Section 4.3: M tau n."""
    return size * tau * nodes


# --- Measured against predicted ------------------------------------------------------------


def deviation(measured: float, predicted: float) -> float:
    """Relative: 0.03 is 3 % more than predicted."""
    if predicted <= 0:
        raise PreconditionBroken(f"a prediction of {predicted} cannot be compared with anything")
    return measured / predicted - 1


def exponent(xs: Sequence[float], ys: Sequence[float]) -> float:
    """The p of y = c x^p that fits best, by least squares on logarithms.

    n(n - 1) is not n^2 for small n: from 4, 7 and 10 nodes its p is 2.2. Compare the fit of what
    was measured with the fit of the formula at the same points.
    """
    if len(xs) != len(ys) or len(set(xs)) < 2:
        raise PreconditionBroken("an exponent needs as many ys as xs, and two different xs")
    if any(value <= 0 for value in (*xs, *ys)):
        raise PreconditionBroken("an exponent is fitted to positive numbers alone")
    logs = [(log(x), log(y)) for x, y in zip(xs, ys, strict=True)]
    mean_x = sum(x for x, _ in logs) / len(logs)
    mean_y = sum(y for _, y in logs) / len(logs)
    across = sum((x - mean_x) * (y - mean_y) for x, y in logs)
    return across / sum((x - mean_x) ** 2 for x, _ in logs)
