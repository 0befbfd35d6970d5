"""Conditions: sites that let nothing in, or out only through a proxy; and relays."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from defl.cards import Reach
from defl.lab.chaos.condition import ChaosCondition
from defl.lab.chaos.hosts import Host, address_of
from defl.lab.chaos.interceptor import ISSUER, Interceptor
from defl.lab.chaos.interceptor import PORT as INTERCEPTOR_PORT
from defl.lab.chaos.link import LineQuality
from defl.lab.chaos.proxies import (
    SQUID_PORT,
    TINYPROXY_PORT,
    start_squid,
    start_tinyproxy,
    url_of,
)
from defl.lab.chaos.sites import (
    DIALS,
    FederationSetting,
    Site,
    relay_hosts,
    relay_name,
    start_relay,
)
from defl.lab.chaos.trial import Trial

WAY = LineQuality(delay_ms=10)
INSIDE = 3  # the member behind a proxy
GATE = 4  # the host of the proxy
BEFORE_S = 12.0  # how long things are broken
CHECK_TIME_MAX_S = 60.0


def drop_inbound(host: Host) -> None:
    """As most sites' firewalls do: answers come in, calls do not."""
    host.run("nft", "add", "table", "inet", "site")
    chain = "{ type filter hook input priority 0; policy accept; }"
    host.run("nft", "add", "chain", "inet", "site", "inbound", chain)
    rule = ("iifname", "wan", "tcp", "flags", "&", "(syn|ack)", "==", "syn", "drop")
    host.run("nft", "add", "rule", "inet", "site", "inbound", *rule)


def note_routes(trial: Trial, member: int) -> None:
    status = trial.newest(member)
    if status is not None:
        routes = sorted({link.route for link in status.links.values()})
        trial.notes.append(f"node-{member} is connected {', '.join(routes) or 'to nobody'}")


def _inbound_dropped(*members: int) -> Callable[[Trial], None]:
    def script(trial: Trial) -> None:
        trial.net.link.every(up=WAY)
        for member in members:
            drop_inbound(trial.net.hosts[member])
        trial.start()
        trial.wait_round(2)
        for member in members:
            note_routes(trial, member)

    return script


def _only_through(start: Callable[[Host, Path], str]) -> Callable[[Trial], None]:
    def script(trial: Trial) -> None:
        trial.net.link.every(up=WAY)
        _close_in(trial)
        start(trial.net.hosts[GATE], trial.net.folder)
        trial.start()
        trial.wait_round(2)
        note_routes(trial, INSIDE)

    return script


def _close_in(trial: Trial) -> None:
    """The member inside reaches the proxy and nothing else."""
    trial.net.link.part([INSIDE], [member for member in trial.members if member != INSIDE])


def _intercepted(trial: Trial) -> None:
    """The site inspects TLS; after a while it makes the exception that the check asks for."""
    trial.net.link.every(up=WAY)
    _close_in(trial)
    gate = Interceptor(trial.net.hosts[GATE], trial.net.folder)
    try:
        trial.start()
        trial.wait_round(1, 0, 1, 2)
        sentence = _check(trial, INSIDE)
        trial.sleep(BEFORE_S)
        if ISSUER not in sentence:
            trial.violations.append(f"defl node check does not name the issuer: {sentence}")
        if gate.read_bytes:
            trial.violations.append(f"the proxy has read {gate.read_bytes} bytes")
        if trial.rounds[INSIDE]:
            trial.violations.append("the member inside closed a round through an inspected line")
        trial.notes.append(f"{gate.tunnels} tunnels asked for, none used; check: {sentence}")
        gate.intercepts = False
        trial.healed()
        trial.finish()
    finally:
        gate.close()


def _check(trial: Trial, member: int) -> str:
    """What `defl node check` says about the first peer that it cannot reach."""
    node = str(trial.local.nodes[member])
    command = trial.net.hosts[member].command(
        sys.executable, "-m", "defl.cli.main", "node", "check", node
    )
    checked = subprocess.run(  # noqa: S603 - our own command
        command, capture_output=True, text=True, timeout=CHECK_TIME_MAX_S, check=False
    )
    refused = [line for line in checked.stdout.splitlines() if line.startswith("NO")]
    return next((line for line in refused if "node-0" in line), " ".join(refused))


def _relay_killed(count: int) -> Callable[[Trial], None]:
    """Of several, the others take over; a single one comes back after a while."""

    def script(trial: Trial) -> None:
        hosts = relay_hosts(trial.net.hosts, trial.setting)
        trial.net.link.every(up=WAY)
        for member in (2, 3):
            drop_inbound(trial.net.hosts[member])
        relays = [start_relay(trial.local.folder, host) for host in hosts]
        trial.start()
        trial.wait("two members meet at a relay", lambda: bool(_relay_between(trial)))
        trial.wait_round(2)
        used = [relay_name(host) for host in hosts].index(_relay_between(trial))
        relays[used].kill()
        relays[used].wait()
        if count == 1:
            trial.sleep(BEFORE_S)
            start_relay(trial.local.folder, hosts[used])
        trial.healed()
        trial.sleep(1.0)  # until the nodes' reports are newer
        trial.wait("they meet again", lambda: bool(_relay_between(trial)))
        note_routes(trial, 3)

    return script


def _relay_between(trial: Trial) -> str:
    """The name of the relay that joins members 2 and 3; empty if none does."""
    status = trial.newest(3)
    link = None if status is None else status.links.get("node-2")
    return "" if link is None else link.route.removeprefix("through the relay ")


def _behind(port: int) -> FederationSetting:
    site = Site(reach=Reach.DIAL, proxy=url_of(address_of(GATE), port))
    return FederationSetting(rounds=8, sites={INSIDE: site})


_TWO_DIAL = {2: DIALS, 3: DIALS}

FIREWALLS = (
    ChaosCondition(
        "inbound-dropped",
        "nothing gets in to one member, which dials",
        _inbound_dropped(3),
        FederationSetting(rounds=8, sites={3: DIALS}),
        tools=("nft",),
    ),
    ChaosCondition(
        "inbound-dropped-2",
        "nothing gets in to two members; another member relays",
        _inbound_dropped(2, 3),
        FederationSetting(rounds=8, sites={0: Site(relay=True), **_TWO_DIAL}),
        tools=("nft",),
    ),
    ChaosCondition(
        "squid",
        "one member gets out only through Debian's squid, with a password",
        _only_through(start_squid),
        _behind(SQUID_PORT),
        hosts=1,
        tools=("squid", "openssl"),
    ),
    ChaosCondition(
        "tinyproxy",
        "one member gets out only through tinyproxy, with a password",
        _only_through(start_tinyproxy),
        _behind(TINYPROXY_PORT),
        hosts=1,
        tools=("tinyproxy",),
    ),
    ChaosCondition(
        "intercepted",
        "one member's proxy intercepts TLS, and stops doing so after a while",
        _intercepted,
        FederationSetting(
            rounds=20,
            sites={
                INSIDE: Site(
                    reach=Reach.DIAL, proxy=f"http://{address_of(GATE)}:{INTERCEPTOR_PORT}"
                )
            },
        ),
        hosts=1,
    ),
    ChaosCondition(
        "relay-killed",
        "one of two relays is killed in mid-round",
        _relay_killed(2),
        FederationSetting(rounds=15, sites=_TWO_DIAL, relays=2),
        hosts=2,
        tools=("nft",),
    ),
    ChaosCondition(
        "relay-killed-only",
        "the only relay is killed in mid-round and comes back after 12 s",
        _relay_killed(1),
        FederationSetting(rounds=20, sites=_TWO_DIAL, relays=1),
        hosts=1,
        tools=("nft",),
    ),
)
