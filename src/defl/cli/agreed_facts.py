"""The options for the facts that members agree on: the same for real and simulated federations.

Each option is a field of `Charter` or of its `Timing`, and its default is the field's.
"""

from collections.abc import Callable, Mapping
from enum import StrEnum
from typing import Any, TypeVar

import click

from defl.aggregation.rules import RULES
from defl.committee import DEFAULTS, AggQuorum, Charter, Rules, Timing
from defl.schema import Codec

F = TypeVar("F", bound=Callable[..., Any])


def _choice(kind: type[StrEnum]) -> "click.Choice[str]":
    return click.Choice([member.value for member in kind])


def _fact(flag: str, text: str, kind: "click.ParamType[Any] | None" = None) -> Callable[[F], F]:
    default = getattr(DEFAULTS, flag.removeprefix("--").replace("-", "_"))
    if isinstance(default, StrEnum):
        default = default.value  # as the help shows it
    return click.option(flag, default=default, show_default=True, help=text, type=kind)


def _bound(flag: str, text: str) -> Callable[[F], F]:
    default = getattr(DEFAULTS.timing, flag.removeprefix("--").replace("-", "_"))
    return click.option(flag, default=default, show_default=True, help=text)


OPTIONS = (
    _fact("--tau", "Rounds whose weights are kept."),
    _fact("--rules", "Consensus: three-chain or two-chain.", _choice(Rules)),
    _fact("--agg-quorum", "AGG votes that close a round: n - f, or f + 1.", _choice(AggQuorum)),
    _fact("--aggregation", "Rule that aggregates updates.", click.Choice([*RULES])),
    _fact("--faults-max", "Byzantine updates to tolerate; default f.", click.INT),
    _fact(
        "--codec",
        "Encoding of updates. int8: a quarter of the bytes, recommended for links below "
        "100 Mbit/s; int8_masked: a fortieth, for large models (docs/CODECS.md).",
        _choice(Codec),
    ),
    _fact("--chunk-bytes", "Size of a blob's chunks."),
    _bound("--view-base-s", "First view timeout."),
    _bound("--view-cap-s", "Longest view timeout."),
    _bound("--gst-lt-min-s", "Shortest time that a round waits for slow members."),
    _bound("--gst-lt-max-s", "Longest time that a round waits for slow members."),
    _bound("--grace-s", "Time to serve others at the end."),
)


def agreed_facts(command: F) -> F:
    """Add the options; the command gets their values by name, for `charter_of`."""
    for option in reversed(OPTIONS):
        command = option(command)
    return command


def charter_of(facts: Mapping[str, Any]) -> Charter:
    """The options' values as a charter; its schema only stands for the model's own."""
    bounds = {name: facts[name] for name in Timing.__struct_fields__}
    agreed = {name: value for name, value in facts.items() if name not in bounds} | {
        "rules": Rules(facts["rules"]),
        "agg_quorum": AggQuorum(facts["agg_quorum"]),
        "codec": Codec(facts["codec"]),
    }
    return Charter(DEFAULTS.schema, timing=Timing(**bounds), **agreed)
