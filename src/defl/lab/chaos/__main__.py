"""`make chaos`: runs conditions and figures, prints what they show, and writes the page."""

import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from types import FrameType

import click
import msgspec

from defl.errors import DeflError
from defl.lab.chaos.broken_lines import BROKEN_LINES
from defl.lab.chaos.carrying_out import calibrated, carry_out, measured
from defl.lab.chaos.figures import MEASUREMENTS, Figure
from defl.lab.chaos.firewalls import FIREWALLS
from defl.lab.chaos.machines import MACHINES
from defl.lab.chaos.network import CONGESTION_CONTROL, only_run
from defl.lab.chaos.outcome import TrialOutcome
from defl.lab.chaos.page import page, recovery_cells
from defl.lab.chaos.requirements import missing_congestion_control, missing_for_all, missing_tool
from defl.lab.chaos.results import ChaosResults, read_results, write_results
from defl.lab.chaos.slow_lines import SLOW_LINES

CALIBRATE = "calibrate"
CONDITIONS = {c.name: c for c in (*SLOW_LINES, *BROKEN_LINES, *FIREWALLS, *MACHINES)}
FIGURES = {m.name: m for m in MEASUREMENTS}
NAMES = [CALIBRATE, *CONDITIONS, *FIGURES]


@click.command()
@click.option("--only", multiple=True, metavar="NAME", help="Only this; may be repeated.")
@click.option("--list", "listing", is_flag=True, help="Show all names and what they do.")
@click.option("--wait", is_flag=True, help="If another run is going on, wait for its end.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object per result.")
@click.option(
    "--out",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path("build/chaos"),
    show_default=True,
    help="Folder of the results, and of the logs of what failed.",
)
@click.option(
    "--page",
    "page_file",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Write the newest results as a page.",
)
def main(
    *,
    only: tuple[str, ...],
    listing: bool,
    wait: bool,
    as_json: bool,
    out: Path,
    page_file: Path | None,
) -> None:
    """Run real nodes on networks that are slow, lossy, cut and blocked.

    Each condition lays out four or seven nodes in network namespaces of this machine, joins them
    by a link in userspace that delays, loses and cuts packets, disturbs them, and checks what they
    have agreed on. Each figure measures a round on such a network. `calibrate` measures the link
    itself. Only addresses inside these namespaces are used; everything is removed at the end, also
    after Ctrl-C, and after a kill by the next run.

    It needs root and some programs (`make chaos-tools`); without them it says what is missing and
    skips.

    \b
    Example:
      make chaos                                             # all, and the page
      python -m defl.lab.chaos --list
      python -m defl.lab.chaos --only partition-2-2 --json
      python -m defl.lab.chaos --only fp32-50 --page docs/RELIABILITY.md

    Exit code 0: all held, or skipped; 1: something did not hold; 2: invalid options; 130:
    interrupted.
    """
    if listing:
        for name in NAMES:
            click.echo(f"{name:16} {_title(name)}")
        return
    if unknown := [name for name in only if name not in NAMES]:
        raise click.UsageError(f"no condition or figure is named {unknown[0]!r}; see --list")
    if reason := missing_for_all():
        click.echo(f"skipped: {reason}")
        return
    signal.signal(signal.SIGTERM, _interrupt)
    try:
        failed = _run_all(only or NAMES, out, wait=wait, as_json=as_json)
    except DeflError as error:
        raise click.ClickException(str(error)) from error
    if page_file is not None:
        page_file.write_text(page(read_results(out), CONGESTION_CONTROL), encoding="utf-8")
    if failed:
        click.echo(f"failed: {', '.join(failed)}; logs are in {out}", err=True)
        sys.exit(1)


def _interrupt(_: int, __: FrameType | None) -> None:
    raise KeyboardInterrupt  # so that everything is removed


def _title(name: str) -> str:
    if name == CALIBRATE:
        return "the link itself: delay, loss and rates as set and as measured"
    return (CONDITIONS.get(name) or FIGURES[name]).title


def _run_all(names: Sequence[str], out: Path, *, wait: bool, as_json: bool) -> list[str]:
    """The names of those that failed. Each result is kept as soon as there is one."""
    failed = []
    with only_run(wait=wait) as held:
        for number, name in enumerate(names, start=1):
            click.echo(f"[{number}/{len(names)}] {name}: {_title(name)}", err=True)
            results = read_results(out)
            if name == CALIBRATE:
                results.calibrations = calibrated(held)
                shown: object = results.calibrations
                text = "\n".join(
                    f"    {c.what}: {c.measured:.2f} {c.unit}, set {c.wanted:.2f}"
                    for c in results.calibrations
                )
            elif name in CONDITIONS:
                condition = CONDITIONS[name]
                if reason := missing_tool(condition.tools):
                    click.echo(f"    skipped: {reason}")
                    continue
                outcome = carry_out(condition, held, out)
                results.outcomes[name] = shown = outcome
                text = _outcome_text(outcome)
                failed += [] if outcome.passed else [name]
            else:
                if reason := missing_congestion_control(FIGURES[name].congestion_control):
                    click.echo(f"    skipped: {reason}")
                    continue
                figure = measured(FIGURES[name], held)
                results.figures[name] = shown = figure
                text = _figure_text(figure)
                failed += [name] if figure.violations else []
            _keep(results, out)
            click.echo(msgspec.json.encode(shown).decode() if as_json else text)
    return failed


def _keep(results: ChaosResults, out: Path) -> None:
    """In the order of the list, whatever the order of the runs."""
    results.outcomes = {n: results.outcomes[n] for n in CONDITIONS if n in results.outcomes}
    results.figures = {n: results.figures[n] for n in FIGURES if n in results.figures}
    write_results(out, results)


def _outcome_text(outcome: TrialOutcome) -> str:
    first, everybody = recovery_cells(outcome)
    facts = [
        f"{outcome.rounds} of {outcome.rounds_wanted} rounds",
        f"{outcome.seconds:.0f} s",
        *([f"first commit {first}", f"everybody {everybody}"] if first else []),
        *outcome.notes,
    ]
    verdict = "ok" if outcome.passed else "FAILED: " + "; ".join(outcome.violations)
    return f"    {verdict}: {', '.join(facts)}"


def _figure_text(figure: Figure) -> str:
    verdict = "ok" if not figure.violations else "FAILED: " + "; ".join(figure.violations)
    return (
        f"    {verdict}: a round {figure.round_s:.2f} s outside training, {figure.ratio:.2f} times "
        f"the line's {figure.ideal_s:.2f} s; frames {figure.frames_ratio:.3f}, wire "
        f"{figure.wire_ratio:.3f} of (n - 1) M"
    )


if __name__ == "__main__":
    main()
