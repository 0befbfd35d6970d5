"""`defl clean`: deletes the folders that runs left in the temporary directory."""

import json
import shutil
import tempfile

import click

from defl.running.folders import LeftOver, left_overs

EXAMPLES = """
Examples:

\b
  defl clean                  list the folders, then ask
  defl clean --dry-run        list only
  defl clean --yes            delete without asking

Only your own folders are deleted, and only those that `defl run` and `defl demo` created in the
temporary directory. Folders of running federations stay, and so do folders named with --out,
unless you put them there under such a name.

Exit code 0: deleted, or there was nothing to delete; 1: you declined; 130: interrupted.
"""
HOUR_S, DAY_S = 3600, 86_400


@click.command(epilog=EXAMPLES)
@click.option("--dry-run", is_flag=True, help="List what would be deleted, and delete nothing.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object; deletes only with --yes.")
def clean(dry_run: bool, yes: bool, as_json: bool) -> None:
    """Delete the folders that earlier runs left behind.

    They hold models and logs, and those of interrupted runs also hold keys.
    """
    leftovers = left_overs()
    free = [left_over for left_over in leftovers if not left_over.in_use]
    deleting = bool(free) and not dry_run
    if not as_json:
        for left_over in leftovers:
            click.echo(_line(left_over))
        if not leftovers:
            click.echo(f"no run left a folder in {tempfile.gettempdir()}")
        if deleting and not yes and not click.confirm(f"Delete {_folders(free)}?"):
            raise SystemExit(1)
    deleting = deleting and (yes or not as_json)
    if deleting:
        for left_over in free:
            shutil.rmtree(left_over.folder)
    deleted = [str(left_over.folder) for left_over in free] if deleting else []
    if as_json:
        folders = {str(o.folder): {"bytes": o.size_bytes, "in_use": o.in_use} for o in leftovers}
        click.echo(json.dumps({"folders": folders, "deleted": deleted}, indent=1))
    elif deleted:
        click.echo(f"deleted {_folders(free)}")


def _line(left_over: LeftOver) -> str:
    age = f"{left_over.age_s / DAY_S:.0f} days"
    if left_over.age_s < 2 * DAY_S:
        age = f"{left_over.age_s / HOUR_S:.1f} hours"
    stays = "  in use, kept" if left_over.in_use else ""
    return f"{left_over.folder}  {left_over.size_bytes / 1e6:.1f} MB  {age} old{stays}"


def _folders(left_overs_: list[LeftOver]) -> str:
    size = sum(left_over.size_bytes for left_over in left_overs_) / 1e6
    count = len(left_overs_)
    return f"{count} folder{'s' if count != 1 else ''} ({size:.1f} MB)"
