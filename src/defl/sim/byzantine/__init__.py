"""Byzantine behaviours by name. Each wraps an honest participant from outside.

The honest code has no branch for liars: a wrapper runs the participant as usual, then changes its
messages or adds more. It signs with its own key only.
"""

from functools import partial

from defl.sim.byzantine.changing import Changing
from defl.sim.byzantine.consensus import DoubleVoter, Equivocator, Forger, HeightLiar, YesVoter
from defl.sim.byzantine.costly import Exhauster
from defl.sim.byzantine.epochs import Agitator, Revenant, Suffixer, Usurper
from defl.sim.byzantine.past import Rewinder
from defl.sim.byzantine.pool import (
    Braggart,
    LateWithholder,
    MalformedBlob,
    RecallStaller,
    TwoFaced,
    Withholder,
)
from defl.sim.byzantine.promises import PROMISE_BREAKERS
from defl.sim.byzantine.rounds import EarlyAgg, WrongRound
from defl.sim.byzantine.traffic import Flooder, Replayer, Silent, Slow
from defl.sim.sim_node import Wrap

_CONSTANT: dict[str, Wrap] = {
    "silent": Silent,
    "slow": Slow,
    "equivocator": Equivocator,
    "double-voter": DoubleVoter,
    "forger": Forger,
    "yes-voter": YesVoter,
    "withholder": Withholder,
    "late-withholder": LateWithholder,
    "braggart": Braggart,
    "two-faced": TwoFaced,
    "malformed": MalformedBlob,
    "recall-staller": RecallStaller,
    "wrong-round": WrongRound,
    "early-agg": EarlyAgg,
    "replayer": Replayer,
    "flooder": Flooder,
    **PROMISE_BREAKERS,
    "exhauster": Exhauster,
    "rewinder": Rewinder,
    "height-liar": HeightLiar,
    "agitator": Agitator,
    "usurper": Usurper,
    "revenant": Revenant,
    "suffixer": Suffixer,
}

KINDS: dict[str, Wrap] = {**_CONSTANT, "changing": partial(Changing, _CONSTANT)}
