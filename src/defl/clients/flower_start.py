"""What a Flower project starts from: its ServerApp, run until it first sends weights to train.

The ServerApp runs in a process of its own, on a Grid that delivers nothing. The first message for
training is written to a file, and the process ends: no part of the ServerApp's strategy runs after
that. A project that needs more than DeFL can give is refused, with the reason.
"""

import defl.clients.no_flower_telemetry  # noqa: F401  # isort: skip

import gc
import itertools
import os
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Iterable
from pathlib import Path
from types import SimpleNamespace, TracebackType
from typing import Any, Never

import flwr
import numpy as np
from flwr.app import ConfigRecord, Message, Metadata, RecordDict
from flwr.clientapp import ClientApp
from flwr.common.constant import MessageTypeLegacy
from flwr.server.strategy import Strategy as LegacyStrategy
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Strategy
from msgspec import Struct, json

from defl.clients.flower_project import (
    PARTITION_KEY,
    PARTITIONS_KEY,
    RUN_ID,
    SECURE_AGGREGATION_REFUSED,
    FlowerStart,
    Project,
    make_context,
    parsed_config,
    read_project,
    read_start,
    write_start,
)
from defl.errors import UserError
from defl.schema import Array

# A ServerApp may load and evaluate a model before it sends anything.
START_S = 600.0
LOG_FILE, REFUSAL_FILE = "serverapp.log", "refusal.txt"
LOG_SHOWN_CHARACTERS = 1500
SERVER_NODE_ID = 1
MESSAGE_TTL_S = 43_200.0
# DeFL does no sampling: a strategy that waits for more nodes than exist is shown enough of them.
PATIENCE_S = 1.0
NODES_SHOWN_MAX = 1000
SECURE_AGGREGATION_KEY = "secaggplus_configs"
PRIVATE_STRATEGIES = ("DifferentialPrivacy", "DPFedAvg")


class StartRequest(Struct, frozen=True):
    project: str
    folder: str  # where the answer is written
    nodes: int
    run_config: str
    node_config: str


def find_start(
    project: Path, folder: Path, *, nodes: int, run_config: str = "", node_config: str = ""
) -> FlowerStart:
    """Run the ServerApp in a process of its own, which writes the start for `read_start`."""
    read_project(project, run_config)  # reports an error in the files at once
    folder.mkdir(parents=True, exist_ok=True)
    place = project.resolve()
    request = StartRequest(str(place), str(folder.resolve()), nodes, run_config, node_config)
    command = (sys.executable, "-P", "-m", "defl.clients.flower_start")
    with (folder / LOG_FILE).open("wb") as log:
        try:
            done = subprocess.run(  # noqa: S603 - our own module
                [*command, json.encode(request).decode()],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=place,
                timeout=START_S,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise UserError(
                f"{project} cannot be run: its ServerApp sent no weights to train for "
                f"{START_S:g} s; the end of its log:\n{_log_end(folder)}"
            ) from None
    if done.returncode != 0:
        raise UserError(_failure(project, folder))
    return read_start(folder)[0]


def _failure(project: Path, folder: Path) -> str:
    refusal = folder / REFUSAL_FILE
    if refusal.exists():
        return refusal.read_text(encoding="utf-8")
    return (
        f"{project} cannot be run: its ServerApp ended its process before it sent weights to "
        f"train:\n{_log_end(folder)}"
    )


def _log_end(folder: Path) -> str:
    log = (folder / LOG_FILE).read_text(encoding="utf-8", errors="replace")
    return log[-LOG_SHOWN_CHARACTERS:]


# --- The process of the ServerApp ----------------------------------------------------------------


class CapturingGrid(Grid):  # type: ignore[misc]  # mypy does not follow flwr
    """Delivers nothing: the first message for training ends the process.

    An exception would not end it: ServerApps send from threads whose errors Flower collects.
    """

    def __init__(self, project: Project, request: StartRequest) -> None:
        self._project = project
        self._request = request
        self._first_query_at: float | None = None
        self._replies: dict[str, Message] = {}
        self._serial = itertools.count(1)
        self._only_one = threading.Lock()

    def set_run(self, run: object) -> None:
        """There is one run only."""

    @property
    def run(self) -> Any:
        return SimpleNamespace(run_id=RUN_ID)

    def create_message(
        self,
        content: RecordDict,
        message_type: str,
        dst_node_id: int,
        group_id: str,
        ttl: float | None = None,
    ) -> Message:
        return new_message(content, message_type, group_id, node_id=dst_node_id, ttl=ttl)

    def get_node_ids(self) -> Iterable[int]:
        now = time.monotonic()
        self._first_query_at = self._first_query_at or now
        waiting = now - self._first_query_at >= PATIENCE_S
        count = max(self._request.nodes, NODES_SHOWN_MAX) if waiting else self._request.nodes
        return [node_id_of(number) for number in range(count)]

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        names = []
        for message in messages:
            names.append(str(next(self._serial)))
            self._replies[names[-1]] = self._reply(message)
        return names

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        return [self._replies.pop(name) for name in message_ids if name in self._replies]

    def send_and_receive(
        self,
        messages: Iterable[Message],
        *,
        timeout: float | None = None,  # noqa: ARG002 - Flower's signature
    ) -> Iterable[Message]:
        return [self._reply(message) for message in messages]

    def _reply(self, message: Message) -> Message:
        kind = message.metadata.message_type
        if kind.split(".")[0] == "train":
            self._capture(message)
        if kind != MessageTypeLegacy.GET_PARAMETERS:
            refuse(
                self._project.folder,
                f"its ServerApp sends a message of type {kind!r} and needs the nodes' replies "
                "before it sends weights to train; DeFL has no server to collect them",
            )
        return first_client_reply(self._project, self._request, message)

    def _capture(self, message: Message) -> Never:
        self._only_one.acquire()  # never released: this ends the process
        content, folder = message.content, self._project.folder
        if SECURE_AGGREGATION_KEY in content.config_records:
            refuse(folder, SECURE_AGGREGATION_REFUSED)
        if len(content.array_records) != 1:
            refuse(
                folder,
                f"its ServerApp first sends {len(content.array_records)} array records for "
                "training; DeFL trains one model, from one record of arrays",
            )
        (key,) = content.array_records
        write(self._project, self._request, message.metadata.message_type, key, content)
        sys.stdout.flush()
        os._exit(0)


def write(
    project: Project, request: StartRequest, message_type: str, key: str, content: RecordDict
) -> None:
    record = content.array_records[key]
    named = [(name, array.numpy()) for name, array in record.items() if array.data]
    if not named:
        refuse(
            project.folder,
            "it has no initial weights: neither the strategy (initial_parameters) nor the client "
            "(get_parameters) gives them; add one of the two",
        )
    arrays: list[Array] = [array for _, array in named]
    if not any(np.issubdtype(array.dtype, np.floating) for array in arrays):
        refuse(
            project.folder,
            "none of its arrays holds floats; DeFL's rules aggregate arrays of floats, not trees, "
            "for example",
        )
    start = FlowerStart(
        message_type=message_type,
        arrays_key=key,
        configs={name: dict(config) for name, config in content.config_records.items()},
        names=tuple(name for name, _ in named),
        strategies=strategies(project.folder),
        rounds=project.rounds,
        flwr=flwr.__version__,
    )
    write_start(Path(request.folder), start, arrays)


def strategies(folder: Path) -> tuple[str, ...]:
    """The classes of all live strategy objects, since a ServerApp need not expose its own."""
    kinds = {type(thing) for thing in gc.get_objects()}
    used = [kind for kind in kinds if issubclass(kind, Strategy | LegacyStrategy)]
    for kind in used:
        if any(parent.__name__.startswith(PRIVATE_STRATEGIES) for parent in kind.__mro__):
            refuse(
                folder,
                f"its strategy is {kind.__name__}, which adds the noise of differential privacy "
                "at the server; DeFL has none, and would train without that protection",
            )
    return tuple(sorted(kind.__name__ for kind in used))


def first_client_reply(project: Project, request: StartRequest, message: Message) -> Message:
    """The reply of partition 0's client; Flower would ask a random client."""
    partition = {PARTITION_KEY: 0, PARTITIONS_KEY: request.nodes}
    config = {**partition, **parsed_config(request.node_config)}
    return project.client_app()(message, make_context(project, config, node_id_of(0)))


def new_message(
    content: RecordDict,
    message_type: str,
    group_id: str,
    *,
    node_id: int,
    ttl: float | None = None,
) -> Message:
    """Built from its metadata: Flower refuses the short constructor outside its own processes."""
    metadata = Metadata(
        run_id=RUN_ID,
        message_id=f"{message_type}-{group_id}",
        src_node_id=SERVER_NODE_ID,
        dst_node_id=node_id,
        reply_to_message_id="",
        group_id=group_id,
        created_at=time.time(),
        ttl=ttl or MESSAGE_TTL_S,
        message_type=message_type,
    )
    return Message(content=content, metadata=metadata)


def node_id_of(number: int) -> int:
    return SERVER_NODE_ID + 1 + number


def refuse(folder: Path, reason: str) -> Never:
    _end(f"{folder} cannot be run: {reason}")


def _end(sentence: str) -> Never:
    request = json.decode(sys.argv[1], type=StartRequest)
    (Path(request.folder) / REFUSAL_FILE).write_text(sentence, encoding="utf-8")
    sys.stdout.flush()
    os._exit(2)


def _claim_identity() -> None:
    """Newer strategies use the short constructor of messages, which needs a task identity."""
    try:
        from flwr.supercore.task_identity import TaskIdentity  # noqa: PLC0415 - newer releases only
    except ImportError:
        return
    TaskIdentity.task_id = 1
    TaskIdentity.run_id = RUN_ID
    TaskIdentity.node_id = SERVER_NODE_ID


def has_training(app: ClientApp) -> bool:
    """Whether the app has a client_fn, or a function for some kind of training."""
    if getattr(app, "_call", None) is not None:
        return True
    return any(name.startswith("train.") for name in getattr(app, "_registered_funcs", {}))


def _from_client(project: Project, request: StartRequest) -> None:
    """Without a ServerApp, only a NumPyClient can give initial weights."""
    if getattr(project.client_app(), "_call", None) is None:
        refuse(
            project.folder,
            "its pyproject.toml names no ServerApp, and a ClientApp of the Message API has no "
            "initial weights of its own; add serverapp to [tool.flwr.app.components]",
        )
    content = RecordDict({"getparametersins.config": ConfigRecord()})
    query = new_message(content, MessageTypeLegacy.GET_PARAMETERS, "0", node_id=node_id_of(0))
    reply = first_client_reply(project, request, query)
    content = RecordDict({"fitins.config": ConfigRecord()})
    content["fitins.parameters"] = reply.content.array_records["getparametersres.parameters"]
    write(project, request, "train", "fitins.parameters", content)


def main() -> None:
    request = json.decode(sys.argv[1], type=StartRequest)
    folder = Path(request.project)
    project = read_project(folder, request.run_config)
    doing = f"importing its ClientApp {project.client_ref!r} failed"

    def report(
        kind: type[BaseException], error: BaseException, trace: TracebackType | None
    ) -> None:
        traceback.print_exception(kind, error, trace)
        if isinstance(error, UserError):
            _end(str(error))
        summary = "".join(traceback.format_exception_only(error)).strip()
        frames = traceback.extract_tb(trace)
        own = [frame for frame in frames if frame.filename.startswith(str(folder))]
        place = f" ({own[-1].filename}, line {own[-1].lineno})" if own else ""
        refuse(
            folder, f"{doing}: {summary}{place}; the traceback is in {request.folder}/{LOG_FILE}"
        )

    sys.excepthook = report
    client_app = project.client_app()
    if not has_training(client_app):
        refuse(folder, f"its ClientApp {project.client_ref!r} has no train function")
    doing = f"importing its ServerApp {project.server_ref!r} failed"
    server_app = project.server_app()
    if server_app is None:
        doing = "its client failed to give the initial weights"
        _from_client(project, request)
        return
    doing = "its ServerApp failed before it sent weights to train"
    _claim_identity()
    server_app(CapturingGrid(project, request), make_context(project, {}, SERVER_NODE_ID))
    refuse(folder, "its ServerApp ended without sending weights to train")


if __name__ == "__main__":
    main()
