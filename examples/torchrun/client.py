"""One organisation trains with two processes: torchrun inside, DeFL outside.

The node loads `client` below, which starts `torchrun` with this very file; each of torchrun's
processes comes in at the bottom, takes its part of the organisation's data, and trains with the
others by DistributedDataParallel. On machines with GPUs say how many processes you want, one per
GPU; for several machines see docs/CLIENTS.md.
"""

from defl.clients.torchrun import TorchrunClient


def client() -> TorchrunClient:
    """What the node loads; it needs no torch itself."""
    return TorchrunClient(__file__, processes=2)


if __name__ == "__main__":
    from training import make_client

    from defl.clients.torchrun_rank import serve

    serve(make_client)
