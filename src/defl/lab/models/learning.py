"""Settings of local training in experiments, independent of any framework."""

from dataclasses import dataclass

from defl.ids import Round
from defl.lab.models.sentences import SentenceSettings


@dataclass(frozen=True, slots=True)
class Learning:
    """Data, model and one round's local training, the same at every node."""

    data: str  # a data set's name, as in `defl data list`
    model: str  # of learner.MODELS
    optimizer: str  # of learner.OPTIMIZERS
    rate: float
    batch: int
    steps: int  # each round
    weight_decay: float = 0.0
    augmented: bool = False  # images are mirrored and shifted at random
    train_samples: int | None = None  # drawn once for all nodes together; None: all
    test_samples: int | None = None  # likewise
    sentences: SentenceSettings | None = None  # for texts: how they become numbers
    checkpoints: bool = False  # an interrupted cell resumes; worth it where cells take long
    falls_over: int | None = None  # the rate falls linearly in so many rounds; None: it does not

    def rate_in(self, round_: Round) -> float:
        if self.falls_over is None:
            return self.rate
        return self.rate * max(self.falls_over + 1 - round_, 1) / self.falls_over
