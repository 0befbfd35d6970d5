"""A killed run leaves no worker processes behind."""

import os
import select
import subprocess
import sys
import time

from support.child_processes import children_of

LIMIT_S = 60.0
WORKERS = 2
SOAK = ("-m", "defl.cli.main", "sim", "--soak", str(2 * LIMIT_S))


def test_worker_processes_end_with_a_killed_run() -> None:
    command = (sys.executable, *SOAK, "--engine", f"processes:{WORKERS}")
    run = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    assert run.stderr is not None
    try:
        deadline = time.monotonic() + LIMIT_S
        while len(children_of(run.pid)) < WORKERS:
            assert time.monotonic() < deadline, "no workers"
        run.kill()
        ready, _, _ = select.select([run.stderr], [], [], LIMIT_S)

        assert ready, "a worker still runs: it holds the standard error that it inherited"
        assert os.read(run.stderr.fileno(), 4096) == b""
    finally:
        run.kill()
        run.wait()
        run.stderr.close()
