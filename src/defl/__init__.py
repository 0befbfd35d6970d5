"""DeFL: federated learning without a server and without a trusted party.

The public names are here and nothing else; docs/API.md has an example of each. They are loaded when
they are first used, so that `import defl` is quick and loads no simulator and no framework.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from defl.clients.protocol import Client
    from defl.committee import Timing
    from defl.errors import DeflError, LocalFault, UserError, WeightsError, WorkerFailed
    from defl.proofs import LineageProof, ModelProof, load_model, verify, verify_lineage
    from defl.results import (
        Attendance,
        History,
        MemberTraffic,
        Omission,
        OmissionReason,
        Result,
        RoundRecord,
        Simulation,
    )
    from defl.running import RunFailed, RunInterrupted, RunProgress, run
    from defl.sim.conditions import Conditions
    from defl.simulating import simulate

__version__ = "0.2.0"

__all__ = [  # tests/test_exports.py
    "Attendance",
    "Client",
    "Conditions",
    "DeflError",
    "History",
    "LineageProof",
    "LocalFault",
    "MemberTraffic",
    "ModelProof",
    "Omission",
    "OmissionReason",
    "Result",
    "RoundRecord",
    "RunFailed",
    "RunInterrupted",
    "RunProgress",
    "Simulation",
    "Timing",
    "UserError",
    "WeightsError",
    "WorkerFailed",
    "load_model",
    "run",
    "simulate",
    "verify",
    "verify_lineage",
]

_HOME = {  # of each public name
    "Client": "defl.clients.protocol",
    "Conditions": "defl.sim.conditions",
    "Timing": "defl.committee",
    "simulate": "defl.simulating",
    **dict.fromkeys(("RunFailed", "RunInterrupted", "RunProgress", "run"), "defl.running"),
    **dict.fromkeys(
        ("LineageProof", "ModelProof", "load_model", "verify", "verify_lineage"), "defl.proofs"
    ),
    **dict.fromkeys(
        ("DeflError", "LocalFault", "UserError", "WeightsError", "WorkerFailed"), "defl.errors"
    ),
    **dict.fromkeys(
        (
            "Attendance", "History", "MemberTraffic", "Omission", "OmissionReason", "Result",
            "RoundRecord", "Simulation",
        ),
        "defl.results",
    ),
}  # fmt: skip


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'defl' has no attribute {name!r}")
    value = getattr(importlib.import_module(_HOME[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return ["__version__", *__all__]
