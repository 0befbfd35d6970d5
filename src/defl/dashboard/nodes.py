"""One node as the dashboard sees it: its folder, its status and its record of the rounds.

Everything is read, nothing is held open, and nothing here may fail because a node starts, stops,
or deletes its folder meanwhile: what was read last stays.
"""

from contextlib import suppress
from pathlib import Path

from defl.committee import Federation
from defl.dashboard.asking import Asking
from defl.errors import UserError
from defl.node.report.round_facts import FoldedFacts
from defl.node.report.round_log import RoundLog
from defl.node.report.status import NodeStatus
from defl.node.report.status_client import last_status
from defl.node.setup.agreement import Agreement, read_federation
from defl.node.setup.config import NodeConfig, read_node


class WatchedNode:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.config: NodeConfig = read_node(folder)
        self.history = FoldedFacts()
        self.status: NodeStatus | None = None  # the newest known
        self.runs = False
        self.agreement: Agreement | None = None  # None: the node has no federation yet
        self.federation: Federation | None = None  # its facts in the present epoch
        self.asking = Asking(folder)
        self._log = RoundLog(folder)
        self._is_other_file = False  # what is in `history` is of a file that is gone

    @property
    def name(self) -> str:
        return self.config.name

    def ask(self) -> None:
        if self.agreement is None:
            with suppress(UserError):  # it gets its federation.toml later
                self.agreement = read_federation(self.folder / self.config.federation)
                self.federation = self.agreement.federation
        self.asking.ask("" if self.federation is None else self.federation.chain.hex())

    def refresh(self) -> set[int]:
        """Look at the node again, with what it has answered; returns the rounds of which something
        new is known."""
        running = self.asking.answer.status
        self.runs = running is not None
        self.status = running or last_status(self.folder) or self.status
        self._refresh_members()
        return self._read_history()

    def _read_history(self) -> set[int]:
        try:
            new = self._log.read_new()
        except OSError:
            return set()  # it may be readable again
        self._is_other_file = self._is_other_file or new.from_start
        changed: set[int] = set()
        if self._is_other_file and new.facts:
            changed, self.history = set(self.history.rounds), FoldedFacts()
            self._is_other_file = False
        return changed | self.history.add(new.facts)

    def _refresh_members(self) -> None:
        report = self.asking.answer.membership
        if self.agreement is not None and report is not None:
            charter = self.agreement.federation.charter
            self.federation = Federation(charter, report.membership)
