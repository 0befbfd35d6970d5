"""For test_where.py: the places in the package's source that use a name.

A place is "file.py:Class.method", or the file alone for code outside functions. Names are followed
through imports, so an alias hides nothing; calls through variables are missed.
"""

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import defl

SOURCE = Path(defl.__file__).parent

Source = dict[str, str]  # the text of each file


@cache
def product() -> Source:
    """The package without the laboratory, and without the projects that `defl new` copies."""
    files = {path.relative_to(SOURCE).as_posix(): path for path in SOURCE.rglob("*.py")}
    return {
        file: path.read_text(encoding="utf-8")
        for file, path in files.items()
        if not file.startswith(("lab/", "clients/templates/"))
    }


def without_simulator(source: Source) -> Source:
    return {file: text for file, text in source.items() if not file.startswith("sim/")}


@dataclass(frozen=True)
class Use:
    place: str  # "file.py:Class.method", or the file alone for code of a module
    name: str  # as written, but what the file imports or defines is spelled in full
    called: bool
    stored: bool = False  # assigned to


def full_names(file: str, tree: ast.Module) -> dict[str, str]:
    """The full name of each name that a module imports or defines."""
    module = f"defl.{file.removesuffix('.py').replace('/', '.')}"
    names = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            for alias in node.names:
                names[alias.asname or alias.name] = f"{node.module}.{alias.name}"
        elif isinstance(node, ast.Import):
            names.update((alias.asname, alias.name) for alias in node.names if alias.asname)
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names[node.name] = f"{module}.{node.name}"
    return names


def dotted(node: ast.expr) -> str:
    match node:
        case ast.Name(id=name):
            return name
        case ast.Attribute(value=value, attr=name):
            return f"{dotted(value)}.{name}"
    return "?"


def functions(file: str, tree: ast.Module) -> Iterator[tuple[str, list[ast.stmt]]]:
    """Each function and method with its place; all other code belongs to the file."""
    own: list[ast.stmt] = []
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield f"{file}:{node.name}", node.body
        elif isinstance(node, ast.ClassDef):
            for item in node.body:
                if isinstance(item, ast.FunctionDef | ast.AsyncFunctionDef):
                    yield f"{file}:{node.name}.{item.name}", item.body
                else:
                    own.append(item)
        elif not isinstance(node, ast.Import | ast.ImportFrom):
            own.append(node)
    yield file, own


@cache
def uses_in(file: str, text: str) -> tuple[Use, ...]:
    tree = ast.parse(text)
    names = full_names(file, tree)
    uses = []
    for place, body in functions(file, tree):
        nodes = [node for statement in body for node in ast.walk(statement)]
        called = {id(node.func) for node in nodes if isinstance(node, ast.Call)}
        for node in nodes:
            if isinstance(node, ast.Name | ast.Attribute):
                first, dot, rest = dotted(node).partition(".")
                name = f"{names.get(first, first)}{dot}{rest}"
                uses.append(Use(place, name, id(node) in called, isinstance(node.ctx, ast.Store)))
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                uses.append(Use(place, f"'{node.value}'", called=False))
    return tuple(uses)


def all_uses(source: Source) -> Iterator[Use]:
    for file, text in source.items():
        yield from uses_in(file, text)


def callers(source: Source, *names: str) -> set[str]:
    """Places that call one of these names; a leading dot means a method of any object."""
    return {use.place for use in all_uses(source) if use.called and use.name.endswith(names)}


def users(source: Source, *names: str) -> set[str]:
    return {use.place for use in all_uses(source) if use.name.endswith(names)}
