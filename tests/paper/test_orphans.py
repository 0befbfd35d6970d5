"""A long run that is killed leaves no process behind that goes on working for nobody."""

import os
import subprocess
import sys
import textwrap
import time
from pathlib import Path

LIMIT_S = 30.0
RUN = """
    import sys, time
    from pathlib import Path
    from defl.experiments.paper.run import _results

    class Endless:
        def run(self, data):
            import os
            data.joinpath(str(os.getpid())).touch()
            time.sleep(600)

    if __name__ == "__main__":
        list(_results([Endless(), Endless()], Path(sys.argv[1]), 2))
"""


def gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(") ")[2][0] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return True


def test_the_processes_of_a_killed_run_end_with_it(tmp_path: Path) -> None:
    script, pids = tmp_path / "endless.py", tmp_path / "pids"
    script.write_text(textwrap.dedent(RUN))
    pids.mkdir()
    run = subprocess.Popen([sys.executable, script, pids])
    until = time.monotonic() + LIMIT_S
    try:
        while len(os.listdir(pids)) < 2 and time.monotonic() < until:
            assert run.poll() is None
        children = [int(pid) for pid in os.listdir(pids)]
        assert len(children) == 2
    finally:
        run.kill()
        run.wait()

    while not all(map(gone, children)):
        assert time.monotonic() < until
