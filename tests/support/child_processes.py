"""The child processes of a process."""

from pathlib import Path


def children_of(pid: int) -> list[int]:
    threads = Path(f"/proc/{pid}/task").glob("*/children")
    return [int(child) for path in threads for child in path.read_text(encoding="ascii").split()]
