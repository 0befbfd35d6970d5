"""An unmodified Flower ClientApp as a client of DeFL: no SuperLink, no server, no Ray.

Each training is one message to the app: the content that the project's ServerApp would have sent
in its first round (flower_project.py, `Start`), with the agreed arrays and the round's number. The
app's `context.state` lives as long as the process. Message API and NumPyClient differ in the names
of records only.
"""

import defl.clients.no_flower_telemetry  # noqa: F401  # isort: skip

import os
import tempfile
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path

import numpy as np
from flwr.app import Array as FlowerArray
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp

from defl.clients.flower_project import (
    PARTITION_KEY,
    PARTITIONS_KEY,
    FlowerStart,
    Project,
    UserConfig,
    make_context,
    parsed_config,
    read_project,
    read_start,
)
from defl.clients.flower_start import find_start, new_message, node_id_of
from defl.clients.protocol import Metrics, Roles
from defl.errors import UserError
from defl.ids import Round
from defl.schema import Array, Role, Weights

# Environment variables of a node's process, in place of the options of `flwr run` and SuperNodes.
DEFL_FLOWER_START = "DEFL_FLOWER_START"  # folder with the project's start; if unset, it is captured
DEFL_FLOWER_RUN_CONFIG = "DEFL_FLOWER_RUN_CONFIG"
DEFL_FLOWER_NODE_CONFIG = "DEFL_FLOWER_NODE_CONFIG"

STATISTICS = {".running_mean": Role.STATISTIC, ".running_var": Role.VARIANCE}
LEGACY_TRAIN, LEGACY_EVALUATE = "fitins.", "evaluateins."
EXAMPLES_KEYS = ("num-examples", "num_examples")  # of the Message API, and of a NumPyClient
# Strategies send the round under these names; a 1 in the first message is replaced by the round.
ROUND_KEYS = ("server-round", "server_round", "current-round", "current_round", "round", "rnd")


def client() -> "FlowerClient":
    """The Flower project in the current folder, as this process's environment describes it."""
    return FlowerClient(Path.cwd(), os.environ)


class FlowerClient:
    def __init__(self, folder: Path, environment: Mapping[str, str]) -> None:
        self._folder = folder
        self._environment = environment
        self._number = int(environment.get("DEFL_NODE", "0"))
        self._round = Round(0)
        self._suggested = False
        self._dtypes = {name: array.dtype for name, array in self._start[1].items()}

    def initial_weights(self) -> Weights:
        return {name: shareable(array) for name, array in self._start[1].items()}

    def roles(self) -> Roles:
        """Batch norm's statistics, recognised by PyTorch's names for them."""
        return {
            name: role
            for name, dtype in self._dtypes.items()
            for suffix, role in STATISTICS.items()
            if name.endswith(suffix) and np.issubdtype(dtype, np.floating)
        }

    def train(self, weights: Weights, round_: Round) -> tuple[Weights, Metrics]:
        self._round = round_
        reply = self._ask(self._start[0].message_type, weights, LEGACY_TRAIN)
        records = list(reply.array_records.values())
        if len(records) != 1:
            raise UserError(
                f"the ClientApp answered 'train' with {len(records)} array records; "
                "return the trained arrays as one ArrayRecord"
            )
        trained = {
            name: shareable(array.numpy()) for name, array in records[0].items() if array.data
        }
        metrics = numbers(reply)
        self._suggest_weight(metrics)
        return trained, metrics

    def _suggest_weight(self, metrics: Metrics) -> None:
        """Once, in the log: the number of examples is the app's claim, and weighs nothing."""
        count = next((metrics[name] for name in EXAMPLES_KEYS if name in metrics), None)
        if count is not None and not self._suggested:
            self._suggested = True
            print(  # noqa: T201 - the client's output is its log
                f"This site trained on {count:,.0f} examples. How much it counts is its agreed "
                "weight (defl federation show), whatever it reports. To weigh by size, agree on "
                "weights: defl federation create --weight NAME=N.",
                flush=True,
            )

    def evaluate(self, weights: Weights) -> Metrics:
        return numbers(self._ask("evaluate", weights, LEGACY_EVALUATE))

    def _ask(self, message_type: str, weights: Weights, legacy: str) -> RecordDict:
        start = self._start[0]
        arrays = {
            name: FlowerArray(np.asarray(weights[name]).astype(dtype, copy=False))
            for name, dtype in self._dtypes.items()
        }
        content = RecordDict({start.arrays_key.replace(LEGACY_TRAIN, legacy): ArrayRecord(arrays)})
        for key, config in start.configs.items():
            content[key.replace(LEGACY_TRAIN, legacy)] = ConfigRecord(
                {
                    name: int(self._round) if name in ROUND_KEYS and value == 1 else value
                    for name, value in config.items()
                }
            )
        message = new_message(
            content, message_type, str(self._round), node_id=node_id_of(self._number)
        )
        reply: object = self._app(message, self._context)
        return _content_of(reply, message_type)

    @cached_property
    def _start(self) -> tuple[FlowerStart, dict[str, Array]]:
        folder = self._environment.get(DEFL_FLOWER_START)
        if folder:
            return read_start(Path(folder))
        with tempfile.TemporaryDirectory(prefix="defl-flower-") as temporary:
            find_start(
                self._folder,
                Path(temporary),
                nodes=int(self._environment.get("DEFL_NODES", "4")),
                run_config=self._environment.get(DEFL_FLOWER_RUN_CONFIG, ""),
                node_config=self._environment.get(DEFL_FLOWER_NODE_CONFIG, ""),
            )
            return read_start(Path(temporary))

    @cached_property
    def _project(self) -> Project:
        return read_project(self._folder, self._environment.get(DEFL_FLOWER_RUN_CONFIG, ""))

    @cached_property
    def _app(self) -> ClientApp:
        return self._project.client_app()

    @cached_property
    def _context(self) -> Context:  # one for all messages, since its state is the app's memory
        return make_context(self._project, node_config(self._environment), node_id_of(self._number))


def node_config(environment: Mapping[str, str]) -> UserConfig:
    """The partition that `defl run` assigns to this node, and the organisation's own settings."""
    config: UserConfig = {}
    if "DEFL_NODE" in environment and "DEFL_NODES" in environment:
        config[PARTITION_KEY] = int(environment["DEFL_NODE"])
        config[PARTITIONS_KEY] = int(environment["DEFL_NODES"])
    return {**config, **parsed_config(environment.get(DEFL_FLOWER_NODE_CONFIG, ""))}


def shareable(array: Array) -> Array:
    """The array in a schema dtype: floats are shared as float32, integers stay local.

    The app receives its own dtypes again. A value beyond float32 becomes infinite, which the client
    protocol refuses by the entry's name.
    """
    if np.issubdtype(array.dtype, np.floating):
        with np.errstate(over="ignore"):
            return array.astype(np.float32)
    if np.issubdtype(array.dtype, np.integer):
        return array.astype(np.int64)
    return array


def _content_of(reply: object, message_type: str) -> RecordDict:
    if not isinstance(reply, Message):
        raise UserError(
            f"the ClientApp answered {message_type!r} with a {type(reply).__name__}; "
            "end the function with `return Message(content=..., reply_to=message)`"
        )
    if reply.has_error():
        raise UserError(f"the ClientApp answered {message_type!r} with an error: {reply.error}")
    for key, status in reply.content.config_records.items():
        if key.endswith("res.status") and status.get("code") != 0:
            raise UserError(f"the Flower client cannot {message_type}: {status['message']}")
    return reply.content


def numbers(content: RecordDict) -> dict[str, float]:
    """The numbers among the metrics; those of a NumPyClient are in a config record."""
    records = list(content.metric_records.values())
    records += [c for key, c in content.config_records.items() if key.endswith("res.metrics")]
    return {
        name: float(value)
        for record in records
        for name, value in record.items()
        if isinstance(value, int | float) and not isinstance(value, bool)
    }
