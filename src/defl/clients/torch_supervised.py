"""The usual way to train a PyTorch model: batches of inputs and targets, a loss, an optimiser."""

from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Any

import torch
from torch import Tensor, nn
from torch import distributed as dist
from torch.optim import Optimizer

from defl.clients.protocol import Metrics
from defl.clients.seeds import seed_of
from defl.clients.torch import Place, Settings, TorchClient, in_group
from defl.errors import UserError
from defl.ids import Round

Loss = Callable[[Any, Any], Tensor]  # of the model's output and the targets, mean over the batch
Batches = Iterable[Any]  # pairs (inputs, targets); a DataLoader, or a list of pairs


def supervised(
    model: nn.Module | Callable[[], nn.Module],
    *,
    loss: Loss,
    optimizer: Callable[[Any], Optimizer],
    train: Batches,
    test: Batches | None = None,
    epochs: int = 1,
    steps: int | None = None,
    settings: Settings = Settings(),  # noqa: B008 - frozen
) -> TorchClient:
    """A client that trains `epochs` times over `train` in each round, or for `steps` batches.

    `optimizer` is called with the model's parameters at the start of each round: what it remembers
    of gradients would not fit the weights that the federation has agreed on.
    """
    if epochs < 1 or (steps is not None and steps < 1):
        raise UserError("epochs and steps: each round needs at least one")
    recipe = Recipe(loss, optimizer, train, test if test is not None else train, epochs, steps)
    return TorchClient(model, recipe.train, recipe.evaluate, settings=settings)


class Recipe:
    def __init__(
        self,
        loss: Loss,
        optimizer: Callable[[Any], Optimizer],
        train: Batches,
        test: Batches,
        epochs: int,
        steps: int | None,
    ) -> None:
        self._loss = loss
        self._optimizer = optimizer
        self._train = train
        self._test = test
        self._epochs = epochs
        self._steps = steps

    def train(self, model: nn.Module, place: Place) -> Metrics:
        parameters = (parameter for parameter in model.parameters() if parameter.requires_grad)
        optimizer = self._optimizer(parameters)
        scaler = torch.amp.GradScaler(place.device.type, enabled=place.half is torch.float16)
        tally = MetricTotals(place.device)
        for inputs, targets in self._batches(place):
            optimizer.zero_grad(set_to_none=True)
            with place.autocast():
                output = model(inputs)
                loss = self._loss(output, targets)
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            tally.add(loss, output, targets)
        return tally.metrics()

    def evaluate(self, model: nn.Module, place: Place) -> Metrics:
        tally = MetricTotals(place.device)
        for batch in self._test:
            inputs, targets = place.put(_pair(batch))
            with place.autocast():
                output = model(inputs)
                loss = self._loss(output, targets)
            tally.add(loss, output, targets)
        return tally.metrics()

    def _batches(self, place: Place) -> Iterator[tuple[Any, Any]]:
        """Those of one round, in an order that follows from the seed and the round."""
        return islice(self._passes(place), self._steps)

    def _passes(self, place: Place) -> Iterator[tuple[Any, Any]]:
        generator = getattr(self._train, "generator", None)
        if generator is not None:
            generator.manual_seed(torch.initial_seed())
        epoch = 0
        while epoch < self._epochs or self._steps is not None:
            sampler: Any = getattr(self._train, "sampler", None)
            if hasattr(sampler, "set_epoch"):  # a DistributedSampler shuffles by this number alone
                sampler.set_epoch(seed_of(place.round, Round(epoch)))
            seen = 0
            for batch in self._train:
                seen += 1
                yield place.put(_pair(batch))
            if seen == 0:
                raise UserError("the training data have no batch; a DataLoader can be used again")
            epoch += 1


class MetricTotals:
    """Mean loss and share of right classes, summed on the device so that no batch waits for it."""

    def __init__(self, device: torch.device) -> None:
        self._sums = torch.zeros(3, dtype=torch.float32, device=device)  # loss, right, examples
        self._classes = False

    def add(self, loss: Tensor, output: Any, targets: Any) -> None:
        with torch.no_grad():
            count = len(targets) if hasattr(targets, "__len__") else 1
            right = self._right(output, targets)
            self._sums += torch.stack((loss.detach().float() * count, right, right * 0 + count))

    def _right(self, output: Any, targets: Any) -> Tensor:
        """Classes are recognised by integers as targets and one score for each class."""
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
        loss, right, count = sums.tolist()
        if count == 0:
            return {}
        found = {"loss": loss / count, "examples": count}
        return {**found, "accuracy": right / count} if self._classes else found


def _pair(batch: Any) -> tuple[Any, Any]:
    if not isinstance(batch, tuple | list) or len(batch) != 2:
        raise UserError(
            f"a batch is a {type(batch).__name__}, not a pair (inputs, targets); "
            "write a training function of your own and use TorchClient"
        )
    return batch[0], batch[1]
