"""The plan of a run, from arguments and defl.toml, and the file that lets it be resumed."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta, Struct
from msgspec.structs import replace

from defl.aggregation.rules import rule_named
from defl.clients.agreed import SETTINGS_FILE
from defl.committee import (
    DEFAULTS,
    SECONDS_MAX,
    Federation,
    Timing,
    require_counts,
    require_weight,
)
from defl.errors import UserError
from defl.node.report.tracking import Track, how_to_install, installed
from defl.node.setup.config import WORK_TIME_MAX_S
from defl.node.setup.typed_toml import parse, read_bytes

PLAN_FILE = "run.json"
DEFAULT_NODES = 4
DEFAULT_ROUNDS = 10
# How long a finished node serves a member that was killed and has to catch up.
GRACE_S = 20.0


class ProjectSettings(Struct, frozen=True, forbid_unknown_fields=True):
    """defl.toml."""

    client: str = "client:client"
    nodes: int = DEFAULT_NODES
    rounds: int = DEFAULT_ROUNDS
    steps: Annotated[int, Meta(ge=1)] | None = None  # for the training code: clients/agreed.py
    weights: dict[str, int] = {}  # by member, in the mean
    work_time_max_s: Annotated[float, Meta(gt=0, le=SECONDS_MAX)] = WORK_TIME_MAX_S
    keep_best: str = ""
    gst_lt_min_s: float = DEFAULTS.timing.gst_lt_min_s
    gst_lt_max_s: float = DEFAULTS.timing.gst_lt_max_s


def read_settings(project: Path) -> ProjectSettings:
    if not project.is_dir():
        raise UserError(f"{project}: no such folder; name the one that holds your training code")
    path = project / SETTINGS_FILE
    if not path.exists():
        return ProjectSettings()
    return parse(read_bytes(path, "defl new creates one"), ProjectSettings, path)


class RunPlan(Struct, frozen=True, kw_only=True):
    """Kept beside federation.toml; a run is resumed only by the same plan."""

    project: str
    client: str
    nodes: int
    rounds: int | None  # None: as many as the Flower project says
    aggregation: str
    timing: Timing
    work_time_max_s: float
    track: Track
    attacks: dict[str, str]  # by member
    keep_best: str = ""
    weights: dict[str, int] = {}  # by member, in the mean
    environment: dict[str, str] = {}  # of the nodes' processes

    def __post_init__(self) -> None:
        """Refuse the impossible before anything is created and before user code is loaded."""
        rounds = DEFAULT_ROUNDS if self.rounds is None else self.rounds
        for name, value in (("nodes", self.nodes), ("rounds", rounds)):
            if not isinstance(value, int):
                raise UserError(f"{name} is a whole number, not {value!r}")
        require_counts(self.nodes, rounds)
        rule_named(self.aggregation)
        for member in (*self.attacks, *self.weights):
            require_member(member, self.names)
        for member, weight in self.weights.items():
            require_weight(weight, member)

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(f"node-{number}" for number in range(self.nodes))


def timing_of(settings: ProjectSettings, min_s: float | None, max_s: float | None) -> Timing:
    """The bounds from the arguments, or else from defl.toml."""
    return replace(
        DEFAULTS.timing,
        gst_lt_min_s=settings.gst_lt_min_s if min_s is None else min_s,
        gst_lt_max_s=settings.gst_lt_max_s if max_s is None else max_s,
        grace_s=GRACE_S,
    )


def tracker_named(name: str) -> Track:
    if name not in list(Track):
        raise UserError(f"no tracker is named {name!r}; there are: {', '.join(Track)}")
    tracker = Track(name)
    if not installed(tracker):
        raise UserError(how_to_install(tracker))
    return tracker


def require_member(name: str, names: tuple[str, ...]) -> None:
    if name not in names:
        raise UserError(f"no member is named {name!r}; there are: {', '.join(names)}")


def require_kills(kills: Mapping[str, int], plan: RunPlan, federation: Federation) -> None:
    """Each killed member starts again when a round has closed without it."""
    faults = federation.committee.faults
    for name, number in kills.items():
        require_member(name, plan.names)
        if not isinstance(number, int) or not 1 <= number < federation.rounds:
            raise UserError(
                f"{name} cannot be killed in round {number}: of {federation.rounds} rounds choose "
                f"1 to {federation.rounds - 1}, so that it can rejoin"
            )
    for number in kills.values():
        together = [name for name, killed_in in kills.items() if killed_in == number]
        if len(together) > faults:
            raise UserError(
                f"{', '.join(together)} cannot be killed in one round: with more than {faults} of "
                f"{plan.nodes} members down no round closes; choose different rounds"
            )


def write_plan(folder: Path, plan: RunPlan) -> None:
    text = msgspec.json.format(msgspec.json.encode(plan), indent=1)
    (folder / PLAN_FILE).write_bytes(text)


def read_plan(folder: Path) -> RunPlan | None:
    """None: no run was founded in this folder."""
    path = folder / PLAN_FILE
    if not path.exists():
        return None
    try:
        return msgspec.json.decode(path.read_bytes(), type=RunPlan)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise UserError(f"{path}: not the plan of a run: {error}; name a new folder") from error


def require_same(plan: RunPlan, earlier: RunPlan, folder: Path) -> None:
    """The agreed facts cannot change; other changes would make it a different experiment."""
    for field in RunPlan.__struct_fields__:
        now, then = getattr(plan, field), getattr(earlier, field)
        if field == "environment" or (field == "rounds" and now is None) or now == then:
            continue
        raise UserError(
            f"{folder} holds a run with {field} = {_shown(then)}, not {_shown(now)}: a run is "
            "resumed as it began; give the same options, or name a new folder with --out"
        )


def _shown(value: object) -> str:
    return msgspec.json.encode(value).decode()
