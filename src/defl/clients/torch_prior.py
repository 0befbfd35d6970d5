"""The class prior of a PyTorch classifier: what its loss takes, and how often each class occurs.

A probe finds out what the loss takes: logits, log probabilities, or one logit for two classes. It
calls the model once, in evaluation mode, and changes no weight, no buffer and no random state. The
targets must be class numbers, one per example; for anything else there is no correction.
"""

import random
from collections.abc import Callable, Iterable, Iterator, Sequence, Sized
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch import distributed as dist
from torch.nn import functional
from torch.utils.data import (
    BatchSampler,
    ConcatDataset,
    DataLoader,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    Subset,
    SubsetRandomSampler,
    TensorDataset,
)
from torch.utils.data.distributed import DistributedSampler

from defl.clients.prior import LogFrequencies, Prior, log_frequencies, log_odds
from defl.clients.torch import RoundContext, in_group, repeatable
from defl.errors import UserError

Loss = Callable[[Any, Any], Tensor]
Counts = NDArray[np.int64]

# Examples of the probe: enough to tell losses apart, few enough for any memory.
PROBE_EXAMPLES = 4
# By how much the probe shifts its outputs, which lie between 0.1 and 0.5: a loss that takes
# probabilities accepts the shifted ones too.
PROBE_SHIFT = 0.3
TOLERANCE = 1e-4

NOT_CORRECTABLE = (
    "prior='corrected' needs class numbers as targets, one per example, and a loss that takes "
    "logits or log probabilities of them (cross_entropy, nll_loss, or "
    "binary_cross_entropy_with_logits of one output); "
)


class LossKind(IntEnum):
    """Kind of output that a loss takes from the model."""

    OTHER = 0  # a regression, a margin, probabilities, a sequence: no correction
    LOGITS = 1  # one per class; adding a constant to all of them changes nothing
    LOG_PROBABILITIES = 2
    ONE_LOGIT = 3  # of the second of two classes


@dataclass(frozen=True, slots=True)
class SitePrior:
    """One site's prior for one model; `adjust` turns shared outputs into the site's own."""

    kind: LossKind
    counts: Counts
    device: torch.device
    _shift: Tensor = field(init=False)

    def __post_init__(self) -> None:
        prior = self.log_frequencies
        shift = log_odds(prior)[1:] if self.kind is LossKind.ONE_LOGIT else prior
        object.__setattr__(self, "_shift", torch.from_numpy(shift.copy()).to(self.device))

    @property
    def log_frequencies(self) -> LogFrequencies:
        return log_frequencies(self.counts)

    def adjust(self, output: Any) -> Tensor:
        """Add the prior to the model's output."""
        if not isinstance(output, Tensor):
            raise UserError(
                f"the model returns a {type(output).__name__} here and a tensor elsewhere: its "
                "class prior cannot be added; set prior='none'"
            )
        shifted = output + self._shift.to(output.device)
        return shifted.log_softmax(1) if self.kind is LossKind.LOG_PROBABILITIES else shifted


class SiteModel(nn.Module):  # type: ignore[misc]  # torch is not followed
    """A model that predicts for one site: `module` gives the shared logits, this its own."""

    def __init__(self, module: nn.Module, prior: SitePrior) -> None:
        super().__init__()
        self.module = module
        self.prior = prior

    def forward(self, *inputs: Any, **options: Any) -> Tensor:
        return self.prior.adjust(self.module(*inputs, **options))


def find_prior(
    model: nn.Module, loss: Loss, train: Iterable[Any], context: RoundContext, wanted: Prior | None
) -> SitePrior | None:
    """Return this site's prior, or None if the loss or the targets allow no correction.

    Under torchrun all processes must call this; they then use the same counts.
    """
    with _undisturbed(train, context.device):
        kind, classes, reason = _probe(model, loss, train, context)
        counts = None
        if kind is not LossKind.OTHER:
            counts = _count_labels(train, classes)
            reason = "the labels cannot be counted: they are not the numbers of these classes"
    total = _total(counts, classes, train, context.device)
    if total is not None:
        return SitePrior(kind, total, context.device)
    if wanted is Prior.CORRECTED:
        raise UserError(f"{NOT_CORRECTABLE}{reason}; leave prior out, or set prior='none'")
    return None


@contextmanager
def _undisturbed(train: Iterable[Any], device: torch.device) -> Iterator[None]:
    """Restore every random state that reading the data may change."""
    generator = getattr(train, "generator", None)
    state = None if generator is None else generator.get_state()
    python, numpy = random.getstate(), np.random.get_state()
    try:
        with repeatable(0, device):
            yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy)
        if generator is not None:
            generator.set_state(state)


# --- The loss --------------------------------------------------------------------------------


def _probe(
    model: nn.Module, loss: Loss, train: Iterable[Any], context: RoundContext
) -> tuple[LossKind, int, str]:
    """Return what the loss takes, the number of classes, and why it cannot be corrected."""
    batch = _first_examples(train)
    if batch is None:
        return LossKind.OTHER, 0, "the training data cannot be read twice"
    inputs, targets = context.put(batch)
    if not isinstance(targets, Tensor) or not len(targets):
        return LossKind.OTHER, 0, f"the targets are a {type(targets).__name__}"
    training = model.training
    model.eval()
    try:
        with torch.no_grad():
            output = model(inputs)
            kind = _kind_of(loss, output, targets) if isinstance(output, Tensor) else LossKind.OTHER
    except Exception as error:  # noqa: BLE001 - the user's model and loss; training will show it
        return LossKind.OTHER, 0, f"a first batch failed: {type(error).__name__}: {error}"
    finally:
        model.train(training)
    shape = list(output.shape) if isinstance(output, Tensor) else type(output).__name__
    reason = f"here are {targets.dtype} targets of shape {list(targets.shape)} and outputs {shape}"
    classes = 2 if kind is LossKind.ONE_LOGIT else int(output.shape[1]) if kind else 0
    return kind, classes, reason


def _kind_of(loss: Loss, output: Tensor, targets: Tensor) -> LossKind:
    whole = not targets.is_floating_point()
    if output.ndim == 2 and output.shape[1] > 1 and targets.ndim == 1 and whole:
        return _kind_of_scores(loss, output.float(), targets)
    if output.numel() == len(targets) and output.shape == targets.shape:
        return _kind_of_one_logit(loss, output.float(), targets)
    return LossKind.OTHER


def _kind_of_scores(loss: Loss, output: Tensor, targets: Tensor) -> LossKind:
    first, second = (_outputs_like(output, seed) for seed in (1, 2))
    value, shifted = loss(first, targets), loss(first + PROBE_SHIFT, targets)
    if _is_close(loss(second, targets), value):
        return LossKind.OTHER  # it does not depend on the output
    if _is_close(shifted, value):
        return LossKind.LOGITS
    normalised = bool(output.logsumexp(1).abs().max() < TOLERANCE * output.shape[1])
    if normalised and _is_close(shifted, value - PROBE_SHIFT):
        return LossKind.LOG_PROBABILITIES
    return LossKind.OTHER


def _kind_of_one_logit(loss: Loss, output: Tensor, targets: Tensor) -> LossKind:
    if not bool(((targets == 0) | (targets == 1)).all()):
        return LossKind.OTHER
    logits = _outputs_like(output, 1)
    expected = functional.binary_cross_entropy_with_logits(logits, targets.float())
    return LossKind.ONE_LOGIT if _is_close(loss(logits, targets), expected) else LossKind.OTHER


def _outputs_like(output: Tensor, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    values = torch.rand(output.shape, generator=generator) * 0.4 + 0.1
    return values.to(output.device)


def _is_close(value: Tensor, expected: Tensor) -> bool:
    return bool((value - expected).abs().max() <= TOLERANCE * (1 + expected.abs().max()))


# --- The data --------------------------------------------------------------------------------


def _first_examples(train: Iterable[Any]) -> tuple[Any, Any] | None:
    """Return some examples without starting a loader's workers; None if they cannot be read."""
    batch: Any = None
    if isinstance(train, DataLoader) and _has_map(train) and train.batch_size is not None:
        count = min(PROBE_EXAMPLES, len(train.dataset))
        batch = train.collate_fn([train.dataset[i] for i in range(count)]) if count else None
    elif isinstance(train, Sized) and len(train):
        batch = next(iter(train), None)
    if not isinstance(batch, tuple | list) or len(batch) != 2:
        return None
    return batch[0], batch[1]


def _has_map(loader: Any) -> bool:
    return not isinstance(loader.dataset, IterableDataset)


def _count_labels(train: Iterable[Any], classes: int) -> Counts | None:
    """Count the training labels of each class; None if they are not class numbers.

    Negative labels are not counted: losses ignore them (ignore_index).
    """
    labels = _known_labels(train)
    if labels is None:
        parts = [_plain(batch[1]) for batch in train]
        labels = np.concatenate(parts) if parts else np.array([], dtype=np.int64)
    labels = labels.ravel()
    if not np.array_equal(labels, labels.astype(np.int64)):
        return None
    labels = labels.astype(np.int64)
    labels = labels[labels >= 0]
    if not labels.size or labels.max() >= classes:
        return None
    return np.bincount(labels, minlength=classes).astype(np.int64)


def _known_labels(train: Any) -> NDArray[Any] | None:
    """Return the labels that the data set lists; None if only a pass over the loader has them.

    A sampler that draws some examples more often changes the frequencies, so only the usual ones
    are taken to give each example once.
    """
    if not isinstance(train, DataLoader) or not _has_map(train):
        return None
    usual = (SequentialSampler, RandomSampler, DistributedSampler, SubsetRandomSampler)
    if type(train.batch_sampler) is not BatchSampler or type(train.sampler) not in usual:
        return None
    labels = _labels_of(train.dataset)
    if labels is None or labels.shape[:1] != (len(train.dataset),) or labels.size != len(labels):
        return None
    labels = labels.ravel()
    for place in range(min(PROBE_EXAMPLES, len(labels))):  # a transform may change labels
        if not np.array_equal(_plain(train.dataset[place][1]), labels[place : place + 1]):
            return None
    chosen = train.sampler
    return labels[list(chosen.indices)] if isinstance(chosen, SubsetRandomSampler) else labels


def _labels_of(dataset: Any) -> NDArray[Any] | None:
    if isinstance(dataset, TensorDataset):
        return np.asarray(dataset.tensors[-1].cpu())
    if isinstance(dataset, Subset):
        labels = _labels_of(dataset.dataset)
        return None if labels is None else labels[list(dataset.indices)]
    if isinstance(dataset, ConcatDataset):
        parts = [_labels_of(part) for part in dataset.datasets]
        known = [part for part in parts if part is not None]
        return np.concatenate(known) if len(known) == len(parts) else None
    for name in ("targets", "labels"):
        listed: Any = getattr(dataset, name, None)
        if isinstance(listed, Tensor | np.ndarray | Sequence):
            return np.asarray(listed)
    return None


def _plain(targets: Any) -> NDArray[Any]:
    return np.atleast_1d(np.asarray(targets.cpu() if isinstance(targets, Tensor) else targets))


def _total(counts: Counts | None, classes: int, train: Any, device: torch.device) -> Counts | None:
    """Return the counts of all processes together, the same in each of them."""
    if not in_group():
        return counts
    # Every process takes part, also one without labels: the others would wait for it.
    own = 0 if counts is None else classes
    bounds = torch.tensor([own, -own], device=device)
    dist.all_reduce(bounds, op=dist.ReduceOp.MIN)
    lowest, highest = int(bounds[0]), -int(bounds[1])
    if counts is None or lowest != highest:
        return None
    total = torch.from_numpy(counts.copy()).to(device)
    dist.all_reduce(total)
    # With a DistributedSampler each process has counted the whole data set.
    copies = dist.get_world_size() if _is_distributed(train) else 1
    summed: Counts = total.cpu().numpy() // copies
    return summed


def _is_distributed(train: Any) -> bool:
    return isinstance(getattr(train, "sampler", None), DistributedSampler)
