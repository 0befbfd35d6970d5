"""The engine on a Ray cluster: each task is one remote call, bytes in and bytes out.

The cluster is shared with others and comes from `ray start`; this process only joins it.
"""

import logging
import os
import re
import socket
from collections.abc import Generator, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from defl.clients.extras import install_command
from defl.engine.book import Attempt, Engine, Outcome, TaskBook
from defl.engine.tasks import EngineTask, limit_threads, order_of, perform
from defl.errors import UserError

# Read by Ray when it is imported.
ENVIRONMENT = {
    "RAY_USAGE_STATS_ENABLED": "0",  # nothing is reported to anybody
    # Another service at the address is noticed within seconds instead of minutes.
    "RAY_NUM_REDIS_GET_RETRIES": "1",
    "RAY_py_gcs_connect_timeout_s": "5",
}
REACH_S = 5.0  # a cluster's head answers at once or not at all
# As many tasks again wait at the cluster as it can run, so that no worker waits for the driver.
WAITING_PER_SLOT = 1
ADDRESS = re.compile(r"(?P<host>[^:/]+):(?P<port>\d{1,5})")


def perform_on_ray(order: bytes) -> bytes:
    """In a worker. Ray passes on the name of this function, not its code."""
    limit_threads()
    return perform(order)


class RayEngine:
    def __init__(self, ray: Any, gpus_per_task: float) -> None:
        self._ray = ray
        self._gpus = gpus_per_task
        # Ray would also repeat what failed; the book decides that.
        self._remote = ray.remote(perform_on_ray).options(
            num_cpus=1, num_gpus=gpus_per_task, max_retries=0
        )

    def check(self, tasks: Iterable[EngineTask]) -> None:
        """A cluster is shared: others' work would be measured too."""
        for task in tasks:
            if task.measures is not None:
                raise UserError(
                    f"a cell that measures {task.measures} needs a machine to itself, and a Ray "
                    f"cluster is shared. Run it with --engine processes:\n{task.name}"
                )

    def run(self, tasks: Iterable[EngineTask]) -> Generator[Outcome]:
        book = TaskBook(tasks)
        running: dict[Any, Attempt] = {}  # by the reference to its answer
        try:
            while True:
                while len(running) < self._room() and (attempt := book.next()) is not None:
                    self.check([attempt.task])
                    running[self._remote.remote(order_of(attempt.task))] = attempt
                if not running:
                    return
                for reference in self._ray.wait(list(running))[0]:
                    outcome = self._outcome(book, running.pop(reference), reference)
                    if outcome is not None:
                        yield outcome
        finally:
            for reference in running:
                self._ray.cancel(reference, force=True)

    def _room(self) -> int:
        """How many tasks the cluster may have at present; machines come and go."""
        resources = self._ray.cluster_resources()
        slots = resources.get("CPU", 0)
        if self._gpus:
            slots = min(slots, resources.get("GPU", 0) / self._gpus)
        return max(1, int(slots)) * (1 + WAITING_PER_SLOT)

    def _outcome(self, book: TaskBook, attempt: Attempt, reference: Any) -> Outcome | None:
        errors = self._ray.exceptions
        try:
            answer = self._ray.get(reference)
        except errors.RayTaskError as error:  # an error of a task is an answer: this is another
            raise UserError(
                "a worker of the cluster cannot run tasks of this version of defl; install the "
                f"same version on each machine. What is finished is stored.\n{error}"
            ) from error
        except errors.RayError as error:
            return book.lost(attempt, str(error))
        return book.answered(attempt, answer)


@contextmanager
def joined(address: str | None, gpus_per_task: float) -> Iterator[Engine]:
    """The cluster whose head is at this address; None: the one that this machine belongs to."""
    os.environ.update(ENVIRONMENT)
    try:
        import ray  # noqa: PLC0415 - slow, extra
    except ImportError as error:
        raise UserError(f"--engine ray needs Ray: {install_command('ray')}") from error
    address = address or os.environ.get("RAY_ADDRESS")
    if address is not None:
        _require_reachable(address)
    try:
        # Standard output is for the driver's results, so workers' prints stay in their logs.
        ray.init(address=address or "auto", log_to_driver=False, logging_level=logging.WARNING)
    except (ConnectionError, RuntimeError, ValueError) as error:
        raise UserError(
            f"this machine cannot join the Ray cluster ({address or 'no address was given'}): "
            f"{error}\nStart Ray on this machine too: ray start --head, or ray start "
            "--address HOST:PORT to join another's."
        ) from error
    try:
        # Ray would wait for such a machine without end.
        alive = [node["Resources"] for node in ray.nodes() if node["Alive"]]
        if max(resources.get("GPU", 0) for resources in alive) < gpus_per_task:
            raise UserError(f"no machine of the cluster has {gpus_per_task:g} GPUs for one cell")
        yield RayEngine(ray, gpus_per_task)
    finally:
        ray.shutdown()


def _require_reachable(address: str) -> None:
    """Ray itself would try for longer, and say less."""
    parts = ADDRESS.fullmatch(address)
    if parts is None:
        raise UserError(f"the address of a Ray cluster is HOST:PORT, not {address!r}")
    try:
        socket.create_connection((parts["host"], int(parts["port"])), REACH_S).close()
    except (OSError, OverflowError) as error:
        raise UserError(
            f"no Ray cluster answers at {address} ({error}). `ray start --head` prints the address."
        ) from error
