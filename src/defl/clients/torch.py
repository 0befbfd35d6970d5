"""A client from a PyTorch model and a training function.

This module converts between a module's state and named arrays, chooses the device, seeds random
numbers, and calls the user's functions. Training over batches with a loss and an optimiser is in
torch_supervised.py; training one model with several processes is in torchrun.py.
"""

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch import distributed as dist
from torch.nn.parallel import DistributedDataParallel

from defl.clients.protocol import Metrics, Roles
from defl.clients.seeds import seed_of
from defl.errors import UserError
from defl.ids import Round
from defl.schema import Array, Role, Weights

# The statistic that must not become negative when it is averaged (torch.nn.BatchNorm*d).
VARIANCE = "running_var"


class Statistics(StrEnum):
    """What happens to float buffers, which are batch norm's running mean and variance."""

    LOCAL = "local"  # each organisation keeps its own
    SHARED = "shared"  # averaged like the parameters, but not counted in distances


class Frozen(StrEnum):
    """What happens to parameters without gradients."""

    LOCAL = "local"  # each organisation has them, and none sends them: the base of adapters
    SHARED = "shared"  # sent and averaged like the others, although training leaves them alone


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Where and how this organisation trains the model."""

    device: str | None = None  # "cpu", "cuda:1", ...; None: a GPU if there is one
    channels_last: bool = False  # makes image convolutions faster on many devices
    mixed_precision: bool = False  # bfloat16 or float16 where the device supports it
    statistics: Statistics | str = Statistics.LOCAL
    frozen: Frozen | str = Frozen.SHARED
    roles: Roles = field(default_factory=dict)  # overrides for single entries
    seed: int = 0

    def __post_init__(self) -> None:
        for name, value, kind in (
            ("statistics", self.statistics, Statistics),
            ("frozen", self.frozen, Frozen),
        ):
            if value not in set(kind):
                raise UserError(f"{name} is {value!r}; choose one of: {', '.join(kind)}")


@dataclass(frozen=True, slots=True)
class RoundContext:
    """What a training or evaluation function may ask: the round, the device, the precision."""

    round: Round  # 0 in an evaluation
    device: torch.device
    settings: Settings

    def put(self, batch: Any) -> Any:
        """Move a batch to the device: a tensor, or tensors in tuples, lists and dicts."""
        if isinstance(batch, Tensor):
            batch = batch.to(self.device, non_blocking=True)
            if self.settings.channels_last and batch.ndim == 4:
                batch = batch.contiguous(memory_format=torch.channels_last)
            return batch
        if isinstance(batch, Mapping):
            return {name: self.put(part) for name, part in batch.items()}
        if isinstance(batch, tuple | list):
            return type(batch)(self.put(part) for part in batch)
        return batch

    @property
    def half(self) -> Any:
        """The dtype of mixed precision; None if it is switched off or not supported."""
        if not self.settings.mixed_precision:
            return None
        kind = self.device.type
        if not torch.amp.autocast_mode.is_autocast_available(kind):
            return None
        if kind == "cuda" and not torch.cuda.is_bf16_supported():
            return torch.float16
        return torch.bfloat16 if kind in ("cuda", "cpu") else torch.float16

    def autocast(self) -> Any:
        half = self.half
        return torch.autocast(self.device.type, dtype=half, enabled=half is not None)


TrainFunction = Callable[[nn.Module, RoundContext], Metrics]
EvaluateFunction = Callable[[nn.Module, RoundContext], Metrics]


def _no_evaluation(_: nn.Module, __: RoundContext) -> Metrics:
    return {}


class TorchClient:
    """A client whose `train(model, context)` trains the model in place and returns metrics.

    `context.round` is the round's number, for schedules. The model is in training mode when `train`
    is called, and in evaluation mode, without gradients, when `evaluate` is called: neither
    function calls `model.train()` or `model.eval()` itself.

    `model` is a module, or a function that makes one, whose initial weights then follow from the
    seed. Under torchrun, `train` receives the model inside DistributedDataParallel.
    """

    def __init__(
        self,
        model: nn.Module | Callable[[], nn.Module],
        train: TrainFunction,
        evaluate: EvaluateFunction = _no_evaluation,
        *,
        settings: Settings = Settings(),  # noqa: B008 - frozen
    ) -> None:
        self._settings = settings
        self._train = train
        self._evaluate = evaluate
        self._device = torch.device(settings.device or best_device())
        with repeatable(settings.seed, self._device):
            module = model if isinstance(model, nn.Module) else model()
        if settings.channels_last:
            module = module.to(memory_format=torch.channels_last)
        self._model: nn.Module = module.to(self._device)
        self._roles = _roles(self._model, settings)
        self._initial = self._weights()

    def initial_weights(self) -> Weights:
        return {name: array.copy() for name, array in self._initial.items()}

    def roles(self) -> Roles:
        return self._roles

    def train(self, weights: Weights, round_: Round, /) -> tuple[Weights, Metrics]:
        self._load(weights)
        context = RoundContext(round_, self._device, self._settings)
        self._model.train()
        rank = dist.get_rank() if in_group() else 0
        # Each process of a group draws its own dropout; a single process draws that of rank 0.
        seed = seed_of(seed_of(self._settings.seed, round_), Round(rank))
        with repeatable(seed, self._device):
            metrics = self._train(self._distributed(), context)
        return self._weights(), metrics

    def evaluate(self, weights: Weights, /) -> Metrics:
        self._load(weights)
        context = RoundContext(Round(0), self._device, self._settings)
        self._model.eval()
        with repeatable(self._settings.seed, self._device), torch.no_grad():
            return self._evaluate(self._model, context)

    def model(self, weights: Weights) -> nn.Module:
        """The module with these weights, in evaluation mode, for predictions."""
        self._load(weights)
        return self._model.eval()

    def _distributed(self) -> nn.Module:
        if not in_group():
            return self._model
        devices = [self._device.index or 0] if self._device.type == "cuda" else None
        wrapped: nn.Module = DistributedDataParallel(self._model, device_ids=devices)
        return wrapped

    def _load(self, weights: Weights) -> None:
        with torch.no_grad():
            for name, tensor in _state(self._model).items():
                tensor.copy_(torch.from_numpy(np.array(weights[name], order="C")))

    def _weights(self) -> dict[str, Array]:
        return {
            name: _array(tensor, local=self._roles.get(name) == Role.LOCAL)
            for name, tensor in _state(self._model).items()
        }


def best_device() -> str:
    """A GPU of this machine if there is one; under torchrun, the GPU of this process."""
    if torch.cuda.is_available():
        return f"cuda:{int(os.environ.get('LOCAL_RANK', '0')) % torch.cuda.device_count()}"
    return "mps" if torch.backends.mps.is_available() else "cpu"


def in_group() -> bool:
    """Whether this is one of several processes that train one model."""
    return bool(dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1)


@contextmanager
def repeatable(seed: int, device: torch.device) -> Iterator[None]:
    """Seed random numbers inside the block; restore their state afterwards."""
    devices = [device] if device.type == "cuda" else []
    with torch.random.fork_rng(devices=devices):
        torch.manual_seed(seed)
        yield


# --- A module's state as named arrays --------------------------------------------------------


def _state(model: nn.Module) -> dict[str, Tensor]:
    """Parameters and buffers by name; a tensor with two names appears under the first one."""
    state: dict[str, Tensor] = {}
    ids: set[int] = set()
    for name, tensor in model.state_dict(keep_vars=True).items():
        if isinstance(tensor, Tensor) and id(tensor) not in ids:
            ids.add(id(tensor))
            state[name] = tensor
    return state


def _roles(model: nn.Module, settings: Settings) -> dict[str, Role | str]:
    """Parameters are trainable, float buffers and frozen ones follow the settings, all else stays
    local."""
    frozen = Frozen(settings.frozen) is Frozen.LOCAL
    parameters = {
        id(parameter) for parameter in model.parameters() if parameter.requires_grad or not frozen
    }
    kept = {id(parameter) for parameter in model.parameters()} - parameters
    shared = Statistics(settings.statistics) is Statistics.SHARED
    roles: dict[str, Role | str] = {}
    for name, tensor in _state(model).items():
        if not tensor.is_floating_point() or id(tensor) in kept:
            role = Role.LOCAL
        elif id(tensor) in parameters:
            role = Role.TRAINABLE
        elif not shared:
            role = Role.LOCAL
        else:
            role = Role.VARIANCE if name.split(".")[-1] == VARIANCE else Role.STATISTIC
        roles[name] = role
    return {**roles, **settings.roles}


def _array(tensor: Tensor, *, local: bool) -> Array:
    """A copy; shared floats become float32, whatever precision the model has."""
    tensor = tensor.detach()
    if tensor.is_floating_point() and (not local or tensor.dtype is torch.bfloat16):
        tensor = tensor.float()
    return np.array(tensor.cpu().numpy(), order="C")
