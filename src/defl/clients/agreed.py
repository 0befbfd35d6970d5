"""Settings of a project's defl.toml that its training code reads, the same at every member.

All members have the project's folder, and so the same file: a number that is stated there once is
agreed without anybody having to send it.
"""

import tomllib
from pathlib import Path

from defl.errors import UserError

SETTINGS_FILE = "defl.toml"


def agreed_steps(project: str | Path) -> int:
    """Return `steps` of the project's defl.toml: how much every member trains in a round."""
    path = Path(project) / SETTINGS_FILE
    try:
        settings = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror}; it states steps") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UserError(f"{path}: not a TOML file: {error}") from error
    steps = settings.get("steps")
    if not isinstance(steps, int) or isinstance(steps, bool) or steps < 1:
        found = "it states no steps" if steps is None else f"it says {steps!r}"
        raise UserError(
            f"{path}: {found}; write how many steps every member trains in a round, for example "
            "steps = 20"
        )
    return steps
