"""Two hosts in network namespaces with the link between them: made, used, removed."""

import socket
from pathlib import Path

import pytest

from defl.errors import UserError
from defl.lab.chaos.hosts import PREFIX, run
from defl.lab.chaos.link import LineQuality
from defl.lab.chaos.network import ChaosNetwork, network, only_run
from defl.lab.chaos.requirements import missing_for_all

PORT = 7000

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(missing_for_all() is not None, reason=str(missing_for_all())),
]


def exchanged(net: ChaosNetwork, text: bytes) -> bytes:
    one, other = net.hosts
    with (
        other.call(socket.create_server, (other.address, PORT)) as server,
        one.call(socket.create_connection, (other.address, PORT), 10.0) as client,
    ):
        peer, _ = server.accept()
        with peer:
            client.sendall(text)
            return peer.recv(100)


def test_two_hosts_talk_over_the_link_and_leave_nothing_behind() -> None:
    try:
        with only_run() as held, network(2, held) as net:
            net.link.every(up=LineQuality(delay_ms=1, mbit_s=10))
            with pytest.raises(UserError, match="another run"), only_run():
                pass  # not reached

            assert exchanged(net, b"hello") == b"hello"
            assert net.link.stats().up[0].packets > 0
            assert net.folder.exists()
    except UserError as busy:
        if "another run" in str(busy):
            pytest.skip("the laboratory is in use")
        raise

    assert not net.folder.exists()
    assert PREFIX not in run("ip", "netns", "list")
    assert not Path(f"/proc/{net.link.pid}").exists()
