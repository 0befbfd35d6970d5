"""DenseNet-BC for small images: G. Huang, Z. Liu, L. van der Maaten, K. Weinberger, Densely
Connected Convolutional Networks, CVPR 2017, section 3 and table 2.

The paper's setting is depth 100, growth 12, compression 0.5. No dropout: the images are augmented.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional

from defl.errors import UserError

BLOCKS = 3
BOTTLENECK = 4  # a bottleneck has this many times the growth


class DenseLayer(nn.Module):
    """BN, ReLU, 1x1; BN, ReLU, 3x3; the output is appended to the input channels."""

    def __init__(self, channels: int, growth: int) -> None:
        super().__init__()
        inner = BOTTLENECK * growth
        self.norm1 = nn.BatchNorm2d(channels)
        self.conv1 = nn.Conv2d(channels, inner, 1, bias=False)
        self.norm2 = nn.BatchNorm2d(inner)
        self.conv2 = nn.Conv2d(inner, growth, 3, padding=1, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        new = self.conv1(functional.relu(self.norm1(x)))
        new = self.conv2(functional.relu(self.norm2(new)))
        return torch.cat([x, new], dim=1)


class Transition(nn.Module):
    """BN, ReLU, 1x1 to fewer channels, then half the height and width."""

    def __init__(self, channels: int, fewer: int) -> None:
        super().__init__()
        self.norm = nn.BatchNorm2d(channels)
        self.conv = nn.Conv2d(channels, fewer, 1, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return functional.avg_pool2d(self.conv(functional.relu(self.norm(x))), 2)


class DenseNetBC(nn.Module):
    """Three dense blocks; (batch, 3, height, width) to (batch, classes) logits."""

    def __init__(
        self, *, depth: int = 100, growth: int = 12, compression: float = 0.5, classes: int = 10
    ) -> None:
        super().__init__()
        if depth < 10 or (depth - 4) % (2 * BLOCKS):
            raise UserError(f"the depth of a DenseNet-BC is 6k + 4: 10, 16, 22, ..., not {depth}")
        if not 0 < compression <= 1:
            raise UserError(f"compression is more than 0 and at most 1, not {compression}")
        layers_in_block = (depth - 4) // (2 * BLOCKS)
        channels = 2 * growth
        layers: list[nn.Module] = [nn.Conv2d(3, channels, 3, padding=1, bias=False)]
        for block in range(BLOCKS):
            for _ in range(layers_in_block):
                layers.append(DenseLayer(channels, growth))
                channels += growth
            if block < BLOCKS - 1:
                fewer = int(channels * compression)
                layers.append(Transition(channels, fewer))
                channels = fewer
        self.features = nn.Sequential(*layers)
        self.norm = nn.BatchNorm2d(channels)
        self.head = nn.Linear(channels, classes)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, nonlinearity="relu")
        nn.init.zeros_(self.head.bias)

    def forward(self, x: Tensor) -> Tensor:
        x = functional.relu(self.norm(self.features(x)))
        return self.head(x.mean(dim=(2, 3)))
