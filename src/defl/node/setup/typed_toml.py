"""Reading TOML files into typed values; an error names the line to fix.

config.py defines what each file may hold.
"""

import json
import os
import re
import stat
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

# A schema with a hundred thousand entries takes about 10 MB.
FILE_BYTES_MAX = 16 * 2**20

# Cards and federation.toml come from others. tomllib's time grows with the square of a dotted key's
# parts, and it recurses once per level of nesting. Our keys have one part and three levels.
KEY_PARTS_MAX = 8
NESTING_MAX = 16
# Our longest string is a certificate with at most 5,464 characters.
STRING_CHARACTERS_MAX = 2**14
WORD_CHARACTERS_MAX = 2**10  # a number or a bare key, with the spaces around it
# An entry of the schema has at most 17 of =, comma and line end; there are at most 100,000.
SEPARATORS_MAX = 2_000_000

# TOML's tokens, as far as the bounds need them. As in TOML, three quotes always begin a long
# string, which may end with two more; a quote that begins no complete string comes last. Groups are
# not possessive: early releases of Python 3.11 get those wrong if they contain a look-ahead.
_TOKEN = re.compile(
    r"""
    (?P<comment> \#[^\n]*+ )
  | (?P<string> \"{3} [^"\\]*+ (?: (?: \\. | "(?!"") ) [^"\\]*+ )* \"{3,5}+
              | '{3} [^']*+ (?: '(?!'') [^']*+ )* '{3,5}+
              | "(?!"") [^"\\\n]*+ (?: \\. [^"\\\n]*+ )* "
              | '(?!'') [^'\n]*+ ' )
  | (?P<opening> [\[{] )
  | (?P<closing> [\]}] )
  | (?P<separator> [=,\n] )
  | (?P<dot> \. )
  | (?P<quote> ["'] )
  | (?P<end> \Z )
    """,
    re.VERBOSE | re.DOTALL,
)


def read_bytes(path: Path, hint: str, bytes_max: int = FILE_BYTES_MAX) -> bytes:
    """The file's bytes; `hint` says how to get such a file if it is missing.

    A pipe or a device states no size and may never end, so only regular files are read.
    """
    try:
        with open(path, "rb", opener=_without_waiting) as file:
            state = os.fstat(file.fileno())
            if not stat.S_ISREG(state.st_mode):
                raise UserError(f"{path}: not a regular file; {hint}")
            content = file.read(bytes_max + 1)
    except FileNotFoundError:
        raise UserError(f"{path}: no such file; {hint}") from None
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror}") from error
    if len(content) > bytes_max:
        raise UserError(f"{path}: longer than {bytes_max} bytes; is it the right file?")
    return content


def _without_waiting(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NONBLOCK)  # opening a pipe waits for its writer otherwise


def toml_table(text: str) -> dict[str, Any]:
    """The parsed table, or a ValueError. The cost is bounded by the length of the text."""
    _require_bounded(text)
    return tomllib.loads(text)


def _require_bounded(text: str) -> None:
    """Tells strings and comments apart as tomllib does, up to the first error, where tomllib stops
    too."""
    depth = dots = separators = end = 0
    for token in _TOKEN.finditer(text):
        excess = None
        length, gap = token.end() - token.start(), token.start() - end
        match token.lastgroup:
            case "string" if length > STRING_CHARACTERS_MAX:
                excess = f"a string longer than {STRING_CHARACTERS_MAX} characters"
            case "opening":
                depth, dots = depth + 1, 0
            case "closing":
                depth, dots = depth - 1, 0
            case "separator":
                separators, dots = separators + 1, 0
            case "dot":
                dots += 1
            case "quote":
                excess = "a string that does not end"
        if gap > WORD_CHARACTERS_MAX:
            excess = f"a word longer than {WORD_CHARACTERS_MAX} characters"
        elif dots >= KEY_PARTS_MAX:
            excess = f"a key of more than {KEY_PARTS_MAX} parts"
        elif depth > NESTING_MAX:
            excess = f"nested more than {NESTING_MAX} deep"
        elif separators > SEPARATORS_MAX:
            excess = f"more than {SEPARATORS_MAX} keys, items and lines"
        if excess is not None:
            line = text.count("\n", 0, token.start()) + 1
            raise ValueError(f"{excess} (at line {line})")
        end = token.end()


def parse(data: bytes, kind: type[T], path: Path) -> T:
    try:
        text = data.decode()
        fields = toml_table(text)
    except ValueError as error:  # errors of tomllib and of decoding are ValueErrors too
        raise UserError(f"{path}: not TOML: {error}") from error
    try:
        return msgspec.convert(fields, kind)
    except msgspec.ValidationError as error:
        raise UserError(_explained(str(error), text, kind, path)) from error
    except UserError as error:
        raise UserError(f"{path}: {error}") from error


def quoted(text: str) -> str:
    """A TOML basic string; JSON escapes all the same characters except DEL."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def _explained(error: str, text: str, kind: type[Any], path: Path) -> str:
    problem, _, place = error.partition(" - at `$")
    place = place.rstrip("`").lstrip(".")
    unknown = re.search(r"unknown field `(.+)`", problem)
    missing = re.search(r"missing required field `(.+)`", problem)
    if unknown:
        place = f"{place}.{unknown[1]}".lstrip(".")
        known = sorted({field.encode_name for field in _fields(inspect.type_info(kind))})
        near = [] if unknown[1] in known else get_close_matches(unknown[1], known, n=1)
        advice = f"did you mean {near[0]!r}?" if near else "remove it, or is it another file?"
        problem = f"there is no key {unknown[1]!r}; {advice}"
    elif missing:
        problem = f"the key {missing[1]!r} is missing; add it"
    elif problem.startswith("Invalid enum value"):
        allowed = next(
            (f.type for f in _fields(inspect.type_info(kind)) if f.name == place.split(".")[-1]),
            None,
        )
        if isinstance(allowed, inspect.EnumType):
            problem += f"; there are: {', '.join(_values(allowed.cls))}"
    line = _line_of(text, place)
    at = f"{path}, line {line}" if line else str(path)
    return f"{at}: {place}: {problem}" if place and not unknown else f"{at}: {problem}"


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
    """The line of a key such as `members[2].name`; of its table if the key itself is inline."""
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
