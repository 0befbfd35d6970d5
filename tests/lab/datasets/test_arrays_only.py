"""A pickle is a program: the reader of old batches runs none of it."""

import collections
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from defl.lab.datasets.arrays_only import HostilePickle, read_pickle
from support.layouts import old_pickle


class Calls:
    """Pickles as a call of a function."""

    def __init__(self, function: Any, *arguments: Any) -> None:
        self.call: tuple[Any, ...] = function, arguments

    def __reduce__(self) -> tuple[Any, ...]:
        return self.call


def test_array_round_trips() -> None:
    array = np.arange(24, dtype=np.uint8).reshape(4, 6)

    record = read_pickle(old_pickle({b"data": array, b"labels": [1, 2]}))

    np.testing.assert_array_equal(record[b"data"], array)
    assert record[b"labels"] == [1, 2]


def test_array_in_column_order_round_trips() -> None:
    array = np.asfortranarray(np.arange(24, dtype=np.uint8).reshape(4, 6))

    record = read_pickle(old_pickle({b"data": array}))

    np.testing.assert_array_equal(record[b"data"], array)


def test_pickle_that_would_run_a_command_runs_nothing(tmp_path: Path) -> None:
    made = tmp_path / "made"
    hostile = old_pickle({b"data": Calls(os.system, f"touch {made}")})

    with pytest.raises(HostilePickle, match="system"):
        read_pickle(hostile)

    assert not made.exists()


@pytest.mark.parametrize(
    "value",
    [
        Calls(eval, "1 + 1"),
        Calls(getattr, 1, "real"),
        Calls(np.load, "file"),
        Calls(np.frombuffer, b"1234"),
        Calls(bytearray, 10**12),
        collections.OrderedDict(),
    ],
    ids=["eval", "getattr", "load", "frombuffer", "bytearray", "class"],
)
def test_names_other_than_an_arrays_are_refused(value: object) -> None:
    with pytest.raises(HostilePickle, match="asks for"):
        read_pickle(old_pickle(value))


@pytest.mark.parametrize("dtype", [np.float64, np.int64, object, np.int8, np.bool_, "S1"], ids=str)
def test_array_of_other_types_than_bytes_is_refused(dtype: type | str) -> None:
    with pytest.raises(HostilePickle, match="only bytes are read"):
        read_pickle(old_pickle({b"data": np.zeros(3, dtype)}))


def restated(**other: object) -> Calls:
    """An array of three bytes whose pickle says something else of it."""
    made, arguments, state = np.zeros(3, np.uint8).__reduce__()
    assert isinstance(state, tuple)
    names = ("version", "shape", "dtype", "by_column", "data")
    fields = {**dict(zip(names, state, strict=True)), **other}
    array = Calls(made)
    array.call = (made, arguments, tuple(fields[name] for name in names))
    return array


@pytest.mark.parametrize(
    "array",
    [
        restated(dtype=b"i1"),
        restated(dtype=None),
        restated(shape=(-1, -3)),
        restated(shape=(3.0,)),
        restated(shape=[3]),
        restated(data="abc"),
        restated(by_column="F"),
    ],
    ids=["kind", "no kind", "negative", "fraction", "list", "text", "order"],
)
def test_array_with_malformed_state_is_refused(array: Calls) -> None:
    np.testing.assert_array_equal(read_pickle(old_pickle({b"x": restated()}))[b"x"], [0, 0, 0])

    with pytest.raises(HostilePickle, match="fit its shape"):
        read_pickle(old_pickle({b"data": array}))


def test_array_of_a_subclass_is_refused() -> None:
    made, (_, *rest), _ = np.zeros(3, np.uint8).__reduce__()

    with pytest.raises(HostilePickle, match="not NumPy's own"):
        read_pickle(old_pickle({b"data": Calls(made, np.dtype, *rest)}))


def test_array_larger_than_its_bytes_is_refused() -> None:
    with pytest.raises(HostilePickle, match="fit its shape"):
        read_pickle(old_pickle({b"data": restated(shape=(10**9, 10**9))}))


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\x80\x02",
        b"garbage",
        b"\x80\x02}q\x01(",
        b"\x80\x02cnumpy\nndarray\n)R.",
        b"\x80\x02Pfile\n.",
    ],
    ids=["empty", "head", "garbage", "cut", "call of ndarray", "outside reference"],
)
def test_broken_pickle_is_a_clear_error(data: bytes) -> None:
    with pytest.raises(HostilePickle):
        read_pickle(data)
