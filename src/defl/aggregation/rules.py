"""The rules by the names that a federation may choose."""

from defl.aggregation.aggregate import Rule
from defl.aggregation.fed_avg import fed_avg
from defl.errors import UserError

RULES: dict[str, Rule] = {
    "fed_avg": fed_avg,
}


def rule_named(name: str) -> Rule:
    if name not in RULES:
        raise UserError(f"no aggregation rule is named {name!r}; there are: {', '.join(RULES)}")
    return RULES[name]
