"""The initial weights that a federation agreed on, read from the file beside federation.toml.

federation.toml names them by digest, so any member's copy will do and none has to be trusted.
"""

from pathlib import Path

from defl.committee import Federation
from defl.errors import UserError, WeightsError
from defl.node.report.model_file import shared_row
from defl.node.setup.agreement import INITIAL_FILE
from defl.work import Blob, model_blob

FROM_ANY_MEMBER = f"every member has {INITIAL_FILE}: copy it from any of them"


def read_initial(path: Path, federation: Federation) -> Blob:
    """The agreed weights as the blob that round 1 starts from."""
    if not path.is_file():
        raise UserError(f"{path}: no such file; {FROM_ANY_MEMBER}")
    try:
        row, _ = shared_row(path, federation.schema)
    except WeightsError as error:
        raise _not_of_this_federation(path, str(error)) from error
    except UserError as error:
        raise UserError(f"{error}; {FROM_ANY_MEMBER}") from error
    manifest, payload = model_blob(federation, row)
    if manifest.digest != federation.initial:
        raise _not_of_this_federation(
            path,
            f"its digest is {manifest.digest.hex()[:16]}, the agreed one is "
            f"{federation.initial.hex()[:16]}",
        )
    return manifest, payload


def _not_of_this_federation(path: Path, difference: str) -> UserError:
    return UserError(
        f"{path} and federation.toml do not belong together ({difference}): one `defl federation "
        "create` writes both; copy both files from one member, and compare the fingerprint with "
        "the others (defl federation show)"
    )
