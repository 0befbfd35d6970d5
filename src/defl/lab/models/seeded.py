"""Models with reproducible initial weights that leave torch's global generator untouched."""

from collections.abc import Callable
from typing import TypeVar

import torch
from torch import nn

M = TypeVar("M", bound=nn.Module)


def seeded(seed: int, build: Callable[[], M]) -> M:
    """Build a model with torch's generator seeded; restore the generator afterwards."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return build()


def parameters(model: nn.Module) -> int:
    """The number of trainable values: what a node sends each round."""
    return sum(p.numel() for p in model.parameters() if p.requires_grad)
