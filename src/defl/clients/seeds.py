"""Chance that can be repeated: one seed for each round, whatever ran before it in this process."""

import numpy as np

from defl.ids import Round


def seed_of(seed: int, round_: Round) -> int:
    """32 bits that differ between rounds; a node that was restarted trains as it would have."""
    return int(np.random.SeedSequence((seed, round_)).generate_state(1)[0])
