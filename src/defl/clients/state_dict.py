"""A model as a torch state dict in a file: tensors by name, no code.

The site's class prior is not an entry of the user's module, which would refuse it. It goes into a
file of its own beside the model.
"""

from collections.abc import Mapping
from pathlib import Path

from defl.clients.extras import install_command
from defl.clients.prior import PRIOR_ENTRY
from defl.errors import UserError
from defl.schema import Array


def write_state_dict(path: Path, arrays: Mapping[str, Array]) -> None:
    """Write the module's entries; `torch.load(path, weights_only=True)` reads them."""
    _save(path, {name: array for name, array in arrays.items() if name != PRIOR_ENTRY})


def write_prior(path: Path, arrays: Mapping[str, Array]) -> None:
    """Write the prior alone, as a dict with one tensor."""
    _save(path, {PRIOR_ENTRY: arrays[PRIOR_ENTRY]})


def prior_path(path: Path) -> Path:
    """Return where the prior of the state dict at `path` goes: model.pt, model.prior.pt."""
    return path.with_suffix(f".prior{path.suffix}")


def _save(path: Path, arrays: Mapping[str, Array]) -> None:
    try:
        import torch  # noqa: PLC0415 - an extra
    except ModuleNotFoundError as error:
        raise UserError(
            "a torch file is written by torch, which is not installed: export to .safetensors or "
            f".npz, or install it: {install_command('torch')}"
        ) from error
    with path.open("wb") as file:
        torch.save({name: torch.tensor(array) for name, array in arrays.items()}, file)
