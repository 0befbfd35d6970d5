"""Models that train in seconds on a CPU, with the inputs and outputs of the paper's."""

import itertools
import math

from torch import Tensor, nn
from torch.nn import functional


class SmallCNN(nn.Module):
    """Three 3x3 convolutions with group norm, each followed by pooling, and one linear layer.

    Group norm (Wu, He, 2018) keeps no running statistics, so nothing stays local.
    """

    GROUPS = 4

    def __init__(self, *, channels: int = 3, width: int = 32, classes: int = 10) -> None:
        super().__init__()
        widths = (channels, width, 2 * width, 2 * width)
        self.convs = nn.ModuleList(
            nn.Conv2d(before, after, 3, padding=1, bias=False)
            for before, after in itertools.pairwise(widths)
        )
        self.norms = nn.ModuleList(nn.GroupNorm(self.GROUPS, after) for after in widths[1:])
        self.head = nn.Linear(widths[-1], classes)

    def forward(self, x: Tensor) -> Tensor:
        for conv, norm in zip(self.convs, self.norms, strict=True):
            x = functional.max_pool2d(functional.relu(norm(conv(x))), 2)
        return self.head(x.mean(dim=(2, 3)))


class ResidualBlock(nn.Module):
    """Two 3x3 convolutions with batch norm around a shortcut; the first halves the image."""

    def __init__(self, before: int, after: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(before, after, 3, stride=2, padding=1, bias=False)
        self.first_norm = nn.BatchNorm2d(after)
        self.second = nn.Conv2d(after, after, 3, padding=1, bias=False)
        self.second_norm = nn.BatchNorm2d(after)
        self.shortcut = nn.Conv2d(before, after, 1, stride=2, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        inner = functional.relu(self.first_norm(self.first(x)))
        return functional.relu(self.second_norm(self.second(inner)) + self.shortcut(x))


class SmallResNet(nn.Module):
    """A residual network of 6 layers (He, Zhang, Ren, Sun, CVPR 2016) for CPUs.

    The first layer and each block halve the image, so an image costs 8 million multiplications.
    Batch norm, whose statistics stay local, learns in far fewer steps than group norm.
    """

    def __init__(self, *, channels: int = 3, width: int = 32, classes: int = 10) -> None:
        super().__init__()
        widths = (width, 2 * width, 4 * width)
        self.stem = nn.Conv2d(channels, width, 4, stride=2, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(width)
        self.blocks = nn.Sequential(*(ResidualBlock(a, b) for a, b in itertools.pairwise(widths)))
        self.head = nn.Linear(widths[-1], classes)

    def forward(self, x: Tensor) -> Tensor:
        x = functional.relu(self.norm(self.stem(x)))
        return self.head(self.blocks(x).mean(dim=(2, 3)))


class MLP(nn.Module):
    """Flattened images through hidden layers of rectified units."""

    def __init__(
        self,
        *,
        shape: tuple[int, ...] = (3, 32, 32),
        hidden: tuple[int, ...] = (128,),
        classes: int = 10,
    ) -> None:
        super().__init__()
        sizes = (math.prod(shape), *hidden, classes)
        layers: list[nn.Module] = [nn.Flatten()]
        for before, after in itertools.pairwise(sizes):
            layers += [nn.Linear(before, after), nn.ReLU()]
        self.layers = nn.Sequential(*layers[:-1])

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x)


class SmallText(nn.Module):
    """The mean of a text's word vectors, computed before, through one hidden layer; one logit.

    A deep averaging network (Iyyer, Manjunatha, Boyd-Graber, Daumé, ACL 2015).
    """

    def __init__(self, size: int, *, hidden: int = 64, dropout: float = 0.15) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(size, hidden), nn.ReLU(), nn.Dropout(dropout), nn.Linear(hidden, 1)
        )

    def forward(self, means: Tensor) -> Tensor:
        return self.layers(means).squeeze(1)
