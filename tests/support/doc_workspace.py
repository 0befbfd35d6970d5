"""For test_doc_commands.py: a folder with every file that the documents' command lines name.

The tutorial creates most of them. This module adds whatever else a document assumes: a data folder
(some call it FOLDER), the members' cards, a client in task.py.
"""

import gzip
import os
import shutil
import signal
import stat
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from defl.lab.datasets.cifar10 import BATCHES, OFFICIAL_MD5
from defl.node.setup.local import free_ports
from support.layouts import cifar_batch

ROOT = Path(__file__).parent.parent.parent
BASH = shutil.which("bash") or "bash"
LIMIT_S = 180.0
SAMPLES = 40
DEFL = ("-m", "defl.cli.main")
SMALL_DEFL = (str(Path(__file__).with_name("small_defl.py")),)


@dataclass(frozen=True)
class Shell:
    """Runs lines as a reader would type them; the `defl` on its PATH is this checkout's."""

    home: Path

    def environment(self, *, small: bool = False) -> dict[str, str]:
        place = self.home / ("bin-small" if small else "bin")
        return {
            **os.environ,
            "PATH": f"{place}:{os.environ['PATH']}",
            "HOME": str(self.home),
            "DEFL_DATA": str(self.home / "data"),
            "DEFL_CACHE": str(self.home / "cache"),
            "OMP_NUM_THREADS": "1",  # several processes already share the cores
        }

    def run(
        self, line: str, folder: Path, *, small: bool = False
    ) -> "subprocess.CompletedProcess[str]":
        """Runs a line; on timeout interrupts it, so that it stops the nodes it started."""
        process = subprocess.Popen(
            [BASH, "-c", line],
            cwd=folder,
            env=self.environment(small=small),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        try:
            stdout, stderr = process.communicate(timeout=LIMIT_S)
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGINT)
            process.communicate()
            raise
        return subprocess.CompletedProcess(line, process.returncode, stdout, stderr)

    def start(
        self, line: str, folder: Path, log: int = subprocess.DEVNULL
    ) -> "subprocess.Popen[str]":
        """Starts a line that keeps running, as in another terminal."""
        return subprocess.Popen(
            [BASH, "-c", f"exec env {line}"],
            cwd=folder,
            env=self.environment(),
            stdout=subprocess.DEVNULL,
            stderr=log,
            text=True,
        )

    def serve(self, line: str, folder: Path) -> "subprocess.CompletedProcess[str]":
        """Runs a line that prints an address and serves there; ends it as soon as it has."""
        process = subprocess.Popen(
            [BASH, "-c", f"exec {line}"],
            cwd=folder,
            env=self.environment(),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert process.stdout is not None
        address = process.stdout.readline()
        process.send_signal(signal.SIGINT)
        stdout, stderr = process.communicate(timeout=LIMIT_S)
        return subprocess.CompletedProcess(line, process.returncode, address + stdout, stderr)

    @contextmanager
    def running(self, line: str, folder: Path) -> Iterator["subprocess.Popen[str]"]:
        """A node that has logged its start; the block must make it stop."""
        process = self.start(line, folder, subprocess.PIPE)
        assert process.stderr is not None
        try:
            log = []
            for log_line in process.stderr:
                log.append(log_line)
                if " started " in log_line:
                    break
            else:
                raise AssertionError(f"{line}\n{''.join(log)}")
            yield process
            _, rest = process.communicate(timeout=LIMIT_S)
            assert process.returncode == 0, f"{line}\n{''.join(log)}{rest}"
        finally:
            if process.poll() is None:
                process.kill()
                process.communicate()


def shell_at(home: Path) -> Shell:
    for name, program in (("bin", DEFL), ("bin-small", SMALL_DEFL)):
        script = home / name / "defl"
        script.parent.mkdir(parents=True)
        command = " ".join(f'"{word}"' for word in (sys.executable, *program))
        script.write_text(f'#!/bin/sh\nexec {command} "$@"\n', encoding="utf-8")
        script.chmod(script.stat().st_mode | stat.S_IXUSR)
    _make_data(home / "data")
    return Shell(home)


def _make_data(folder: Path) -> None:
    """Small files in the official layouts: CIFAR-10's batches, and MNIST."""
    batches = folder / BATCHES
    batches.mkdir(parents=True)
    for seed, name in enumerate(OFFICIAL_MD5):
        labels = [(seed + i) % 10 for i in range(SAMPLES)]
        (batches / name).write_bytes(cifar_batch(labels, seed))
    rng = np.random.default_rng(1)
    for kind, count in (("train", 5 * SAMPLES), ("t10k", SAMPLES)):
        for what, shape in (("images-idx3", (count, 12, 12)), ("labels-idx1", (count,))):
            values = rng.integers(0, 10, shape).astype(np.uint8)
            head = bytes([0, 0, 8, values.ndim]) + np.array(shape, dtype=">u4").tobytes()
            path = folder / f"{kind}-{what}-ubyte.gz"
            path.write_bytes(gzip.compress(head + values.tobytes()))


def _add_joiners(folder: Path, shell: Shell) -> None:
    """A new site, and a new machine of bob's: the documents give their cards to alice."""
    joiners = (("eve", "eve"), ("bob-2", "bob"))
    for (node, name), port in zip(joiners, free_ports(len(joiners)), strict=True):
        made = shell.run(
            f"defl node init {node} --name {name} --address {name}.example.org:{port} && "
            f"defl node join {node} federation.toml --fingerprint {'00' * 16}",
            folder,
        )
        assert made.returncode == 0, made.stderr
        shutil.move(folder / node / f"{name}.join.toml", folder)
        (folder / node / f"{name}.card.toml").unlink()  # the founders' cards are in one folder


def add_files(folder: Path, shell: Shell) -> None:
    """Add the files that documents name and the tutorial does not create."""
    _add_joiners(folder, shell)
    (folder / "new").mkdir()
    for card in folder.glob("*/*.card.toml"):
        shutil.copy(card, folder)
    for file in (folder / "irises").iterdir():
        if file.is_file():
            shutil.copy(file, folder)  # so that the folder itself is a project
    (folder / "client.py").rename(folder / "task.py")
    (folder / "docs").mkdir()
    (folder / "tests").symlink_to(ROOT / "tests")
    (folder / "FOLDER").symlink_to(shell.home / "data")
    for line in (
        "defl new digits --template torch",
        "defl new slang --template lora",
        "defl relay init relay --name r1 --address r1.example.org:443",
    ):
        created = shell.run(line, folder)
        assert created.returncode == 0, created.stderr
    shutil.copy(folder / "relay" / "r1.relay.toml", folder)
    for name, best in (
        ("proven.safetensors", "best.safetensors"),
        ("round-certificate.json", "best-certificate.json"),
        ("state/client-local.npz", "best-local.npz"),
    ):
        proven = folder / "alice" / name
        if proven.exists():
            shutil.copy(proven, folder)
            shutil.copy(proven, folder / "alice" / best)  # as if alice had set keep_best
