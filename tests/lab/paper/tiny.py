"""A table and a setting so small that its cells take moments; the digits come with the package."""

from defl.lab.experiments.paper.report import TablePart
from defl.lab.experiments.paper.settings import (
    DIRICHLET,
    DataKind,
    Scale,
    Setting,
    Table,
    rate_rows,
)
from defl.lab.models.learning import Learning

LEARNING = Learning("digits", "mlp-32", "rmsprop", 1e-2, batch=8, steps=4, test_samples=200)
SETTING = Setting(LEARNING, 3, 2, "multi_krum", costs_rounds=1, costs_steps=1)
TABLE = Table(
    "table2",
    "the digits",
    DataKind.IMAGES,
    (("CIFAR-noniid", DIRICHLET),),
    rate_rows("sign_flip_2")[:2],
)


def tiny_table(repeats: int = 1) -> TablePart:
    return TablePart("table2", Scale.QUICK, SETTING, repeats, TABLE)
