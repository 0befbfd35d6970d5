"""A model as a torch state dict in a file: tensors by name, no code."""

from collections.abc import Mapping
from pathlib import Path

from defl.clients.extras import install_command
from defl.errors import UserError
from defl.schema import Array


def write_state_dict(path: Path, arrays: Mapping[str, Array]) -> None:
    """Write a file that loads with `torch.load(path, weights_only=True)`."""
    try:
        import torch  # noqa: PLC0415 - an extra
    except ModuleNotFoundError as error:
        raise UserError(
            "a torch file is written by torch, which is not installed: export to .safetensors or "
            f".npz, or install it: {install_command('torch')}"
        ) from error
    with path.open("wb") as file:
        torch.save({name: torch.tensor(array) for name, array in arrays.items()}, file)
