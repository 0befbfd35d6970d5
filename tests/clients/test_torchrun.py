"""One client that trains in two real processes under torchrun with gloo."""

import os
import textwrap
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from defl.clients.protocol import roles_of
from defl.clients.torchrun import TorchrunClient
from defl.clients.torchrun_rank import serve
from defl.errors import UserError
from defl.ids import Round
from defl.schema import Weights

# Each process learns its own slope; the result is the mean of both.
SCRIPT = """
import os
import torch
from torch import distributed as dist
from torch import nn

from defl.clients.torch import Settings, TorchClient
from defl.clients.torchrun_rank import serve

def train(model, context):
    rank = dist.get_rank()
    if context.round == 2 and rank == 1:
        raise RuntimeError("no GPU here")
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    optimizer.zero_grad()
    (model(torch.ones(1, 1)) * (rank + 1)).sum().backward()
    optimizer.step()
    return {"wrapped": float(type(model).__name__ == "DistributedDataParallel"),
            "pid": float(os.getpid())}

def evaluate(model, context):
    if float(model.weight) == 99:
        raise ValueError("no test data")
    return {"weight": float(model.weight), "processes": float(dist.get_world_size())}

def make():
    return TorchClient(lambda: nn.Linear(1, 1, bias=False), train, evaluate,
                       settings=Settings(device="cpu"))

serve(make)
"""


@pytest.fixture
def client(tmp_path: Path) -> Iterator[TorchrunClient]:
    script = tmp_path / "train.py"
    script.write_text(textwrap.dedent(SCRIPT), encoding="utf-8")
    started = TorchrunClient(script, processes=2)
    yield started
    started.close()


def weight(value: float) -> Weights:
    return {"weight": np.full((1, 1), value, dtype=np.float32)}


def gone(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False


def test_two_processes_train_one_model_and_a_failing_one_costs_one_training(
    client: TorchrunClient, capfd: pytest.CaptureFixture[str]
) -> None:
    assert roles_of(client) == {"weight": "trainable"}
    assert client.initial_weights()["weight"].shape == (1, 1)

    trained, metrics = client.train(weight(10), Round(1))
    assert trained["weight"].tolist() == [[8.5]]  # 10 less the mean of the slopes 1 and 2
    assert metrics["wrapped"] == 1
    assert client.evaluate(weight(4)) == {"weight": 4.0, "processes": 2.0}

    with pytest.raises(RuntimeError, match=r"torchrun ended during the request 'train'|rank 0"):
        client.train(weight(10), Round(2))
    assert gone(int(metrics["pid"]))
    assert "no GPU here" in capfd.readouterr().err  # which a node keeps in worker.log

    trained, metrics = client.train(weight(3), Round(1))  # a new group
    assert trained["weight"].tolist() == [[1.5]]
    with pytest.raises(RuntimeError, match="ValueError: no test data"):
        client.evaluate(weight(99))
    assert gone(int(metrics["pid"]))


def test_a_missing_script_and_one_started_without_torchrun_are_refused(
    tmp_path: Path,
) -> None:
    with pytest.raises(UserError, match="no such file; name the script that torchrun starts"):
        TorchrunClient(tmp_path / "missing.py")
    with pytest.raises(UserError, match="torchrun starts this script; name it in a TorchrunClient"):
        serve(lambda: None)  # type: ignore[arg-type,return-value]
