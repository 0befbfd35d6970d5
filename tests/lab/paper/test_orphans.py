"""A long run that is killed leaves no process behind that goes on working for nobody."""

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
            with alive.open("w") as told:
                told.write(f"{os.getpid()}\\n")
                told.flush()
                signal.pause()

    if __name__ == "__main__":
        list(_results([Endless(), Endless()], Path(sys.argv[1]), 2))
"""


def heard(pipe: int) -> bytes:
    """What is written next; nothing once every writer has ended."""
    ready, _, _ = select.select([pipe], [], [], LIMIT_S)
    assert ready, "its processes neither spoke nor ended"
    return os.read(pipe, 4096)


def test_the_processes_of_a_killed_run_end_with_it(tmp_path: Path) -> None:
    script, alive = tmp_path / "endless.py", tmp_path / "alive"
    script.write_text(textwrap.dedent(RUN))
    os.mkfifo(alive)
    pipe = os.open(alive, os.O_RDONLY | os.O_NONBLOCK)
    run = subprocess.Popen([sys.executable, script, alive])
    said = b""
    try:
        while said.count(b"\n") < 2:
            said += heard(pipe)
        run.kill()

        assert heard(pipe) == b""
    finally:
        run.kill()
        run.wait()
        os.close(pipe)
        for pid in map(int, said.split()):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
