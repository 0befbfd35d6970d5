"""Seven organisations learn handwritten digits with PyTorch; one of them attacks.

    python examples/digits_one_attacker.py [--rounds 6] [--out FOLDER]

First plain averaging (FedAvg), then DeFL's default rule, on the same data with the same attacker.
Both print their table and save a picture. MNIST is used if the folder that DEFL_DATA names has it
(`defl data fetch mnist`), otherwise the 1,797 small digits that come with DeFL. Under a minute on
two cores.
"""

# %% Data: an equal part for each organisation, one test set for all
import argparse
import os
from pathlib import Path

import numpy as np
import torch
from torch import nn

import defl
from defl.clients.torch import Settings
from defl.clients.torch_supervised import supervised
from defl.lab.datasets.digits import digits
from defl.lab.datasets.mnist import mnist
from defl.lab.partition import cut

MEMBERS = 7
ATTACKER = 6
ATTACK = "sign_flip_10"  # ten times the honest change, in the opposite direction
TRAIN_IMAGES = 3_500  # of MNIST's 60,000, so that the example ends soon
TEST_IMAGES = 500


def load_images():
    folder = Path(os.environ.get("DEFL_DATA", "data"))
    if (folder / "mnist").is_dir():
        return mnist(folder)
    return digits(np.random.default_rng(1))


# %% Clients: DeFL's ready-made PyTorch client around an ordinary model, loss and optimizer
def make_model(size, classes):
    return nn.Sequential(
        nn.Flatten(), nn.Linear(size * size, 32), nn.ReLU(), nn.Linear(32, classes)
    )


def batches(data, images, labels, batch_size=32):
    inputs = torch.from_numpy(data.scaled(images)[:, None])
    targets = torch.from_numpy(labels)
    return list(zip(inputs.split(batch_size), targets.split(batch_size), strict=True))


def make_clients(data):
    labels = data.train_labels[:TRAIN_IMAGES]
    parts = cut(labels, MEMBERS, None, np.random.default_rng(1))
    test = batches(data, data.test_images[:TEST_IMAGES], data.test_labels[:TEST_IMAGES], 500)
    size = data.train_images.shape[-1]
    return [
        supervised(
            lambda: make_model(size, data.classes),
            loss=nn.functional.cross_entropy,
            optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.2),
            train=batches(data, data.train_images[part], labels[part]),
            test=test,
            epochs=3,
            settings=Settings(seed=1, device="cpu"),
        )
        for part in parts
    ]


# %% Learning: the real protocol on a virtual clock, in this process
def main(rounds, out):
    torch.set_num_threads(1)  # a model this small gains nothing from more
    data = load_images()
    print(f"{len(data.train_labels[:TRAIN_IMAGES])} images for {MEMBERS} members\n")
    for rule in ("fed_avg", "adaptive"):
        history = defl.simulate(
            make_clients(data),
            rounds=rounds,
            byzantine={ATTACKER: ATTACK},
            aggregation=rule,
        )
        print(f"aggregation = {rule}\n\n{history}\n")
        history.plot("accuracy", path=out / f"{rule}.png")
    print(f"pictures: {out}/fed_avg.png and {out}/adaptive.png")


if __name__ == "__main__":
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--rounds", type=int, default=6)
    arguments.add_argument("--out", type=Path, default=Path())
    main(**vars(arguments.parse_args()))
