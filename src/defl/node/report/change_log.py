"""Log lines about pending changes of the membership: proposed, approved, withdrawn, ready."""

from defl.ids import Digest
from defl.node.report.changes import in_words
from defl.node.report.log import Log
from defl.node.report.names import Names
from defl.participant import Participant
from defl.succession import PendingChange, ReadyKey, card_in

DIGEST_CHARACTERS = 16


class ChangeLog:
    def __init__(self, participant: Participant, names: Names, log: Log) -> None:
        self._participant = participant
        self._names = names
        self._log = log
        self._epoch = participant.epoch
        self._changes: tuple[PendingChange, ...] = participant.state.changes
        self._ready: tuple[ReadyKey, ...] = participant.state.ready

    def follow(self) -> None:
        """To be called after each decision of the participant."""
        state = self._participant.state
        if state.changes is self._changes and state.ready is self._ready:
            return
        if self._participant.epoch == self._epoch:
            self._compare(state.changes, state.ready)
        self._epoch = self._participant.epoch  # all that was pending has lapsed
        self._changes, self._ready = state.changes, state.ready

    def _compare(self, changes: tuple[PendingChange, ...], ready: tuple[ReadyKey, ...]) -> None:
        before = {change.digest: change for change in self._changes}
        now = {change.digest: change for change in changes if change.operations}
        for digest, change in now.items():
            known = before.get(digest)
            if known is None:
                self._proposed(change)
            for member in change.approvals if known is not None else ():
                if known is not None and member not in known.approvals:
                    self._line("a change is approved", digest, by=self._names.of(member))
            for member in known.approvals if known is not None else ():
                if member not in change.approvals:
                    self._line("an approval is withdrawn", digest, by=self._names.of(member))
        for digest, change in before.items():
            if digest not in now and change.operations:
                self._line("a change is withdrawn", digest, by=self._names.of(change.author))
        known_keys = {known.key for known in self._ready}
        for newcomer in ready:
            if newcomer.key not in known_keys:
                name = self._newcomer(newcomer.key)
                self._log.info("a newcomer's machine is ready", name=name, round=newcomer.round)

    def _proposed(self, change: PendingChange) -> None:
        federation = self._participant.federation
        what = "; ".join(in_words(federation, operation) for operation in change.operations)
        by = self._names.of(change.author)
        self._line("a change is proposed", change.digest, by=by, what=what)

    def _line(self, event: str, digest: Digest, **fields: object) -> None:
        self._log.info(event, change=digest.hex()[:DIGEST_CHARACTERS], **fields)

    def _newcomer(self, key: bytes) -> str:
        operations = [op for change in self._participant.state.changes for op in change.operations]
        cards = [card for card in map(card_in, operations) if card is not None]
        return next((card.name for card in cards if card.key == key), "unknown")
