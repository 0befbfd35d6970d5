"""Removes one safety rule at a time from a copy of the source and checks that a test fails.

    python tests/mutants/run.py [NAME ...]

A mutant is killed when its test fails on the mutated copy. A mutant whose text does not
occur, or whose copy cannot be imported, is broken and counts as alive.
"""

import os
import shutil
import subprocess
import sys
import tempfile
import tomllib
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

PROJECT = Path(__file__).parent.parent.parent
TESTS_FAILED = 1  # pytest's exit code; from 2 on: the tests could not run


@dataclass(frozen=True)
class Mutant:
    name: str
    file: str
    old: str
    new: str
    tests: list[str]


TABLE = tomllib.loads((Path(__file__).parent / "table.toml").read_text(encoding="utf-8"))
MUTANTS = [Mutant(**entry) for entry in TABLE["mutant"]]


def verdict(mutant: Mutant) -> str:
    """'killed', or the reason why not."""
    with tempfile.TemporaryDirectory(prefix="defl-mutant-") as folder:
        copy = Path(folder) / "src"
        shutil.copytree(PROJECT / "src", copy)  # with __pycache__: only one file is compiled
        file = copy / "defl" / mutant.file
        text = file.read_text(encoding="utf-8")
        if text.count(mutant.old) != 1:
            return f"broken: {mutant.file} has the text {text.count(mutant.old)} times"
        file.write_text(text.replace(mutant.old, mutant.new), encoding="utf-8")
        return _run(mutant, copy)


def _run(mutant: Mutant, source: Path) -> str:
    environment = {**os.environ, "PYTHONPATH": str(source), "PYTHONDONTWRITEBYTECODE": "1"}
    options = ["-x", "-q", "-n0", "-p", "no:cacheprovider", "--no-header", "--tb=no"]
    where = subprocess.run(
        [sys.executable, "-c", "import defl; print(defl.__file__)"],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    ).stdout.strip()
    if not Path(where).is_relative_to(source):
        return f"broken: the tests would import {where}"
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *options, *mutant.tests],
        cwd=PROJECT,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode == TESTS_FAILED and "error" not in done.stdout.splitlines()[-1]:
        return "killed"
    last = done.stdout.strip().splitlines()[-1:] or ["no output"]
    return f"ALIVE (pytest exit {done.returncode}: {last[0]})"


def main(names: list[str]) -> int:
    unknown = set(names) - {mutant.name for mutant in MUTANTS}
    if unknown:
        print(f"no such mutant: {', '.join(sorted(unknown))}", file=sys.stderr)
        return 2
    chosen = [mutant for mutant in MUTANTS if not names or mutant.name in names]
    killed = 0
    with ThreadPoolExecutor(max_workers=2) as pool:
        for mutant, result in zip(chosen, pool.map(verdict, chosen), strict=True):
            print(f"{result:<8} {mutant.name}", flush=True)
            killed += result == "killed"
    print(f"{killed} / {len(chosen)} mutants killed")
    return 0 if killed == len(chosen) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
