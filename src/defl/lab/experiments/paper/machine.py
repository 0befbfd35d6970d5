"""What measured the cells: versions and the size of the machine, recorded with the results.

A report is often written later, by another version or on another machine, so it quotes this record
and never describes where it is written itself. No host names and no paths.
"""

import os
import platform
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import defl

MACHINES_FILE = "machines.txt"
PACKAGES = ("torch", "numpy", "gensim")  # their versions may change the numbers


def machine() -> str:
    """This installation and this machine, in one line."""
    versions = [f"defl {defl.__version__}", f"Python {platform.python_version()}"]
    for name in PACKAGES:
        try:
            versions.append(f"{name} {version(name)}")
        except PackageNotFoundError:
            continue
    hardware = [f"{platform.system()} {platform.machine()}", f"{os.cpu_count()} cores"]
    if hasattr(os, "sysconf") and "SC_PHYS_PAGES" in os.sysconf_names:
        memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        hardware.append(f"{memory / 2**30:.0f} GiB of memory")
    return f"{', '.join(versions)}; {', '.join(hardware)}"


def record_machine(folder: Path) -> None:
    """Called before a cell is measured in `folder`."""
    recorded = recorded_machines(folder)
    if machine() not in recorded:
        lines = [*recorded, machine()]
        (folder / MACHINES_FILE).write_text("\n".join(lines) + "\n", encoding="utf-8")


def recorded_machines(folder: Path) -> list[str]:
    """One line for each installation that measured cells of `folder`, the oldest first."""
    path = folder / MACHINES_FILE
    return path.read_text(encoding="utf-8").splitlines() if path.is_file() else []
