"""Tasks, and how a worker carries one out.

The functions are looked up in FUNCTIONS by name. They take bytes and return bytes, and depend on
nothing else than these bytes, the code and the data folder that the bytes name.
"""

import os
import socket
import traceback
from importlib import import_module

import msgspec
from msgspec import Struct

from defl.engine.version import code_version
from defl.errors import DeflError

# Name -> module:function, imported when a worker first needs it: the modules are in layers below,
# and a simulated scenario must not wait for torch.
FUNCTIONS = {
    "paper.cell": "defl.lab.experiments.paper.run:perform_cell",
    "robustness.cell": "defl.lab.experiments.robustness:perform_cell",
    "sim.scenario": "defl.sim.soak:perform_scenario",
}
# Results are figures of a few kilobytes. One that is larger than this holds something else, such as
# weights, and would fill the driver's memory.
RESULT_BYTES_MAX = 64 * 1024 * 1024
ERROR_CHARS_MAX = 4000  # the end of a traceback, where its cause is
# The workers already fill the cores; more threads would slow them down, and may change sums.
ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "CUBLAS_WORKSPACE_CONFIG": ":4096:8",  # for deterministic sums on GPUs
}


class EngineTask(Struct, frozen=True):
    function: str  # a name in FUNCTIONS
    argument: bytes
    name: str  # for people
    measures: str | None = None  # what it measures of its machine, which it then needs for itself


class Order(Struct, frozen=True):
    """A task as a worker gets it."""

    code: str  # the driver's code_version
    function: str
    argument: bytes


class Value(Struct, frozen=True, tag=True):
    value: bytes


class TaskError(Struct, frozen=True, tag=True):
    error: str


class OtherCode(Struct, frozen=True, tag=True):
    """The worker has not run the task: its code is not the driver's."""

    code: str
    host: str


Answer = Value | TaskError | OtherCode
_ANSWERS = msgspec.msgpack.Decoder(Answer)


def order_of(task: EngineTask) -> bytes:
    return msgspec.msgpack.encode(Order(code_version(), task.function, task.argument))


def answer_of(data: bytes) -> Answer:
    answer: Answer = _ANSWERS.decode(data)
    return answer


def perform(data: bytes) -> bytes:
    """Carry out an order; whatever the task raises is its answer."""
    return msgspec.msgpack.encode(_answer(msgspec.msgpack.decode(data, type=Order)))


def _answer(order: Order) -> Answer:
    if order.code != code_version():
        return OtherCode(code_version(), socket.gethostname())
    module, function = FUNCTIONS[order.function].split(":")
    try:
        value = getattr(import_module(module), function)(order.argument)
    except DeflError as error:
        return TaskError(str(error)[-ERROR_CHARS_MAX:])
    except Exception:  # noqa: BLE001 - a task may raise anything; the others go on
        return TaskError(traceback.format_exc().strip()[-ERROR_CHARS_MAX:])
    if len(value) > RESULT_BYTES_MAX:
        return TaskError(f"its result has {len(value)} bytes, more than {RESULT_BYTES_MAX}")
    return Value(value)


def limit_threads() -> None:
    """In the driver and in each worker, before numpy or torch is imported there."""
    for name, value in ENVIRONMENT.items():
        os.environ.setdefault(name, value)
