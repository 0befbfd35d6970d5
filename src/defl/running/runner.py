"""`defl.run`: founds or resumes a federation on this machine, follows it, and returns its Result.

Whatever ends a run (the last round, Ctrl-C, a failure), no process is left behind.
"""

import shutil
import time
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import TypeVar

from msgspec.structs import replace

from defl.committee import DEFAULTS
from defl.errors import UserError
from defl.node.report.status_client import last_status
from defl.node.setup.local import (
    Local,
    existing_local,
    founding_folder,
    make_local,
)
from defl.progress import Progress
from defl.results import Result
from defl.running import flower as flower_project
from defl.running.active_run import ActiveRun, RunInterrupted
from defl.running.folders import PREFIX, held, require_own, running_nodes, strip
from defl.running.plan import (
    DEFAULT_ROUNDS,
    ProjectSettings,
    RunPlan,
    read_plan,
    read_settings,
    require_same,
    timing_of,
    tracker_named,
    write_plan,
)
from defl.running.progress import Audience, RunProgress, Watch

T = TypeVar("T")


def run(
    project: str | Path | None = None,
    *,
    flower: str | Path | None = None,
    run_config: str = "",
    node_config: str = "",
    client: str | None = None,
    nodes: int | None = None,
    rounds: int | None = None,
    aggregation: str = DEFAULTS.aggregation,
    weights: Mapping[str, int] | Mapping[int, int] | None = None,
    gst_lt_min_s: float | None = None,
    gst_lt_max_s: float | None = None,
    attacks: Mapping[str, str] | Mapping[int, str] | None = None,
    kills: Mapping[str, int] | Mapping[int, int] | None = None,
    track: str = "none",
    out: str | Path | None = None,
    keep: bool = False,
    progress: Progress = None,
    watch: Watch | None = None,
) -> Result:
    """Run a whole federation on this machine: real processes, TLS and disks.

    `project` is a folder with training code, whose defl.toml has the defaults of `client`,
    `nodes`, `rounds`, `weights` and the bounds of waiting; `flower` is a Flower project instead.
    The members are node-0, node-1, ... `weights` says how much each counts in the mean (1 to 1000;
    1 unless named), capped so that the f heaviest hold at most a third. `attacks` names members
    whose clients poison their updates, and the attack of each
    (`defl.lab.attacks.attacks.ATTACKS`). `kills` names members that are killed in a round and
    started again when it has closed without them.

    The nodes' folders are created in `out`. An interrupted run there is resumed. Without `out` they
    are created in the temporary directory, and after a successful run the keys and the nodes' state
    are deleted unless `keep`; models, certificates and logs stay.

    `progress` as in `defl.simulate`: None prints lines in a terminal or notebook, True always,
    False never; a function is called with the RoundRecord of each closed round. `watch` is called
    several times a second with the state of all members and the lines that are new.

    Ctrl-C stops all nodes and raises RunInterrupted, a KeyboardInterrupt that carries the result
    so far. A federation that cannot continue raises RunFailed.
    """
    started = time.monotonic()
    source, settings = _source(project, flower, run_config, node_config)
    plan = RunPlan(
        project=str(source.resolve()),
        client=client or settings.client,
        nodes=settings.nodes if nodes is None else nodes,
        rounds=rounds if rounds is not None or flower is not None else settings.rounds,
        aggregation=aggregation,
        timing=timing_of(settings, gst_lt_min_s, gst_lt_max_s),
        work_time_max_s=settings.work_time_max_s,
        track=tracker_named(track),
        attacks=_by_name("attacks={3: 'sign_flip'}", attacks or {}),
        keep_best=settings.keep_best,
        weights=_by_name("weights={3: 7}", weights or settings.weights),
    )
    plan = _with_attacks(plan)
    killed = _by_name("kills={3: 1}", kills or {})
    wanted = None if out is None else Path(out)
    if wanted is not None and wanted.exists():
        require_own(wanted)
    earlier = None if wanted is None else read_plan(wanted)
    audience = Audience(progress, watch)
    with ExitStack() as stack:
        if wanted is not None and earlier is not None:
            stack.enter_context(held(wanted))
            require_same(plan, earlier, wanted)
            active = ActiveRun(earlier, _reopened(wanted), killed, audience, started)
            first_line = f"resuming the run in {wanted}: {active.rounds_closed}"
        else:

            def hold(folder: Path) -> None:
                stack.enter_context(held(folder))

            with founding_folder(wanted, PREFIX, hold) as folder:
                _announce(audience, f"getting the initial weights from {source} ...")
                if flower is not None:
                    plan, notes = _prepared(plan, folder, run_config, node_config)
                    _announce(audience, *notes)
                active = ActiveRun(plan, _founded(plan, folder), killed, audience, started)
            first_line = f"{plan.nodes} nodes in {folder}, loading the training code ..."
        try:
            result = active.run(*active.sharing, first_line)
        except RunInterrupted as interrupted:
            if wanted is None and not keep and not interrupted.result.rounds:
                shutil.rmtree(interrupted.result.folder)  # no model, so nothing worth resuming
            raise
        if wanted is None and not keep and result.complete and result.agreed:
            strip(active.local)
    return result


def _announce(audience: Audience, *lines: str) -> None:
    """Report lines before there are members."""
    audience.report(RunProgress(0, 0, (), lines))


def _source(
    project: str | Path | None, flower: str | Path | None, run_config: str, node_config: str
) -> tuple[Path, ProjectSettings]:
    """The project's folder and settings."""
    if project is not None and flower is None and not (run_config or node_config):
        return Path(project), read_settings(Path(project))
    if flower is not None and project is None:
        return Path(flower), ProjectSettings(client=flower_project.CLIENT)
    raise UserError("name one project: defl run PROJECT, or defl run --flower PROJECT")


def _by_name(example: str, by_member: Mapping[str, T] | Mapping[int, T]) -> dict[str, T]:
    """Members are named node-3, or 3 for short."""
    if not isinstance(by_member, Mapping):
        raise UserError(f"name members and what happens to each: {example}")
    named = {
        f"node-{member}" if str(member).isdigit() else str(member): value
        for member, value in by_member.items()
    }
    if len(named) < len(by_member):
        raise UserError(f"a member is named twice, once by its number: {[*by_member]}")
    return named


def _with_attacks(plan: RunPlan) -> RunPlan:
    """Attacked nodes run the laboratory's client, which finds the honest one by its environment."""
    if not plan.attacks:
        return plan
    from defl.lab.experiments.poisoned import (  # noqa: PLC0415 - only an attack needs the lab
        HONEST_CLIENT_VARIABLE,
        client_spec,
    )

    for attack in plan.attacks.values():
        client_spec(attack)  # raises if the attack is unknown
    return replace(plan, environment={HONEST_CLIENT_VARIABLE: plan.client})


def _prepared(
    plan: RunPlan, folder: Path, run_config: str, node_config: str
) -> tuple[RunPlan, tuple[str, ...]]:
    prepared = flower_project.prepare(
        Path(plan.project),
        folder,
        plan.nodes,
        run_config=run_config,
        node_config=node_config,
        aggregation=plan.aggregation,
    )
    rounds = plan.rounds or prepared.rounds or DEFAULT_ROUNDS
    environment = {**plan.environment, **prepared.environment}
    return replace(plan, rounds=rounds, environment=environment), prepared.notes


def _founded(plan: RunPlan, folder: Path) -> Local:
    others = {}
    if plan.attacks:
        from defl.lab.experiments.poisoned import client_spec  # noqa: PLC0415

        others = {plan.names.index(name): client_spec(how) for name, how in plan.attacks.items()}
    local = make_local(
        folder,
        Path(plan.project),
        plan.client,
        plan.nodes,
        plan.rounds or DEFAULT_ROUNDS,
        timing=plan.timing,
        aggregation=plan.aggregation,
        work_time_max_s=plan.work_time_max_s,
        track=plan.track,
        keep_best=plan.keep_best,
        member_weights=plan.weights,
        others=others,
        environment=plan.environment,
    )
    write_plan(folder, plan)  # last: with it a run can be resumed
    return local


def _reopened(folder: Path) -> Local:
    if running := running_nodes(folder):
        raise UserError(
            f"nodes of the earlier run are still running: {', '.join(n.name for n in running)}; "
            f"stop each first: defl node stop {running[0]}"
        )
    local = existing_local(folder)
    statuses = [last_status(node) for node in local.nodes]
    if all(status is not None and status.finished for status in statuses):
        raise UserError(
            f"{folder} holds a run that is complete; use its model: defl export "
            f"{local.nodes[0]} model.npz, or name a new folder with --out"
        )
    return local
