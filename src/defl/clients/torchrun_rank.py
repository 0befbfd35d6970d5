"""One of several processes under torchrun that together train one organisation's model.

Rank 0 talks to the node (torchrun.py) and broadcasts its requests. All processes train from the
same weights, each on its own part of the organisation's data.
"""

import contextlib
import json
import os
import queue
import socket
import threading
import traceback
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import distributed as dist

from defl.clients.arrays_file import read_arrays, write_arrays
from defl.clients.protocol import Client, roles_of
from defl.clients.torchrun import ANSWER_ARRAYS, FOLDER_VARIABLE, REQUEST_ARRAYS, SOCKET
from defl.errors import UserError
from defl.ids import Round
from defl.schema import Array

# A round may stay open for days, and the other ranks wait for the next one all that time.
IDLE_TIME_MAX = timedelta(days=365)

STOP, TRAIN, EVALUATE = range(3)


def serve(make_client: Callable[[], Client], *, backend: str | None = None) -> None:
    """Join torchrun's group and train with it until the node ends.

    Each process calls `make_client` after the group is initialised, so `make_client` may ask
    `torch.distributed` for its rank and load its part of the data.
    """
    if "RANK" not in os.environ:
        raise UserError("torchrun starts this script; name it in a TorchrunClient")
    dist.init_process_group(backend or ("nccl" if torch.cuda.is_available() else "gloo"))
    try:
        group = dist.new_group(backend="gloo", timeout=IDLE_TIME_MAX)
        client = make_client()
        if dist.get_rank() == 0:
            _lead(client, group)
        else:
            _follow(client, group)
    finally:
        dist.destroy_process_group()


def _follow(client: Client, group: Any) -> None:
    arrays = {name: np.array(array) for name, array in client.initial_weights().items()}
    while True:
        request = torch.zeros(2, dtype=torch.int64)
        dist.broadcast(request, 0, group=group)
        kind, round_ = request.tolist()
        if kind == STOP:
            return
        _broadcast(arrays, group)
        _run(client, kind, arrays, Round(round_))


def _run(
    client: Client, kind: int, arrays: dict[str, Array], round_: Round
) -> tuple[dict[str, Array] | None, dict[str, float]]:
    """Runs in all processes at once."""
    weights = {name: array.copy() for name, array in arrays.items()}
    if kind == EVALUATE:
        return None, dict(client.evaluate(weights))
    trained, metrics = client.train(weights, round_)
    return dict(trained), dict(metrics)


def _broadcast(arrays: dict[str, Array], group: Any) -> None:
    """Overwrite every rank's arrays with the values of rank 0."""
    for array in arrays.values():
        dist.broadcast(torch.from_numpy(array), 0, group=group)


def _lead(client: Client, group: Any) -> None:
    if FOLDER_VARIABLE not in os.environ:
        raise UserError("rank 0 belongs on the node's machine: give --node-rank=0 there")
    folder = Path(os.environ[FOLDER_VARIABLE])
    with socket.socket(socket.AF_UNIX) as channel:
        channel.connect(str(folder / SOCKET))
        requests = _Requests(channel)
        while (request := requests.next()) is not None:
            with contextlib.ExitStack() as failing:  # the error ends this rank, torchrun the others
                failing.push(partial(_send_error, channel))
                answer = _answer(client, group, folder, request)
            _send(channel, answer)
    dist.broadcast(torch.tensor([STOP, 0]), 0, group=group)


def _send_error(channel: socket.socket, _: object, error: BaseException | None, __: object) -> None:
    if error is not None:
        _send(channel, {"error": "".join(traceback.format_exception(error))})


def _answer(client: Client, group: Any, folder: Path, request: dict[str, Any]) -> dict[str, Any]:
    if request["do"] == "initial":
        write_arrays(folder / ANSWER_ARRAYS, client.initial_weights())
        return {"roles": dict(roles_of(client))}
    kind = TRAIN if request["do"] == "train" else EVALUATE
    received = read_arrays(folder / REQUEST_ARRAYS)
    arrays = {name: np.array(received[name]) for name in client.initial_weights()}
    dist.broadcast(torch.tensor([kind, request["round"]]), 0, group=group)
    _broadcast(arrays, group)
    trained, metrics = _run(client, kind, arrays, Round(request["round"]))
    if trained is not None:
        write_arrays(folder / ANSWER_ARRAYS, trained)
    return {"metrics": metrics}


def _send(channel: socket.socket, answer: dict[str, Any]) -> None:
    channel.sendall(json.dumps(answer).encode() + b"\n")


class _Requests:
    """The node's requests, read in a thread: when the node ends, this process ends too, even in
    the middle of a training."""

    def __init__(self, channel: socket.socket) -> None:
        self._queue: queue.Queue[dict[str, Any] | None] = queue.Queue()
        self._busy = threading.Event()
        self._lines = channel.makefile("r", encoding="utf-8")
        threading.Thread(target=self._read, daemon=True).start()

    def next(self) -> dict[str, Any] | None:
        self._busy.clear()
        request = self._queue.get()
        self._busy.set()
        return request

    def _read(self) -> None:
        for line in self._lines:
            self._queue.put(json.loads(line))
        self._queue.put(None)
        if self._busy.is_set():
            os._exit(1)
