"""A client's initial weights and its labels' classes, computed in a child process.

The weights are needed once, to create a federation; the classes are for `defl node check`. The
user's code may import a learning framework, print or crash, and none of that should happen in the
calling process.
"""

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType

from defl.clients.arrays_file import read_arrays, write_arrays
from defl.clients.protocol import Roles, checked_arrays, class_counts_of, roles_of
from defl.errors import UserError
from defl.node.work.user_code import LOAD_S, load_client, reason_of
from defl.schema import Array

ROLES = "roles.json"
ARRAYS = "weights.npz"
COUNTS = "counts.json"


def first_weights(
    client: str, project: Path, environment: Mapping[str, str]
) -> tuple[dict[str, Array], Roles]:
    """The client's `initial_weights` and `roles`; if it fails, a UserError with its traceback."""
    with _loaded(client, project, environment) as folder:
        roles: Roles = json.loads((folder / ROLES).read_text(encoding="utf-8"))
        return read_arrays(folder / ARRAYS), roles


def class_counts(client: str, project: Path, environment: Mapping[str, str]) -> list[int]:
    """Return the client's training labels of each class; empty if it does not say."""
    with _loaded(client, project, environment) as folder:
        counts: list[int] = json.loads((folder / COUNTS).read_text(encoding="utf-8"))
        return counts


@contextmanager
def _loaded(client: str, project: Path, environment: Mapping[str, str]) -> Iterator[Path]:
    """Load the client in a child; the yielded folder has what the child wrote about it."""
    if not project.is_dir():
        raise UserError(f"{project}: no such folder; name the one that holds your training code")
    with tempfile.TemporaryDirectory(prefix="defl-first-") as folder:
        try:
            done = subprocess.run(  # noqa: S603 - our own module
                [sys.executable, "-P", "-m", "defl.node.work.first_weights", client, ".", folder],
                cwd=project,
                env=dict(environment),
                capture_output=True,
                text=True,
                errors="replace",
                timeout=LOAD_S,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise UserError(
                f"{client}: its initial weights took longer than {LOAD_S:g} s"
            ) from None
        if done.returncode != 0:
            why = done.stderr.strip() or f"its process ended with status {done.returncode}"
            raise UserError(f"{client} gives no initial weights: {why}")
        yield Path(folder)


def _report(_: type[BaseException], error: BaseException, __: TracebackType | None) -> None:
    sys.stderr.write(reason_of(error))


def main() -> None:
    """The child's side."""
    sys.excepthook = _report
    spec, project, folder = sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3])
    client = load_client(spec, project)
    weights = checked_arrays(client.initial_weights(), "initial_weights")
    (folder / ROLES).write_text(json.dumps(dict(roles_of(client))), encoding="utf-8")
    (folder / COUNTS).write_text(json.dumps([*class_counts_of(client)]), encoding="utf-8")
    write_arrays(folder / ARRAYS, weights)


if __name__ == "__main__":
    main()
