"""How to install the optional packages that a feature needs.

DeFL is in no package index, so the command follows from how this copy was installed.
"""

import json
import re
import shlex
from pathlib import Path

import defl

CONSTRAINTS = "constraints.txt"
# In a distribution's metadata: `torch>=2.4; extra == "torch"`.
_OF_EXTRA = re.compile(r"""(?P<requirement>[^;]+?)\s*;.*\bextra\s*==\s*["'](?P<extra>[^"']+)["']""")


def install_command(*extras: str) -> str:
    """A command that installs these extras, whatever the current folder."""
    checkout = _checkout()
    if checkout is None:
        return shlex.join(("pip", "install", *_requirements(extras)))
    editable = ("-e",) if Path(defl.__file__).is_relative_to(checkout) else ()
    project = f"{checkout}[{','.join(extras)}]"
    return shlex.join(("pip", "install", "-c", str(checkout / CONSTRAINTS), *editable, project))


def _checkout() -> Path | None:
    """The source tree that this copy runs from or was installed from, if it is still there."""
    for folder in (Path(defl.__file__).parents[2], _installed_from()):
        if folder is not None and (folder / CONSTRAINTS).is_file():
            return folder
    return None


def _installed_from() -> Path | None:
    from importlib import metadata  # noqa: PLC0415 - slow, and only a message needs it
    from urllib.parse import unquote, urlsplit  # noqa: PLC0415

    try:
        recorded = metadata.distribution("defl").read_text("direct_url.json")
    except metadata.PackageNotFoundError:
        return None
    origin = json.loads(recorded) if recorded else {}
    if "dir_info" not in origin:
        return None  # a wheel, or an index
    return Path(unquote(urlsplit(origin["url"]).path))


def _requirements(extras: tuple[str, ...]) -> list[str]:
    """What the extras stand for, from the installed metadata."""
    from importlib import metadata  # noqa: PLC0415 - slow, and only a message needs it

    try:
        declared = metadata.requires("defl") or []
    except metadata.PackageNotFoundError:
        declared = []
    matches = [match for line in declared if (match := _OF_EXTRA.match(line))]
    wanted = {match["requirement"]: None for match in matches if match["extra"] in extras}
    return list(wanted) or list(extras)
