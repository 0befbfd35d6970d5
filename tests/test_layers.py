"""Imports point from what uses to what is used, never back (docs/ARCHITECTURE.md, "Layers")."""

import ast
from collections.abc import Iterable
from pathlib import Path

import pytest

SOURCE = Path(__file__).parent.parent / "src" / "defl"

VALUES, CORES, MACHINE, CLIENTS, SHELL, ENGINE, SIMULATOR, API, LAB, CLI = range(10)

# VALUES in the order in which each may import the ones before it.
VALUES_ORDER = (
    "ids", "errors", "printable", "crypto", "cards", "fields", "changes", "schema", "messages",
    "committee", "succession", "contacts", "budget", "verifier", "wire", "output",
)  # fmt: skip
MACHINE_MODULES = (
    "ingress", "client", "waiting", "finish", "recall", "evidence", "work", "duty", "founding",
    "output_builder", "interest", "outsider", "other_epochs", "own_changes", "crossing",
    "participant_parts", "participant", "lineage", "unsent",
)  # fmt: skip
# Top-level package or module -> its layer.
LAYER = {
    **dict.fromkeys(VALUES_ORDER, VALUES),
    **dict.fromkeys(("consensus", "pool", "ledger", "aggregation"), CORES),
    **dict.fromkeys(MACHINE_MODULES, MACHINE),
    "clients": CLIENTS,
    "node": SHELL,
    "engine": ENGINE,
    "sim": SIMULATOR,
    **dict.fromkeys(
        (
            "__init__",
            "dashboard",
            "plotting",
            "progress",
            "proofs",
            "results",
            "running",
            "simulating",
        ),
        API,
    ),
    "lab": LAB,
    "cli": CLI,
}
# The commands of the laboratory, and the ones that offer its attacks by name. `main` imports each
# command only when it is called.
CLI_OF_LAB = {"bench.py", "data.py", "demo.py", "demo_view.py", "paper.py", "sim.py"}

# Modules the pure layers may never import: sockets, files, clocks, threads, global randomness.
IMPURE = {
    "asyncio", "concurrent", "io", "multiprocessing", "os", "pathlib", "random", "secrets",
    "select", "shutil", "signal", "socket", "sqlite3", "ssl", "subprocess", "sys", "tempfile",
    "threading", "time",
}  # fmt: skip
HEAVY = {"torch", "sklearn", "flwr", "gensim"}
# Datasets and models read files; of these, only this module uses the network.
NETWORK = {"socket", "http", "urllib", "asyncio", "ssl"}
REACHES_NETWORK = {"lab/datasets/download.py"}

MODULES = sorted(SOURCE.rglob("*.py"))


def name_of(path: Path) -> str:
    return path.relative_to(SOURCE).as_posix()


def top_of(path: Path) -> str:
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


def outside(path: Path) -> set[str]:
    return {name.split(".")[0] for name in imported(path)}


def tops_imported(path: Path) -> set[str]:
    return {name.split(".")[1] for name in imported(path) if name.startswith("defl.")} & set(LAYER)


def layer_violations(paths: Iterable[Path]) -> list[str]:
    violations = []
    for path in paths:
        here = top_of(path)
        if here not in LAYER:
            violations.append(f"{here} has no layer: name it in this test and in ARCHITECTURE.md")
            continue
        for other in tops_imported(path) - {here}:
            allowed = LAYER[other] <= LAYER[here]
            if LAYER[here] == VALUES:
                allowed = other in VALUES_ORDER[: VALUES_ORDER.index(here)]
            elif LAYER[here] == CORES:  # the cores never import each other
                allowed = LAYER[other] == VALUES
            elif LAYER[here] == CLIENTS:
                allowed = LAYER[other] == VALUES or other == "aggregation"
            elif other == "lab":
                # These look attacks up by name, inside the function that needs one.
                finds_attacks = here in ("running", "simulating")
                allowed = finds_attacks or (here == "cli" and path.name in CLI_OF_LAB)
            if not allowed:
                violations.append(f"{name_of(path)} imports {other}")
    return violations


def test_a_module_imports_only_from_its_own_layer_or_above() -> None:
    assert layer_violations(MODULES) == []


def test_a_pure_layer_touches_no_socket_file_clock_or_thread() -> None:
    pure = [path for path in MODULES if LAYER.get(top_of(path), API) <= MACHINE]

    assert [name_of(path) for path in pure if outside(path) & IMPURE] == []


def test_only_clients_and_the_laboratory_import_machine_learning_frameworks() -> None:
    product = [path for path in MODULES if top_of(path) not in ("clients", "lab")]

    assert [name_of(path) for path in product if outside(path) & HEAVY] == []


def test_in_datasets_and_models_only_the_download_uses_the_network() -> None:
    learning = [
        path
        for path in MODULES
        if name_of(path).startswith(("lab/datasets", "lab/models", "lab/partition"))
    ]

    assert {name_of(path) for path in learning if outside(path) & NETWORK} == REACHES_NETWORK


def test_every_module_has_a_docstring() -> None:
    silent = [
        name_of(path)
        for path in MODULES
        if not ast.get_docstring(ast.parse(path.read_text(encoding="utf-8")))
    ]

    assert silent == []


def test_class_names_are_unique() -> None:
    places: dict[str, list[str]] = {}
    for path in MODULES:
        if "templates" in path.parts:  # independent projects for users
            continue
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.ClassDef):
                places.setdefault(node.name, []).append(name_of(path))

    assert {name: where for name, where in places.items() if len(where) > 1} == {}


def test_a_forbidden_import_is_detected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("test_layers.SOURCE", tmp_path)
    module = tmp_path / "ledger.py"
    module.write_text("import socket\nfrom defl.lab import attacks\n", encoding="utf-8")

    assert layer_violations([module]) == ["ledger.py imports lab"]
    assert outside(module) & IMPURE == {"socket"}
