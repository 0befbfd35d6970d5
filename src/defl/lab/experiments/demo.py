"""The demonstration: real nodes on this machine, one that attacks, one that is killed.

The handwritten digits are divided among the nodes. The last node's client poisons its updates;
node 1 is killed with SIGKILL half-way and started again when a round has closed without it. For
comparison a plain server trains the same clients on the same data in one loop, with the attack and
without. How it is shown is decided in cli/.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from defl.clients.protocol import Client
from defl.committee import require_counts
from defl.errors import UserError
from defl.lab.attacks.attacks import attack_named
from defl.lab.experiments import digits
from defl.lab.experiments.in_process import trained_by_server
from defl.lab.experiments.poisoned import PoisonedClient
from defl.node.report.model_file import read_model
from defl.node.report.results import MODEL
from defl.results import Result
from defl.running import RunProgress, run

WITNESS = 0  # honest and never killed: its metrics are shown
VICTIM = 1  # is killed
# A round waits at least this long for a member that is away; training takes far less.
GST_LT_MIN_S, GST_LT_MAX_S = 2.0, 10.0
# Whatever goes wrong, a demonstration ends; on two cores it takes less than half a minute.
LIMIT_S = 300.0
ATTACK = "sign_flip_10"


@dataclass(frozen=True, slots=True)
class DemoPlan:
    nodes: int = 7
    rounds: int = 10
    attack: str = ATTACK
    seed: int = 1

    def __post_init__(self) -> None:
        if self.rounds < 4:
            raise UserError("the demonstration needs at least 4 rounds: one node misses some")
        if self.nodes < 4:
            raise UserError("the demonstration needs at least 4 nodes, so that one may lie")
        require_counts(self.nodes, self.rounds)

    @property
    def attacker(self) -> int:
        return self.nodes - 1

    @property
    def killed_in(self) -> int:
        """The round in which the victim is killed."""
        return self.rounds // 2

    @property
    def attack_in_words(self) -> str:
        attack = attack_named(self.attack)
        if not isinstance(attack, partial):
            return self.attack
        settings = ", ".join(f"{name} {value:g}" for name, value in attack.keywords.items())
        return f"{attack.func.__name__}, {settings}"


def name_of(node: int) -> str:
    return f"node-{node}"


class Demo:
    def __init__(self, plan: DemoPlan, project: Path) -> None:
        """`project` is an empty folder for the data."""
        self.plan = plan
        self._project = project
        digits.write_parts(project, plan.nodes, plan.seed)

    def by_server(self, *, attacked: bool) -> tuple[float, ...]:
        """Accuracy after each round of FedAvg by a plain server, in this process."""
        plan = self.plan
        clients: list[Client] = [self._client(number) for number in range(plan.nodes)]
        if attacked:
            clients[plan.attacker] = PoisonedClient(
                clients[plan.attacker], attack_named(plan.attack), node=plan.attacker
            )
        rounds = trained_by_server(clients, "fed_avg", 0, plan.rounds)
        return tuple(metrics["accuracy"] for metrics in rounds)

    def run(self, watch: Callable[[RunProgress], None], out: Path | None) -> Result:
        """Real nodes, until each has ended by itself or time is up."""
        until = time.monotonic() + LIMIT_S

        def watch_clock(progress: RunProgress) -> None:
            if time.monotonic() > until:
                raise UserError(
                    f"the demonstration was stopped after {LIMIT_S:.0f} s: this machine is too "
                    "busy; try fewer nodes: defl demo --nodes 4"
                )
            watch(progress)

        return run(
            self._project,
            client=digits.CLIENT,
            nodes=self.plan.nodes,
            rounds=self.plan.rounds,
            gst_lt_min_s=GST_LT_MIN_S,
            gst_lt_max_s=GST_LT_MAX_S,
            attacks={name_of(self.plan.attacker): self.plan.attack},
            kills={name_of(VICTIM): self.plan.killed_in},
            out=out,
            progress=False,
            watch=watch_clock,
        )

    def accuracy_of(self, result: Result) -> float | None:
        """Of the model that the witness holds, measured here."""
        path = result.folder_of(name_of(WITNESS)) / MODEL
        if not path.exists():
            return None
        weights, _ = read_model(path)
        return self._client(WITNESS).evaluate(weights)["accuracy"]

    def _client(self, number: int) -> digits.Digits:
        return digits.Digits(digits.part_file(self._project, number))
