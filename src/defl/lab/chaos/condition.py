"""What a condition is: a network, a federation on it, and what is done to them."""

from collections.abc import Callable
from dataclasses import dataclass

from defl.lab.chaos.sites import FederationSetting
from defl.lab.chaos.trial import Trial

Script = Callable[[Trial], None]


@dataclass(frozen=True, slots=True)
class ChaosCondition:
    """The script sets up the network, starts the nodes and disturbs them. Then all rounds must
    close."""

    name: str
    title: str
    script: Script
    setting: FederationSetting
    hosts: int = 0  # besides the members'
    limit_s: float = 120.0
    tools: tuple[str, ...] = ()  # programs or libraries that it needs
