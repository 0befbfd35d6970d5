"""The base model: trained on plain words here, once, and kept in base.pt.

It stands for the large model that you would download. All organisations need the same file: another
processor may train another base, and adapters fit only the base that they were trained on.
"""

import os
from pathlib import Path

import torch
from data import PLAIN, reviews
from torch import nn
from torch.utils.data import DataLoader
from transformer import Transformer

FILE = Path(__file__).with_name("base.pt")
EPOCHS = 2
RATE = 1e-3
SEED = 1


def base_model():
    if not FILE.exists():
        with torch.random.fork_rng():
            torch.manual_seed(SEED)
            model = trained()
        new = FILE.with_name(f"base-{os.getpid()}.new")
        torch.save(model.state_dict(), new)
        new.replace(FILE)  # whole or not at all, whoever else starts now
    model = Transformer()
    model.load_state_dict(torch.load(FILE, weights_only=True))
    return model


def trained():
    model = Transformer()
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE)
    loader = DataLoader(reviews(4000, seed=SEED, words=PLAIN), batch_size=64, shuffle=True)
    for _ in range(EPOCHS):
        for tokens, labels in loader:
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(tokens), labels).backward()
            optimizer.step()
    return model
