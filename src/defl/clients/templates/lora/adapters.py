"""LoRA: a frozen layer plus a product of two thin matrices, which alone are trained.

E. J. Hu et al., "LoRA: Low-Rank Adaptation of Large Language Models", ICLR 2022.
"""

import torch
from torch import nn

RANK = 4
SCALE = 2.0  # alpha / rank of the paper


class Adapted(nn.Module):
    def __init__(self, base):
        super().__init__()
        self.base = base
        self.lora_a = nn.Parameter(torch.randn(RANK, base.in_features) * base.in_features**-0.5)
        self.lora_b = nn.Parameter(torch.zeros(base.out_features, RANK))  # it begins as the base

    def forward(self, values):
        return self.base(values) + SCALE * (values @ self.lora_a.T) @ self.lora_b.T


def with_adapters(model):
    """The transformer with an adapter at every projection of its blocks; only these and the head
    are trained."""
    model.requires_grad_(False)
    for block in model.blocks:
        for name, layer in list(block.named_children()):
            if isinstance(layer, nn.Linear):
                setattr(block, name, Adapted(layer))
    model.head.requires_grad_(True)
    return model
