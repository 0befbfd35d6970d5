"""Word vectors that are looked up and never trained, hence never sent."""

from torch import Tensor, nn
from torch.nn import functional

from defl.lab.datasets.words import PADDING


class FrozenEmbedding(nn.Module):
    """Numbers of words to vectors, and which of them are words rather than padding.

    The vectors are no part of the state: all members compute or are given the same ones. The first
    place of an empty text counts as a word, so that a mean over words always exists.
    """

    def __init__(self, vectors: Tensor) -> None:
        super().__init__()
        self.register_buffer("vectors", vectors, persistent=False)

    def forward(self, words: Tensor) -> tuple[Tensor, Tensor]:
        real = words != PADDING
        real[:, 0] = True
        longest = int(real.sum(dim=1).max())
        return functional.embedding(words[:, :longest], self.vectors), real[:, :longest]
