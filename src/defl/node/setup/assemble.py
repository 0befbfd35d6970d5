"""Assembles the members' cards and a model into the two files that every member gets.

The same cards, weights and options always produce the same bytes. `founding.py` decides the facts;
this module reads their inputs and writes the result.
"""

import os
from collections.abc import Sequence
from fnmatch import fnmatchcase
from pathlib import Path

from defl.aggregation.memory import ENTRY
from defl.cards import RELAY_ORIGIN, Card
from defl.clients.protocol import Roles
from defl.committee import require_weight
from defl.errors import UserError
from defl.fields import WEIGHT_MAX
from defl.founding import Founding
from defl.ids import NO_DIGEST, Digest
from defl.node.report.model_file import read_model, read_npz, write_model
from defl.node.setup.agreement import INITIAL_FILE, RELAYS_MAX, Agreement, write_federation
from defl.node.setup.config import read_card_file
from defl.node.setup.identity import require_distinct
from defl.node.work.first_weights import first_weights
from defl.schema import MODEL_ROLES, Weights

DIGITS_MAX = 9  # of a number on the command line


def require_new(federation_file: Path, *, force: bool) -> None:
    """Refuse to overwrite an agreement: nodes that have the old file would be cut off."""
    for path in (federation_file, federation_file.parent / INITIAL_FILE):
        if path.exists() and not force:
            raise UserError(f"{path} exists; choose another folder, or overwrite it with --force")
    if not federation_file.parent.is_dir():
        raise UserError(f"{federation_file.parent}: no such folder; make it first")


def read_cards(paths: Sequence[Path], origin: Digest = NO_DIGEST) -> list[Card]:
    """In the order of their names, so that the order of the paths does not matter. `origin`: as in
    `make_card`."""
    cards = [read_card_file(path, origin) for path in paths]
    require_distinct(cards, paths)
    return sorted(cards, key=lambda card: card.name)


def read_relay_cards(paths: Sequence[Path], members: Sequence[Card]) -> list[Card]:
    """Of relays that are no members; a member that relays says so on its own card."""
    if len(paths) > RELAYS_MAX:
        raise UserError(f"{len(paths)} relays; at most {RELAYS_MAX} can be named")
    cards = read_cards(paths, RELAY_ORIGIN)
    sources = [f"member {card.name}" for card in members] + [f"relay {card.name}" for card in cards]
    require_distinct((*members, *cards), sources)
    return cards


def read_weights(model: str, project: Path) -> tuple[Weights, Roles]:
    """The initial weights of a file or a client, and the roles that a client gives its entries."""
    path = Path(model)
    if path.suffix == ".safetensors":
        arrays, _ = read_model(path)
        arrays.pop(ENTRY, None)  # another federation's model: its memory is about other members
        return arrays, {}
    if path.suffix == ".npz":
        return read_npz(path), {}
    if ":" in model:
        return first_weights(model, project, os.environ)
    raise UserError(
        f"--model {model!r}: name a .safetensors or .npz file, or a client as module:attribute"
    )


def roles_of_patterns(assignments: Sequence[str], names: Sequence[str]) -> dict[str, str]:
    """Roles by entry, from assignments such as `*running_var=variance`; a later one wins."""
    roles: dict[str, str] = {}
    for assignment in assignments:
        pattern, equals, role = assignment.rpartition("=")
        if not (equals and pattern and role in MODEL_ROLES):
            raise UserError(
                f"--role takes NAME=ROLE with a role of {', '.join(MODEL_ROLES)}, not "
                f"{assignment!r}"
            )
        matched = [name for name in names if fnmatchcase(name, pattern)]
        if not matched:
            raise UserError(
                f"--role {assignment!r} matches no entry; there are: {', '.join(names[:20])}"
            )
        roles.update(dict.fromkeys(matched, role))
    return roles


def weights_by_name(assignments: Sequence[str]) -> dict[str, int]:
    """Agreed weights from assignments such as `alice=18`; who is not named has the default."""
    weights: dict[str, int] = {}
    for assignment in assignments:
        name, _, number = assignment.rpartition("=")
        if not (name and number.isascii() and number.isdigit() and len(number) <= DIGITS_MAX):
            raise UserError(
                f"--weight takes NAME=N with a whole number from 1 to {WEIGHT_MAX}, not "
                f"{assignment!r}"
            )
        if name in weights:
            raise UserError(f"--weight names {name!r} twice; give each member one weight")
        require_weight(int(number), name)
        weights[name] = int(number)
    return weights


def write_agreement(
    path: Path, founding: Founding, cards: Sequence[Card], relays: Sequence[Card] = ()
) -> Agreement:
    """federation.toml at this path, and the initial weights beside it."""
    federation = founding.federation
    metadata = {"round": "0", "digest": federation.initial.hex(), "format": "np"}
    try:
        write_model(path.parent / INITIAL_FILE, federation.schema, founding.weights, metadata)
        return write_federation(path, federation, cards, relays)
    except OSError as error:
        raise UserError(f"{path}: cannot be written: {error.strerror}") from error
