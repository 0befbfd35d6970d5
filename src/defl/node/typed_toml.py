"""TOML files that people write, read as typed facts; whatever is wrong is named with its line.

Only the reading itself is here; what a file may hold is config.py's matter.
"""

import json
import re
import tomllib
from collections.abc import Iterator
from difflib import get_close_matches
from enum import Enum
from pathlib import Path
from typing import Any, TypeVar

import msgspec
from msgspec import inspect

from defl.errors import UserError

T = TypeVar("T")

# A schema of a hundred thousand entries takes about 10 MB.
FILE_BYTES_MAX = 32 * 2**20


def read_bytes(path: Path, hint: str) -> bytes:
    """The file's bytes; `hint` says how one comes by such a file."""
    try:
        if path.stat().st_size > FILE_BYTES_MAX:
            raise UserError(f"{path}: longer than {FILE_BYTES_MAX} bytes; is it the right file?")
        return path.read_bytes()
    except FileNotFoundError:
        raise UserError(f"{path}: no such file; {hint}") from None
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror}") from error


def parse(data: bytes, kind: type[T], path: Path) -> T:
    try:
        text = data.decode()
        fields = tomllib.loads(text)
    except (UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise UserError(f"{path}: not TOML: {error}") from error
    try:
        return msgspec.convert(fields, kind)
    except msgspec.ValidationError as error:
        raise UserError(_explained(str(error), text, kind, path)) from error
    except UserError as error:
        raise UserError(f"{path}: {error}") from error


def quoted(text: str) -> str:
    """A TOML basic string; JSON's escapes are the same but for DEL."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def _explained(wrong: str, text: str, kind: type[Any], path: Path) -> str:
    what, _, place = wrong.partition(" - at `$")
    place = place.rstrip("`").lstrip(".")
    stranger = re.search(r"unknown field `(.+)`", what)
    missing = re.search(r"missing required field `(.+)`", what)
    if stranger:
        place = f"{place}.{stranger[1]}".lstrip(".")
        known = sorted({field.encode_name for field in _fields(inspect.type_info(kind))})
        near = get_close_matches(stranger[1], known, n=1)
        advice = f"did you mean {near[0]!r}?" if near else "remove it"
        what = f"there is no key {stranger[1]!r}; {advice}"
    elif missing:
        what = f"the key {missing[1]!r} is missing; add it"
    elif what.startswith("Invalid enum value"):
        allowed = next(
            (f.type for f in _fields(inspect.type_info(kind)) if f.name == place.split(".")[-1]),
            None,
        )
        if isinstance(allowed, inspect.EnumType):
            what += f"; there are: {', '.join(_values(allowed.cls))}"
    line = _line_of(text, place)
    at = f"{path}, line {line}" if line else str(path)
    return f"{at}: {place}: {what}" if place and not stranger else f"{at}: {what}"


def _values(kind: type[Enum]) -> list[str]:
    return [str(member.value) for member in kind]


def _fields(info: inspect.Type) -> Iterator[inspect.Field]:
    """All keys that a file of this type may have, at any depth."""
    match info:
        case inspect.StructType(fields=fields):
            for field in fields:
                yield field
                yield from _fields(field.type)
        case inspect.VarTupleType(item_type=item):
            yield from _fields(item)


def _line_of(text: str, place: str) -> int | None:
    """The line of a key such as `members[2].name`; of its table, if the key itself is inline."""
    lines = dict(_places(text))
    while place:
        if place in lines:
            return lines[place]
        place = place[: max(place.rfind("."), place.rfind("["), 0)]
    return None


def _places(text: str) -> Iterator[tuple[str, int]]:
    table, array, item = "", "", 0
    counts: dict[str, int] = {}
    for number, line in enumerate(text.splitlines(), start=1):
        bare = line.strip()
        if opened := re.match(r"\[\[\s*([\w.-]+)\s*\]\]", bare):
            index = counts.get(opened[1], 0)
            counts[opened[1]] = index + 1
            table = f"{opened[1]}[{index}]"
            yield table, number
        elif opened := re.match(r"\[\s*([\w.-]+)\s*\]", bare):
            table = opened[1]
            yield table, number
        elif array and bare.startswith("{"):
            yield f"{array}[{item}]", number
            item += 1
        elif key := re.match(r"""["']?([\w.-]+)["']?\s*=\s*(\[?)""", bare):
            place = f"{table}.{key[1]}".lstrip(".")
            array, item = (place, 0) if key[2] and not bare.rstrip().endswith("]") else ("", 0)
            yield place, number
