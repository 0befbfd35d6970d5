"""`defl data`: list and fetch data sets, and show how they are divided among nodes."""

import json
import sys
from pathlib import Path

import click
import numpy as np

from defl.errors import UserError
from defl.lab.datasets.catalogue import DATASETS, dataset_named, fetched, loaded
from defl.lab.datasets.folder import DataMissing
from defl.lab.experiments.partition_plot import plot_partition
from defl.lab.partition import counts, divide

data_option = click.option(
    "--data",
    envvar="DEFL_DATA",
    type=click.Path(path_type=Path, file_okay=False),
    help="The data folder.  [env: DEFL_DATA]",
)


class Bar:
    """A progress bar per file, on stderr, so that stdout holds only the result."""

    def __init__(self) -> None:
        self._name = ""
        self._shown = -1

    def __call__(self, name: str, received: int, total: int) -> None:
        percent = 100 * received // total if total else 0
        if (name, percent) == (self._name, self._shown):
            return
        is_new = name != self._name
        self._name, self._shown = name, percent
        filled = "#" * (percent // 4)
        line = f"\r{name:34} [{filled:25}] {percent:3} %  {received / 1e6:8.1f} MB"
        if sys.stderr.isatty():
            click.echo(line, err=True, nl=received == total)
        elif is_new or received == total:
            click.echo(line.strip(), err=True)


@click.group()
def data() -> None:
    """List, fetch and show the data sets of the experiments."""


@data.command(name="list")
@data_option
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def list_(*, data: Path | None, as_json: bool) -> None:
    """List the data sets that the folder has, and where the others come from.

    \b
    Example:
      defl data list --data ~/data

    Exit code 0: listed.
    """
    if as_json:
        click.echo(json.dumps({name: _paths(name, data) for name in DATASETS}, indent=1))
        return
    for name, dataset in DATASETS.items():
        click.echo(f"{name:14}{dataset.what}")
        if not dataset.sources:
            continue
        paths = _paths(name, data)
        for path in paths:
            click.echo(f"{'':14}there    {path}")
        for source in () if paths else dataset.sources:
            click.echo(f"{'':14}missing  {source.url}")


def _paths(name: str, data: Path | None) -> list[str]:
    """The data set's files, if the folder has all of them."""
    try:
        return [str(path) for path in DATASETS[name].files(data)] if data else []
    except DataMissing:
        return []


@data.command()
@click.argument("names", nargs=-1, required=True, metavar="NAME...")
@data_option
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def fetch(*, names: tuple[str, ...], data: Path | None, as_json: bool) -> None:
    """Download data sets that the folder does not have yet.

    An interrupted download resumes where it stopped. Checksums are compared where the authors have
    published them; Sentiment140 has none, so its rows and columns are counted instead.

    \b
    Example:
      defl data fetch cifar-10 --data ~/data

    Exit code 0: the folder has all of them; 2: one is missing, and the message says why.
    """
    for name in names:
        dataset_named(name)
    if data is None:
        raise UserError("name the data folder: --data FOLDER or DEFL_DATA")
    paths = {name: [str(path) for path in fetched(name, data, Bar())] for name in names}
    lines = [path for files in paths.values() for path in files]
    click.echo(json.dumps(paths, indent=1) if as_json else "\n".join(lines))


@data.command()
@click.argument("name")
@data_option
@click.option("--nodes", default=4, show_default=True, help="Number of nodes to divide it among.")
@click.option("--alpha", type=float, help="Dirichlet parameter, by label.  [default: i.i.d.]")
@click.option("--seed", default=1, show_default=True, help="Seed of the partition.")
@click.option(
    "--out",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Also draw it: a file that ends in .png or .svg.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def show(
    *,
    name: str,
    data: Path | None,
    nodes: int,
    alpha: float | None,
    seed: int,
    out: Path | None,
    as_json: bool,
) -> None:
    """Divide a data set among nodes, and show how many samples of each class each node has.

    \b
    Example:
      defl data show digits --nodes 7 --alpha 1 --out who-has-what.png

    Exit code 0: shown; 2: the data set is missing, and the message says how to get it.
    """
    task = loaded(name, data, Bar())
    parts = divide(task.train_labels, nodes, alpha, np.random.default_rng(seed))
    have = counts(task.train_labels, parts, task.classes)
    classes = dataset_named(name).classes
    kind = "i.i.d." if alpha is None else f"Dirichlet({alpha:g}) by label"
    title = f"{name}, {nodes} nodes, {kind}, seed {seed}"
    if out:
        plot_partition(have, classes, title, out)
    if as_json:
        result = {
            "dataset": name,
            "train": len(task.train_labels),
            "test": len(task.test_labels),
            "classes": classes,
            "test_counts": np.bincount(task.test_labels, minlength=task.classes).tolist(),
            "nodes": have.tolist(),
        }
        click.echo(json.dumps(result, indent=1))
        return
    click.echo(f"{title}; {len(task.train_labels)} to train, {len(task.test_labels)} to test")
    click.echo("".join(f"{head[:10]:>11}" for head in ("", *classes, "all")))
    tests = np.bincount(task.test_labels, minlength=task.classes)
    rows = [*((f"node {i}", row) for i, row in enumerate(have)), ("test", tests)]
    for row_name, row in rows:
        numbers = "".join(f"{number:11}" for number in (*row.tolist(), int(row.sum())))
        click.echo(f"{row_name:>11}{numbers}")
