"""docs/RELIABILITY.md, from results alone."""

from collections.abc import Sequence
from math import isnan

from defl.lab.chaos.calibrate import Calibration
from defl.lab.chaos.figures import Figure
from defl.lab.chaos.outcome import TrialOutcome
from defl.lab.chaos.results import ChaosResults

COMMAND = "make chaos"

HEAD = f"""\
# Reliability on real networks

Made by `{COMMAND}`; do not edit. It needs root, and says so otherwise. `make chaos-tools`
installs the programs that it uses (Debian); `.venv/bin/python -m defl.lab.chaos --help` has the
rest.

Real nodes (`defl node start`, TLS, training in child processes) stand in network namespaces of
one machine. A link in userspace joins them: it delays, loses, reorders and cuts packets, and has
rates with bounded queues (250 ms, then packets are dropped). A delay is that of the way from one
member to another; a round trip takes twice as long. All hosts use TCP with
{{congestion_control}}.

After each condition: every round has closed at every member, all members have the same model,
nobody has evidence of a double signature or stopped signing, and no committed update is lost.
"ok" means all of this.
"""


def page(results: ChaosResults, congestion_control: str) -> str:
    parts = [HEAD.format(congestion_control=congestion_control)]
    if results.outcomes:
        parts.append(_conditions(list(results.outcomes.values())))
    if results.figures:
        parts.append(_figures(list(results.figures.values())))
    if results.calibrations:
        parts.append(_calibrations(results.calibrations))
    return "\n".join(unwrapped(part) for part in parts)


def unwrapped(text: str) -> str:
    """A line per paragraph, as in the other documents; tables and lists stay as they are."""
    paragraphs = text.split("\n\n")
    return (
        "\n\n".join(
            paragraph
            if paragraph.lstrip("\n")[:1] in "|-"
            else " ".join(paragraph.split("\n")).rstrip()
            for paragraph in paragraphs
        ).rstrip("\n")
        + "\n"
    )


def _conditions(outcomes: Sequence[TrialOutcome]) -> str:
    rows = [
        (
            f"`{o.name}`",
            o.title,
            f"{o.rounds} of {o.rounds_wanted}",
            "" if o.round_s is None else f"{o.round_s:.1f} s",
            *recovery_cells(o),
            "ok" if o.passed else "**failed**: " + "; ".join(o.violations),
        )
        for o in outcomes
    ]
    head = (
        "condition",
        "what happens",
        "rounds",
        "a round",
        "first commit",
        "everybody",
        "verdict",
    )
    notes = [f"- `{o.name}`: {note}" for o in outcomes for note in o.notes]
    text = f"""\
## Conditions

Four members with a model of 1 MB and one second of training, unless the condition says otherwise.
"first commit" is the time from the end of the disturbance to the first commit at any member, and
how many periods of a view that is; "everybody" to the last member's first new commit. Both are
read from the nodes' statuses, ten times a second at least.

{table(head, rows)}
"""
    return text + ("\n" + "\n".join(notes) + "\n" if notes else "")


def recovery_cells(outcome: TrialOutcome) -> tuple[str, str]:
    if outcome.recovery is None:
        return "", ""
    first, everybody = outcome.recovery.first_commit_s, outcome.recovery.everybody_s
    view_s = outcome.view_s
    return (
        f"{first:.1f} s ({first / view_s:.1f} views)",
        f"{everybody:.1f} s ({everybody / view_s:.1f} views)",
    )


def _figures(figures: Sequence[Figure]) -> str:
    rows = [
        (
            f"`{f.name}`",
            f.title,
            str(f.members),
            f"{f.update_mb:g} MB",
            "-" if isnan(f.round_s) else f"{f.round_s:.2f} s",
            f"{f.ideal_s:.2f} s",
            "-" if isnan(f.round_s) else f"{f.ratio:.2f}",
            "" if f.tcp_s is None else f"{f.tcp_s:.2f} s",
            f"{f.frames_ratio:.3f}",
            f"{f.wire_ratio:.3f} (at most {f.wire_ratio_max:.3f})",
            "ok" if not f.violations else "**failed**: " + "; ".join(f.violations),
        )
        for f in figures
    ]
    head = (
        "figure", "network", "n", "update", "round", "line", "ratio", "plain TCP", "frames", "wire",
        "verdict",
    )  # fmt: skip
    return f"""\
## Figures

"round" is the time of a round outside training: from close to close at the member that took
longest, without the longest training; the median of the rounds after the first two. "line" is the
time that a member's n - 1 incoming updates need at the speed of its line, and "ratio" the one
divided by the other. "plain TCP" is how long the same bytes take between the same hosts without
nodes, over connections that were idle before, as those of nodes are during training. "frames" is
what a member's node received, "wire" what its line carried in IP packets, headers and
retransmissions included (the mean, and the member and direction with the most); both per round
and divided by (n - 1) updates.

{table(head, rows)}
"""


def _calibrations(calibrations: Sequence[Calibration]) -> str:
    rows = [
        (c.what, f"{c.wanted:.2f} {c.unit}", f"{c.measured:.2f} {c.unit}", f"{100 * c.error:.1f} %")
        for c in calibrations
    ]
    head = ("what", "set", "measured", "error")
    return f"""\
## The link itself

Measured between hosts of the laboratory without nodes. For TCP, "set" is what is left of the rate
for payload.

{table(head, rows)}
"""


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    cells = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(_escaped(cell) for cell in row) + " |" for row in cells)


def _escaped(cell: str) -> str:
    return cell.replace("|", "\\|").replace("\n", " ")
