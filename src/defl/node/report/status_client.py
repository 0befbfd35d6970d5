"""Talks to a node from outside, over loopback: reads its status, and asks for what its operator
wants. The final status of a node that has ended is in a file.
"""

import json
import urllib.request
from http.client import HTTPException
from pathlib import Path
from urllib.error import HTTPError

from defl.errors import UserError
from defl.node.files import PORT_FILE, STATUS_FILE, TOKEN_FILE
from defl.node.report.membership import MembershipReport, decode_membership
from defl.node.report.requests import Request, encode_request
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
        return decode_status(_ask(folder, "/status"))
    except (OSError, ValueError, HTTPException):
        return None


def running_membership(folder: Path) -> MembershipReport | None:
    """The membership as the running node knows it; None if none answers."""
    try:
        return decode_membership(_ask(folder, "/membership"))
    except (OSError, ValueError, HTTPException):
        return None


def send_request(folder: Path, request: Request) -> None:
    """Ask the running node; a UserError has its reason if it refuses."""
    try:
        _ask(folder, "/membership", encode_request(request))
    except HTTPError as refused:
        raise UserError(_reason(refused)) from refused
    except (OSError, ValueError, HTTPException) as error:
        raise UserError(
            f"{folder}: the node does not answer ({error}); is it running? Look with: defl node "
            f"status {folder}"
        ) from error


def _reason(refused: HTTPError) -> str:
    try:
        return str(json.loads(refused.read(STATUS_BYTES_MAX))["error"])
    except (OSError, ValueError, LookupError, TypeError, HTTPException):
        return f"the node answers {refused.code} {refused.reason}: is it of another release?"


def _ask(folder: Path, path: str, body: bytes | None = None) -> bytes:
    port = int((folder / PORT_FILE).read_text(encoding="ascii"))
    if not 0 < port < 2**16:
        raise ValueError(f"{port}: no port")
    token = (folder / TOKEN_FILE).read_text(encoding="ascii")
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}{path}", body, {"Authorization": f"Bearer {token}"}
    )
    with _direct.open(request, timeout=STATUS_WAIT_S) as answer:
        content: bytes = answer.read(STATUS_BYTES_MAX)
    return content


def last_status(folder: Path) -> NodeStatus | None:
    """The status that the node wrote on exit."""
    try:
        return decode_status((folder / STATUS_FILE).read_bytes())
    except OSError:
        return None
