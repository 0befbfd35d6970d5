"""The checks by name, and which of them failed.

A violation is a sentence; the first hundred are kept.
"""

NO_CONFLICTING_COMMITS = "no conflicting commits"
SAME_LOG = "same log prefix"
SAME_LEDGER = "same ledger"
NOTHING_SIGNED_TWICE = "no honest member signed twice"
CERTIFICATES = "certificates have q distinct members"
ACKS_OBEY = "acknowledged updates obey the rules"
RETRIEVABLE = "committed updates retrievable"
ONE_UPDATE = "one update per author and round"
TRANSACTIONS = "honest transactions committed or round closed"
ROUNDS_CLOSE = "rounds close"
WITHIN_BOUNDS = "memory, log and pool within bounds"
SAME_MODEL = "same model everywhere"
NO_MEMBER_LEFT_BEHIND = "no honest member is left behind"
NOTHING_BEFORE_ITS_RECORD = "nothing leaves before it is durable"
INPUTS_IN_PLACE = "work finds its inputs in place"
ONE_HANDOVER = "one membership follows each epoch"
ONE_EPOCH_PER_ROUND = "nobody signs one round in two epochs"
MODEL_GOES_ON = "the model goes on across a boundary"
SURVIVES_BOUNDARY = "new members can retrieve the last round"
MEMBERS_ONLY = "only present members have a say"
NEWEST_EPOCH = "every honest member reaches the newest epoch"

CHECKS = (
    NO_CONFLICTING_COMMITS,
    SAME_LOG,
    SAME_LEDGER,
    NOTHING_SIGNED_TWICE,
    CERTIFICATES,
    ACKS_OBEY,
    RETRIEVABLE,
    ONE_UPDATE,
    TRANSACTIONS,
    ROUNDS_CLOSE,
    WITHIN_BOUNDS,
    SAME_MODEL,
    NO_MEMBER_LEFT_BEHIND,
    NOTHING_BEFORE_ITS_RECORD,
    INPUTS_IN_PLACE,
    ONE_HANDOVER,
    ONE_EPOCH_PER_ROUND,
    MODEL_GOES_ON,
    SURVIVES_BOUNDARY,
    MEMBERS_ONLY,
    NEWEST_EPOCH,
)

VIOLATIONS_MAX = 100


class CheckVerdicts:
    def __init__(self) -> None:
        self.violations: list[str] = []
        self._failed: set[str] = set()

    def violate(self, check: str, sentence: str) -> None:
        self._failed.add(check)
        if len(self.violations) < VIOLATIONS_MAX:
            self.violations.append(f"{check}: {sentence}")

    def by_check(self) -> dict[str, bool]:
        return {check: check not in self._failed for check in CHECKS}
