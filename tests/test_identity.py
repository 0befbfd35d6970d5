"""Identities and cards: what a member's key proves, and which forgeries are detected."""

from dataclasses import replace
from datetime import UTC, datetime

import pytest
from msgspec.structs import replace as changed

from defl.errors import UserError
from defl.node.setup.identity import (
    CARD_CHARACTERS_MAX,
    card_defect,
    card_text,
    certificate_key,
    certificate_validity,
    make_card,
    make_identity,
    read_card,
    split_address,
)

ALICE = make_identity("alice")
MALLORY = make_identity("mallory")
CARD = make_card(ALICE, "alice.example.org:7400", serial=3)
BADLY_SIGNED = CARD.certificate[:-1] + bytes([CARD.certificate[-1] ^ 1])


def test_a_card_round_trips() -> None:
    assert read_card(card_text(CARD)) == CARD
    assert card_defect(CARD) is None


@pytest.mark.parametrize("name", ['say "hi"', "back\\slash", "Zürich ☂", "x" * 64])
def test_a_name_of_any_characters_round_trips(name: str) -> None:
    card = make_card(make_identity(name), "[2001:db8::1]:7400")
    assert read_card(card_text(card)) == card


@pytest.mark.parametrize("name", ["", "x" * 65, "two\nlines", "bell\a"])
def test_a_name_that_would_break_lines_or_lists_is_refused(name: str) -> None:
    with pytest.raises(UserError, match="1 to 64 printable"):
        make_identity(name)


def test_a_certificate_holds_the_key_and_does_not_expire_soon() -> None:
    assert certificate_key(ALICE.certificate) == ALICE.public_key
    starts, ends = certificate_validity(ALICE.certificate)
    now = datetime.now(UTC)
    assert starts < now < ends
    assert ends.year > now.year + 20


def test_an_identity_never_shows_its_private_key() -> None:
    assert ALICE.key.hex() not in repr(ALICE)
    assert str(ALICE.key) not in str(ALICE)
    assert ALICE.key.hex() not in card_text(CARD)


def test_one_key_can_have_a_second_certificate_with_another_subject() -> None:
    renewed = make_identity("alice", key=ALICE.key)
    assert renewed.public_key == ALICE.public_key
    assert renewed.certificate != ALICE.certificate


@pytest.mark.parametrize(
    ("forged", "why"),
    [
        (changed(CARD, name="alicia"), "altered"),
        (changed(CARD, address="mallory.example.org:7400"), "altered"),
        (changed(CARD, serial=4), "altered"),
        (changed(CARD, signature=bytes(64)), "altered"),
        (changed(CARD, signature=CARD.signature[:-1]), "63 bytes"),
        (changed(CARD, key=MALLORY.public_key), "key is not the card's"),
        (changed(CARD, certificate=MALLORY.certificate), "key is not the card's"),
        (
            changed(CARD, certificate=make_identity("a", key=ALICE.key).certificate),
            "altered",
        ),
        (changed(CARD, certificate=BADLY_SIGNED), "not signed by"),
        (changed(CARD, certificate=b"rubbish"), r"not an X\.509"),
        (changed(CARD, certificate=bytes(5000)), "5000 bytes"),
        (changed(CARD, serial=-1), "serial"),
        (changed(CARD, serial=2**63), "serial"),
        (changed(CARD, address="nowhere"), "not an address"),
        (changed(CARD, key=CARD.key[:-1]), "31 bytes"),
    ],
)
def test_a_card_with_any_field_changed_is_rejected(forged, why: str) -> None:
    with pytest.raises(UserError, match=why):
        read_card(card_text(forged), "alice.card")


def test_a_card_that_mallory_signs_with_alices_name_carries_mallorys_key() -> None:
    """The key identifies a card's owner, not the name on it; federation.toml lists the keys."""
    card = make_card(replace(MALLORY, name="alice"), "mallory.example.org:7400")
    assert card_defect(card) is None
    assert card.key != CARD.key


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "'name' must be a str"),
        ("= 3", "not a card"),
        (card_text(CARD) + "more = 1\n", "no 'more'"),
        (card_text(CARD).replace("serial = 3", "serial = true"), "'serial' must be a int"),
        (card_text(CARD).replace("serial = 3\n", ""), "'serial' must be a int"),
        (card_text(CARD).replace('key = "', 'key = "zz'), "hexadecimal"),
        (card_text(CARD).replace('certificate = "', 'certificate = "?'), "base64"),
        ("#" * (CARD_CHARACTERS_MAX + 1), "too long"),
    ],
)
def test_a_malformed_card_is_refused_with_its_file_and_field(text: str, why: str) -> None:
    with pytest.raises(UserError, match=why) as caught:
        read_card(text, "alice.card")
    assert str(caught.value).startswith("alice.card: ")


@pytest.mark.parametrize(
    ("address", "parts"),
    [
        ("127.0.0.1:1", ("127.0.0.1", 1)),
        ("node.example.org:65535", ("node.example.org", 65535)),
        ("[::1]:7400", ("::1", 7400)),
    ],
)
def test_an_address_is_a_host_and_a_port(address: str, parts: tuple[str, int]) -> None:
    assert split_address(address) == parts


@pytest.mark.parametrize(
    "address",
    ["", "host", "host:", ":7400", "host:0", "host:65536", "host:+1", "::1:7400", "host:7 ",
     "ho st:1", "user@host:1", "host/x:1", "höst:1", "[]:1", "x" * 300 + ":1", "host:٣"],
)  # fmt: skip
def test_an_invalid_address_is_refused_with_an_example(address: str) -> None:
    with pytest.raises(UserError, match=r"node\.example\.org:7400"):
        split_address(address)
