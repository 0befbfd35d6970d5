"""A worker process on this machine: orders in, answers out, until the driver closes the pipe."""

import signal
import sys
from multiprocessing.connection import Connection

from defl.engine.tasks import limit_threads, perform
from defl.node.work.orphans import die_with


def main() -> None:
    die_with(int(sys.argv[1]))
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches all; the driver ends the workers
    limit_threads()
    with Connection(int(sys.argv[2])) as pipe:
        while True:
            try:
                order = pipe.recv_bytes()
            except EOFError:
                return
            pipe.send_bytes(perform(order))


if __name__ == "__main__":
    main()
