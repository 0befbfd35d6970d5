"""Members whose network lets nothing in: they dial, and listen nowhere."""

import asyncio
import ssl
from pathlib import Path

import pytest
from click.testing import CliRunner
from msgspec.structs import replace

from defl.cards import Reach
from defl.cli.main import cli
from defl.errors import UserError
from defl.ids import NodeId
from defl.node.net.admission import Refusal
from defl.node.net.framing import Lane
from defl.node.net.hello import PROTOCOL_VERSION, Hello, encode_hello
from defl.node.net.sessions import SESSION_BYTES
from defl.node.net.tls import PROTOCOL, client_context
from defl.node.setup.config import NodeConfig, read_node, renew_card
from defl.node.setup.identity import card_defect, make_card, make_identity, require_distinct
from support.transports import IDENTITIES, ORIGIN, Peer, cards_of, listener, running


def test_a_member_that_only_dials_is_connected_though_its_id_is_higher() -> None:
    async def scenario() -> None:
        listeners = [listener() for _ in range(2)]
        cards = cards_of(listeners, IDENTITIES[:2])
        listeners[1].close()
        cards[1] = make_card(IDENTITIES[1], "", reach=Reach.DIAL)
        public = Peer(0, cards, listeners[0])
        inside = Peer(1, cards, None, reach=Reach.DIAL)
        async with running(public, inside):
            await public.until_connected(inside)
            assert inside.send(public, b"vote")
            await public.until(lambda: len(public.received) == 1)
            assert not public.transport.stats.trouble

    asyncio.run(scenario())


def test_a_member_whose_new_reach_the_others_have_not_heard_of_is_let_in() -> None:
    """Its old card says that it can be dialled, and nobody is there; so it calls."""

    async def scenario() -> None:
        listeners = [listener() for _ in range(2)]
        cards = cards_of(listeners, IDENTITIES[:2])
        listeners[1].close()
        public = Peer(0, cards, listeners[0])
        inside = Peer(1, cards, None, reach=Reach.DIAL)
        async with running(public, inside):
            await public.until_connected(inside)
            await inside.until_connected(public)

    asyncio.run(scenario())


def test_nobody_calls_us_beside_a_link_that_we_have_made() -> None:
    async def scenario() -> None:
        listeners = [listener() for _ in range(2)]
        cards = cards_of(listeners, IDENTITIES[:2])
        dialler = Peer(0, cards, listeners[0])
        session = bytes(SESSION_BYTES)
        called = Peer(1, cards, listeners[1], session=session)
        async with running(dialler, called):
            await dialler.until_connected(called)
            await called.until_connected(dialler)
            key = IDENTITIES[1].public_key
            greeting = encode_hello(Hello(PROTOCOL_VERSION, ORIGIN, 0, key, Lane.CONTROL, session))
            context = client_context(IDENTITIES[1], dialler.card)
            host, port = dialler.transport.address
            _, writer = await asyncio.open_connection(host, port, ssl=context, server_hostname="")
            writer.write(len(greeting).to_bytes(4, "big") + greeting)
            refusals = dialler.transport.stats.refusals
            await dialler.until(lambda: refusals[Refusal.DIRECTION] == 1)
            assert dialler.transport.connected(called.me)
            writer.close()

    asyncio.run(scenario())


def test_whoever_looks_at_a_connection_sees_what_it_speaks() -> None:
    async def scenario() -> None:
        listeners = [listener() for _ in range(2)]
        cards = cards_of(listeners, IDENTITIES[:2])
        listeners[1].close()
        public = Peer(0, cards, listeners[0])
        async with running(public):
            context = client_context(IDENTITIES[1], public.card)
            host, port = public.transport.address
            _, writer = await asyncio.open_connection(host, port, ssl=context, server_hostname="")
            secure: ssl.SSLObject = writer.get_extra_info("ssl_object")
            assert secure.selected_alpn_protocol() == PROTOCOL
            writer.close()

    asyncio.run(scenario())


def test_a_new_card_changes_who_dials() -> None:
    async def scenario() -> None:
        listeners = [listener() for _ in range(2)]
        cards = cards_of(listeners, IDENTITIES[:2])
        listeners[1].close()
        public = Peer(0, cards, listeners[0])
        async with running(public):
            await public.until(lambda: NodeId(1) in public.transport.stats.trouble)
            newer = make_card(IDENTITIES[1], "", cards[1].serial + 1, reach=Reach.DIAL)
            assert public.transport.update_card(newer)
            assert public.transport._contacts[NodeId(1)].calls == []

    asyncio.run(scenario())


def test_a_card_without_an_address_is_only_for_those_who_dial() -> None:
    identity = make_identity("ward")
    card = make_card(identity, "", reach=Reach.DIAL)
    assert card_defect(card) is None
    assert "is not an address" in str(card_defect(replace(card, reach=Reach.BOTH)))
    with pytest.raises(UserError, match="cannot be a relay"):
        make_card(identity, "", reach=Reach.DIAL, relay=True)


@pytest.mark.parametrize("change", [{"reach": Reach.BOTH}, {"relay": True}])
def test_reach_and_relay_are_signed(change: dict[str, object]) -> None:
    reach = Reach.DIAL if "reach" in change else Reach.BOTH
    card = make_card(make_identity("ward"), "ward.example.org:7400", reach=reach)
    assert card_defect(card) is None
    assert "altered" in str(card_defect(replace(card, **change)))


def test_two_members_may_both_have_no_address() -> None:
    cards = [make_card(make_identity(name), "", reach=Reach.DIAL) for name in ("a", "b")]
    require_distinct(cards, ["a", "b"])


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({}, "address"),
        ({"address": "a.example.org:7400"}, "listen"),
        ({"reach": Reach.DIAL, "relay": True}, "cannot be a relay"),
        ({"reach": Reach.DIAL, "listen": "nowhere"}, "listen"),
    ],
)
def test_settings_that_contradict_each_other_are_refused(
    fields: dict[str, object], text: str
) -> None:
    with pytest.raises(UserError, match=text):
        NodeConfig(name="ward", **fields)  # type: ignore[arg-type]


def test_a_node_behind_a_firewall_is_made_without_an_address(tmp_path: Path) -> None:
    folder = tmp_path / "ward"
    command = ["node", "init", str(folder), "--name", "ward"]
    refused = CliRunner().invoke(cli, command)
    assert "--reach dial" in str(refused.exception)
    made = CliRunner().invoke(cli, [*command, "--reach", "dial"])
    assert made.exit_code == 0, made.output
    config = read_node(folder)
    assert (config.reach, config.address, config.listen_at) == (Reach.DIAL, "", None)
    assert 'reach = "dial"' in (folder / "ward.card.toml").read_text()


def test_a_node_that_can_be_dialled_from_now_on_signs_a_new_card(tmp_path: Path) -> None:
    folder = tmp_path / "ward"
    CliRunner().invoke(cli, ["node", "init", str(folder), "--name", "ward", "--reach", "dial"])
    assert renew_card(folder).serial == 0  # nothing has changed
    settings = folder / "node.toml"
    text = settings.read_text().replace('reach = "dial"', 'reach = "both"')
    text = text.replace('address = ""', 'address = "ward.example.org:7400"')
    settings.write_text(text.replace('listen = ""', 'listen = "0.0.0.0:7400"'))
    card = renew_card(folder)
    assert (card.serial, card.reach, card.address) == (1, Reach.BOTH, "ward.example.org:7400")
