"""Peak memory of running processes and their descendants (Linux)."""

import shutil
import subprocess
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

PROC = Path("/proc")
NVIDIA = shutil.which("nvidia-smi")


class MemoryWatch:
    """Call `look` repeatedly while something runs."""

    def __init__(self, proc: Path = PROC) -> None:
        self._proc = proc
        self.peak_bytes: int | None = None
        self.gpu_peak_bytes: int | None = None

    def look(self, pids: Iterable[int]) -> None:
        if not (self._proc / "self" / "smaps_rollup").exists():
            return
        tree = family(pids, self._proc)
        self.peak_bytes = max(self.peak_bytes or 0, sum(pss_bytes(p, self._proc) for p in tree))
        gpu = gpu_bytes(tree)
        if gpu is not None:
            self.gpu_peak_bytes = max(self.gpu_peak_bytes or 0, gpu)


def family(pids: Iterable[int], proc: Path = PROC) -> set[int]:
    """These processes and their living descendants."""
    children: dict[int, list[int]] = {}
    for folder in proc.iterdir():
        if folder.name.isdigit() and (parent := _parent(folder)) is not None:
            children.setdefault(parent, []).append(int(folder.name))
    tree: set[int] = set()
    waiting = list(pids)
    while waiting:
        pid = waiting.pop()
        if pid not in tree:
            tree.add(pid)
            waiting += children.get(pid, [])
    return tree


def _parent(folder: Path) -> int | None:
    try:
        stat = (folder / "stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None  # it has ended
    return int(stat.rpartition(")")[2].split()[1])  # the name in brackets is arbitrary text


def pss_bytes(pid: int, proc: Path = PROC) -> int:
    """Proportional set size: a page shared by k processes counts 1/k; 0 if the process ended."""
    try:
        lines = (proc / str(pid) / "smaps_rollup").read_text(encoding="ascii").splitlines()
    except OSError:
        return 0
    return sum(1024 * int(line.split()[1]) for line in lines if line.startswith("Pss:"))


class ResidentMemory(NamedTuple):
    """The two parts of the resident set."""

    own_bytes: int  # anonymous and shared memory: stays until the process gives it back
    mapped_bytes: int  # pages of mapped files: the system drops them when memory is short


def resident_memory(pid: int, proc: Path = PROC) -> ResidentMemory:
    """From the system's counters, which costs nothing, unlike a walk through all pages; nothing if
    the process ended."""
    kb = dict.fromkeys(("RssAnon", "RssShmem", "RssFile"), 0)
    try:
        lines = (proc / str(pid) / "status").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ResidentMemory(0, 0)
    for line in lines.splitlines():
        name, _, value = line.partition(":")
        if name in kb:
            kb[name] = int(value.split()[0])
    return ResidentMemory(1024 * (kb["RssAnon"] + kb["RssShmem"]), 1024 * kb["RssFile"])


def gpu_bytes(pids: Iterable[int]) -> int | None:
    """Memory of these processes on NVIDIA GPUs; None without one."""
    if NVIDIA is None:
        return None
    query = [NVIDIA, "--query-compute-apps=pid,used_memory", "--format=csv,noheader,nounits"]
    listing = subprocess.run(query, capture_output=True, text=True, check=False)  # noqa: S603 - fixed
    if listing.returncode != 0:
        return None
    wanted = set(pids)
    rows = [line.split(",") for line in listing.stdout.splitlines() if line.count(",") == 1]
    return sum(int(used) * 2**20 for pid, used in rows if int(pid) in wanted)
