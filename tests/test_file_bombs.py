"""Small files from others that would take hours or all memory to read are refused at once."""

import itertools
import os
import random
import tomllib
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from defl.errors import UserError
from defl.fields import MEMBERS_MAX
from defl.node.report.certificate import read_certificate
from defl.node.report.evidence_file import read_evidence
from defl.node.report.model_file import UNPACKED_BYTES_MAX, read_model, read_npz
from defl.node.setup import agreement
from defl.node.setup.agreement import read_federation
from defl.node.setup.config import read_card_file, read_node
from defl.node.setup.typed_toml import (
    FILE_BYTES_MAX,
    KEY_PARTS_MAX,
    NESTING_MAX,
    SEPARATORS_MAX,
    STRING_CHARACTERS_MAX,
    WORD_CHARACTERS_MAX,
    toml_table,
)
from defl.schema import ENTRIES_MAX, Entry, Schema
from support.founding import agree, init_nodes

SMALL_BOMBS = {
    "dotted key": (".".join("a" * 6_000) + " = 1", "a key of more than"),
    "dotted key of strings": (".".join(['"a"'] * 3_000) + " = 1", "a key of more than"),
    "dotted table": ("[" + ".".join("a" * 6_000) + "]", "a key of more than"),
    "dotted key inline": ("a = { " + ".".join("a" * 6_000) + " = 1 }", "a key of more than"),
    "arrays in arrays": ("a = " + "[" * 5_000, "nested more than"),
    "tables in tables": ("a = " + "{ a = " * 2_000, "nested more than"),
    "number of many digits": ("a = " + "9" * 5_000, "a word longer than"),
    "number of some digits": ("a = " + "9" * (WORD_CHARACTERS_MAX - 10) + "x", "not"),
    "string without end": ('a = "' + "x" * 1_000, "a string that does not end"),
}
LARGE_BOMBS = {
    "dotted key": (".".join("a" * 60_000) + " = 1", "a key of more than"),
    "behind a long string": ('a = """x"""""\n' + ".".join("a" * 60_000) + " = 1", "a key of more"),
    "behind an escape": ('a = "\\\\"\n' + ".".join("a" * 60_000) + " = 1", "a key of more"),
    "long strings in strings": ('"""a"\n' + '\\"""a"\n' * 300_000, "a string that does not end"),
    "many items": ("a = [" + "1," * (SEPARATORS_MAX + 1), "more than"),
    "hexadecimal number": ("a = 0x" + "f" * 1_000_000, "a word longer than"),
    "long string": ('a = "' + "x" * (STRING_CHARACTERS_MAX + 1) + '"', "a string longer than"),
    "long file": ("#" * (FILE_BYTES_MAX + 1), "longer than"),
}


@pytest.mark.parametrize("bomb", SMALL_BOMBS)
def test_a_card_that_is_a_bomb_is_refused(tmp_path: Path, bomb: str) -> None:
    text, reason = SMALL_BOMBS[bomb]
    path = tmp_path / "mallory.card.toml"
    path.write_text(text, encoding="utf-8")

    with pytest.raises(UserError, match=reason) as refused:
        read_card_file(path)
    assert str(path) in str(refused.value)
    assert "ask its owner" in str(refused.value)


@pytest.mark.parametrize("bomb", [*SMALL_BOMBS, *(f"large: {bomb}" for bomb in LARGE_BOMBS)])
def test_a_federation_file_that_is_a_bomb_is_refused(tmp_path: Path, bomb: str) -> None:
    name = bomb.removeprefix("large: ")
    text, reason = (LARGE_BOMBS if name != bomb else SMALL_BOMBS)[name]
    path = tmp_path / "federation.toml"
    path.write_text(text, encoding="utf-8")

    with pytest.raises(UserError, match=reason) as refused:
        read_federation(path)
    assert str(path) in str(refused.value)


def test_the_bounds_accept_ordinary_hand_written_files(tmp_path: Path) -> None:
    key = ".".join("a" * KEY_PARTS_MAX)
    text = f"{key} = {'[' * NESTING_MAX}1.5{']' * NESTING_MAX}  # {'.' * 50} {'[' * 50}\n"
    quoted = f'b = [\'{"." * 50}\', """{"[" * 50}""""", "\\"{"{" * 50}"]'

    assert toml_table(text + quoted)["b"][2] == '"' + "{" * 50
    with pytest.raises(ValueError, match="at line 2"):
        toml_table(f"{text}a.{key} = 1")
    (tmp_path / "node.toml").write_text("name = 3", encoding="utf-8")
    with pytest.raises(UserError, match="line 1"):
        read_node(tmp_path)


def test_no_signature_is_verified_when_there_are_too_many_cards(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    agree(tmp_path, init_nodes(tmp_path))
    path = tmp_path / "federation.toml"
    text = path.read_text(encoding="utf-8")
    card = text[text.rindex("[[members]]") :]
    path.write_text(text + card * MEMBERS_MAX, encoding="utf-8")
    monkeypatch.setattr(agreement, "card_of", lambda *_: pytest.fail("a card was verified"))

    with pytest.raises(UserError, match="members"):
        read_federation(path)


FRAGMENTS = (
    "k{n} = 'it''s'\n", 'k{n} = "a\\"#[["\n', 'k{n} = """{{ x "" y\n"""""\n',
    "k{n} = '''['#\n''''\n", 'k{n} = """a""""\n',
    "# it's \"quoted\"\n", "k{n} = 1.5 # '''\n", "k{n} = [1, # ]]]\n 2]\n", 'k{n} = ""\n',
    "k{n} = ''\n", 'k{n} = "\\\\"\n', 'k{n} = """\\"""\\\\"""\n', "k{n} = {{ a = '}}' }}\n",
    '"k{n}"."."."\'" = 1\n', "[t{n}.'a.b']\n", "[[u{n}]]\n", "k{n} = 1979-05-27T07:32:00.5Z\n",
    'k{n} = """""" # """\n', "k{n} = '''''' # '''\n", '"""\n', "'\n", "x", '"',
    "k{n}.a.a.a.a.a.a.a.a = 1\n",
)  # fmt: skip
DEEP = FRAGMENTS[-1]


def depth_of(table: object) -> int:
    if isinstance(table, dict):
        return 1 + max(map(depth_of, table.values()), default=0)
    return max(map(depth_of, table), default=0) if isinstance(table, list) else 0


def test_quotes_neither_hide_a_deep_key_nor_cause_a_flat_one_to_be_refused() -> None:
    """Text that tomllib accepts is refused if and only if one of its keys is too deep."""
    rng = random.Random(7)  # noqa: S311
    verdicts = {True: 0, False: 0}
    for _ in range(6000):
        picked = rng.choices(FRAGMENTS, k=rng.randrange(1, 6))
        text = "".join(fragment.format(n=n) for n, fragment in enumerate(picked))
        try:
            deep = depth_of(tomllib.loads(text)) > KEY_PARTS_MAX
        except tomllib.TOMLDecodeError:
            continue
        verdicts[deep] += 1
        try:
            toml_table(text)
            refused = False
        except ValueError:
            refused = True
        assert refused == deep, text
    assert min(verdicts.values()) > 200


@pytest.mark.parametrize("text", ["[" * 100_000, '{"format":' * 100_000, '{"a":' + "[" * 100_000])
def test_a_certificate_that_is_a_bomb_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "round-certificate.json").write_text(text, encoding="utf-8")

    with pytest.raises(UserError, match="not a round certificate"):
        read_certificate(tmp_path / "round-certificate.json")


def test_a_duplicate_name_among_many_is_detected_quickly() -> None:
    """Comparing each name with all others would take 10^10 steps."""
    names = [*map(str, range(ENTRIES_MAX - 1)), str(ENTRIES_MAX - 2)]

    with pytest.raises(UserError, match="twice"):
        Schema(tuple(Entry(name, (1,)) for name in names))


# --- Models ----------------------------------------------------------------------------------


def zip_of(path: Path, *members: Callable[[zipfile.ZipFile], None]) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for member in members:
            member(archive)
    return path


def zeros(archive: zipfile.ZipFile) -> None:
    """300 MB of zeros in 300 kB."""
    with archive.open("a.npy", "w") as member:
        np.lib.format.write_array_header_1_0(
            member, {"shape": (75 * 2**20,), "fortran_order": False, "descr": "<f4"}
        )
        for _ in range(300):
            member.write(bytes(2**20))


def false_size(archive: zipfile.ZipFile) -> None:
    """A header that claims 4 PB, and no data."""
    with archive.open("a.npy", "w") as member:
        np.lib.format.write_array_header_1_0(
            member, {"shape": (10**15,), "fortran_order": False, "descr": "<f4"}
        )


def many_entries(archive: zipfile.ZipFile) -> None:
    for number in range(ENTRIES_MAX + 1):
        archive.writestr(f"{number}.npy", b"")


def test_an_archive_that_unpacks_to_far_more_than_its_size_is_refused_before_unpacking(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = zip_of(tmp_path / "bomb.npz", zeros)
    assert path.stat().st_size < 2**20
    monkeypatch.setattr(np, "load", lambda *_, **__: pytest.fail("it was unpacked"))

    with pytest.raises(UserError, match="uncompressed"):
        read_npz(path)


@pytest.mark.parametrize("member", [false_size, many_entries])
def test_an_archive_that_claims_more_than_it_holds_is_refused(
    tmp_path: Path, member: Callable[[zipfile.ZipFile], None]
) -> None:
    with pytest.raises(UserError, match=r"an array of shape|more than the"):
        read_npz(zip_of(tmp_path / "bomb.npz", member))


@pytest.mark.parametrize("length", [0, 3, 30, 100, -30])
def test_a_truncated_archive_is_refused_with_a_message(tmp_path: Path, length: int) -> None:
    np.savez_compressed(tmp_path / "whole.npz", a=np.arange(1000))
    (tmp_path / "torn.npz").write_bytes((tmp_path / "whole.npz").read_bytes()[:length])

    with pytest.raises(UserError, match=r"not an \.npz file"):
        read_npz(tmp_path / "torn.npz")


def test_compressed_weights_of_an_honest_member_are_read(tmp_path: Path) -> None:
    start = np.zeros(2**20, dtype=np.float32)  # compresses a thousandfold
    np.savez_compressed(tmp_path / "start.npz", start=start)

    np.testing.assert_array_equal(read_npz(tmp_path / "start.npz")["start"], start)
    assert start.nbytes < UNPACKED_BYTES_MAX


def test_a_model_of_more_entries_than_a_schema_may_have_is_refused(tmp_path: Path) -> None:
    one = np.zeros(1, dtype=np.float32)
    path = tmp_path / "many_entries.safetensors"
    save_file(dict(zip(map(str, range(ENTRIES_MAX + 1)), itertools.repeat(one))), path)

    with pytest.raises(UserError, match="more than the"):
        read_model(path)


@pytest.mark.parametrize("read", [read_certificate, read_evidence, read_card_file])
def test_files_that_never_end_are_refused(tmp_path: Path, read: Callable[[Path], object]) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", Path("/dev/zero")):
        with pytest.raises(UserError, match="not a regular file"):
            read(path)
