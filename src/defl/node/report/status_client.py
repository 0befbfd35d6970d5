"""What a node says of itself to whoever asks from outside: over loopback, or by its last word."""

import json
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

from defl.node.node import PORT_FILE, STATUS_FILE, TOKEN_FILE

STATUS_WAIT_S = 3.0
# The token goes to the node itself, whatever proxy the environment names.
_direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))


def asked_status(folder: Path) -> dict[str, Any] | None:
    """What the running node says of itself; None if none answers."""
    try:
        port = int((folder / PORT_FILE).read_text(encoding="ascii"))
        token = (folder / TOKEN_FILE).read_text(encoding="ascii")
        request = urllib.request.Request(
            f"http://127.0.0.1:{port}/status", headers={"Authorization": f"Bearer {token}"}
        )
        with _direct.open(request, timeout=STATUS_WAIT_S) as answer:
            found = json.load(answer)
    except (OSError, ValueError, urllib.error.URLError):
        return None
    return found if isinstance(found, dict) else None


def last_status(folder: Path) -> dict[str, Any] | None:
    """What the node wrote when it ended."""
    try:
        found = json.loads((folder / STATUS_FILE).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) else None
