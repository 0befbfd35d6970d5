"""How a node of an experiment learns: the settings, without the framework that carries them out."""

from dataclasses import dataclass

from defl.lab.models.sentences import SentenceSettings


@dataclass(frozen=True, slots=True)
class Learning:
    """Data, model and one round's local training, the same at every node."""

    data: str  # a data set's name, as `defl data list` says it
    model: str  # of learner.MODELS
    optimizer: str  # of learner.OPTIMIZERS
    rate: float
    batch: int
    steps: int  # each round
    weight_decay: float = 0.0
    augmented: bool = False  # images are mirrored and moved a little
    train_samples: int | None = None  # drawn once for all nodes together; None: all
    test_samples: int | None = None  # likewise
    sentences: SentenceSettings | None = None  # of texts: how they become numbers
