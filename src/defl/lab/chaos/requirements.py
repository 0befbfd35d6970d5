"""What the laboratory needs of the machine, and what it says when something is missing."""

import os
import shutil
from pathlib import Path

FAKETIME = "libfaketime"
# What everything needs, and the Debian package that has it. `make chaos-tools` installs them all.
PACKAGES = {
    "ip": "iproute2",
    "cc": "gcc",
    "nft": "nftables",
    "squid": "squid",
    "tinyproxy": "tinyproxy",
    "openssl": "openssl",
    FAKETIME: "faketime",
}
ALWAYS = ("ip", "cc")
HOW = "`make chaos-tools` installs it on Debian"


def missing_for_all() -> str | None:
    """Why nothing can run here, in a sentence; None if it can."""
    if os.geteuid() != 0:
        return "it makes network namespaces, which needs root"
    if not Path("/dev/net/tun").exists():
        return "this kernel has no TUN devices (/dev/net/tun)"
    return missing_tool(ALWAYS)


def missing_tool(tools: tuple[str, ...]) -> str | None:
    for tool in tools:
        found = faketime_library() if tool == FAKETIME else _program(tool)
        if found is None:
            return f"{tool} is missing (Debian's package {PACKAGES[tool]}; {HOW})"
    return None


def missing_congestion_control(name: str) -> str | None:
    available = Path("/proc/sys/net/ipv4/tcp_available_congestion_control")
    if name in available.read_text(encoding="ascii").split():
        return None
    return f"this kernel has no {name} (perhaps modprobe tcp_{name} loads it)"


def _program(name: str) -> str | None:
    """Also where only root looks."""
    return shutil.which(name, path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin")


def faketime_library() -> Path | None:
    return next(iter(sorted(Path("/usr/lib").glob("*/faketime/libfaketimeMT.so.1"))), None)
