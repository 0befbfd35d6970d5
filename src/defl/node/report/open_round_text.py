"""The open round in words: how many updates are in, and when it closes without the others."""

from defl.node.report.health_words import counts, listed
from defl.node.report.status import NodeStatus


def opened_sentence(status: NodeStatus) -> str:
    """`opened 31 s ago; 6 of 7 updates are in, 5 are enough once 45 s have passed`."""
    opened = status.open_round
    if opened is None:
        return "all rounds are closed"
    facts = counts(status)
    arrived = f"{len(opened.arrivals)} of {facts.n} updates are in"
    text = f"opened {opened.open_s:.0f} s ago; {arrived}"
    if not opened.awaited:
        return text
    if opened.closes_s is None:
        return f"{text}, at least {facts.q} are needed"
    if opened.open_s >= opened.closes_s and len(opened.arrivals) >= facts.q:
        return f"{text}, which is enough; closes when {facts.q} members agree"
    return f"{text}, {facts.q} are enough once {opened.closes_s:.0f} s have passed"


def closes_text(status: NodeStatus) -> str:
    """`closes without bob`; empty if nobody is awaited."""
    opened = status.open_round
    return f"closes without {listed(opened.awaited)}" if opened and opened.awaited else ""
