"""What an installation may bring along."""

import tomllib
from pathlib import Path

PROJECT = Path(__file__).parent.parent
# The first release that none of the published advisories names.
CRYPTOGRAPHY_SOUND = (50, 0, 0)


def version(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split("."))


def test_no_release_of_cryptography_with_a_known_advisory_satisfies_our_floor() -> None:
    project = tomllib.loads((PROJECT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    (floor,) = [
        text.removeprefix("cryptography>=")
        for text in project["dependencies"]
        if text.startswith("cryptography")
    ]
    (pin,) = [
        line.removeprefix("cryptography==")
        for line in (PROJECT / "constraints.txt").read_text(encoding="utf-8").splitlines()
        if line.startswith("cryptography==")
    ]
    assert CRYPTOGRAPHY_SOUND <= version(floor) <= version(pin)
