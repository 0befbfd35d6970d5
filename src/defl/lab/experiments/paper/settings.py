"""The settings of each scale, and the rows and columns of the paper's tables.

`paper` is the paper's own setting as far as the paper or its authors' code states it (the number of
rounds is not stated: 200 agree with its storage ratio). The other scales train small models on the
real data: `transfer` a linear layer on features of a frozen network, `cpu` a convolutional network
from scratch, `quick` and `mlp` one with a hidden layer. Steps are chosen by their measured time on
two cores.
"""

from dataclasses import dataclass, replace
from enum import StrEnum

from defl.committee import faults_of
from defl.lab.experiments.threats import NONE, THREATS
from defl.lab.models.learning import Learning
from defl.lab.models.sentences import SentenceSettings
from defl.lab.models.word2vec import Word2VecSettings

DIRICHLET = 1.0  # the paper's alpha
ROUNDS_PAPER = 200
NODES = (4, 7, 10)  # the paper's federations
# The paper's names, in the order of its columns.
SYSTEM_WORDS = {"fl": "FL", "swarm": "SL", "biscotti": "Biscotti", "defl": "DeFL"}


class Scale(StrEnum):
    QUICK = "quick"
    MLP = "mlp"
    TRANSFER = "transfer"
    CPU = "cpu"
    PAPER = "paper"


class DataKind(StrEnum):
    IMAGES = "images"
    TEXTS = "texts"


@dataclass(frozen=True, slots=True)
class Setting:
    """How models learn one kind of data at one scale."""

    learning: Learning
    rounds: int
    rounds_judged: int  # an accuracy is the mean over the models of these last rounds
    multi_krum: str  # the rule of Biscotti and DeFL
    # For the figures' real processes, whose bytes depend on model and rounds, not on steps.
    costs_rounds: int
    costs_steps: int
    costs_learning: Learning | None = None  # None: as `learning`

    @property
    def of_costs(self) -> Learning:
        return replace(self.costs_learning or self.learning, steps=self.costs_steps)


REPEATS = {Scale.QUICK: 1, Scale.MLP: 1, Scale.TRANSFER: 5, Scale.CPU: 1, Scale.PAPER: 10}

_QUICK_IMAGES = Learning("cifar-10", "mlp-32", "rmsprop", 1e-3, batch=32, steps=60)
_MLP_IMAGES = Learning("cifar-10", "mlp-128", "rmsprop", 1e-3, batch=32, steps=100)
_TRANSFER_IMAGES = Learning("cifar-10-features", "linear", "rmsprop", 1e-3, batch=32, steps=50)
_CPU_ROUNDS = 30
_CPU_IMAGES = Learning(
    "cifar-10",
    "resnet-6",
    "nesterov",
    0.1,
    batch=64,
    steps=100,
    weight_decay=5e-4,
    augmented=True,
    checkpoints=True,
    falls_over=_CPU_ROUNDS,
)
_PAPER_IMAGES = Learning(
    "cifar-10", "densenet-bc-100", "rmsprop", 1e-3, batch=32, steps=1000, augmented=True
)
_QUICK_TEXTS = Learning(
    "sentiment140",
    "text-64",
    "adamw",
    1e-3,
    batch=128,
    steps=25,
    weight_decay=1e-3,
    sentences=SentenceSettings(40_000, word2vec=Word2VecSettings(size=100, iterations=5)),
)
_CPU_TEXTS = replace(
    _QUICK_TEXTS,
    steps=100,
    sentences=SentenceSettings(200_000, word2vec=Word2VecSettings(size=100, iterations=10)),
)
_PAPER_TEXTS = Learning(
    "sentiment140",
    "bilstm-128",
    "adamw",
    1e-3,
    batch=1024,
    steps=500,
    weight_decay=1e-3,
    sentences=SentenceSettings(),
)
SETTINGS: dict[tuple[Scale, DataKind], Setting] = {
    (Scale.QUICK, DataKind.IMAGES): Setting(_QUICK_IMAGES, 8, 1, "multi_krum", 2, 1),
    (Scale.QUICK, DataKind.TEXTS): Setting(_QUICK_TEXTS, 8, 1, "multi_krum", 2, 1),
    (Scale.MLP, DataKind.IMAGES): Setting(_MLP_IMAGES, 20, 3, "multi_krum", 10, 2),
    (Scale.MLP, DataKind.TEXTS): Setting(_CPU_TEXTS, 20, 3, "multi_krum", 10, 2),
    (Scale.TRANSFER, DataKind.IMAGES): Setting(
        _TRANSFER_IMAGES, 10, 2, "multi_krum", 10, 2, costs_learning=_MLP_IMAGES
    ),
    (Scale.TRANSFER, DataKind.TEXTS): Setting(_CPU_TEXTS, 20, 3, "multi_krum", 10, 2),
    (Scale.CPU, DataKind.IMAGES): Setting(_CPU_IMAGES, _CPU_ROUNDS, 1, "multi_krum", 10, 2),
    (Scale.CPU, DataKind.TEXTS): Setting(_CPU_TEXTS, 20, 3, "multi_krum", 10, 2),
    (Scale.PAPER, DataKind.IMAGES): Setting(
        _PAPER_IMAGES, ROUNDS_PAPER, 1, "multi_krum_two", ROUNDS_PAPER, 1000
    ),
    (Scale.PAPER, DataKind.TEXTS): Setting(
        _PAPER_TEXTS, ROUNDS_PAPER, 1, "multi_krum_two", ROUNDS_PAPER, 500
    ),
}


@dataclass(frozen=True, slots=True)
class Row:
    """One line of a table: how many nodes attack, and how."""

    words: str
    nodes: int
    byzantine: int
    threat: str


@dataclass(frozen=True, slots=True)
class Table:
    name: str
    title: str
    kind: DataKind
    datasets: tuple[tuple[str, float | None], ...]  # the paper's name, and alpha
    rows: tuple[Row, ...]
    systems: tuple[str, ...] = tuple(SYSTEM_WORDS)
    of_paper: str | None = None  # the paper's table; None: `name`

    @property
    def paper_name(self) -> str:
        return self.of_paper or self.name

    @property
    def heading(self) -> str:
        if self.of_paper is not None:
            return self.title
        return f"Table {self.name.removeprefix('table')}. {self.title}"


THREAT_ROWS = tuple(
    Row(THREATS[name].words, 4, 0 if name == NONE.name else 1, name)
    for name in (
        "none",
        "gaussian_0.03",
        "gaussian_1",
        "sign_flip_1",
        "sign_flip_2",
        "sign_flip_4",
        "label_flip",
    )
)


def rate_rows(threat: str) -> tuple[Row, ...]:
    """Each federation with every number of Byzantine nodes below a third."""
    return tuple(
        Row(
            f"{nodes - bad}+{bad} (beta={bad / nodes:.2f})",
            nodes,
            bad,
            threat if bad else NONE.name,
        )
        for nodes in NODES
        for bad in range(faults_of(nodes) + 1)
    )


TABLES: dict[str, Table] = {
    table.name: table
    for table in (
        Table(
            "table1",
            "Accuracy on CIFAR-10 and CIFAR-noniid under different threats, 1 of 4 nodes attacks",
            DataKind.IMAGES,
            (("CIFAR-10", None), ("CIFAR-noniid", DIRICHLET)),
            THREAT_ROWS,
        ),
        Table(
            "table2",
            "Accuracy on CIFAR-noniid with sign-flipping (sigma = -2) by honest + Byzantine nodes",
            DataKind.IMAGES,
            (("CIFAR-noniid", DIRICHLET),),
            rate_rows("sign_flip_2"),
        ),
        Table(
            "table3",
            "Accuracy on Sentiment140 and Sentiment-noniid under different threats, "
            "1 of 4 nodes attacks",
            DataKind.TEXTS,
            (("Sentiment140", None), ("Sentiment-noniid", DIRICHLET)),
            THREAT_ROWS,
        ),
        Table(
            "table4",
            "Accuracy on Sentiment-noniid with a Gaussian attack (sigma = 1) by honest + "
            "Byzantine nodes",
            DataKind.TEXTS,
            (("Sentiment-noniid", DIRICHLET),),
            rate_rows("gaussian_1"),
        ),
        Table(
            "core",
            "The core of Table 1: FL and DeFL on CIFAR-10, a convolutional network from scratch",
            DataKind.IMAGES,
            (("CIFAR-10", None),),
            tuple(
                row
                for row in THREAT_ROWS
                if row.threat in ("none", "gaussian_1", "sign_flip_2", "label_flip")
            ),
            ("fl", "defl"),
            of_paper="table1",
        ),
    )
}
FIGURES: dict[str, DataKind] = {"figure2": DataKind.IMAGES, "figure3": DataKind.TEXTS}
