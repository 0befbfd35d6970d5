"""What was measured, kept in a file from run to run: the page shows the newest of each."""

from pathlib import Path

import msgspec
from msgspec import Struct

from defl.lab.chaos.calibrate import Calibration
from defl.lab.chaos.figures import Figure
from defl.lab.chaos.outcome import TrialOutcome

FILE = "results.json"


class ChaosResults(Struct):
    calibrations: list[Calibration] = []
    outcomes: dict[str, TrialOutcome] = {}
    figures: dict[str, Figure] = {}


def read_results(folder: Path) -> ChaosResults:
    """Empty without the file, or if another version wrote it."""
    try:
        return msgspec.json.decode((folder / FILE).read_bytes(), type=ChaosResults)
    except (FileNotFoundError, msgspec.ValidationError):
        return ChaosResults()


def write_results(folder: Path, results: ChaosResults) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    new = folder / f".{FILE}.writing"
    new.write_bytes(msgspec.json.format(msgspec.json.encode(results), indent=1))
    new.replace(folder / FILE)
