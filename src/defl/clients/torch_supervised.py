"""Supervised training of a PyTorch model: batches of inputs and targets, a loss, an optimiser."""

import itertools
import time
from collections.abc import Callable, Iterable, Iterator, Sized
from functools import partial
from itertools import islice
from typing import Any

import torch
from torch import Tensor, nn
from torch import distributed as dist
from torch.optim import Optimizer
from torch.utils.data import SequentialSampler

from defl.clients.protocol import Metrics
from defl.clients.round_length import RoundLength
from defl.clients.seeds import seed_of
from defl.clients.torch import RoundContext, Settings, TorchClient, in_group
from defl.errors import UserError
from defl.ids import Round

Loss = Callable[[Any, Any], Tensor]  # of the model's output and the targets, mean over the batch
Batches = Iterable[Any]  # pairs (inputs, targets): a DataLoader, or a list of pairs
Schedule = Callable[[Round], float]


def supervised(
    model: nn.Module | Callable[[], nn.Module],
    *,
    loss: Loss,
    optimizer: Callable[[Any], Optimizer],
    train: Batches,
    test: Batches | None = None,
    epochs: int | None = None,
    steps: int | None = None,
    max_seconds: float | None = None,
    schedule: Schedule | None = None,
    settings: Settings = Settings(),  # noqa: B008 - frozen
    clock: Callable[[], float] = time.monotonic,
) -> TorchClient:
    """A client that trains for `epochs` passes over `train` in each round (one unless given), or
    for exactly `steps` batches; `max_seconds` ends a training early, and what there is is sent.

    `optimizer` is called with the model's parameters at the start of each round: an optimiser's
    state (momentum) would not fit the weights that the federation has agreed on. `schedule` gives
    the factor of the learning rate in a round, for example `lambda round_: 0.9**round_`.
    """
    length = RoundLength(epochs=epochs, steps=steps, max_seconds=max_seconds, clock=clock)
    test = train if test is None else test
    recipe = Recipe(loss, optimizer, train, test, length, schedule)
    return TorchClient(model, recipe.train, recipe.evaluate, settings=settings)


class Recipe:
    def __init__(
        self,
        loss: Loss,
        optimizer: Callable[[Any], Optimizer],
        train: Batches,
        test: Batches,
        length: RoundLength,
        schedule: Schedule | None,
    ) -> None:
        self._loss = loss
        self._optimizer = optimizer
        self._train = train
        self._test = test
        self._length = length
        self._schedule = schedule

    def train(self, model: nn.Module, context: RoundContext) -> Metrics:
        parameters = (parameter for parameter in model.parameters() if parameter.requires_grad)
        optimizer = self._optimizer(parameters)
        if self._schedule is not None:
            for group in optimizer.param_groups:
                group["lr"] *= self._schedule(context.round)
        scaler = torch.amp.GradScaler(context.device.type, enabled=context.half is torch.float16)
        tally = MetricTotals(context.device)
        done = self._length.begin(partial(_any_process, context.device))
        for inputs, targets in done.limit(self._batches(context)):
            optimizer.zero_grad(set_to_none=True)
            with context.autocast():
                output = model(inputs)
                loss = self._loss(output, targets)
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            tally.add(loss, output, targets)
        return {**tally.metrics(), **done.metrics}

    def evaluate(self, model: nn.Module, context: RoundContext) -> Metrics:
        tally = MetricTotals(context.device)
        for batch in self._test:
            inputs, targets = context.put(_pair(batch))
            with context.autocast():
                output = model(inputs)
                loss = self._loss(output, targets)
            tally.add(loss, output, targets)
        return tally.metrics()

    def _batches(self, context: RoundContext) -> Iterator[tuple[Any, Any]]:
        """The batches of one round, in an order that follows from the seed and the round."""
        steps = self._length.steps
        first = 0 if steps is None else self._first_batch(context.round, steps)
        last = None if steps is None else first + steps
        return map(context.put, islice(self._passes(context), first, last))

    def _first_batch(self, round_: Round, steps: int) -> int:
        """Data that come in the same order each time continue where the round before ended:
        otherwise the last batches would never be used. Shuffled ones are shuffled in each round."""
        sampler = getattr(self._train, "sampler", None)
        if sampler is not None and not isinstance(sampler, SequentialSampler):
            return 0
        count = len(self._train) if isinstance(self._train, Sized) else 0
        return (round_ - 1) * steps % count if count else 0

    def _passes(self, context: RoundContext) -> Iterator[tuple[Any, Any]]:
        generator = getattr(self._train, "generator", None)
        if generator is not None:
            generator.manual_seed(torch.initial_seed())
        passes = self._length.passes
        for epoch in itertools.count() if passes is None else range(passes):
            sampler: Any = getattr(self._train, "sampler", None)
            if hasattr(sampler, "set_epoch"):  # a DistributedSampler shuffles by this number only
                sampler.set_epoch(seed_of(context.round, Round(epoch)))
            empty = True
            for batch in self._train:
                empty = False
                yield _pair(batch)
            if empty:
                raise UserError(
                    "the training data have no batch: give a DataLoader or a list, which can be "
                    "read once per epoch"
                )


def _any_process(device: torch.device, late: bool) -> bool:
    """The first process whose time is up stops all: the others would wait for its gradients."""
    if not in_group():
        return late
    votes = torch.tensor(float(late), device=device)
    dist.all_reduce(votes)
    return bool(votes > 0)


class MetricTotals:
    """Mean loss and accuracy, summed on the device so that no batch waits for a transfer."""

    def __init__(self, device: torch.device) -> None:
        self._sums = torch.zeros(3, dtype=torch.float32, device=device)  # loss, correct, examples
        self._classes = False

    def add(self, loss: Tensor, output: Any, targets: Any) -> None:
        with torch.no_grad():
            count = len(targets) if hasattr(targets, "__len__") else 1
            correct = self._correct(output, targets)
            self._sums += torch.stack((loss.detach().float() * count, correct, correct * 0 + count))

    def _correct(self, output: Any, targets: Any) -> Tensor:
        """It is a classification if targets are integers and the output has a score per class."""
        if (
            isinstance(output, Tensor)
            and isinstance(targets, Tensor)
            and not targets.is_floating_point()
            and output.ndim == 2
            and targets.ndim == 1
        ):
            self._classes = True
            return (output.argmax(dim=1) == targets).sum().float()
        return self._sums.new_zeros(())

    def metrics(self) -> dict[str, float]:
        sums = self._sums
        if in_group():
            sums = sums.clone()
            dist.all_reduce(sums)
        loss, correct, count = sums.tolist()
        if count == 0:
            return {}
        metrics = {"loss": loss / count, "examples": count}
        return {**metrics, "accuracy": correct / count} if self._classes else metrics


def _pair(batch: Any) -> tuple[Any, Any]:
    if not isinstance(batch, tuple | list) or len(batch) != 2:
        raise UserError(
            f"a batch is a {type(batch).__name__}, not a pair (inputs, targets); "
            "use TorchClient with your own training function"
        )
    return batch[0], batch[1]
