"""Which nodes a dashboard shows: the folders that were named, or those inside them."""

from collections.abc import Sequence
from pathlib import Path

from defl.errors import UserError
from defl.node.setup.config import CONFIG_FILE


def nodes_in(folders: Sequence[Path]) -> tuple[Path, ...]:
    """Each folder is a node's, or one that `defl run` or `defl demo` filled with nodes."""
    nodes: dict[Path, None] = {}
    for folder in folders:
        for node in _nodes_of(folder):
            nodes.setdefault(node)
    return tuple(nodes)


def title_of(folders: Sequence[Path], nodes: Sequence[Path]) -> str:
    """The name of what is shown, if that is more than one node; a node has its own name."""
    if len(nodes) == 1:
        return ""
    return folders[0].resolve().name if len(folders) == 1 else f"{len(nodes)} nodes"


def _nodes_of(folder: Path) -> list[Path]:
    if not folder.is_dir():
        what = "not a folder" if folder.exists() else "no such folder"
        raise UserError(
            f"{folder}: {what}; name a node's folder, or the one of a run: defl run --out FOLDER"
        )
    if (folder / CONFIG_FILE).exists():
        return [folder]
    nodes = [path.parent for path in folder.glob(f"*/{CONFIG_FILE}")]
    if not nodes:
        raise UserError(
            f"{folder}: not a node's folder, and none is in it ({CONFIG_FILE} is missing); a node "
            "is made by: defl node init"
        )
    return sorted(nodes, key=_in_order)


def _in_order(node: Path) -> tuple[str, int, str]:
    """node-2 comes before node-10."""
    name, _, number = node.name.rpartition("-")
    return (name, int(number), "") if number.isdecimal() else (node.name, 0, number)
