"""`flower=PROJECT`: prepares a Flower project, which the nodes find by their environment."""

from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from defl.clients.extras import install_command
from defl.errors import UserError

CLIENT = "defl.clients.flower:client"
START_FOLDER = "flower"


@dataclass(frozen=True, slots=True)
class PreparedFlower:
    rounds: int | None  # as many as the project's run config says
    environment: dict[str, str]
    notes: tuple[str, ...]


def prepare(
    project: Path, folder: Path, nodes: int, *, run_config: str, node_config: str, aggregation: str
) -> PreparedFlower:
    """Run the project's ServerApp until it sends weights; the nodes begin with these."""
    if find_spec("flwr") is None:
        raise UserError(f"--flower needs Flower: {install_command('flower')}")
    from defl.clients.flower import (  # noqa: PLC0415 - an extra that need not be installed
        DEFL_FLOWER_NODE_CONFIG,
        DEFL_FLOWER_RUN_CONFIG,
        DEFL_FLOWER_START,
    )
    from defl.clients.flower_start import find_start  # noqa: PLC0415

    run_config, node_config = _absolute(run_config), _absolute(node_config)
    place = folder / START_FOLDER
    start = find_start(project, place, nodes=nodes, run_config=run_config, node_config=node_config)
    strategy = ", ".join(start.strategies) or "aggregation"
    return PreparedFlower(
        rounds=start.rounds,
        environment={
            DEFL_FLOWER_START: str(place.resolve()),
            DEFL_FLOWER_RUN_CONFIG: run_config,
            DEFL_FLOWER_NODE_CONFIG: node_config,
        },
        notes=(
            f"Flower {start.flwr}: {project}, {len(start.names)} arrays to start from",
            f"its {strategy} is not run: DeFL aggregates by {aggregation}; every node trains",
        ),
    )


def _absolute(config: str) -> str:
    """A TOML file's path is relative to the caller; the project's code runs in its own folder."""
    return str(Path(config).resolve()) if config.strip().endswith(".toml") else config
