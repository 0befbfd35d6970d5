"""An organisation's client, "module:attribute" in its project folder: loading it, its errors."""

import importlib
import os
import sys
import traceback
from functools import reduce
from pathlib import Path
from typing import cast

import defl
from defl.clients.extras import install_command
from defl.clients.protocol import Client
from defl.errors import DeflError, UserError

# Enough to import a learning framework from a cold disk.
LOAD_S = 120.0
# Of a traceback; with it, an answer stays a small frame.
REASON_CHARACTERS_MAX = 8000
METHODS = ("initial_weights", "train", "evaluate")
# Modules of the ready-made clients, and the extra that installs each.
EXTRAS = {"torch": "torch", "sklearn": "sklearn", "flwr": "flower"}


def load_client(spec: str, project: Path) -> Client:
    """The named object, or the result of calling it if it is a class or a function."""
    module_name, colon, attribute = spec.partition(":")
    if not (module_name and colon and attribute):
        raise UserError(
            f"{spec!r} is not a client: write module:attribute, for example task:client"
        )
    if not project.is_dir():
        raise UserError(f"{project}: no such folder; name the one that holds {module_name}.py")
    folder = str(project.resolve())
    if folder not in sys.path:
        sys.path.insert(0, folder)
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        raise UserError(
            f"{spec!r}: no module named {error.name!r} in {folder} or among the installed packages"
            f"{_how_to_install(error.name)}"
        ) from error
    try:
        client: object = reduce(getattr, attribute.split("."), cast("object", module))
    except AttributeError:
        raise UserError(f"{spec!r}: {module_name} has no {attribute!r}") from None
    if isinstance(client, type) or (callable(client) and not hasattr(client, "train")):
        client = client()
    missing = [method for method in METHODS if not callable(getattr(client, method, None))]
    if missing:
        raise UserError(
            f"{spec!r} has no {', '.join(missing)}; a client has {', '.join(METHODS)} "
            "(defl/clients/protocol.py)"
        )
    return cast("Client", client)


def _how_to_install(module: str | None) -> str:
    extra = EXTRAS.get((module or "").partition(".")[0])
    return f"; install it with: {install_command(extra)}" if extra else ""


def missing_variable(error: BaseException | None) -> str:
    """Return advice if user code looked for an environment variable that it does not have."""
    while error is not None:
        last = error.__traceback__
        while last is not None and last.tb_next is not None:
            last = last.tb_next
        if last is not None and last.tb_frame.f_code is type(os.environ).__getitem__.__code__:
            return (
                f"\nThe training code gets no variable {error.args[0]}. If it is set where the "
                f'node is started, name it in node.toml: client_environment = ["{error.args[0]}"]'
            )
        error = error.__cause__ or error.__context__
    return ""


def reason_of(error: BaseException) -> str:
    """The traceback as the author of the client wants to see it: without our own frames."""
    described = traceback.TracebackException.from_exception(error)
    ours = str(Path(defl.__file__).parent)
    shown: traceback.TracebackException | None = described
    while shown is not None:
        frames = [
            frame for frame in shown.stack if not frame.filename.startswith((ours, "<frozen"))
        ]
        shown.stack = traceback.StackSummary.from_list(frames)
        shown = shown.__cause__ or shown.__context__
    if described.stack:
        text = "".join(described.format())
    elif isinstance(error, DeflError):
        text = str(error)
    else:
        text = "".join(described.format_exception_only())
    return text.strip()[-REASON_CHARACTERS_MAX:]
