"""A killed run leaves no worker processes behind."""

import contextlib
import os
import select
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

LIMIT_S = 60.0
RUN = """
    import os, signal, sys
    from pathlib import Path
    from defl.lab.experiments.paper.run import _results

    class Endless:
        def run(self, alive):
            with alive.open("w") as pipe:
                pipe.write(f"{os.getpid()}\\n")
                pipe.flush()
                signal.pause()

    if __name__ == "__main__":
        list(_results([Endless(), Endless()], Path(sys.argv[1]), 2))
"""


def read_next(pipe: int) -> bytes:
    """The next bytes; empty once every writer has ended."""
    ready, _, _ = select.select([pipe], [], [], LIMIT_S)
    assert ready, "the processes neither wrote nor ended"
    return os.read(pipe, 4096)


def test_worker_processes_end_with_a_killed_run(tmp_path: Path) -> None:
    script, alive = tmp_path / "endless.py", tmp_path / "alive"
    script.write_text(textwrap.dedent(RUN))
    os.mkfifo(alive)
    pipe = os.open(alive, os.O_RDONLY | os.O_NONBLOCK)
    run = subprocess.Popen([sys.executable, script, alive])
    pids = b""
    try:
        while pids.count(b"\n") < 2:
            pids += read_next(pipe)
        run.kill()

        assert read_next(pipe) == b""
    finally:
        run.kill()
        run.wait()
        os.close(pipe)
        for pid in map(int, pids.split()):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
