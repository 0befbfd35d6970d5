"""`keep_best`: the best model by this node's evaluation is kept, with its certificate."""

import asyncio
import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from defl.errors import LocalFault
from defl.ids import Digest, Round
from defl.node.report.best_model import BEST, BEST_CERTIFICATE, BEST_LOCAL, BestModel
from defl.node.report.model_file import read_metadata, shared_row
from defl.work import model_blob
from support.builders import Small
from support.logs import log_to

SMALL = Small(real=False)


class Folder:
    """A node's folder, blobs of models whose values all equal the round number, and a log."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.local = folder / "client-local.npz"
        self.stream = io.StringIO()
        self.payloads: dict[Digest, Any] = {}

    def read(self, digest: Digest) -> Any:
        if digest not in self.payloads:
            raise LocalFault("no such blob")
        return self.payloads[digest]

    def digest(self, round_: int) -> Digest:
        row = np.full(SMALL.federation.schema.values, round_, dtype=np.float32)
        manifest, payload = model_blob(SMALL.federation, row)
        self.payloads[manifest.digest] = payload
        return manifest.digest

    def best(self, keep_best: str = "accuracy") -> BestModel:
        log = log_to(self.stream)
        return BestModel(self.folder, keep_best, SMALL.federation, self, self.local, log)  # type: ignore[arg-type]

    @property
    def kept(self) -> tuple[int, set[float]]:
        """The round that the file names, and the values in it."""
        row, metadata = shared_row(self.folder / BEST, SMALL.federation.schema)
        return int(metadata["round"]), set(row.tolist())

    @property
    def certificate(self) -> str | None:
        path = self.folder / BEST_CERTIFICATE
        return path.read_text(encoding="utf-8") if path.exists() else None

    def logged(self, event: str) -> list[dict[str, Any]]:
        lines = [json.loads(line) for line in self.stream.getvalue().splitlines()]
        return [line for line in lines if line["event"].startswith(event)]


@pytest.fixture
def node(tmp_path: Path) -> Folder:
    return Folder(tmp_path)


def evaluate(node: Folder, best: BestModel, values: dict[int, float], name: str) -> None:
    for round_, value in values.items():
        asyncio.run(best.evaluated(Round(round_), node.digest(round_), {name: value}))


@pytest.mark.parametrize(
    ("keep_best", "metric", "round_"), [("accuracy", "accuracy", 2), ("-loss", "loss", 3)]
)
def test_best_is_the_highest_value_or_with_a_minus_the_lowest_and_ties_keep_the_earlier(
    node: Folder, keep_best: str, metric: str, round_: int
) -> None:
    values = {1: 0.5, 2: 0.9, 3: 0.2, 4: 0.9, 5: 0.2, 6: float("nan"), 7: float("inf"), 8: 0.3}
    if keep_best.startswith("-"):
        values[7] = -float("inf")

    evaluate(node, node.best(keep_best), values, metric)

    assert node.kept == (round_, {float(round_)})
    assert list(node.folder.glob("*.safetensors")) == [node.folder / BEST]


def test_a_restarted_node_replaces_its_best_model_only_by_a_better_one(node: Folder) -> None:
    evaluate(node, node.best(), {3: 0.9}, "accuracy")
    evaluate(node, node.best(), {4: 0.8}, "accuracy")
    assert node.kept[0] == 3

    evaluate(node, node.best(), {5: 0.95}, "accuracy")
    assert node.kept[0] == 5


def test_a_change_of_metric_discards_the_previous_best(node: Folder) -> None:
    evaluate(node, node.best(), {3: 0.9}, "accuracy")
    evaluate(node, node.best("-loss"), {4: 5.0}, "loss")

    assert node.kept[0] == 4
    assert read_metadata(node.folder / BEST)["keep_best"] == "-loss"


def test_a_certificate_comes_before_or_after_the_evaluation_of_its_round(node: Folder) -> None:
    best = node.best()
    asyncio.run(best.proven(node.digest(1), "first"))
    evaluate(node, best, {1: 0.5}, "accuracy")
    assert node.certificate == "first"

    evaluate(node, best, {2: 0.6}, "accuracy")
    assert node.certificate is None, "round 1's certificate proves nothing about round 2"
    asyncio.run(best.proven(node.digest(2), "second"))
    assert node.certificate == "second"

    asyncio.run(best.proven(node.digest(3), "third"))
    evaluate(node, best, {3: 0.1}, "accuracy")
    assert node.certificate == "second"


def test_a_certificate_that_comes_after_a_restart_is_kept(node: Folder) -> None:
    evaluate(node, node.best(), {2: 0.6}, "accuracy")

    asyncio.run(node.best().proven(node.digest(2), "second"))

    assert node.certificate == "second"


def test_certificates_waiting_for_an_evaluation_are_bounded(node: Folder) -> None:
    best = node.best()
    for round_ in range(100):
        asyncio.run(best.proven(node.digest(round_), str(round_)))

    evaluate(node, best, {90: 0.1, 99: 0.5}, "accuracy")
    assert node.certificate == "99"
    evaluate(node, best, {90: 0.9}, "accuracy")
    assert node.certificate is None


def test_the_local_entries_of_the_evaluation_are_kept(node: Folder) -> None:
    best = node.best()
    node.local.write_bytes(b"then")
    evaluate(node, best, {1: 0.5}, "accuracy")
    node.local.write_bytes(b"later")
    evaluate(node, best, {2: 0.4}, "accuracy")

    assert (node.folder / BEST_LOCAL).read_bytes() == b"then"


def test_a_metric_that_evaluate_does_not_return_is_named_once(node: Folder) -> None:
    evaluate(node, node.best("accuracy"), {1: 0.5, 2: 0.6}, "loss")

    (line,) = node.logged("no best model is kept")
    assert (line["keep_best"], line["returned"]) == ("accuracy", "loss")


def test_a_model_that_cannot_be_written_is_reported_and_the_next_one_is_tried(
    node: Folder,
) -> None:
    best = node.best()
    (node.folder / BEST).mkdir()
    evaluate(node, best, {1: 0.9}, "accuracy")
    (node.folder / BEST).rmdir()
    evaluate(node, best, {2: 0.8}, "accuracy")

    assert [line["what"] for line in node.logged("not written")] == [BEST]
    assert node.kept[0] == 2
