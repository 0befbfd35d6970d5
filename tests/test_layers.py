"""Imports point from what uses to what is used, never back (docs/ARCHITECTURE.md, "Layers")."""

import ast
from pathlib import Path

import pytest

SOURCE = Path(__file__).parent.parent / "src" / "defl"

VALUES = 0
CORES = 1
MACHINE = 2
LEARNING = 3
SHELL = 4
USES = 5

# First part of a module's name inside the package -> its layer.
LAYER = {
    **dict.fromkeys(
        (
            "ids",
            "errors",
            "crypto",
            "schema",
            "messages",
            "committee",
            "budget",
            "verify",
            "wire",
            "output",
        ),
        VALUES,
    ),
    **dict.fromkeys(("consensus", "pool", "ledger", "aggregation", "attacks"), CORES),
    **dict.fromkeys(
        ("ingress", "client", "waiting", "finish", "recall", "work", "participant"), MACHINE
    ),
    **dict.fromkeys(("clients", "datasets", "partition", "models"), LEARNING),
    "node": SHELL,
    **dict.fromkeys(("sim", "baselines", "experiments", "dashboard", "cli"), USES),
}

# VALUES in the order in which each may import the ones before it.
VALUES_ORDER = (
    "ids",
    "errors",
    "crypto",
    "schema",
    "messages",
    "committee",
    "budget",
    "verify",
    "wire",
    "output",
)

# What the pure layers may never touch: sockets, files, clocks, threads, global randomness.
IMPURE = {
    "asyncio", "concurrent", "io", "multiprocessing", "os", "pathlib", "random", "secrets",
    "select", "shutil", "signal", "socket", "sqlite3", "ssl", "subprocess", "sys", "tempfile",
    "threading", "time",
}  # fmt: skip
HEAVY = {"torch", "sklearn", "flwr", "gensim"}
# Data and models read files; of their modules only these reach the network.
NETWORK = {"socket", "http", "urllib", "asyncio", "ssl"}
REACHES_NETWORK = {"datasets/download.py"}

MODULES = sorted(SOURCE.rglob("*.py"))


def room(path: Path) -> str:
    return path.relative_to(SOURCE).parts[0].removesuffix(".py")


def imported(path: Path) -> set[str]:
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path} uses a relative import"
            names.add(node.module or "")
            if node.module == "defl":
                names.update(f"defl.{alias.name}" for alias in node.names)
    return names


def rooms_imported(path: Path) -> set[str]:
    return {name.split(".")[1] for name in imported(path) if name.startswith("defl.")}


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_a_module_imports_only_from_its_own_layer_or_above(path: Path) -> None:
    here = room(path)
    if here == "__init__":
        assert not rooms_imported(path)
        return
    assert here in LAYER, f"{here} has no layer: name it in this test and in ARCHITECTURE.md"
    for other in rooms_imported(path):
        if other == here:
            continue
        assert LAYER[other] <= LAYER[here], f"{here} imports {other}, which lies below it"
        if LAYER[here] == VALUES:
            assert VALUES_ORDER.index(other) < VALUES_ORDER.index(here)
        if LAYER[here] == CORES:
            assert LAYER[other] == VALUES, f"cores never import each other: {here} -> {other}"
        if LAYER[here] == LEARNING:
            assert LAYER[other] in (VALUES, LEARNING) or other == "aggregation"


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_a_pure_layer_touches_no_socket_file_clock_or_thread(path: Path) -> None:
    layer = LAYER.get(room(path), VALUES)
    outside = {name.split(".")[0] for name in imported(path)}
    if layer in (VALUES, CORES, MACHINE):
        assert not outside & IMPURE
    if layer != LEARNING:
        assert not outside & HEAVY


def test_of_data_and_models_only_the_download_reaches_the_network() -> None:
    learning = [path for path in MODULES if room(path) in ("datasets", "partition", "models")]

    reaching = {
        path.relative_to(SOURCE).as_posix()
        for path in learning
        if {name.split(".")[0] for name in imported(path)} & NETWORK
    }

    assert reaching == REACHES_NETWORK


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_a_module_says_what_belongs_in_it(path: Path) -> None:
    assert ast.get_docstring(ast.parse(path.read_text(encoding="utf-8")))


def test_the_layering_test_sees_a_forbidden_import(tmp_path: Path) -> None:
    wrong = tmp_path / "wrong.py"
    wrong.write_text("import socket\nfrom defl.sim import cluster\n", encoding="utf-8")
    assert rooms_imported(wrong) == {"sim"}
    assert {name.split(".")[0] for name in imported(wrong)} & IMPURE == {"socket"}
