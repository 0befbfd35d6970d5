"""`--dashboard` of `defl run` and `defl demo`: the dashboard as a process beside the run.

It starts when the run has its folders and ends with the command. If it fails, the run goes on.
"""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import click

from defl.cli.dashboard import require_extra
from defl.node.work.orphans import PARENT_VARIABLE
from defl.printable import printable_lines
from defl.running import RunProgress

Show = Callable[[RunProgress], None]
LOG_FILE = "dashboard.log"
LOG_SHOWN_CHARACTERS = 1000
STOP_S = 5.0
ADDRESS_BYTES_MAX = 4096


@contextmanager
def dashboard_beside(*, wanted: bool, err: bool) -> Iterator["DashboardBeside"]:
    """`err`: its address goes to standard error."""
    if wanted:
        require_extra()
    beside = DashboardBeside(wanted=wanted, err=err)
    try:
        yield beside
    finally:
        beside.stop()


class DashboardBeside:
    def __init__(self, *, wanted: bool, err: bool) -> None:
        self._wanted = wanted
        self._err = err
        self._process: subprocess.Popen[bytes] | None = None
        self._output = -1  # the reading end of a pipe, until the address has come

    def watching(self, show: Show) -> Show:
        """A function that shows progress and starts the dashboard."""

        def show_and_follow(progress: RunProgress) -> None:
            show(progress)
            if self._wanted and progress.folder is not None:
                self._follow(progress.folder)

        return show_and_follow

    def stay(self) -> None:
        """After the run: the page stays until Ctrl-C, if somebody sits at a terminal."""
        if self._process is None or self._process.poll() is not None or not sys.stdout.isatty():
            return
        click.echo("\nthe dashboard stays until Ctrl-C", err=self._err)
        with suppress(KeyboardInterrupt):
            self._process.wait()

    def _follow(self, folder: Path) -> None:
        """Start it, and print its address once it has one; never waits."""
        if self._process is None:
            self._process = self._start(folder)
        elif self._output >= 0:
            self._announce(self._process, folder)

    def _start(self, folder: Path) -> "subprocess.Popen[bytes]":
        self._output, inlet = os.pipe()
        os.set_blocking(self._output, False)
        try:
            with (folder / LOG_FILE).open("ab") as log:
                return subprocess.Popen(  # noqa: S603 - our own command
                    [sys.executable, "-m", "defl.cli.main", "dashboard", str(folder), "--json"],
                    stdin=subprocess.DEVNULL,
                    stdout=inlet,
                    stderr=log,
                    env={**os.environ, PARENT_VARIABLE: str(os.getpid())},
                    start_new_session=True,  # Ctrl-C is for the run, which then ends this
                )
        finally:
            os.close(inlet)

    def _announce(self, process: "subprocess.Popen[bytes]", folder: Path) -> None:
        try:
            line = os.read(self._output, ADDRESS_BYTES_MAX)  # it is written at once
        except BlockingIOError:
            return
        if line:
            click.echo(f"dashboard: {json.loads(line)['address']}", err=self._err)
        else:
            process.wait()
            log = (folder / LOG_FILE).read_text(encoding="utf-8", errors="replace")
            reason = printable_lines(log[-LOG_SHOWN_CHARACTERS:].strip())
            click.echo(f"the dashboard did not start; the run goes on. {reason}", err=True)
        self._close()

    def _close(self) -> None:
        if self._output >= 0:
            os.close(self._output)
            self._output = -1

    def stop(self) -> None:
        self._close()
        if self._process is None:
            return
        self._process.terminate()
        try:
            self._process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
