"""What this organisation brings to the federation: adapters for a frozen base, its data, training.

The base never leaves an organisation, since all have it; adapters and head are what they train
together.
"""

from pathlib import Path

import torch
from adapters import with_adapters
from base import base_model
from data import load
from torch import nn
from torch.utils.data import DataLoader

from defl.clients.agreed import agreed_steps
from defl.clients.torch import Settings
from defl.clients.torch_supervised import supervised

torch.set_num_threads(1)  # for so small a model; leave this line out for a real one


def make_model():
    return with_adapters(base_model())


def client():
    """defl.toml names this function; each node calls it once."""
    train, test = load()
    return supervised(
        make_model,
        loss=nn.functional.cross_entropy,
        optimizer=lambda parameters: torch.optim.AdamW(parameters, lr=5e-3),
        train=DataLoader(train, batch_size=16, shuffle=True),
        test=DataLoader(test, batch_size=500),
        # The same work everywhere, however many reviews an organisation has.
        steps=agreed_steps(Path(__file__).parent),
        settings=Settings(frozen="local"),
    )
