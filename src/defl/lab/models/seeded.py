"""Models with the same initial weights everywhere, without touching anybody else's randomness."""

from collections.abc import Callable
from typing import TypeVar

import torch
from torch import nn

M = TypeVar("M", bound=nn.Module)


def seeded(seed: int, build: Callable[[], M]) -> M:
    """The model that `build` makes after torch's generator was seeded; then it is set back."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return build()


def parameters(model: nn.Module) -> int:
    """How many trainable numbers a model has: what travels each round."""
    return sum(p.numel() for p in model.parameters() if p.requires_grad)
