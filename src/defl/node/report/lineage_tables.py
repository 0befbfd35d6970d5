"""A proven lineage as tables for people: one row per epoch, one per round."""

from collections.abc import Sequence

from defl.node.report.lineage_proof import ProvenEpoch, ProvenRound
from defl.printable import printable

DIGEST_SHOWN = 16  # hex digits; `--json` has the whole
NAMES_SHOWN_MAX = 6  # `--json` has all


def lineage_tables(epochs: Sequence[ProvenEpoch], rounds: Sequence[ProvenRound]) -> list[str]:
    tables = [_table(_EPOCHS_HEAD, [_epoch_row(epoch) for epoch in epochs])]
    if rounds:
        tables.append(_table(_ROUNDS_HEAD, [_round_row(entry) for entry in rounds]))
    if not all(entry.complete for entry in rounds):
        tables.append(
            "* the signatures of these members are here; no state of the ledger shows whether "
            "others contributed too"
        )
    return tables


_EPOCHS_HEAD = ["epoch", "rounds", "n", "f", "q", "fingerprint", "members", "changes"]
_ROUNDS_HEAD = ["round", "epoch", "digest", "contributors", "missing"]


def _epoch_row(epoch: ProvenEpoch) -> list[str]:
    last = "" if epoch.last_round is None else str(epoch.last_round)
    ends_with = () if epoch.ends_with is None else (str(epoch.ends_with),)
    changes = (
        ("joined", epoch.joined),
        ("left", epoch.left),
        ("new key", epoch.replaced),
        ("last round", ends_with),
    )
    counts = (len(epoch.members), epoch.faults, epoch.quorum)
    return [
        str(epoch.epoch),
        f"{epoch.first_round}-{last}",
        *map(str, counts),
        epoch.fingerprint,
        _listed(epoch.members),
        "; ".join(f"{what}: {_listed(names)}" for what, names in changes if names),
    ]


def _round_row(entry: ProvenRound) -> list[str]:
    mark = "" if entry.complete else " *"
    members = len(entry.contributors) + len(entry.missing)
    return [
        str(entry.round),
        str(entry.epoch),
        entry.digest[:DIGEST_SHOWN],
        f"{len(entry.contributors)} of {members}{mark}",
        _listed(entry.missing) or "none",
    ]


def _listed(names: Sequence[str]) -> str:
    more = len(names) - NAMES_SHOWN_MAX
    shown = ", ".join(names[:NAMES_SHOWN_MAX])
    return printable(f"{shown} and {more} more" if more > 0 else shown)


def _table(head: list[str], rows: list[list[str]]) -> str:
    widths = [max(map(len, column)) for column in zip(head, *rows, strict=True)]
    lines = (
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in (head, *rows)
    )
    return "\n".join(lines)
