"""One run's network: made, held by one run at a time, and removed whatever happens.

A run that is killed leaves namespaces, a folder and perhaps a mounted disk behind. The next one
removes them: the file that keeps other runs out also says where they are.
"""

import fcntl
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

from defl.errors import UserError
from defl.lab.chaos.hosts import (
    PREFIX,
    Host,
    allow_congestion_control,
    configure,
    make_hosts,
    remove_namespaces,
)
from defl.lab.chaos.link import UserspaceLink

HELD = Path("/run/defl-chaos")
# Linux's default, and so what most organisations' machines use.
CONGESTION_CONTROL = "cubic"


@dataclass(frozen=True, slots=True)
class ChaosNetwork:
    hosts: list[Host]
    link: UserspaceLink
    folder: Path  # removed at the end


@contextmanager
def only_run(*, wait: bool = False) -> Iterator[TextIO]:
    """Keeps other runs out, and removes what a killed one has left behind."""
    with HELD.open("a+", encoding="utf-8") as held:
        try:
            fcntl.flock(held, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except BlockingIOError as error:
            raise UserError(
                "another run of the laboratory is going on, and two would disturb each other; "
                "start this one later, or with --wait"
            ) from error
        held.seek(0)
        remove_leftovers(held.read().splitlines())
        held.truncate(0)
        yield held


def remove_leftovers(folders: list[str]) -> None:
    remove_namespaces()
    for folder in folders:
        if Path(folder).name.startswith(PREFIX):  # our own, whatever the file says
            _unmount_in(folder)
            shutil.rmtree(folder, ignore_errors=True)


def _unmount_in(folder: str) -> None:
    mounts = Path("/proc/mounts").read_text(encoding="utf-8").splitlines()
    for place in (line.split()[1] for line in mounts):
        if place.startswith(f"{folder}/"):
            subprocess.run(["umount", "--lazy", place], check=False)  # noqa: S603, S607


@contextmanager
def network(
    count: int, held: TextIO, congestion_control: str = CONGESTION_CONTROL
) -> Iterator[ChaosNetwork]:
    """This many hosts with a link between them, and a folder."""
    with ExitStack() as cleaning:
        folder = tempfile.mkdtemp(prefix=PREFIX)
        held.write(f"{folder}\n")
        held.flush()
        cleaning.callback(remove_leftovers, [folder])
        Path(folder).chmod(0o711)  # proxies run as users of their own; a node's folder is closed
        allow_congestion_control(congestion_control)
        hosts = make_hosts(count)
        for host in hosts:
            cleaning.callback(host.close)
        link = UserspaceLink([host.namespace for host in hosts], Path(folder))
        cleaning.callback(link.close)
        configure(hosts, congestion_control)
        yield ChaosNetwork(hosts, link, Path(folder))
