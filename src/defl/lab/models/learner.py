"""Clients that train as a `Learning` says: batches, model, loss and optimiser, in PyTorch.

Everything follows from the seed: a node's batches from seed, node and round, the first weights
from the seed alone. After a call of `reproducible`, the same seed gives the same bits.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from defl.clients.protocol import Metrics
from defl.clients.seeds import seed_of
from defl.clients.torch import RoundContext, Settings, TorchClient
from defl.errors import UserError
from defl.ids import NodeId, Round
from defl.lab.datasets.augment import flipped_and_shifted
from defl.lab.datasets.catalogue import loaded, required
from defl.lab.datasets.task import Features, Images, Labels, Texts
from defl.lab.models.bilstm import AttentionBiLSTM
from defl.lab.models.densenet import DenseNetBC
from defl.lab.models.learning import Learning
from defl.lab.models.seeded import seeded
from defl.lab.models.sentences import averaged, sentences
from defl.lab.models.small import MLP, SmallCNN, SmallResNet, SmallText
from defl.lab.partition import Places

EVALUATION_BATCH = 500
# Pixels from 0 to 1 are shifted and scaled by constants, not by anybody's statistics.
CENTRE, SPREAD = 0.5, 0.25

Inputs = NDArray[np.uint8] | NDArray[np.int32] | NDArray[np.float16] | NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Samples:
    """Images, numbered texts or features, and what a model needs to know of them."""

    train: Inputs
    train_labels: Labels
    test: Inputs
    test_labels: Labels
    classes: int
    white: int | None = None  # of images alone
    vectors: NDArray[np.float32] | None = None  # of numbered texts' words


MODELS: dict[str, Callable[[Samples], nn.Module]] = {
    "linear": lambda data: MLP(shape=data.train.shape[1:], hidden=(), classes=data.classes),
    "mlp-32": lambda data: MLP(shape=data.train.shape[1:], hidden=(32,), classes=data.classes),
    "mlp-128": lambda data: MLP(shape=data.train.shape[1:], hidden=(128,), classes=data.classes),
    "resnet-6": lambda data: SmallResNet(
        channels=data.train.shape[1], width=32, classes=data.classes
    ),
    "cnn-16": lambda data: SmallCNN(width=16, classes=data.classes),
    "densenet-bc-10": lambda data: DenseNetBC(depth=10, classes=data.classes),
    "densenet-bc-100": lambda data: DenseNetBC(depth=100, classes=data.classes),
    "text-64": lambda data: SmallText(data.train.shape[1]),
    "bilstm-128": lambda data: AttentionBiLSTM(torch.from_numpy(data.vectors)),
}
AVERAGING = ("text-64",)  # their input is a text's mean word vector, computed once
OPTIMIZERS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "sgd": torch.optim.SGD,
    "nesterov": partial(torch.optim.SGD, momentum=0.9, nesterov=True),
    "rmsprop": torch.optim.RMSprop,
    "adamw": torch.optim.AdamW,
}


def reproducible() -> None:
    """One thread and deterministic algorithms, for this whole process."""
    torch.set_num_threads(1)
    # Some GPU operations have no deterministic form; torch then warns and continues.
    torch.use_deterministic_algorithms(True, warn_only=torch.cuda.is_available())


@lru_cache(maxsize=2)
def learner_of(learning: Learning, folder: Path | None) -> "TaskLearner":
    """Reads the data once per process."""
    return TaskLearner(learning, _samples(learning, folder))


class TaskLearner:
    def __init__(self, learning: Learning, samples: Samples) -> None:
        for name, known in ((learning.model, MODELS), (learning.optimizer, OPTIMIZERS)):
            if name not in known:
                raise UserError(f"{name!r} is unknown; there are: {', '.join(known)}")
        self.learning = learning
        self.samples = _fewer(samples, learning)

    def client(self, part: Places, *, seed: int, node: NodeId, flipped: bool) -> TorchClient:
        """The client of the node that has these samples; `flipped` mirrors the label numbers."""
        samples, learning = self.samples, self.learning
        labels = samples.train_labels
        if flipped:
            labels = samples.classes - 1 - labels

        def train(model: nn.Module, context: RoundContext) -> Metrics:
            rng = np.random.default_rng([seed, node, context.round])
            parameters = [p for p in model.parameters() if p.requires_grad]
            optimizer = OPTIMIZERS[learning.optimizer](
                parameters, lr=learning.rate_in(context.round), weight_decay=learning.weight_decay
            )
            total = torch.zeros((), device=context.device)
            for chosen in self._batches(part, rng):
                inputs = self._inputs(samples.train[chosen], rng if learning.augmented else None)
                targets = context.put(torch.from_numpy(labels[chosen]))
                optimizer.zero_grad(set_to_none=True)
                loss = _loss(model(context.put(inputs)), targets)
                loss.backward()
                optimizer.step()
                total += loss.detach()
            return {"loss": float(total) / learning.steps, "samples": float(len(part))}

        return TorchClient(
            lambda: seeded(seed, lambda: MODELS[learning.model](samples)),
            train,
            self._evaluate,
            settings=Settings(
                channels_last=samples.white is not None, seed=seed_of(seed, Round(node))
            ),
        )

    def _batches(self, part: Places, rng: np.random.Generator) -> Iterator[Places]:
        """One batch per step: pass after pass over the part, each in a new order."""
        wanted = self.learning.steps * self.learning.batch
        passes = -(-wanted // len(part))
        order = np.concatenate([rng.permutation(part) for _ in range(passes)])[:wanted]
        yield from order.reshape(self.learning.steps, self.learning.batch)

    def _inputs(self, batch: Inputs, rng: np.random.Generator | None) -> Tensor:
        if self.samples.white is None:
            # Converted by torch: NumPy takes several times as long for float16.
            numbers = torch.float32 if batch.dtype.kind == "f" else torch.int64
            return torch.from_numpy(batch).to(numbers)
        images = batch.view(np.uint8)
        if rng is not None:
            images = flipped_and_shifted(images, rng)
        scaled = np.divide(images, self.samples.white, dtype=np.float32)
        scaled -= np.float32(CENTRE)
        scaled /= np.float32(SPREAD)
        return torch.from_numpy(scaled)

    def _evaluate(self, model: nn.Module, context: RoundContext) -> Metrics:
        """On all test samples, which are the same for every node."""
        data = self.samples
        right, loss = 0, 0.0
        for start in range(0, len(data.test), EVALUATION_BATCH):
            part = slice(start, start + EVALUATION_BATCH)
            output = model(context.put(self._inputs(data.test[part], None)))
            targets = context.put(torch.from_numpy(data.test_labels[part]))
            right += int((_classes(output) == targets).sum())
            loss += float(_loss(output, targets)) * len(targets)
        return {"accuracy": right / len(data.test), "loss": loss / len(data.test)}


def _loss(output: Tensor, targets: Tensor) -> Any:
    """One score for each class, or one logit of the second of two classes."""
    if output.ndim == 2:
        return functional.cross_entropy(output, targets)
    return functional.binary_cross_entropy_with_logits(output, targets.to(output.dtype))


def _classes(output: Tensor) -> Tensor:
    return output.argmax(dim=1) if output.ndim == 2 else (output > 0).long()


def _samples(learning: Learning, folder: Path | None) -> Samples:
    if learning.sentences is None:
        return _of_data(loaded(learning.data, folder), learning.data)
    if learning.model in AVERAGING:
        return _of_data(averaged(required(folder), learning.sentences), learning.data)
    texts, known = sentences(required(folder), learning.sentences)
    return Samples(
        texts.train_words,
        texts.train_labels,
        texts.test_words,
        texts.test_labels,
        texts.classes,
        vectors=known.vectors,
    )


def _of_data(data: Features | Images | Texts, name: str) -> Samples:
    match data:
        case Features():
            return Samples(data.train, data.train_labels, data.test, data.test_labels, data.classes)
        case Images():
            return Samples(
                data.train_images,
                data.train_labels,
                data.test_images,
                data.test_labels,
                data.classes,
                data.white,
            )
    raise UserError(f"{name} has texts: set `sentences` to turn them into numbers")


def _fewer(data: Samples, learning: Learning) -> Samples:
    """A fixed random subset, the same for every repeat."""
    train = _drawn(len(data.train_labels), learning.train_samples)
    test = _drawn(len(data.test_labels), learning.test_samples)
    return Samples(
        data.train if train is None else data.train[train],
        data.train_labels if train is None else data.train_labels[train],
        data.test if test is None else data.test[test],
        data.test_labels if test is None else data.test_labels[test],
        data.classes,
        data.white,
        data.vectors,
    )


def _drawn(count: int, wanted: int | None) -> Places | None:
    if wanted is None or wanted >= count:
        return None
    return np.sort(np.random.default_rng(0).permutation(count)[:wanted])
