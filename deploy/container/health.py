#!/opt/defl/bin/python -IS
"""Whether the node in this container may sign: for health checks and probes.

    defl-health [--live] [DIR]

Exit code 0: the node answers, and nothing keeps it from signing; 1: it does not, and a sentence
says why. With --live, 0 as long as a restart would not help: the node answers, whatever its
health, or has not been started yet. DIR is the node's folder; without it, the only node below the
current folder. Only the standard library is used: it runs every few seconds.
"""

import http.client
import sys
from pathlib import Path

PORT_FILE = "telemetry.port"  # written by a node that has started, deleted when it ends
ANSWER_WAIT_S = 5.0


def main(arguments: list[str]) -> int:
    live = "--live" in arguments
    folders = [Path(argument) for argument in arguments if argument != "--live"]
    ports = [folder / PORT_FILE for folder in folders] or sorted(Path().glob(f"*/{PORT_FILE}"))
    if len(ports) > 1:
        return failed(f"{len(ports)} nodes are here: name the folder of one")
    if not ports or not ports[0].exists():
        return 0 if live else failed("no node runs here: it has not started, or it has ended")
    try:
        code = ask(int(ports[0].read_text(encoding="ascii")))
    except (OSError, ValueError, http.client.HTTPException) as error:
        return failed(f"the node does not answer: {error}")
    if code == http.client.OK or live:
        return 0
    return failed(f"the node signs nothing (/healthz: {code}); see: defl node status DIR")


def ask(port: int) -> int:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=ANSWER_WAIT_S)
    connection.request("GET", "/healthz")
    return connection.getresponse().status


def failed(why: str) -> int:
    sys.stdout.write(f"{why}\n")
    return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
