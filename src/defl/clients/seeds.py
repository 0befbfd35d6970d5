"""Reproducible randomness: one seed per round, whatever ran before it in this process."""

import numpy as np

from defl.ids import Round


def seed_of(seed: int, round_: Round) -> int:
    """32 bits that differ between rounds; a restarted node repeats a round exactly."""
    return int(np.random.SeedSequence((seed, round_)).generate_state(1)[0])
