"""Names of the files that a node keeps in its folder, beside its state.

Programs that only read them (the status client, `defl node stop`) need not load the node.
docs/OPERATING.md says what each file holds and when it is written.
"""

PORT_FILE = "telemetry.port"  # the loopback port of a running node
TOKEN_FILE = "telemetry.token"  # noqa: S105  (a name); any user who can read it may read the status
PID_FILE = "node.pid"
STATUS_FILE = "status.json"  # the final status, written on exit
HISTORY_FILE = "history.jsonl"  # what is known of each round, one fact per line
STARTED_FILE = "started"  # a node that lost its state must not start afresh
NEWER_CARDS = "cards/*.card.toml"  # of members whose address is newer than the federation's file
WORKER_LOG = "worker.log"  # in the state folder: the output of the training code
