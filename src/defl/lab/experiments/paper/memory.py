"""The memory of running processes and of all that they started, now and at its peak (Linux)."""

import shutil
import subprocess
from collections.abc import Iterable
from pathlib import Path

PROC = Path("/proc")
NVIDIA = shutil.which("nvidia-smi")


class MemoryWatch:
    """Looked at again and again while something runs."""

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
    """These processes and their descendants, as far as they still live."""
    children: dict[int, list[int]] = {}
    for folder in proc.iterdir():
        if folder.name.isdigit() and (parent := _parent(folder)) is not None:
            children.setdefault(parent, []).append(int(folder.name))
    found: set[int] = set()
    waiting = list(pids)
    while waiting:
        pid = waiting.pop()
        if pid not in found:
            found.add(pid)
            waiting += children.get(pid, [])
    return found


def _parent(folder: Path) -> int | None:
    try:
        stat = (folder / "stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None  # it has ended
    return int(stat.rpartition(")")[2].split()[1])  # the name in brackets may hold anything


def pss_bytes(pid: int, proc: Path = PROC) -> int:
    """A page that k processes share counts as a k-th; 0 for a process that has ended."""
    try:
        lines = (proc / str(pid) / "smaps_rollup").read_text(encoding="ascii").splitlines()
    except OSError:
        return 0
    return sum(1024 * int(line.split()[1]) for line in lines if line.startswith("Pss:"))


def gpu_bytes(pids: Iterable[int]) -> int | None:
    """What these processes hold on NVIDIA's GPUs; None where there is none."""
    if NVIDIA is None:
        return None
    query = [NVIDIA, "--query-compute-apps=pid,used_memory", "--format=csv,noheader,nounits"]
    told = subprocess.run(query, capture_output=True, text=True, check=False)  # noqa: S603 - fixed
    if told.returncode != 0:
        return None
    wanted = set(pids)
    rows = [line.split(",") for line in told.stdout.splitlines() if line.count(",") == 1]
    return sum(int(used) * 2**20 for pid, used in rows if int(pid) in wanted)
