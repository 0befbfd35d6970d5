"""How a link to a peer runs, for people who look for the reason of a slow or missing one."""

from dataclasses import dataclass
from enum import StrEnum


class RouteKind(StrEnum):
    DIRECT = "direct"
    PROXY = "proxy"
    RELAY = "relay"


@dataclass(frozen=True, slots=True)
class Route:
    kind: RouteKind
    via: str = ""  # the proxy's host:port, or the relay's name

    def __str__(self) -> str:
        return f"through the {self.kind} {self.via}" if self.via else str(self.kind)


DIRECT = Route(RouteKind.DIRECT)
