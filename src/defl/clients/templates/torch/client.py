"""What this organisation brings to the federation: a model, its data, and how to train.

A model, a loss, an optimiser and loaders are enough; for a training loop of your own use
`defl.clients.torch.TorchClient`.
"""

from pathlib import Path

import torch
from data import load
from torch import nn
from torch.utils.data import DataLoader

from defl.clients.agreed import agreed_steps
from defl.clients.torch import Settings
from defl.clients.torch_supervised import supervised


def make_model():
    return nn.Sequential(
        nn.Conv2d(1, 8, kernel_size=3, padding=1),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(8 * 4 * 4, 10),
    )


def client():
    """defl.toml names this function; each node calls it once."""
    train, test = load()
    return supervised(
        make_model,
        loss=nn.functional.cross_entropy,
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9),
        train=DataLoader(train, batch_size=32, shuffle=True),
        test=DataLoader(test, batch_size=512),
        # The same work everywhere, however much data an organisation has.
        steps=agreed_steps(Path(__file__).parent),
        # Batch norm's running mean and variance are averaged like the weights, so that all
        # organisations hold one model, and an exported one is whole.
        settings=Settings(statistics="shared"),
    )
