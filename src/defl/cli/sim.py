"""`defl sim`: one simulated federation, or a soak of random ones."""

import gc
import json
import resource
import sys
from math import inf
from pathlib import Path
from time import monotonic
from typing import Any

import click

from defl.cli.agreed_facts import agreed_facts, charter_of
from defl.cli.engine_option import engine_option
from defl.engine.choice import opened
from defl.errors import UserError
from defl.ids import NodeId
from defl.sim.byzantine import KINDS
from defl.sim.conditions import (
    Conditions,
    WriteTimes,
    parse_censor,
    parse_kill,
    parse_one_way,
    parse_partition,
    parse_rollback,
)
from defl.sim.run import Options, SimReport, simulate
from defl.sim.scenario import VALUES
from defl.sim.soak import Soaked, scenario, soak
from defl.sim.transcript import Transcript

SEED = click.IntRange(min=0)
EXAMPLES = """
Examples:

\b
  defl sim                                        4 nodes, 5 rounds, all honest
  defl sim --nodes 7 --byzantine equivocator:2    two members that propose twice per view
  defl sim --loss 0.1 --crash-rate 0.01           a lossy network and crashing nodes
  defl sim --partition '0,1|2,3@2-20'             two halves from second 2 to 20
  defl sim --censor Vote@2-20 --kill 1@10         votes are lost for a while; node 1 restarts
  defl sim --pace 3=50 --rounds 40                one member trains 50 times longer
  defl sim --aggregation multi_krum --codec int8  another rule, and smaller updates
  defl sim --values 5000 --chunk-bytes 1024       a model of many chunks
  defl sim --churn 0.5 --rounds 20                members join, leave and get new keys
  defl sim --soak 600                             random scenarios for ten minutes
  defl sim --scenario 1234                        repeat one of them by its seed
"""


def _kind_and_count(text: str) -> tuple[str, int]:
    kind, colon, count = text.partition(":")
    if colon and not count.isdigit():
        raise UserError(f"--byzantine takes KIND or KIND:COUNT, for example silent:2, not {text!r}")
    return kind, int(count) if colon else 1


def _node_and_factor(text: str, nodes: int) -> tuple[NodeId, float]:
    node, equals, factor = text.partition("=")
    try:
        paced = NodeId(int(node)), float(factor)
    except ValueError:
        paced = None
    if paced is None or not equals or not 0 <= paced[0] < nodes:
        raise UserError(f"--pace takes NODE=FACTOR, for example 3=50, not {text!r}")
    return paced


def memory_bytes() -> int | None:
    """Resident memory of this process; None where the system does not report it."""
    try:
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    except OSError:
        return None
    return pages * resource.getpagesize()


@click.command(epilog=EXAMPLES)
@click.option("--nodes", default=4, show_default=True, help="Members, 4 to 100.")
@click.option("--rounds", default=5, show_default=True, help="Rounds of learning to close.")
@click.option("--seed", type=SEED, default=1, show_default=True, help="Seed of all randomness.")
@agreed_facts
@click.option("--values", default=VALUES, show_default=True, help="Size of the model.")
@click.option(
    "--byzantine",
    multiple=True,
    metavar="KIND[:COUNT]",
    help=f"Byzantine members; repeatable. Kinds: {', '.join(KINDS)}.",
)
@click.option("--loss", default=0.0, help="Share of messages lost.")
@click.option("--duplication", default=0.0, help="Share of messages delivered twice.")
@click.option("--crash-rate", default=0.0, help="Chance that a node crashes at an event.")
@click.option("--disk-full-rate", default=0.0, help="Chance that a disk fills up at a write.")
@click.option("--slow-disk", default=1.0, metavar="FACTOR", help="Writes take this much longer.")
@click.option("--sync-failure-rate", default=0.0, help="Chance that the sync of a blob fails.")
@click.option("--rot-rate", default=0.0, help="Chance that a stored chunk rots at a write.")
@click.option(
    "--crash-all", multiple=True, type=float, metavar="SECOND", help="All nodes crash at once."
)
@click.option(
    "--partition",
    multiple=True,
    metavar="A,B|C,D@START-END",
    help="Groups that cannot reach each other.",
)
@click.option(
    "--rollback",
    multiple=True,
    metavar="NODE@SECOND:WRITES",
    help="Its disk is rolled back by WRITES writes.",
)
@click.option(
    "--one-way",
    multiple=True,
    metavar="A,B>C,D@START-END",
    help="C and D receive nothing from A and B.",
)
@click.option(
    "--censor",
    multiple=True,
    metavar="KIND[:FROM][>TO]@START-END",
    help="Messages of this kind are lost.",
)
@click.option("--kill", multiple=True, metavar="NODE@SECOND", help="One node crashes and restarts.")
@click.option(
    "--slow", multiple=True, type=int, metavar="NODE", help="A node that is ten times slower."
)
@click.option(
    "--pace", multiple=True, metavar="NODE=FACTOR", help="Its work takes FACTOR times longer."
)
@click.option("--work", "work_s", default=0.5, show_default=True, help="Mean seconds of training.")
@click.option("--work-sigma", type=float, help="Lognormal training times; default: exponential.")
@click.option("--clock-skew", default=0.0, help="Clocks differ by up to this share.")
@click.option(
    "--churn",
    default=0.0,
    metavar="CHANCE",
    help=(
        "Chance per round that an operator proposes a new member, to leave, to expel another, a "
        "new key for a member on an empty machine, or another last round. The others approve what "
        "keeps at most f members faulty."
    ),
)
@click.option("--latency", default=0.02, show_default=True, help="Minimum delay in seconds.")
@click.option("--jitter", default=0.02, show_default=True, help="Mean delay added to the latency.")
@click.option("--bandwidth", default=10e6, show_default=True, help="Bytes per second on each link.")
@click.option(
    "--real-signatures", is_flag=True, help="Ed25519 instead of free signatures (slower)."
)
@click.option(
    "--soak", "soak_s", type=float, metavar="SECONDS", help="Run random scenarios for this long."
)
@click.option(
    "--scenario", "soak_seed", type=SEED, metavar="SEED", help="Repeat one scenario of a soak."
)
@engine_option("processes:1", "Scenarios of a soak")
@click.option("--transcript", type=click.Path(dir_okay=False), help="Write the conversation here.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of text.")
def sim(
    nodes: int,
    rounds: int,
    seed: int,
    values: int,
    byzantine: tuple[str, ...],
    loss: float,
    duplication: float,
    crash_rate: float,
    disk_full_rate: float,
    slow_disk: float,
    sync_failure_rate: float,
    rot_rate: float,
    crash_all: tuple[float, ...],
    partition: tuple[str, ...],
    rollback: tuple[str, ...],
    one_way: tuple[str, ...],
    censor: tuple[str, ...],
    kill: tuple[str, ...],
    slow: tuple[int, ...],
    pace: tuple[str, ...],
    work_s: float,
    work_sigma: float | None,
    clock_skew: float,
    churn: float,
    latency: float,
    jitter: float,
    bandwidth: float,
    real_signatures: bool,
    soak_s: float | None,
    soak_seed: int | None,
    engine: str,
    transcript: str | None,
    as_json: bool,
    **facts: Any,
) -> None:
    """Run a whole federation on a virtual clock, with faults and liars, and check it.

    The nodes are the real ones: only wire, disk, clock and training are simulated. The facts that
    members agree on have the options and defaults of `defl federation create`. Faults strike until
    half of the rounds have closed; then the network is calm. The same seed prints the same bytes,
    except for wall time and memory.

    Exit code 0: every check holds; 1: one does not; 2: it cannot be run as asked.
    """
    if soak_s is not None:
        _soak(soak_s, seed, engine, as_json=as_json)
        return
    if soak_seed is not None:
        options = scenario(soak_seed)
    else:
        options = Options(
            nodes=nodes,
            rounds=rounds,
            seed=seed,
            charter=charter_of(facts),
            values=values,
            byzantine=tuple(_kind_and_count(text) for text in byzantine),
            real_signatures=real_signatures,
            conditions=Conditions(
                latency_s=latency,
                jitter_s=jitter,
                bandwidth_bytes_s=bandwidth,
                loss=loss,
                duplication=duplication,
                crash_rate=crash_rate,
                disk_full_rate=disk_full_rate,
                writes=WriteTimes().slower(slow_disk),
                sync_failure_rate=sync_failure_rate,
                rot_rate=rot_rate,
                all_crash_at_s=crash_all,
                clock_skew=clock_skew,
                churn=churn,
                work_factors=tuple(_node_and_factor(text, nodes) for text in pace),
                work_s=work_s,
                work_sigma=work_sigma,
                slow=frozenset(NodeId(node) for node in slow),
                partitions=tuple(parse_partition(text, nodes) for text in partition),
                rollbacks=tuple(parse_rollback(text, nodes) for text in rollback),
                one_way=tuple(parse_one_way(text, nodes) for text in one_way),
                censors=tuple(parse_censor(text, nodes) for text in censor),
                kills=tuple(parse_kill(text, nodes) for text in kill),
            ),
        )
    report = _run(options, transcript)
    click.echo(json.dumps(report.as_json(), indent=1) if as_json else _text(report))
    sys.exit(0 if report.ok else 1)


# One run makes few reference cycles, but searching its many objects for them takes a quarter of
# the time at n = 100.
GARBAGE_THRESHOLD = 50_000
VIOLATIONS_SHOWN = 5


def _run(options: Options, transcript: str | None) -> SimReport:
    progress = _Progress()
    gc.set_threshold(GARBAGE_THRESHOLD)
    if transcript is None:
        return simulate(options, memory=memory_bytes, progress=progress.rounds)
    try:
        with Path(transcript).open("w", encoding="utf-8") as file:
            written = Transcript(file.write)
            return simulate(
                options, transcript=written, memory=memory_bytes, progress=progress.rounds
            )
    except OSError as error:
        raise UserError(f"the transcript cannot be written: {error}") from error


class _Progress:
    """One line on standard error, at most once a second, if that is a terminal."""

    def __init__(self) -> None:
        self._shown_at = monotonic()

    def _show(self, text: str) -> None:
        if sys.stderr.isatty() and monotonic() - self._shown_at > 1:
            self._shown_at = monotonic()
            click.echo(f"\r{text}", err=True, nl=False)

    def rounds(self, closed: int, rounds: int) -> None:
        self._show(f"{closed} of {rounds} rounds closed ")

    def scenarios(self, done: int, failed: int) -> None:
        self._show(f"{done} scenarios, {failed} failed ")


def _text(report: SimReport) -> str:
    options, charter = report.options, report.options.charter
    byzantine = ", ".join(f"{count} {kind}" for kind, count in options.byzantine) or "all honest"
    seconds = report.virtual_s / max(1, report.rounds_closed)
    lines = [
        f"{options.nodes} nodes, {charter.rules}, seed {options.seed}; {byzantine}",
        f"aggregation     {charter.aggregation}, updates as {charter.codec}",
        (
            f"rounds closed   {report.rounds_closed} of {report.rounds}"
            f"   ({seconds:.2f} virtual seconds each)"
        ),
        (
            f"views           {report.views}   blocks committed {report.blocks_committed}"
            f"   crashes {report.crashes}"
        ),
        f"events          {report.events}",
        *_epochs(report),
        "",
        f"{'message':<16}{'count':>10}{'bytes':>14}",
    ]
    lines += [
        f"{kind:<16}{count:>10}{report.bytes[kind]:>14}" for kind, count in report.messages.items()
    ]
    lines += ["", f"{'at round':<16}{'stored bytes':>14}{'memory bytes':>16}"]
    lines += [
        f"{stock.round:<16}{stock.disk_bytes:>14}{stock.memory_bytes or 0:>16}"
        for stock in report.stock
    ]
    for title, counts in (("evidence", report.evidence), ("refused", report.refused)):
        if counts:
            lines += ["", *(f"{title:<10}{kind}: {count}" for kind, count in counts.items())]
    lines += ["", *(f"{'ok ' if holds else 'NO '} {name}" for name, holds in report.checks.items())]
    lines += [f"    {violation}" for violation in report.violations]
    lines += ["", f"wall time {report.wall_s:.2f} s, {report.events / report.wall_s:.0f} events/s"]
    return "\n".join(lines)


def _epochs(report: SimReport) -> list[str]:
    """One line for each boundary; none where the membership is fixed."""
    if not report.options.conditions.churn:
        return []
    lines = [f"epochs          {len(report.boundaries) + 1}"]
    for boundary in report.boundaries:
        changes = [
            f"{count} {what}"
            for what, count in (
                ("joined", boundary.joined),
                ("left", boundary.left),
                ("new key", boundary.replaced),
            )
            if count
        ]
        lines.append(
            f"  epoch {boundary.epoch} from round {boundary.first_round}: "
            f"{boundary.members} members ({', '.join(changes) or 'the same'}), "
            f"last round {boundary.rounds}"
        )
    return lines


def _soak(seconds: float, seed: int, engine: str, *, as_json: bool) -> None:
    if not 0 < seconds < inf:
        raise UserError(f"--soak takes the seconds to run, more than 0, not {seconds:g}")
    with opened(engine) as workers:
        result = soak(seconds, seed, workers, _Progress().scenarios)
    click.echo(json.dumps(_soak_json(result), indent=1) if as_json else _soak_text(result))
    sys.exit(1 if result.failures else 0)


def _soak_json(result: Soaked) -> dict[str, object]:
    return {
        "scenarios": result.scenarios,
        "events": result.events,
        "by_kind": result.by_kind,
        "violations": [line for lines in result.failures.values() for line in lines],
        "reproduce": [*result.failures],
    }


def _soak_text(result: Soaked) -> str:
    lines = [f"{result.scenarios} scenarios, {result.events} events, {len(result.failures)} failed"]
    lines += [f"  {kind}: {count}" for kind, count in result.by_kind.items()]
    for command, violations in result.failures.items():
        lines += [f"FAILED  {command}", *(f"    {line}" for line in violations[-VIOLATIONS_SHOWN:])]
    return "\n".join(lines)
