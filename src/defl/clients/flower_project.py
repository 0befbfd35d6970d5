"""A Flower project as files: its pyproject.toml, its run config, its apps, and how it starts.

`Project` is what the project's author wrote. `Start` is the first message for training that its
ServerApp sent (flower_start.py captures it); it is kept as two files, so that every node's client
begins with the same arrays and the same config.
"""

import defl.clients.no_flower_telemetry  # noqa: F401  # isort: skip

import importlib
import logging
import re
import sys
import tomllib
from dataclasses import dataclass
from functools import reduce
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from flwr.app import Context, RecordDict
from flwr.clientapp import ClientApp
from flwr.common.config import flatten_dict, fuse_dicts
from flwr.serverapp import ServerApp
from msgspec import MsgspecError, Struct, msgpack

from defl.errors import UserError
from defl.schema import Array

Config = dict[str, Any]  # of a ConfigRecord, which checks its values itself
UserConfig = dict[str, bool | int | float | str]
App = TypeVar("App")

RUN_ID = 1
PAIR = re.compile(r"""(\S+?)=('[^']*'|"[^"]*"|\S+)""")  # in a config that is not a file
ROUNDS_KEY = "num-server-rounds"  # of the run config, in Flower's own templates
PARTITION_KEY, PARTITIONS_KEY = "partition-id", "num-partitions"
START_FILE, ARRAYS_FILE = "start.msgpack", "start.npz"
SECURE_AGGREGATION = ("secagg_mod", "secaggplus_mod")
SECURE_AGGREGATION_REFUSED = (
    "it uses secure aggregation, which hides each update behind masks that only Flower's server "
    "can take off; DeFL's rules must see every update: remove the mod and the workflow, or run "
    "the project with Flower"
)

logging.getLogger("flwr").setLevel(logging.ERROR)


# --- What its author wrote -----------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Project:
    folder: Path
    client_ref: str  # "module:attribute"
    server_ref: str | None
    run_config: UserConfig

    @property
    def rounds(self) -> int | None:
        rounds = self.run_config.get(ROUNDS_KEY)
        return rounds if type(rounds) is int and rounds > 0 else None

    def client_app(self) -> ClientApp:
        app = self._load(self.client_ref, ClientApp)
        mods = [getattr(mod, "__name__", "") for mod in getattr(app, "_mods", ())]
        if any(name in SECURE_AGGREGATION for name in mods):
            raise UserError(f"{self.folder} cannot be run: {SECURE_AGGREGATION_REFUSED}")
        return app

    def server_app(self) -> ServerApp | None:
        return None if self.server_ref is None else self._load(self.server_ref, ServerApp)

    def _load(self, ref: str, kind: type[App]) -> App:
        module_name, _, attribute = ref.partition(":")
        if str(self.folder) not in sys.path:
            sys.path.insert(0, str(self.folder))
        try:
            app: object = importlib.import_module(module_name)
            for name in attribute.split("."):
                app = getattr(app, name)
        except ModuleNotFoundError as error:
            reason = _why_missing(self.folder, error.name or "")
            raise UserError(f"{ref!r} of {self.folder} {reason}") from error
        if not isinstance(app, kind):
            raise UserError(f"{ref!r} of {self.folder} is not a {kind.__name__}")
        return app


def _why_missing(folder: Path, module: str) -> str:
    package, _, inside = module.partition(".")
    if (folder / package).is_dir():
        return f"imports {module!r}, which the project does not have; is a file missing?"
    if inside and find_spec(package) is not None:
        return (
            f"imports {module!r}, which the installed {package} {_version(package)} does not "
            f"have: it was written for another release of {package}; install that release, or "
            "change the import"
        )
    return (
        f"needs the module {module!r}, which is not installed; install what the project needs: "
        f"pip install -e {folder}"
    )


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:  # a distribution of another name
        return "release"


def read_project(folder: Path, overrides: str = "") -> Project:
    """`overrides` has the syntax of `flwr run --run-config`."""
    path = folder / "pyproject.toml"
    try:
        written = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UserError(
            f"{folder} is not a Flower project: it has no pyproject.toml; "
            "name the folder that you would give to `flwr run`"
        ) from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UserError(f"{path}: {error}") from error
    app = reduce(_table, ("tool", "flwr", "app"), written)
    components = _table(app, "components")
    client_ref, server_ref = components.get("clientapp"), components.get("serverapp")
    if not isinstance(client_ref, str) or ":" not in client_ref:
        raise UserError(
            f"{path} names no ClientApp; under [tool.flwr.app.components] write, for example, "
            'clientapp = "my_app.client_app:app"'
        )
    if not isinstance(server_ref, str):
        server_ref = None
    try:
        defaults = flatten_dict(_table(app, "config"))
        run_config = fuse_dicts(defaults, parsed_config(overrides))
    except ValueError as error:
        raise UserError(f"{path}, run config: {error}") from error
    return Project(folder.resolve(), client_ref, server_ref, run_config)


def _table(parent: dict[str, object], name: str) -> dict[str, object]:
    table = parent.get(name, {})
    return table if isinstance(table, dict) else {}


def parsed_config(text: str) -> UserConfig:
    """Parse 'key=value key="value"', or the TOML file at that path, as Flower's commands do."""
    text = text.strip()
    if not text:
        return {}
    try:
        if text.endswith(".toml"):
            written = Path(text).expanduser().read_text(encoding="utf-8")
        else:
            written = "\n".join(f"{key} = {value}" for key, value in PAIR.findall(text))
        parsed: UserConfig = flatten_dict(tomllib.loads(written))
    except (ValueError, OSError) as error:
        raise UserError(f"the config {text!r} cannot be read: {error}") from error
    if not parsed:
        raise UserError(f"the config {text!r} sets nothing; write it as 'key=1 other=\"text\"'")
    return parsed


def make_context(project: Project, node_config: UserConfig, node_id: int) -> Context:
    return Context(
        run_id=RUN_ID,
        node_id=node_id,
        node_config=node_config,
        state=RecordDict(),
        run_config=dict(project.run_config),
    )


# --- How it starts -------------------------------------------------------------------------------


class FlowerStart(Struct, frozen=True, kw_only=True):
    """The first message that the ServerApp sent for training, without its arrays."""

    message_type: str
    arrays_key: str  # "arrays", "fitins.parameters", or the project's own
    configs: dict[str, Config]  # by record key: "config", "fitins.config"
    names: tuple[str, ...]
    strategies: tuple[str, ...]  # classes that the ServerApp instantiated; DeFL does not run them
    rounds: int | None
    flwr: str  # release


def write_start(folder: Path, start: FlowerStart, arrays: list[Array]) -> None:
    """Write the arrays first: if the other file exists, both do."""
    np.savez(folder / ARRAYS_FILE, **{f"entry{i}": array for i, array in enumerate(arrays)})  # type: ignore[arg-type]
    (folder / START_FILE).write_bytes(msgpack.encode(start))


def read_start(folder: Path) -> tuple[FlowerStart, dict[str, Array]]:
    try:
        start = msgpack.decode((folder / START_FILE).read_bytes(), type=FlowerStart)
        with np.load(folder / ARRAYS_FILE, allow_pickle=False) as saved:
            arrays = {name: saved[f"entry{i}"] for i, name in enumerate(start.names)}
    except (OSError, KeyError, ValueError, MsgspecError) as error:
        raise UserError(f"{folder} does not hold a Flower project's start: {error}") from error
    return start, arrays
