"""The documents agree with the code: fields, tags, constants, places, commands.

The prose itself is left to reviewers. The figures in SIMULATOR.md are those of one run;
`python tests/test_docs.py` updates them.
"""

import ast
import dataclasses
import importlib
import operator
import re
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterable
from fractions import Fraction
from functools import cache
from pathlib import Path
from typing import Any, get_args

import msgspec
import pytest
from click.testing import CliRunner

from defl.budget import PRICES, UNREAD, Price
from defl.cards import Card
from defl.changes import Add, Approve, Change, Ready, Remove, ReplaceKey, Rounds
from defl.cli.sim import sim
from defl.committee import Charter, Federation, Member, Membership, Timing
from defl.contacts import PeerRole
from defl.crypto import Tag
from defl.ids import Digest, Round, View, digest_of
from defl.ingress import POLICIES
from defl.ledger import Ledger, LedgerState
from defl.messages import (
    QC,
    TC,
    Agg,
    Block,
    Header,
    Manifest,
    Message,
    SignedHeader,
    Upd,
    transactions_root,
    vote_statement,
)
from defl.node.net.acceptor import AcceptLimits
from defl.node.net.dialler import DialLimits
from defl.node.net.framing import Lane
from defl.node.net.hello import Hello
from defl.node.net.letterbox import LetterboxLimits
from defl.node.net.pending import PendingLimits
from defl.node.net.transport import TransportLimits
from defl.output import ClosedRound, Reference, Response
from defl.schema import Entry, Schema
from defl.sim.byzantine import KINDS
from defl.sim.verdicts import CHECKS
from defl.succession import PendingChange, ReadyKey
from defl.wire import EPOCHLESS
from test_layers import LAYER

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src" / "defl"
DOCUMENTS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]

MESSAGES: tuple[type[msgspec.Struct], ...] = get_args(Message)
PARTS = (
    QC, TC, Upd, Agg, Change, Approve, Ready, Add, Remove, ReplaceKey, Rounds, Card, Header, Block,
    Manifest, SignedHeader,
)  # fmt: skip
RECORDS = (
    Federation, Charter, Membership, Member, Timing, Schema, Entry, LedgerState, ClosedRound,
    Reference, PendingChange, ReadyKey,
)  # fmt: skip

# Words in capitals that are not constants of the code.
WORDS = {
    "HTTPS_PROXY",  # of the environment
    "RAY_USAGE_STATS_ENABLED",  # likewise
    "NO_PROXY",  # likewise
    "MLFLOW_TRACKING_URI",  # a tracker's own variable
    "WANDB_MODE",  # likewise
    "GST_LT",  # the paper's name for the client's timer
    "DEFL_CACHE",  # of the environment
    "DEFL_DATA",  # likewise
    "DEFL_NODE",  # likewise
    "DEFL_NODES",  # likewise
    # Variables that a client gets, or has to be given by name.
    *("VIRTUAL_ENV", "CONDA_PREFIX", "CONDA_DEFAULT_ENV", "LD_LIBRARY_PATH", "LD_PRELOAD"),
    *("TOKENIZERS_PARALLELISM", "SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE"),
    *("CURL_CA_BUNDLE", "HTTP_PROXY", "ALL_PROXY", "HF_TOKEN", "DATA_FOLDER"),
}


@cache
def text(path: Path) -> str:
    return path.read_text(encoding="utf-8")


def protocol() -> str:
    return text(ROOT / "docs" / "PROTOCOL.md")


def architecture() -> str:
    return text(ROOT / "docs" / "ARCHITECTURE.md")


def rows_after(document: str, opening: str) -> list[list[str]]:
    """The cells of the first table after a line, without its header."""
    _, separator, rest = document.partition(f"\n{opening}\n")
    assert separator, f"no line is {opening!r}"
    table = re.search(r"(?:^\|.*\n)+", rest, re.MULTILINE)
    assert table, f"no table follows {opening!r}"
    heading = re.search(r"^#", rest, re.MULTILINE)
    assert heading is None or table.start() < heading.start(), f"{opening!r} has no table"
    lines = table.group().splitlines()[2:]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def names(rows: Iterable[list[str]]) -> list[str]:
    return [row[0].strip("`") for row in rows]


# --- PROTOCOL.md: messages ---------------------------------------------------------------------


@pytest.mark.parametrize("kind", [*MESSAGES, *PARTS], ids=lambda kind: kind.__name__)
def test_protocol_page_lists_every_field_of_every_message(kind: type[msgspec.Struct]) -> None:
    tag = kind.__struct_config__.tag
    heading = f"### {kind.__name__}" + ("" if tag is None else f" ({tag})")

    rows = rows_after(protocol(), heading)

    assert names(rows) == list(kind.__struct_fields__)
    assert all(row[1] for row in rows), "a field without a type"


@pytest.mark.parametrize("kind", RECORDS, ids=lambda kind: kind.__name__)
def test_protocol_page_lists_hashed_fields_in_order(kind: type[msgspec.Struct]) -> None:
    assert names(rows_after(protocol(), f"{kind.__name__}:")) == list(kind.__struct_fields__)


def test_protocol_page_describes_no_unknown_message() -> None:
    described = re.findall(r"^### (\w+) \((\d+)\)$", protocol(), re.MULTILINE)
    tags = {(kind.__name__, str(kind.__struct_config__.tag)) for kind in (*MESSAGES, *PARTS)}

    assert {(name, tag) for name, tag in tags if tag != "None"} == set(described)


def test_the_protocol_states_the_policy_of_each_message() -> None:
    stated = {
        row[0]: (row[1] != "anybody", bool(row[2]), row[3])
        for row in rows_after(protocol(), "Policies:")
    }

    assert stated == {
        kind.__name__: (
            policy.sender is not None,
            policy.epoch is not None,
            policy.proof.name.lower(),
        )
        for kind, policy in POLICIES.items()
    }


def test_the_protocol_states_the_price_of_each_message() -> None:
    *rows, (_, *unread) = rows_after(protocol(), "Prices:")

    def price(cells: list[str]) -> Price:
        frame, member, size = cells
        return Price(float(frame), float(Fraction(member)), int(size))

    assert {kind: price(cells) for kinds, *cells in rows for kind in kinds.split(", ")} == {
        kind.__name__: price for kind, price in PRICES.items()
    }
    assert price(unread) == UNREAD


def test_the_protocol_states_what_each_role_may_send() -> None:
    roles = {row[0]: re.findall(r"[A-Z]\w+", row[2]) for row in rows_after(protocol(), "Roles:")}
    stated = {role: set(words) - {"READY"} for role, words in roles.items()}
    outsiders = [role for role in PeerRole if role is not PeerRole.MEMBER]

    assert stated == {
        role: {kind.__name__ for kind, policy in POLICIES.items() if role in policy.outsiders}
        for role in outsiders
    }


def test_the_protocol_names_the_messages_of_no_epoch() -> None:
    sentence = re.search(r"^.*?((?:\w+, )+\w+ and \w+) mean the same", protocol(), re.MULTILINE)

    assert sentence is not None
    assert re.findall(r"[A-Z]\w+", sentence[1]) == [kind.__name__ for kind in EPOCHLESS]


def test_the_protocol_describes_the_hello_field_by_field() -> None:
    rows = rows_after(protocol(), "Hello:")

    assert names(rows) == list(Hello.__struct_fields__)
    (lanes,) = (meaning for name, _, meaning in rows if name == "`lane`")
    assert [f"`{lane}`" for lane in Lane] == lanes.split(" or ")


def test_the_protocol_states_the_default_of_each_transport_limit() -> None:
    defaults = {
        field.name: value
        for limits in (
            TransportLimits(),
            AcceptLimits(),
            PendingLimits(),
            DialLimits(),
            LetterboxLimits(),
        )
        for field in dataclasses.fields(limits)
        if isinstance(value := getattr(limits, field.name), int | float)
    }

    stated = {
        row[0].strip("`"): arithmetic(ast.parse(row[1], mode="eval"))
        for row in rows_after(protocol(), "Limits:")
    }

    assert stated == defaults


def test_protocol_page_lists_every_signature_tag() -> None:
    assert set(re.findall(r"\| `(defl/[\w-]+)` \|", protocol())) == {
        tag.value.decode() for tag in Tag
    }


def test_protocol_page_names_every_ledger_response() -> None:
    assert [response for response in Response if f"`{response}`" not in protocol()] == []


def test_protocol_check_values_match_the_code() -> None:
    ledger = Ledger.__new__(Ledger)  # encoding needs no federation
    genesis = ledger.encode(LedgerState(Round(0), (), (), ()))
    computed = (
        ledger.root_of(genesis),
        transactions_root(()),
        vote_statement(Digest(bytes(32)), 0, View(8), Digest(b"\xa4" * 32)),
    )

    values = [row[1].strip("`") for row in rows_after(protocol(), "**Check values.**")]

    assert genesis == bytes.fromhex("97 00 90 90 90 90 90 c2")
    assert values == [value.hex() for value in computed]


@pytest.mark.parametrize(
    ("value", "module", "name"),
    [
        ("chain id", "committee", "Federation.chain"),
        ("block id", "messages", "Header.id"),
        ("transactions root", "messages", "transactions_root"),
        ("state root", "ledger", "Ledger.root_of"),
        ("change digest", "changes", "Change.digest"),
        ("blob digest", "messages", "Manifest.digest"),
    ],
)
def test_hash_prefixes_match_the_protocol_page(value: str, module: str, name: str) -> None:
    table = dict(rows_after(protocol(), "## Hashes and signatures"))
    prefix = table[value].split("`")[1]

    assert f"b{prefix}" in ast.unparse(definitions(f"{module}.py")[name]).replace("'", '"')


def test_schema_digest_covers_the_json_on_the_protocol_page() -> None:
    shown = re.search(r"`(\[\{.*?\}\])`", protocol())

    assert shown is not None
    assert Schema((Entry("point", (64,)),)).digest == digest_of(shown.group(1).encode())


# --- PROTOCOL.md: bounds -------------------------------------------------------------------------

_ARITHMETIC: dict[type[ast.AST], Callable[..., Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Pow: operator.pow,
    ast.USub: operator.neg,
}


def arithmetic(node: ast.AST) -> Any:
    """The value of a formula in the table: numbers and + - * ** only."""
    match node:
        case ast.Expression(body=body):
            return arithmetic(body)
        case ast.Constant(value=int() | float() as value):
            return value
        case ast.BinOp(left=left, op=op, right=right):
            return _ARITHMETIC[type(op)](arithmetic(left), arithmetic(right))
        case ast.UnaryOp(op=op, operand=operand):
            return _ARITHMETIC[type(op)](arithmetic(operand))
    raise AssertionError(f"no formula: {ast.dump(node)}")


BOUNDS = rows_after(protocol(), "## Bounds")


@pytest.mark.parametrize("row", BOUNDS, ids=lambda row: row[0].strip("`"))
def test_protocol_bounds_match_the_code_and_have_a_reason(row: list[str]) -> None:
    constant, value, where, reason = row

    module = importlib.import_module(f"defl.{where}")

    assert getattr(module, constant.strip("`")) == arithmetic(ast.parse(value, mode="eval"))
    assert reason


def test_protocol_page_lists_every_bound() -> None:
    machine = [path for path in SOURCE.rglob("*.py") if LAYER.get(package(path), 9) <= 2]
    outside = [path for path in machine if package(path) not in ("aggregation", "attacks")]
    bounds = {
        name
        for path in outside
        for name in assigned(ast.parse(text(path)).body)
        if name.endswith(("_MAX", "_MIN"))
    }

    assert bounds - set(names(BOUNDS)) == set()


# --- All documents: constants, files, functions ---------------------------------------------------


def package(path: Path) -> str:
    return path.relative_to(SOURCE).parts[0].removesuffix(".py")


def assigned(body: list[ast.stmt]) -> set[str]:
    """Names assigned in a module or class."""
    targets: list[ast.expr] = []
    for node in body:
        if isinstance(node, ast.Assign):
            targets.extend(node.targets)
        elif isinstance(node, ast.AnnAssign):
            targets.append(node.target)
    flat = [e for t in targets for e in (t.elts if isinstance(t, ast.Tuple) else [t])]
    return {target.id for target in flat if isinstance(target, ast.Name)}


@cache
def definitions(file: str) -> dict[str, ast.stmt]:
    """Classes, functions and methods of a file, by their dotted names."""
    by_name: dict[str, ast.stmt] = {}
    for node in ast.parse(text(SOURCE / file)).body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            by_name[node.name] = node
        if isinstance(node, ast.ClassDef):
            methods = [
                item
                for item in node.body
                if isinstance(item, ast.FunctionDef | ast.AsyncFunctionDef)
            ]
            by_name.update((f"{node.name}.{item.name}", item) for item in methods)
    return by_name


def constants() -> set[str]:
    assigned_names: set[str] = set()
    for path in SOURCE.rglob("*.py"):
        tree = ast.parse(text(path))
        assigned_names |= assigned(tree.body)
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef):
                assigned_names |= assigned(node.body)
    return assigned_names


def constants_named_in(document: str) -> set[str]:
    return set(re.findall(r"\b[A-Z][A-Z0-9]*(?:_[A-Z0-9]+)+\b", document)) - WORDS


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)
def test_documents_name_only_existing_constants(path: Path) -> None:
    assert constants_named_in(text(path)) - constants() == set()


def test_an_unknown_constant_in_a_document_is_detected() -> None:
    assert constants_named_in("`VIEWS_AHEAD_MAX` and `ABSENT_MAX`") - constants() == {"ABSENT_MAX"}


def places_named_in(document: str) -> list[tuple[str, str]]:
    return re.findall(r"`([\w/]+\.py):([\w.]+)`", document)


def test_places_named_in_documents_exist() -> None:
    places = [place for path in DOCUMENTS for place in places_named_in(text(path))]

    missing = [f"{file}:{name}" for file, name in places if name not in definitions(file)]

    assert len(places) > 50
    assert missing == []


def test_files_named_in_documents_exist() -> None:
    """In backticks or as the target of a link, from the root, the package or the document."""
    missing = []
    for document in DOCUMENTS:
        named = re.findall(r"`([\w./-]+/|[\w./-]+\.(?:py|md|toml|hex))`", text(document))
        named += re.findall(r"\]\(((?!http)[^)#]+)\)", text(document))
        places = (ROOT, SOURCE, document.parent)
        missing += [
            f"{document.name}: {name}"
            for name in named
            if "KIND" not in name and not any((place / name).exists() for place in places)
        ]

    assert missing == []


def test_architecture_page_lists_every_module_in_its_layer() -> None:
    order = (
        "VALUES", "CORES", "MACHINE", "CLIENTS", "SHELL",
        "ENGINE", "SIMULATOR", "API", "LAB", "CLI",
    )  # fmt: skip
    table = {
        row[0]: re.findall(r"`(\w+)`", row[1]) for row in rows_after(architecture(), "## Layers")
    }

    assert tuple(table) == order
    assert {module: order.index(layer) for layer in table for module in table[layer]} == LAYER


@pytest.mark.parametrize("folder", ["consensus", "pool", "node", "running", "dashboard"])
def test_architecture_page_lists_every_file_of(folder: str) -> None:
    files = {path.relative_to(SOURCE).as_posix() for path in (SOURCE / folder).rglob("[a-z]*.py")}

    assert {file for file in files if f"`{file}`" not in architecture()} == set()


# --- SIMULATOR.md --------------------------------------------------------------------------------

SIMULATOR = ROOT / "docs" / "SIMULATOR.md"
SHOWN = re.compile(r"^\$ defl sim (?P<arguments>.*)\n(?P<output>(?:.*\n)+?)```$", re.MULTILINE)
LEFT_OUT = "[...]"


def shown_in_the_page() -> tuple[str, str]:
    """The arguments of the command that the page shows, and its output."""
    shown = SHOWN.search(text(SIMULATOR))
    assert shown is not None
    return shown["arguments"], shown["output"]


def output_of(arguments: str) -> str:
    result = CliRunner().invoke(sim, shlex.split(arguments))
    assert result.exit_code == 0, result.output
    return result.output


def form_of(output: str) -> list[str]:
    """The lines without figures, which differ from run to run."""
    return [re.sub(r"[\d.]+", "#", re.sub(r" +", " ", line)) for line in output.splitlines()]


def test_defl_sim_prints_what_the_simulator_page_shows() -> None:
    arguments, shown = shown_in_the_page()
    printed = iter(form_of(output_of(arguments)))

    missing = [
        line for line in form_of(shown) if line != form_of(LEFT_OUT)[0] and line not in printed
    ]

    assert missing == []
    assert tuple(re.findall(r"^ok  (.*)$", shown, re.MULTILINE)) == CHECKS


def write_page() -> None:
    """Replace the figures; omitted lines stay omitted."""
    arguments, shown = shown_in_the_page()
    command = Path(sys.executable).with_name(
        "defl"
    )  # in its own process, as a reader runs it: it prints its memory
    done = subprocess.run(
        [command, "sim", *shlex.split(arguments)], capture_output=True, text=True, check=True
    )
    printed = done.stdout.splitlines()
    wanted = form_of(shown)
    lines = []
    for line in printed:
        if wanted[0] == form_of(LEFT_OUT)[0] and form_of(line)[:1] == wanted[1:2]:
            lines.append(LEFT_OUT)
            del wanted[0]
        if form_of(line)[:1] == wanted[:1] or (not line and not wanted[0]):
            lines.append(line)
            del wanted[0]
    assert not wanted, f"no longer printed: {wanted}"
    SIMULATOR.write_text(text(SIMULATOR).replace(shown, "\n".join(lines) + "\n"), encoding="utf-8")


def test_documents_state_the_right_number_of_byzantine_kinds() -> None:
    for path in DOCUMENTS:
        counted = re.findall(r"(\d+) kinds of (?:liar|Byzantine)", text(path))
        assert all(int(number) == len(KINDS) for number in counted), path.name


def test_ci_runs_the_readmes_test_command() -> None:
    commands = [line.split("#")[0].strip() for line in text(ROOT / ".ci" / "run").splitlines()]
    readme = re.findall(r"^(make \w+)", text(ROOT / "README.md"), re.MULTILINE)

    assert readme[0] == "make demo"
    assert "make test" in readme
    assert "make test" in commands


def test_make_targets_named_in_documents_exist() -> None:
    targets = set(re.findall(r"^([a-z-]+):", text(ROOT / "Makefile"), re.MULTILINE))
    for path in DOCUMENTS:
        named = set(re.findall(r"(?:^|`)make ([a-z-]+)", text(path), re.MULTILINE))
        assert named <= targets, path.name


if __name__ == "__main__":
    write_page()
