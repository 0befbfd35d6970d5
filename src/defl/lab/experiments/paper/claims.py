"""The report's first screen: each claim of the paper, and how many of its statements hold here.

A claim joins the statements of several parts; statements are chosen by their words, which are
fixed in findings.py, costs_report.py, traffic_report.py and study.py.
"""

import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from defl.lab.experiments.paper.verdicts import Finding


class PaperClaim(NamedTuple):
    words: str
    statements: str  # a regular expression


CLAIMS = (
    PaperClaim("Models of this scale are as accurate as the paper's", "reach the paper's accuracy"),
    PaperClaim("Averaging (FL, SL) collapses under strong attacks", "collapse under"),
    PaperClaim("Multi-Krum (Biscotti, DeFL) holds under strong attacks", "hold under"),
    PaperClaim(
        "With more attackers averaging falls and Multi-Krum stays stable and at least as good",
        "fall as the Byzantine|stay stable|Multi-Krum-based systems are at least|nearly a third",
    ),
    PaperClaim(
        "Without attack, or under mild ones, averaging is at least as good as Multi-Krum",
        "FedAvg-based systems are at least as good",
    ),
    PaperClaim(
        "Without attack Multi-Krum costs accuracy on non-i.i.d. data, since it drops outliers",
        "less accurate on non-i.i.d.|Multi-Krum costs accuracy",
    ),
    PaperClaim("FL is as accurate as SL, and DeFL as Biscotti", "have similar accuracy"),
    PaperClaim("DeFL stores 100 times less than Biscotti, however many rounds", "(?i)storage"),
    PaperClaim(
        "DeFL sends 10 times less than Biscotti, and no more than FL",
        "(?i)traffic|sending|sends|receives|bytes of weights",
    ),
    PaperClaim(
        "DeFL's memory is like FL's and Biscotti's, and below SL's", "(?i)memory (grows|is )"
    ),
)


def first_screen(findings: Mapping[str, Sequence[Finding]]) -> list[str]:
    """A table of one line for each claim; `findings` are those of each part."""
    lines = ["| The paper claims | here | for example |", "|---|---|---|"]
    for claim in CLAIMS:
        chosen = [
            (part, finding)
            for part, those in findings.items()
            for finding in those
            if re.search(claim.statements, finding.statement)
        ]
        if chosen:
            verdict = _verdict([finding for _, finding in chosen])
            lines.append(f"| {claim.words} | {verdict} | {_example(chosen)} |")
    return lines


def _verdict(findings: Sequence[Finding]) -> str:
    total = len(findings)
    held = sum(finding.confirmed is True for finding in findings)
    failed = sum(finding.confirmed is False for finding in findings)
    word = "**holds**" if held == total else "**fails**" if failed == total else "**partly**"
    counts = [f"{held} of {total} {'holds' if held == 1 else 'hold'}"] if total > 1 else []
    if failed and held:
        counts.append(f"{failed} {'fails' if failed == 1 else 'fail'}")
    if undecided := total - held - failed:
        counts.append(f"{undecided} undecided" if total > 1 else "undecided")
    return ": ".join([word, ", ".join(counts)]) if counts else word


def _example(chosen: Sequence[tuple[str, Finding]]) -> str:
    """The first statement that fails; if there is none, the first one."""
    part, finding = next((c for c in chosen if c[1].confirmed is False), chosen[0])
    place = f"fails in {part}" if finding.confirmed is False else part
    paper = f" (paper: {finding.paper})" if finding.paper else ""
    return f"{place}: {finding.statement.removesuffix('.')}: {finding.numbers}{paper}"
