"""Reads a node's status from outside: from the running node over loopback, or its final one."""

import urllib.error
import urllib.request
from pathlib import Path

from defl.node.files import PORT_FILE, STATUS_FILE, TOKEN_FILE
from defl.node.report.status import NodeStatus, decode_status

STATUS_WAIT_S = 3.0
# The token goes to the node itself, even if the environment names a proxy.
_direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))


def running_status(folder: Path) -> NodeStatus | None:
    """The status of the running node; None if none answers."""
    try:
        port = int((folder / PORT_FILE).read_text(encoding="ascii"))
        token = (folder / TOKEN_FILE).read_text(encoding="ascii")
        request = urllib.request.Request(
            f"http://127.0.0.1:{port}/status", headers={"Authorization": f"Bearer {token}"}
        )
        with _direct.open(request, timeout=STATUS_WAIT_S) as answer:
            return decode_status(answer.read())
    except (OSError, ValueError, urllib.error.URLError):
        return None


def last_status(folder: Path) -> NodeStatus | None:
    """The status that the node wrote on exit."""
    try:
        return decode_status((folder / STATUS_FILE).read_bytes())
    except OSError:
        return None
