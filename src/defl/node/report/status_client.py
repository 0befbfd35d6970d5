"""Reads a node's status from outside: from the running node over loopback, or its final one."""

import urllib.request
from http.client import HTTPException
from pathlib import Path

from defl.node.files import PORT_FILE, STATUS_FILE, TOKEN_FILE
from defl.node.report.status import NodeStatus, decode_status

STATUS_WAIT_S = 3.0
# A hundred members and many metrics fit. The port of a node that was killed may belong to another
# program by now, whose answer must not fill the memory.
STATUS_BYTES_MAX = 16 * 2**20


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_: object) -> None:
        return None


# The token goes to the node itself, whatever proxy the environment names.
_direct = urllib.request.build_opener(urllib.request.ProxyHandler({}), _NoRedirects)


def running_status(folder: Path) -> NodeStatus | None:
    """The status of the running node; None if none answers."""
    try:
        port = int((folder / PORT_FILE).read_text(encoding="ascii"))
        token = (folder / TOKEN_FILE).read_text(encoding="ascii")
        request = urllib.request.Request(
            f"http://127.0.0.1:{port}/status", headers={"Authorization": f"Bearer {token}"}
        )
        with _direct.open(request, timeout=STATUS_WAIT_S) as answer:
            return decode_status(answer.read(STATUS_BYTES_MAX))
    except (OSError, ValueError, HTTPException):
        return None


def last_status(folder: Path) -> NodeStatus | None:
    """The status that the node wrote on exit."""
    try:
        return decode_status((folder / STATUS_FILE).read_bytes())
    except OSError:
        return None
