"""One cell of the robustness table: a small federation trained under one rule and one attack.

A cell's result is a pure function of its settings and the data; nothing here writes files.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import partial
from hashlib import sha256
from itertools import cycle, islice
from math import nan

import numpy as np
from numpy.typing import NDArray

from defl.aggregation.aggregate import AggregationResult, Row
from defl.aggregation.model import aggregate_model
from defl.clients.prior import Prior
from defl.committee import faults_of
from defl.errors import PreconditionBroken
from defl.founding import schema_with_rule
from defl.lab.attacks.attack import Attack
from defl.lab.attacks.attacks import attack_named
from defl.lab.attacks.crafted import against_rule, alie, alie_deviation
from defl.lab.attacks.data import flipped_labels, stamped
from defl.lab.attacks.simple import replay, scaled
from defl.lab.datasets.task import Images
from defl.lab.experiments.small_model import Shape, initial, predicted, train
from defl.lab.experiments.wire import Wire
from defl.lab.partition import cut, divide_by_size
from defl.schema import Codec, Schema

HIDDEN = 32
ROUNDS = 40
STEPS = 10
BATCH = 32
RATE = 0.1
RATES = {"sentiment140": 0.3}  # few words of a text are known: its gradients are small
ROUNDS_EVALUATED = 5  # accuracy is the mean over this many last rounds
BACKDOOR_CLASS = 0

Preview = Callable[[Sequence[Row]], AggregationResult]  # the rule's result for these rows

NO_ATTACK = "none"
COLLUDING = ("alie", "inner_product", "min_max", "min_sum", "mimic", "against_rule")
SMALLEST, LARGEST = "smallest", "largest"  # members that attack, if sizes differ
BLIND = "_blind"  # suffix of an attack's name: the attacker sees only its own update


class Weighting(StrEnum):
    """How much the updates that are kept count."""

    EQUAL = "equal"
    AGREED = "agreed"  # by the members' sizes, capped
    BY_SIZE = "by_size"  # without a cap, as FedAvg does


@dataclass(frozen=True, slots=True)
class RobustnessCell:
    """The settings. `attackers` is 0 without attack; the rule gets faults_max either way."""

    rule: str
    attack: str
    alpha: float | None  # None: i.i.d.
    members: int
    seed: int
    rounds: int = ROUNDS
    dataset: str = "mnist"
    codec: Codec = Codec.FP32
    away: int = 0  # rounds without the last member, an honest one, from half-way on
    sizes: str = ""  # "1:2:7": the members' sizes, repeated; empty: all the same
    attacker: str = SMALLEST  # with sizes: which members attack
    weighting: Weighting = Weighting.EQUAL
    prior: Prior = Prior.NONE

    @property
    def faults_max(self) -> int:
        return faults_of(self.members)

    @property
    def attackers(self) -> int:
        return 0 if self.attack == NO_ATTACK else self.faults_max

    @property
    def member_sizes(self) -> list[int]:
        """The attackers' first."""
        pattern = cycle(map(int, self.sizes.split(":")))
        return sorted(islice(pattern, self.members), reverse=self.attacker == LARGEST)

    def present(self, round_: int) -> list[int]:
        """The members that send an update in this round."""
        leaves = self.rounds // 2
        is_away = leaves <= round_ < leaves + self.away
        return [*range(self.members - 1 if is_away else self.members)]


@dataclass(frozen=True, slots=True)
class RobustnessResult:
    """Shares of the test images, and how often honest and attackers' rows were left out.

    None in a field: not measured.
    """

    accuracy: float
    backdoor: float  # share of stamped images classified as the backdoor's class
    honest_left_out: float  # mean share of honest rows with weight 0
    attackers_kept: float  # mean share of attackers' rows with weight above 0
    reason: str  # the last round's, or why the rule refused
    # Share of its rounds in which an honest member was left out: that of the worst member, over
    # all rounds and over the last half; and that of the member that was away, after its return.
    worst_left_out: float | None = None
    worst_left_out_late: float | None = None
    returned_left_out: float | None = None


def run_cell(cell: RobustnessCell, data: Images) -> RobustnessResult:
    """Train the federation of one cell.

    Randomness depends on the seed and the members alone, so all rules and attacks of one seed see
    the same data, batches and initial weights.
    """
    rng = np.random.default_rng([cell.seed, cell.members])
    shape = Shape(int(np.prod(data.train_images.shape[1:])), HIDDEN, data.classes)
    if cell.sizes:
        parts = divide_by_size(data.train_labels, cell.member_sizes, cell.alpha, rng)
    else:
        parts = cut(data.train_labels, cell.members, cell.alpha, rng)
    federation = RobustnessFederation(cell, data, shape, parts)
    weights = initial(shape, rng)
    rounds = CellRounds(cell, shape, weights)
    accuracies: list[float] = []
    left_out = LeftOut(cell)
    reason = ""
    for round_ in range(cell.rounds):
        rows = federation.rows(round_, weights, rounds.preview)
        try:
            result = rounds.close(rows)
        except PreconditionBroken as refused:
            return RobustnessResult(nan, nan, nan, nan, str(refused))
        weights = rounds.weights
        left_out.add(round_, result.weights)
        reason = result.reason
        if round_ >= cell.rounds - ROUNDS_EVALUATED:
            accuracies.append(federation.accuracy(weights))
    return RobustnessResult(
        accuracy=float(np.mean(accuracies)),
        backdoor=federation.backdoor(weights),
        honest_left_out=left_out.honest(),
        attackers_kept=left_out.attackers_kept(),
        reason=reason,
        worst_left_out=left_out.worst(0),
        worst_left_out_late=left_out.worst(cell.rounds // 2),
        returned_left_out=left_out.returned(),
    )


class LeftOut:
    """Whose update the rule left out in which round: 1, or 0 if it counted; NaN: it sent none."""

    def __init__(self, cell: RobustnessCell) -> None:
        self._cell = cell
        self._rounds = np.full((cell.rounds, cell.members), nan)

    def add(self, round_: int, weights: Sequence[float]) -> None:
        gone = [weight == 0 for weight in weights]
        self._rounds[round_, self._cell.present(round_)] = gone

    def honest(self) -> float:
        """The mean over rounds of the share of honest updates left out."""
        return float(np.nanmean(self._rounds[:, self._cell.attackers :], axis=1).mean())

    def attackers_kept(self) -> float:
        bad = self._rounds[:, : self._cell.attackers]
        return 1 - float(bad.mean()) if bad.size else 0.0

    def worst(self, first_round: int) -> float:
        """The share of rounds of the honest member that was left out most often."""
        honest = self._rounds[first_round:, self._cell.attackers :]
        present = ~np.isnan(honest)
        shares = np.nansum(honest, axis=0) / np.maximum(present.sum(axis=0), 1)
        return float(shares.max())

    def returned(self) -> float | None:
        after = self._rounds[self._cell.rounds // 2 + self._cell.away :, -1]
        return float(after.mean()) if self._cell.away and after.size else None


def tie_breakers(round_: int, members: int) -> list[bytes]:
    return [sha256(f"{round_}/{i}".encode()).digest() for i in range(members)]


class CellRounds:
    """The aggregation of one cell, round by round, on models as nodes send them: with the memory
    entry of a rule that remembers. Rows come from all members; those of the absent do not count."""

    def __init__(self, cell: RobustnessCell, shape: Shape, weights: Row) -> None:
        self._cell = cell
        self._size = weights.size
        self._schema = schema_with_rule(Schema(shape.entries), cell.rule)
        self._model = np.zeros(self._schema.values, dtype=np.float32)
        self._model[: self._size] = weights
        self._round = 0

    @property
    def weights(self) -> Row:
        return self._model[: self._size]

    def preview(self, rows: Sequence[Row]) -> AggregationResult:
        """The rule's result for these rows, without the memory entry; closes nothing."""
        result = self._aggregate(rows)
        return replace(result, values=result.values[: self._size])

    def close(self, rows: Sequence[Row]) -> AggregationResult:
        result = self._aggregate(rows)
        self._model = result.values
        self._round += 1
        return result

    def _aggregate(self, rows: Sequence[Row]) -> AggregationResult:
        memory = self._model[self._size :]
        present = self._cell.present(self._round)
        ties = tie_breakers(self._round, self._cell.members)
        weighting = self._cell.weighting
        is_weighed = weighting != Weighting.EQUAL
        agreed = [self._cell.member_sizes[i] for i in present] if is_weighed else None
        return aggregate_model(
            self._cell.rule,
            self._schema,
            [np.concatenate([rows[i], memory]) for i in present],
            self._model,
            faults_max=0 if weighting == Weighting.BY_SIZE else self._cell.faults_max,
            ties=[ties[i] for i in present],
            members=present,
            agreed=agreed,
        )


class RobustnessFederation:
    """The members of one cell. Attackers come first; they may poison their data and their updates.

    The honest batches of a round depend on seed and round alone.
    """

    def __init__(
        self, cell: RobustnessCell, data: Images, shape: Shape, parts: Sequence[NDArray[np.int64]]
    ) -> None:
        self.cell = cell
        self.shape = shape
        self.parts = parts
        self.data = data
        self.images = data.train_images
        self.labels = data.train_labels
        self.classes = data.classes
        test = data.scaled(data.test_images)
        self.test = test.reshape(len(test), -1)
        self.test_labels = data.test_labels
        others = data.test_labels != BACKDOOR_CLASS
        self.test_stamped = stamped(test[others][:1000]).reshape(-1, shape.inputs)
        self.wire = Wire(cell.codec, shape, cell.members)
        self.earlier: Row | None = None
        is_corrected = cell.prior == Prior.CORRECTED
        self.priors = np.stack([*map(self._prior, range(cell.members))]) if is_corrected else None

    def _prior(self, member: int) -> NDArray[np.float32]:
        """The member's log class frequencies, each count plus one; a label flipper's are flipped.

        A shared model is tested without any: its test images have all classes alike.
        """
        counts = np.bincount(self.labels[self.parts[member]], minlength=self.classes) + 1
        if self.cell.attack == "label_flip" and member < self.cell.attackers:
            counts = counts[flipped_labels(np.arange(self.classes), self.classes)]
        prior: NDArray[np.float32] = np.log(counts / counts.sum()).astype(np.float32)
        return prior

    def rows(self, round_: int, weights: Row, preview: Preview) -> list[Row]:
        """The updates of one round, in member order."""
        cell = self.cell
        rng = np.random.default_rng([cell.seed, cell.members, round_])
        chosen = np.stack([rng.choice(part, (STEPS, BATCH)) for part in self.parts])
        images, labels = self.data.scaled(self.images[chosen]), self.labels[chosen]
        bad = cell.attackers
        if cell.attack == "label_flip":
            labels[:bad] = flipped_labels(labels[:bad], self.classes)
        if cell.attack == "backdoor":  # half of each batch is stamped
            half = BATCH // 2
            flat = images[:bad, :, :half].reshape(-1, *self.images.shape[1:])
            images[:bad, :, :half] = stamped(flat).reshape(images[:bad, :, :half].shape)
            labels[:bad, :, :half] = BACKDOOR_CLASS
        flat_images = images.reshape(*chosen.shape, self.shape.inputs)
        start = self.wire.starts(weights, round_)
        rate = RATES.get(cell.dataset, RATE)
        changes = train(self.shape, start, flat_images, labels, rate, self.priors) - weights
        sent = [
            self.wire.sent(i, weights + changes[i], weights, round_)
            for i in range(bad, cell.members)
        ]
        if bad and cell.attack != "label_flip":
            honest = list(changes[bad:])
            if cell.codec != Codec.FP32:  # attackers see what the honest have sent
                honest = [row - weights for row in sent]
            poisoned = self.attack(weights, preview)
            visible = None if cell.attack.endswith(BLIND) else honest
            own = changes[:bad].copy()
            colluding = cell.attack in COLLUDING  # all send the same row
            for i in range(bad):
                repeat = colluding and i > 0
                changes[i] = changes[0] if repeat else poisoned(own[i], visible, rng)
            self.earlier = own[0] if self.earlier is None else self.earlier
        with np.errstate(over="ignore", invalid="ignore"):  # an attacker's row may be anything
            poison = [self.wire.sent(i, weights + changes[i], weights, round_) for i in range(bad)]
        return [*poison, *sent]

    def attack(self, weights: Row, preview: Preview) -> Attack:
        cell = self.cell
        name = cell.attack.removesuffix(BLIND)
        if name == "backdoor":
            return partial(scaled, factor=cell.members / cell.attackers)
        if name == "replay":
            return partial(replay, earlier=self.earlier)
        if name == "alie":
            deviations = max(0.3, alie_deviation(cell.members, cell.attackers))
            return partial(alie, deviations=deviations)
        if name == "against_rule":

            def change_by_rule(changes: Sequence[Row]) -> Row:
                # The attack lists the honest first; members have the attackers first.
                bad = cell.attackers
                ordered = [*changes[len(changes) - bad :], *changes[: len(changes) - bad]]
                return preview([weights + change for change in ordered]).values - weights

            return partial(against_rule, aggregate=change_by_rule, attackers=cell.attackers)
        return attack_named(name)

    def accuracy(self, weights: Row) -> float:
        return float((predicted(self.shape, weights, self.test) == self.test_labels).mean())

    def backdoor(self, weights: Row) -> float:
        return float((predicted(self.shape, weights, self.test_stamped) == BACKDOOR_CLASS).mean())
