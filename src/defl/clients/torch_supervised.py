"""Supervised training of a PyTorch model: batches of inputs and targets, a loss, an optimiser."""

import copy
import dataclasses
import itertools
import time
from collections.abc import Callable, Iterable, Iterator, Sequence, Sized
from functools import partial
from itertools import islice
from typing import Any

import torch
from torch import Tensor, nn
from torch import distributed as dist
from torch.optim import Optimizer
from torch.utils.data import SequentialSampler

from defl.clients.classification import auc
from defl.clients.prior import CLASSES_METRIC, PRIOR_ENTRY, Prior, checked_prior
from defl.clients.protocol import Metrics, Roles
from defl.clients.round_length import RoundLength
from defl.clients.seeds import seed_of
from defl.clients.torch import RoundContext, Settings, TorchClient, in_group
from defl.clients.torch_prior import Loss, LossKind, SiteModel, SitePrior, find_prior
from defl.errors import UserError
from defl.ids import Round
from defl.schema import Weights

# A Loss takes the model's output and the targets, and returns the mean over the batch.
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
    prior: Prior | str | None = None,
    settings: Settings = Settings(),  # noqa: B008 - frozen
    clock: Callable[[], float] = time.monotonic,
) -> "SupervisedClient":
    """A client that trains for `epochs` passes over `train` in each round (one unless given), or
    for exactly `steps` batches; `max_seconds` ends a training early, and what there is is sent.

    `optimizer` is called with the model's parameters at the start of each round: an optimiser's
    state (momentum) would not fit the weights that the federation has agreed on. `schedule` gives
    the factor of the learning rate in a round, for example `lambda round_: 0.9**round_`.

    `prior="corrected"`, the default where the loss allows it, keeps this organisation's class
    frequencies out of the shared weights (prior.py); `"none"` shares them. The loss is then given
    the model's output with the prior added.
    """
    wanted = checked_prior(prior)
    length = RoundLength(epochs=epochs, steps=steps, max_seconds=max_seconds, clock=clock)
    test = train if test is None else test
    recipe = Recipe(loss, optimizer, train, test, length, schedule)
    return SupervisedClient(model, recipe, wanted, settings)


class SupervisedClient(TorchClient):
    """A TorchClient whose prior, if it has one, is a local entry beside the module's own."""

    def __init__(
        self,
        model: nn.Module | Callable[[], nn.Module],
        recipe: "Recipe",
        prior: Prior | None,
        settings: Settings,
    ) -> None:
        super().__init__(model, recipe.train, recipe.evaluate, settings=settings)
        if prior is not Prior.NONE:
            context = RoundContext(Round(0), self._device, settings)
            recipe.prior = find_prior(self._model, recipe.loss, recipe.batches, context, prior)
        self._prior = recipe.prior
        self._recipe = recipe

    def epoch_steps(self) -> int | None:
        return self._recipe.epoch_steps

    def with_steps(self, steps: int) -> "SupervisedClient":
        client = copy.copy(self)  # both have one module, which loads weights before it is used
        client._recipe = recipe = self._recipe.with_steps(steps)
        client._train, client._evaluate = recipe.train, recipe.evaluate
        return client

    def initial_weights(self) -> Weights:
        return self._with_prior(super().initial_weights())

    def roles(self) -> Roles:
        roles = super().roles()
        return roles if self._prior is None else {**roles, PRIOR_ENTRY: "local"}

    def class_counts(self) -> Sequence[int]:
        """Training labels of each class; empty if the prior is not corrected for."""
        return [] if self._prior is None else self._prior.counts.tolist()

    def train(self, weights: Weights, round_: Round, /) -> tuple[Weights, Metrics]:
        trained, metrics = super().train(weights, round_)
        return self._with_prior(trained), metrics

    def model(self, weights: Weights) -> nn.Module:
        """Return a module that predicts for this organisation: with its own prior.

        With a prior, its attribute `module` is the plain one, which gives the shared logits.
        """
        module = super().model(weights)
        return module if self._prior is None else SiteModel(module, self._prior).eval()

    def _with_prior(self, weights: Weights) -> Weights:
        if self._prior is None:
            return weights
        return {**weights, PRIOR_ENTRY: self._prior.log_frequencies}


class Recipe:
    """One round of training and one evaluation; `prior` is set once the model exists."""

    def __init__(
        self,
        loss: Loss,
        optimizer: Callable[[Any], Optimizer],
        train: Batches,
        test: Batches,
        length: RoundLength,
        schedule: Schedule | None,
    ) -> None:
        self.loss = loss
        self.batches = train
        self.prior: SitePrior | None = None
        self._optimizer = optimizer
        self._test = test
        self._length = length
        self._schedule = schedule

    @property
    def epoch_steps(self) -> int | None:
        """Batches of one pass, or None if they are unknown or the user states a length."""
        if self._length.is_stated or not isinstance(self.batches, Sized):
            return None
        return len(self.batches)

    def with_steps(self, steps: int) -> "Recipe":
        recipe = copy.copy(self)
        recipe._length = dataclasses.replace(self._length, epochs=None, steps=steps)
        return recipe

    def train(self, model: nn.Module, context: RoundContext) -> Metrics:
        parameters = (parameter for parameter in model.parameters() if parameter.requires_grad)
        optimizer = self._optimizer(parameters)
        if self._schedule is not None:
            for group in optimizer.param_groups:
                group["lr"] *= self._schedule(context.round)
        scaler = torch.amp.GradScaler(context.device.type, enabled=context.half is torch.float16)
        tally = self._totals(context)
        done = self._length.begin(partial(_any_process, context.device))
        for inputs, targets in done.limit(self._batches(context)):
            optimizer.zero_grad(set_to_none=True)
            with context.autocast():
                output = self._output(model, inputs)
                loss = self.loss(output, targets)
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            tally.add(loss, output, targets)
        metrics = {**tally.metrics(), **done.metrics}
        if self.prior is not None:
            metrics[CLASSES_METRIC] = float((self.prior.counts > 0).sum())
        return metrics

    def evaluate(self, model: nn.Module, context: RoundContext) -> Metrics:
        tally = self._totals(context, ranks=True)
        for batch in self._test:
            inputs, targets = context.put(_pair(batch))
            with context.autocast():
                output = self._output(model, inputs)
                loss = self.loss(output, targets)
            tally.add(loss, output, targets)
        return tally.metrics()

    def _output(self, model: nn.Module, inputs: Any) -> Any:
        """Return the model's output, with this organisation's prior if there is one."""
        output = model(inputs)
        return output if self.prior is None else self.prior.adjust(output)

    def _totals(self, context: RoundContext, *, ranks: bool = False) -> "MetricTotals":
        one_logit = self.prior is not None and self.prior.kind is LossKind.ONE_LOGIT
        return MetricTotals(context.device, one_logit=one_logit, ranks=ranks)

    def _batches(self, context: RoundContext) -> Iterator[tuple[Any, Any]]:
        """The batches of one round, in an order that follows from the seed and the round."""
        steps = self._length.steps
        first = 0 if steps is None else self._first_batch(context.round, steps)
        last = None if steps is None else first + steps
        return map(context.put, islice(self._passes(context), first, last))

    def _first_batch(self, round_: Round, steps: int) -> int:
        """Data that come in the same order each time continue where the round before ended:
        otherwise the last batches would never be used. Shuffled ones are shuffled in each round."""
        sampler = getattr(self.batches, "sampler", None)
        if sampler is not None and not isinstance(sampler, SequentialSampler):
            return 0
        count = len(self.batches) if isinstance(self.batches, Sized) else 0
        return (round_ - 1) * steps % count if count else 0

    def _passes(self, context: RoundContext) -> Iterator[tuple[Any, Any]]:
        generator = getattr(self.batches, "generator", None)
        if generator is not None:
            generator.manual_seed(torch.initial_seed())
        passes = self._length.passes
        for epoch in itertools.count() if passes is None else range(passes):
            sampler: Any = getattr(self.batches, "sampler", None)
            if hasattr(sampler, "set_epoch"):  # a DistributedSampler shuffles by this number only
                sampler.set_epoch(seed_of(context.round, Round(epoch)))
            empty = True
            for batch in self.batches:
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
    """Loss, accuracy, macro recall and, for two classes, AUC, over the batches of all processes.

    Sums stay on the device, so that no batch waits for a transfer. `one_logit` says that the output
    is the logit of the second of two classes; `ranks` keeps all scores, which the AUC needs.
    """

    def __init__(self, device: torch.device, *, one_logit: bool = False, ranks: bool = False):
        self._device = device
        self._one_logit = one_logit
        self._ranks = ranks
        self._sums = torch.zeros(2, dtype=torch.float32, device=device)  # loss, examples
        self._by_class: Tensor | None = None  # recognised, examples
        self._scores: list[Tensor] = []
        self._positive: list[Tensor] = []

    def add(self, loss: Tensor, output: Any, targets: Any) -> None:
        with torch.no_grad():
            count = len(targets) if hasattr(targets, "__len__") else 1
            total = loss.detach().float() * count
            self._sums += torch.stack((total, torch.full_like(total, count)))
            if self._one_logit:
                logits, labels = output.detach().float().reshape(-1), targets.reshape(-1).long()
                self._add_classes(2, (logits > 0).long(), labels, logits)
            elif _has_classes(output, targets):
                scores = output.detach()
                difference = scores[:, 1] - scores[:, 0] if scores.shape[1] == 2 else None
                self._add_classes(scores.shape[1], scores.argmax(dim=1), targets, difference)

    def _add_classes(
        self, classes: int, predicted: Tensor, labels: Tensor, scores: Tensor | None
    ) -> None:
        of_class = labels[:, None] == torch.arange(classes, device=labels.device)
        hits = of_class & (predicted == labels)[:, None]
        sums = torch.stack((hits.sum(dim=0), of_class.sum(dim=0)))
        self._by_class = sums if self._by_class is None else self._by_class + sums
        if self._ranks and scores is not None:
            self._scores.append(scores.float())
            self._positive.append(labels == 1)

    def metrics(self) -> dict[str, float]:
        sums, by_class = self._sums, self._by_class
        if in_group():
            sums, by_class = sums.clone(), self._class_sums_of_all()
            dist.all_reduce(sums)
        loss, count = sums.tolist()
        if count == 0:
            return {}
        metrics = {"loss": loss / count, "examples": count}
        if by_class is None:
            return metrics
        hits, examples = by_class.double().cpu()
        present = examples > 0
        # Ignored targets are of no class: they count as examples, and as not recognised.
        metrics["accuracy"] = float(hits.sum()) / count
        metrics["macro_recall"] = float((hits[present] / examples[present]).mean())
        if self._ranks and len(examples) == 2 and bool(present.all()):
            scores, positive = (self._of_all(parts) for parts in (self._scores, self._positive))
            metrics["auc"] = auc(positive.bool().numpy(), scores.numpy())
        return metrics

    def _class_sums_of_all(self) -> Tensor | None:
        """Sum over all processes; one without a batch does not know how many classes there are."""
        own = 0 if self._by_class is None else self._by_class.shape[1]
        classes = torch.tensor(own, device=self._device)
        dist.all_reduce(classes, op=dist.ReduceOp.MAX)
        if int(classes) == 0:
            return None
        sums = torch.zeros(2, int(classes), dtype=torch.int64, device=self._device)
        if self._by_class is not None:
            sums += self._by_class
        dist.all_reduce(sums)
        return sums

    def _of_all(self, parts: list[Tensor]) -> Tensor:
        """Concatenate the values of all processes, which may have different numbers of them."""
        own = torch.cat([torch.zeros(0, device=self._device), *(part.float() for part in parts)])
        if not in_group():
            return own.cpu()
        size = torch.tensor([len(own)], device=self._device)
        sizes = [torch.zeros_like(size) for _ in range(dist.get_world_size())]
        dist.all_gather(sizes, size)
        longest = max(int(size) for size in sizes)
        padded = torch.zeros(longest, device=self._device)
        padded[: len(own)] = own
        rows = [torch.zeros_like(padded) for _ in sizes]
        dist.all_gather(rows, padded)
        return torch.cat([row[: int(n)] for row, n in zip(rows, sizes, strict=True)]).cpu()


def _has_classes(output: Any, targets: Any) -> bool:
    """Whether targets are class numbers and the output has a score for each class."""
    return (
        isinstance(output, Tensor)
        and isinstance(targets, Tensor)
        and not targets.is_floating_point()
        and output.ndim == 2
        and targets.ndim == 1
    )


def _pair(batch: Any) -> tuple[Any, Any]:
    if not isinstance(batch, tuple | list) or len(batch) != 2:
        raise UserError(
            f"a batch is a {type(batch).__name__}, not a pair (inputs, targets); "
            "use TorchClient with your own training function"
        )
    return batch[0], batch[1]
