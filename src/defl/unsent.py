"""What a member has learned and not sent yet, when its updates carry part of the values.

Under `int8_masked` a value travels in every tenth round. Between its turns the member trains on
from what it has learned, and the whole change travels when the value's turn comes. Adding the
changes up instead (error feedback) would repeat one step up to ten times, since each training would
begin without the steps before it.

Kept in memory alone: after a restart, a failed training or a long absence the member begins with
the round's model.
"""

from defl.ids import Round
from defl.pool.mask import GROUP, sent_columns
from defl.schema import Codec, Row, Schema


class Unsent:
    def __init__(self, schema: Schema, codec: Codec) -> None:
        self._schema = schema
        self._codec = codec
        self._kept: tuple[Round, Row] | None = None  # the last round trained, and its changes

    def start(self, base: Row, round_: Round) -> Row:
        """The model to train from in this round. What was kept is used once: a training that
        fails begins with the base the next time."""
        kept, self._kept = self._kept, None
        if kept is None:
            return base
        last, changes = kept
        # All values have had their turn since: what remains belongs to an old model.
        if not 0 < round_ - last <= GROUP:
            return base
        started: Row = base + changes
        return started

    def keep(self, trained: Row, base: Row, round_: Round) -> None:
        """Note what this round's update leaves out."""
        if self._codec != Codec.INT8_MASKED:
            return
        changes = trained - base
        for columns in sent_columns(self._schema, round_):
            changes[columns] = 0
        self._kept = (round_, changes)
