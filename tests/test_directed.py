"""Directed attacks: tests/scenarios/*.toml, each played against one honest replica."""

import re
from pathlib import Path

import pytest

from defl.committee import Rules
from defl.sim.script import Script, Stage, read

FOLDER = Path(__file__).parent / "scenarios"
SCRIPTS: dict[str, Script] = {
    path.stem: read(path.read_text(encoding="utf-8")) for path in sorted(FOLDER.glob("*.toml"))
}
PLAYS = [(name, rules) for name, script in SCRIPTS.items() for rules in script.rules]


@pytest.mark.parametrize(("name", "rules"), PLAYS, ids=str)
def test_the_replica_follows_the_script_exactly(name: str, rules: Rules) -> None:
    for number, (step, expected, happened) in enumerate(Stage(SCRIPTS[name], rules).play(), 1):
        assert happened == expected, f"{name}, step {number}: {step}"


def test_every_script_names_the_rule_it_attacks_and_its_source() -> None:
    assert len(SCRIPTS) >= 15
    for name, script in SCRIPTS.items():
        assert script.title, name
        assert script.attacks, name
        assert re.match(r"HotStuff|Jolteon|PROTOCOL.md: ", script.source), name
        assert len(script.steps) > 1, name
