"""Versions of dependencies with security advisories."""

import tomllib
from pathlib import Path

PROJECT = Path(__file__).parent.parent
# The first release without a published advisory.
CRYPTOGRAPHY_SOUND = (50, 0, 0)
# The oldest supported Flower allows no newer line than this one; 44.0.0 has a flawed OpenSSL.
FLOWER_ALLOWS = (44, 0, 1)


def version(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split("."))


def test_pinned_cryptography_has_no_known_advisory() -> None:
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
    assert version(pin) >= CRYPTOGRAPHY_SOUND
    assert FLOWER_ALLOWS <= version(floor) <= version(pin)
