"""Sentiment140: the official CSV, a tenth held out, no text in both parts."""

import gzip
import lzma
import zipfile
from pathlib import Path

import numpy as np
import pytest

from defl.errors import UserError
from defl.lab.datasets import sentiment140 as module
from defl.lab.datasets.sentiment140 import (
    ARCHIVE,
    TRAINING,
    files,
    held_out,
    require_whole,
    sentiment140,
)
from defl.lab.datasets.words import Vocabulary, normal
from support.layouts import many_tweets, tweets


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / TRAINING
    path.write_bytes(tweets(many_tweets(3000)))
    return path


def test_every_archive_format_gives_the_same_texts(tmp_path: Path, file: Path) -> None:
    data = file.read_bytes()
    packed = {
        "x.csv.xz": lzma.compress(data),
        "x.csv.gz": gzip.compress(data),
    }
    for name, content in packed.items():
        (tmp_path / name).write_bytes(content)
    with zipfile.ZipFile(tmp_path / ARCHIVE, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("testdata.manual.2009.06.14.csv", b"not for us")
        archive.writestr(TRAINING, data)

    plain = sentiment140(file)

    for name in (*packed, ARCHIVE):
        again = sentiment140(tmp_path / name)
        assert again.train_texts == plain.train_texts
        np.testing.assert_array_equal(again.test_labels, plain.test_labels)


def test_a_tenth_is_held_out_and_no_text_is_in_both_parts(file: Path) -> None:
    texts = sentiment140(file)

    assert len(texts.train_texts) + len(texts.test_texts) == 3000
    assert 0.07 < len(texts.test_texts) / 3000 < 0.13
    assert set(texts.train_texts).isdisjoint(texts.test_texts)
    assert len(set(texts.train_texts)) < len(texts.train_texts)  # texts do repeat


def test_texts_that_differ_only_in_names_links_and_case_are_in_one_part(tmp_path: Path) -> None:
    pairs = [
        (f"@ann look http://x.yz/{i} SO good {i}", f"USER look URL so good {i}") for i in range(99)
    ]
    rows = [("0", text) for pair in pairs for text in pair]
    (tmp_path / "x.csv").write_bytes(tweets(rows))

    texts = sentiment140(tmp_path / "x.csv")

    assert all(texts.train_texts.count(text) == 2 for text in texts.train_texts)
    assert all(texts.test_texts.count(text) == 2 for text in texts.test_texts)


def test_extract_is_split_like_the_whole(file: Path) -> None:
    whole, extract = sentiment140(file), sentiment140(file, 1000)

    assert set(extract.test_texts) <= set(whole.test_texts)
    assert set(extract.train_texts) <= set(whole.train_texts)


def test_extract_is_balanced_and_depends_on_its_seed_alone(file: Path) -> None:
    one, same, other = (sentiment140(file, 1000, seed=seed) for seed in (1, 1, 2))

    assert one.train_labels.sum() + one.test_labels.sum() == 500
    assert one.train_texts == same.train_texts
    assert one.train_texts != other.train_texts
    with pytest.raises(UserError, match="even number"):
        sentiment140(file, 3002)


def test_held_out_texts_are_fixed() -> None:
    """Otherwise results before and after would not compare."""
    assert [i for i in range(100) if held_out(f"text {i}")] == [28, 66, 75]


def test_quotes_commas_and_latin_letters_are_read(tmp_path: Path) -> None:
    rows = [("0", 'caf\xe9, "late" again'), ("4", "tom &amp; jerry")] * 40
    rows += [("4", f"more {i}") for i in range(80)]
    (tmp_path / "x.csv").write_bytes(tweets(rows))

    texts = sentiment140(tmp_path / "x.csv")

    read = {*texts.train_texts, *texts.test_texts}
    assert {"caf\xe9 late again", "tom jerry"} <= read


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b'"2","1","d","q","u","neutral"\n', "row 1"),
        (tweets(many_tweets(4)) + b'"0","five","columns","only","here"\n', "row 5"),
        (b"", "empty"),
        (b'"0","1","d","q","u","' + b"x" * 200_000, "not a whole CSV"),
    ],
    ids=["target", "columns", "empty", "endless field"],
)
def test_malformed_row_is_reported_by_number(tmp_path: Path, content: bytes, says: str) -> None:
    (tmp_path / "x.csv").write_bytes(content)

    with pytest.raises(UserError, match=says):
        sentiment140(tmp_path / "x.csv")


def test_truncated_archive_and_one_without_the_file_are_clear_errors(
    tmp_path: Path, file: Path
) -> None:
    cut = tmp_path / "cut.csv.xz"
    cut.write_bytes(lzma.compress(file.read_bytes())[:-100])
    with pytest.raises(UserError, match="not a whole"):
        sentiment140(cut)
    with zipfile.ZipFile(tmp_path / ARCHIVE, "w") as archive:
        archive.writestr("readme.txt", b"nothing here")
    with pytest.raises(UserError, match=TRAINING):
        sentiment140(tmp_path / ARCHIVE)


def test_more_rows_than_the_official_file_has_are_refused(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "ROWS", 2999)
    with pytest.raises(UserError, match="more than 2999 rows"):
        sentiment140(file)


def test_download_must_have_all_rows_and_be_balanced(
    tmp_path: Path, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(UserError, match="3000 rows"):
        require_whole(file)
    monkeypatch.setattr(module, "ROWS", 3000)
    require_whole(file)
    lopsided = [("4", text) for _, text in many_tweets(3000)]
    (tmp_path / "x.csv").write_bytes(tweets(lopsided))
    with pytest.raises(UserError, match="3000 of them positive"):
        require_whole(tmp_path / "x.csv")


def test_official_names_come_first_then_the_largest_file(tmp_path: Path) -> None:
    folder = tmp_path / "sentiment140"
    folder.mkdir()
    with pytest.raises(UserError, match="defl data fetch sentiment140"):
        files(tmp_path)
    (folder / "a.csv.xz").write_bytes(b"12")
    (folder / "b.csv.xz").write_bytes(b"123")
    (folder / "LICENSE.txt").write_bytes(b"12345")
    assert files(tmp_path) == [folder / "b.csv.xz"]
    (folder / f"{TRAINING}.xz").write_bytes(b"1")
    assert files(tmp_path) == [folder / f"{TRAINING}.xz"]


def test_tokenisation_is_fixed() -> None:
    text = "@Bob I'm SOOOO huuuungry!!! see http://a.b/c?d=1 &lt;3 www.x.org #fun_day 50%"

    assert normal(text) == "user i'm soo huungry ! see url 3 url fun day 50"


def test_texts_are_numbered_truncated_and_padded() -> None:
    vocabulary = Vocabulary(("good", "day"))

    rows = vocabulary.encoded(["good day", "a good good day", ""], 3)

    np.testing.assert_array_equal(rows, [[2, 3, 0], [1, 2, 2], [0, 0, 0]])
