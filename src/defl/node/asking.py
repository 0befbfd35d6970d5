"""What a node says of itself to whoever asks from outside: over loopback, or by its last word."""

import json
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

from defl.node.node import PORT_FILE, STATUS_FILE

STATUS_WAIT_S = 3.0


def asked_status(folder: Path) -> dict[str, Any] | None:
    """What the running node says of itself; None if none answers."""
    try:
        port = int((folder / PORT_FILE).read_text(encoding="ascii"))
        address = f"http://127.0.0.1:{port}/status"
        with urllib.request.urlopen(address, timeout=STATUS_WAIT_S) as answer:
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
