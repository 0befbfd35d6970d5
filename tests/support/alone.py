"""The environment of processes on a machine without a network, and without some packages."""

import os
import sys
from pathlib import Path

# Every process loads this first. It blocks connections to other machines and hides the
# packages that HIDDEN names: the variable, or the line in front of this text.
ALONE = """
import importlib.abc, os, socket, sys

def checked(call):
    def connect(self, address):
        if self.family != socket.AF_UNIX and address[0] not in ("127.0.0.1", "localhost", "::1"):
            raise OSError(f"a connection to {address}")
        return call(self, address)
    return connect

for name in ("connect", "connect_ex"):
    setattr(socket.socket, name, checked(getattr(socket.socket, name)))

class Hide(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name.partition(".")[0] in os.environ.get("HIDDEN", HIDDEN).split():
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Hide())
"""


def machine_without_network(folder: Path, hidden: str = "") -> dict[str, str]:
    """`folder` is created; `hidden` names packages that seem not to be installed."""
    folder.mkdir()
    # A process that computes gets the usual variables alone.
    start = f"HIDDEN = {hidden!r}\n{ALONE}"
    (folder / "sitecustomize.py").write_text(start, encoding="utf-8")
    path = os.pathsep.join((str(folder), *filter(None, sys.path)))
    return {**os.environ, "PYTHONPATH": path}
