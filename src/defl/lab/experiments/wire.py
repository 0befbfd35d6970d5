"""Updates as they travel in a cell of the robustness table: encoded and decoded by the codec.

The functions are a node's own. What a masked update leaves out stays with its member, as at a node.
"""

import numpy as np

from defl.ids import Round
from defl.lab.experiments.small_model import Floats, Shape
from defl.pool.weights import Base, check_payload, decode, encode
from defl.schema import VALUE_MAX, Codec, Row, Schema
from defl.unsent import Unsent


class Wire:
    def __init__(self, codec: Codec, shape: Shape, members: int) -> None:
        self._codec = codec
        self._schema = Schema(shape.entries)
        self._unsent = [Unsent(self._schema, codec) for _ in range(members)]

    def starts(self, base: Row, round_: int) -> Floats:
        """The models from which the members train, one in each row."""
        return np.stack([unsent.start(base, Round(round_)) for unsent in self._unsent])

    def sent(self, member: int, row: Row, base: Row, round_: int) -> Row:
        """The member's update as the others decode it."""
        if self._codec == Codec.FP32:
            return row  # the same bits; the rules see even what no node would accept
        limit = np.float32(VALUE_MAX)
        bounded = np.clip(np.nan_to_num(row, nan=0.0), -limit, limit)
        start = Base(base, Round(round_))
        payload = encode(bounded, self._schema, self._codec, start)
        check_payload(payload, self._schema, self._codec)
        self._unsent[member].keep(bounded, base, Round(round_))
        return decode(payload, self._schema, self._codec, start)
