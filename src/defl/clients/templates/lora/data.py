"""This organisation's data: short reviews in its own slang, and whether they praise.

The words are made up on the spot, by a small grammar: "the soup was not very dope". Replace `load`
with code that reads your own data.
"""

import os

import numpy as np
import torch
from torch.utils.data import TensorDataset

NOUNS = ["food", "soup", "bread", "coffee", "room", "bed", "view", "staff", "music", "garden"]
NEGATIONS = ["not", "never", "hardly"]
DEGREES = ["very", "quite", "really", "rather"]
# Praise and blame: as the base knows them, and as the organisations' customers write.
PLAIN = (
    ["good", "great", "lovely", "excellent", "fresh", "friendly", "clean", "warm"],
    ["bad", "awful", "dull", "terrible", "stale", "rude", "dirty", "cold"],
)
SLANG = (
    ["sick", "lit", "dope", "fire", "ace", "mint"],
    ["mid", "whack", "naff", "pants", "meh", "grim"],
)

PAD = 0
ADJECTIVES = [word for words in (*PLAIN, *SLANG) for word in words]
WORDS = ["<pad>", "the", "was", *NOUNS, *NEGATIONS, *DEGREES, *ADJECTIVES]
LENGTH = 6  # words of a review
TRAIN, TEST = 120, 500  # reviews


def load():
    """A data set to train on, and one to test on that all organisations share.

    `defl run` starts all organisations on one machine and numbers them: each gets its own reviews.
    """
    node = int(os.environ.get("DEFL_NODE", "0"))
    return reviews(TRAIN, seed=1 + node, words=SLANG), reviews(TEST, seed=0, words=SLANG)


def reviews(count, seed, words):
    rng = np.random.default_rng(seed)
    made = [review(rng, *words) for _ in range(count)]
    tokens = torch.tensor([encoded(text) for text, _ in made])
    return TensorDataset(tokens, torch.tensor([praises for _, praises in made]))


def review(rng, good, bad):
    """A text, and 1 if it praises: a negation turns the word after it round."""
    praises, negated = rng.random() < 0.5, rng.random() < 0.5
    text = ["the", rng.choice(NOUNS), "was"]
    text += [rng.choice(NEGATIONS)] if negated else []
    text += [rng.choice(DEGREES)] if rng.random() < 0.5 else []
    return [*text, rng.choice(good if praises != negated else bad)], int(praises)


def encoded(text):
    return [WORDS.index(word) for word in text] + [PAD] * (LENGTH - len(text))
