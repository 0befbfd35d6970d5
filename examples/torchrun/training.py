"""The model, and this organisation's digits, cut among the processes that torchrun started."""

import os

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

from defl.clients.torch import TorchClient
from defl.clients.torch_supervised import supervised


def make_model() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))


def make_client() -> TorchClient:
    node, nodes = int(os.environ.get("DEFL_NODE", "0")), int(os.environ.get("DEFL_NODES", "4"))
    digits = load_digits()
    images = torch.from_numpy(digits.images / 16).float()
    labels = torch.from_numpy(digits.target)
    test = slice(0, 360)
    mine = slice(360 + node, None, nodes)  # this organisation's; DistributedSampler cuts it again
    data = TensorDataset(images[mine], labels[mine])
    return supervised(
        make_model,
        loss=nn.functional.cross_entropy,
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.2, momentum=0.9),
        train=DataLoader(data, batch_size=16, sampler=DistributedSampler(data)),
        test=[(images[test], labels[test])],
        epochs=3,
    )
