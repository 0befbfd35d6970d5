"""`defl new`: a small project that trains out of the box, copied from a template."""

import importlib.util
import json
import re
import shutil
from importlib.resources import as_file, files
from pathlib import Path

import click

from defl.clients.extras import install_command
from defl.errors import UserError

EXAMPLES = """
Examples:

\b
  defl new irises                         NumPy alone
  defl new heart --template hospitals     four real hospitals, NumPy alone
  defl new digits --template torch        a PyTorch model on handwritten digits
  defl new slang --template lora          adapters for a frozen base: a twentieth of the bytes
  defl run digits

Exit code 0: created; 2: the folder exists, or the template needs a package that is not installed.
"""
# Template -> the modules that it imports, each the name of the extra that installs it.
TEMPLATES: dict[str, tuple[str, ...]] = {
    "numpy": (),
    "hospitals": (),
    "sklearn": ("sklearn",),
    "torch": ("torch", "sklearn"),
    "lora": ("torch",),
}
NAME = re.compile(r"[A-Za-z][A-Za-z0-9_.-]*")
NAME_CHARACTERS_MAX = 100


@click.command(epilog=EXAMPLES)
@click.argument("folder", metavar="NAME", type=click.Path(path_type=Path))
@click.option(
    "--template",
    type=click.Choice([*TEMPLATES]),
    default="numpy",
    show_default=True,
    help="What to begin with: a framework, or an example.",
)
@click.option("--json", "as_json", is_flag=True, help="One JSON object instead of text.")
def new(folder: Path, template: str, as_json: bool) -> None:
    """Create a small, complete project in the folder NAME: client, data, settings, README, test.

    It downloads nothing and overwrites nothing.
    """
    name = _checked_name(folder)
    _require_installed(template)
    try:
        names = _create(folder, name, template)
    except OSError as error:
        raise UserError(f"{folder}: cannot be written: {error.strerror or error}") from error
    if as_json:
        click.echo(json.dumps({"folder": str(folder), "template": template, "files": names}))
        return
    click.echo(
        f"Created {folder} from the template {template}: {', '.join(names)}\n"
        f"Next:\n  defl run {folder}\n  pytest {folder}"
    )


def _checked_name(folder: Path) -> str:
    name = folder.name
    if not NAME.fullmatch(name) or len(name) > NAME_CHARACTERS_MAX:
        raise UserError(
            f"{name!r} cannot name a project: begin with a letter, then letters, digits, "
            f"'-', '_' and '.', {NAME_CHARACTERS_MAX} at most"
        )
    if folder.exists() or folder.is_symlink():
        raise UserError(f"{folder} already exists; choose another name, or move it away")
    if not folder.parent.is_dir():
        raise UserError(f"{folder.parent}: no such folder; make it first")
    return name


def _require_installed(template: str) -> None:
    extras = TEMPLATES[template]
    missing = [module for module in extras if not _installed(module)]
    if missing:
        raise UserError(
            f"the template {template} needs {' and '.join(missing)}, which is not installed; "
            f"install it with: {install_command(*extras)}"
        )


def _installed(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:
        return False


def _create(folder: Path, name: str, template: str) -> list[str]:
    with as_file(files("defl.clients") / "templates" / template) as source:
        shutil.copytree(source, folder, ignore=shutil.ignore_patterns("__pycache__"))
    readme = folder / "README.md"
    text = readme.read_text(encoding="utf-8")
    readme.write_text(text.replace("{name}", name), encoding="utf-8")
    return sorted(path.name for path in folder.iterdir())
