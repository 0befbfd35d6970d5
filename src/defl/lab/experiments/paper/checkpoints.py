"""Checkpoints inside a cell: what each node has trained is kept until the cell is finished.

A cell's result is a function of its settings and of the code, so an interrupted cell simply runs
again: consensus and aggregation take seconds, and every training that the same code finished before
is read from the disk.
"""

import json
import os
import shutil
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np

from defl.clients.protocol import Client, Metrics, Roles, roles_of
from defl.engine.version import code_version
from defl.ids import NodeId, Round
from defl.lab.datasets.folder import cache_folder
from defl.schema import Weights

METRICS = "metrics.json"  # no entry of a model has this name
CODE = "code.txt"  # which code has trained what is in the folder


class CheckpointFolder:
    """In the cache, named after the cell. What other code has trained is deleted: a result of two
    versions could not be repeated."""

    def __init__(self, key: bytes) -> None:
        self._path = cache_folder() / f"cell-{sha256(key).hexdigest()[:32]}"
        code = self._path / CODE
        if not code.is_file() or code.read_text(encoding="utf-8") != code_version():
            self.remove()
            self._path.mkdir(parents=True, exist_ok=True)
            code.write_text(code_version(), encoding="utf-8")

    def client(self, client: Client, node: NodeId) -> "CheckpointedClient":
        return CheckpointedClient(client, self._path, node)

    def remove(self) -> None:
        shutil.rmtree(self._path, ignore_errors=True)


class CheckpointedClient:
    """Trains once from the same weights in the same round, however often it is asked."""

    def __init__(self, client: Client, folder: Path, node: NodeId) -> None:
        self._client = client
        self._folder = folder
        self._node = node
        self.initial_weights = client.initial_weights
        self.evaluate = client.evaluate

    def roles(self) -> Roles:
        return roles_of(self._client)

    def train(self, weights: Weights, round_: Round, /) -> tuple[Weights, Metrics]:
        path = self._folder / f"{self._node}-{round_}-{_digest(weights)[:32]}.npz"
        if (stored := _read(path)) is not None:
            return stored
        trained, metrics = self._client.train(weights, round_)
        unfinished = path.with_name(f".{os.getpid()}-{path.name}")
        written = np.frombuffer(json.dumps(dict(metrics)).encode(), np.uint8)
        entries: dict[str, Any] = {**trained, METRICS: written}
        with suppress(FileNotFoundError):  # another run has finished the cell
            np.savez(unfinished, **entries)
            unfinished.replace(path)
        return trained, metrics


def _read(path: Path) -> tuple[Weights, Metrics] | None:
    """None: it was not trained yet, or a crash of the machine has truncated the file."""
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as stored:
            arrays = {name: stored[name] for name in stored.files}
        return arrays, json.loads(bytes(arrays.pop(METRICS)))
    except (FileNotFoundError, EOFError, ValueError, KeyError, BadZipFile):
        return None


def _digest(weights: Weights) -> str:
    digest = sha256()
    for name, array in weights.items():
        digest.update(name.encode())
        digest.update(np.ascontiguousarray(array).tobytes())
    return digest.hexdigest()
