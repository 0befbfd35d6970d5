"""How a federation begins: a model's schema and first weights become facts to agree on.

The commands, `defl run`, the simulator and the experiments all found their federations here.
"""

from dataclasses import dataclass

import numpy as np
from msgspec.structs import replace

from defl.aggregation.memory import check_memory, with_memory
from defl.aggregation.rules import rule_named
from defl.committee import Charter, Federation, Membership
from defl.schema import Row, Schema
from defl.work import Blob, model_blob


@dataclass(frozen=True, slots=True)
class Founding:
    federation: Federation
    weights: Row  # the initial weights, ending with an empty memory if the rule remembers
    initial: Blob  # the same weights, as every member stores and serves them


def found(draft: Charter, membership: Membership, weights: Row) -> Founding:
    """Complete a draft: its schema is the model's own, and it names no initial weights yet.

    `weights` are the model's shared entries as one row.
    """
    schema = schema_with_rule(draft.schema, draft.aggregation)
    row = np.zeros(schema.values, dtype=np.float32)
    row[: weights.size] = weights
    proposed = Federation(replace(draft, schema=schema), membership)
    manifest, payload = model_blob(proposed, row)
    charter = replace(proposed.charter, initial=manifest.digest)
    return Founding(Federation(charter, membership), row, (manifest, payload))


def schema_with_rule(model: Schema, aggregation: str) -> Schema:
    """The model's entries, and a last one for the memory if the aggregation rule has one."""
    return with_memory(model) if rule_named(aggregation).remembers else model


def check_founded(federation: Federation) -> None:
    """Check facts read from a file: the rule exists, and the schema suits it."""
    if rule_named(federation.aggregation).remembers:
        check_memory(federation.schema)
