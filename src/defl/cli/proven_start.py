"""What a new federation takes over from an old one: the last proven model, and the charter."""

from pathlib import Path

from msgspec.structs import replace

from defl.aggregation.memory import ENTRY
from defl.committee import Charter, Timing
from defl.errors import UserError
from defl.ids import NO_DIGEST
from defl.node.report.model_file import read_model
from defl.node.setup.agreement import read_federation
from defl.proofs import verify
from defl.schema import Role, Row, Schema


def draft_from(
    proven: tuple[Path, Path, Path],
    lineage: Path | None,
    options: Charter,
    given: frozenset[str],
) -> tuple[Charter, Row]:
    """The old charter, with the facts that are `given` taken from `options`, and the model's row.

    `proven` names model, certificate and federation.toml, as for `verify`. The aggregation rule
    starts with an empty memory: it is about other members.
    """
    model, certificate, federation = proven
    proof = verify(model, certificate, federation, lineage=lineage)
    if not proof:
        raise UserError(f"{model} is not proven, so no federation starts from it:\n{proof}")
    old = read_federation(federation).federation.charter
    entries = tuple(entry for entry in old.schema.entries if entry.role is not Role.MEMORY)
    schema = Schema(entries)
    arrays, _ = read_model(model)
    arrays.pop(ENTRY, None)
    bounds = {name: getattr(options.timing, name) for name in given & set(Timing.__struct_fields__)}
    facts = {name: getattr(options, name) for name in given - set(bounds)}
    begun = replace(
        old,
        schema=schema,
        initial=NO_DIGEST,
        document=NO_DIGEST,
        faults_max=None,  # a number of the old members
        timing=replace(old.timing, **bounds),
    )
    return replace(begun, **facts), schema.flatten(arrays)
