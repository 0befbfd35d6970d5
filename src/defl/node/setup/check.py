"""One question with its answer and the reason: what every list of checks is made of."""

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Check:
    name: str
    holds: bool
    detail: str  # what was found; where it does not hold, what to do

    @property
    def line(self) -> str:
        return f"{'ok ' if self.holds else 'NO '} {self.name}: {self.detail}"

    @property
    def json(self) -> dict[str, object]:
        return {"check": self.name, "holds": self.holds, "detail": self.detail}


def all_hold(checks: Iterable[Check]) -> bool:
    return all(check.holds for check in checks)
