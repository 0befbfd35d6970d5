"""`defl dashboard`: a web page about one node, or about all nodes of a run, on this machine."""

import errno
import json
import os
import re
import socket
import stat
import sys
import tempfile
import webbrowser
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from html import escape
from importlib.util import find_spec
from ipaddress import ip_address
from pathlib import Path

import click

from defl.clients.extras import install_command
from defl.errors import UserError
from defl.node.work.orphans import PARENT_VARIABLE, die_with

EXAMPLES = """
Examples:

\b
  defl dashboard alice                     the node in alice/
  defl dashboard runs/1                    all nodes of defl run --out runs/1
  defl dashboard alice --open              and open it in the browser

Prints the address, which has a token that is new at every start. It reads files and the node's
loopback status, and changes nothing: it can be ended and started at any time, before the node runs
and after it has ended.

From another machine, through ssh, with the same port on both sides:

\b
  ssh -L 8400:127.0.0.1:8400 node.example.org

Without --port it listens on 8400, or on any free port if that is taken.

As a service, use --address-file: a service manager keeps what is printed, and others may read that.
The token is never written to systemd's journal.

Exit code 0: ended by Ctrl-C or SIGTERM; 2: it cannot be started as asked, and the message says what
to do.
"""

LOOPBACK = "127.0.0.1"
PORT = 8400
TOKEN_FORM = re.compile(r"[A-Za-z0-9_-]{32,256}")
ADDRESS_FILE_ADVICE = "To get it, start the dashboard with --address-file FILE."
JOURNAL = "JOURNAL_STREAM"  # systemd's variable: which file the journal reads, DEVICE:INODE
MAKE_TOKEN = "(umask 077; openssl rand -hex 32 > {})"  # noqa: S105 - a command


@click.command(epilog=EXAMPLES)
@click.argument(
    "folders",
    metavar="FOLDER...",
    nargs=-1,
    required=True,
    type=click.Path(path_type=Path),
)
@click.option("--port", type=click.IntRange(0, 65535), help="0: any free one.")
@click.option(
    "--listen",
    default=LOOPBACK,
    show_default=True,
    metavar="HOST",
    help="The address to listen on; another than loopback needs --token-file.",
)
@click.option(
    "--token-file",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Use this token instead of a new one; only you may be able to read the file.",
)
@click.option(
    "--address-file",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Write the address with its token to this file, for your eyes alone, and do not print it.",
)
@click.option("--open", "open_", is_flag=True, help="Open the page in the browser.")
@click.option("--json", "as_json", is_flag=True, help="Print the address as a JSON object.")
def dashboard(
    folders: tuple[Path, ...],
    port: int | None,
    listen: str,
    token_file: Path | None,
    address_file: Path | None,
    open_: bool,
    as_json: bool,
) -> None:
    """Show a node, or all nodes of a run, as a web page; read-only.

    FOLDER is a node's folder, or the folder of `defl run --out` or `defl demo --out`.
    """
    require_extra()
    from defl.dashboard.app import make_app  # noqa: PLC0415 - an extra
    from defl.dashboard.feed import Feed  # noqa: PLC0415 - likewise
    from defl.dashboard.folders import nodes_in, title_of  # noqa: PLC0415
    from defl.dashboard.guard import Guard, bracketed, is_loopback  # noqa: PLC0415
    from defl.dashboard.serving import new_token, serve  # noqa: PLC0415

    if PARENT_VARIABLE in os.environ:
        die_with(int(os.environ[PARENT_VARIABLE]))
    nodes = nodes_in(folders)
    if token_file is None and not is_loopback(listen):
        raise UserError(
            f"--listen {listen} lets other machines in, so the token must be one that you choose: "
            f"make it with {MAKE_TOKEN.format('token')} and add --token-file token"
        )
    token = new_token() if token_file is None else read_token(token_file)
    listening = _listen(listen, port)
    bound: int = listening.getsockname()[1]
    guard = Guard(listen, bound, token)
    bare = f"http://{bracketed(listen)}:{bound}/"
    address = f"{bare}?token={token}"

    def announce() -> None:
        if address_file is not None:
            stack.enter_context(_written(address_file, address))
            shown, hint = bare, f"The address with its token is in {address_file}."
        elif _is_journal(os.environ):
            shown, hint = bare, f"Its token is not written to the journal. {ADDRESS_FILE_ADVICE}"
        else:
            shown, hint = address, ""
        click.echo(json.dumps({"address": shown}) if as_json else shown)
        if hint:
            click.echo(hint, err=True)
        if not as_json:
            click.echo("Ctrl-C ends it; the nodes go on.")
        if not is_loopback(listen):
            click.echo(
                "It speaks plain HTTP: whoever can read the traffic can read the token and the "
                "page. Across networks that you do not control, use ssh -L instead.",
                err=True,
            )
        if open_ and not webbrowser.open(stack.enter_context(_leading_file(address)).as_uri()):
            click.echo("no browser was found here; open the address yourself", err=True)

    with ExitStack() as stack:
        stack.enter_context(listening)
        serve(make_app(Feed(nodes, title_of(folders, nodes)), guard), listening, announce)


def require_extra() -> None:
    if any(find_spec(package) is None for package in ("starlette", "uvicorn")):
        raise UserError(f"the dashboard needs a web server: {install_command('dashboard')}")


def read_token(path: Path) -> str:
    make = f"make one with {MAKE_TOKEN.format(path)}"
    try:
        with path.open(encoding="ascii") as file:
            status = os.fstat(file.fileno())
            token = file.read(1024).strip()
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror}; {make}") from error
    except UnicodeDecodeError:
        token = ""
    if status.st_uid not in (os.getuid(), 0) or stat.S_IMODE(status.st_mode) & 0o077:
        raise UserError(
            f"{path}: other users can read or change this token; {make}, or, if nobody has read "
            f"it: chmod 600 {path}"
        )
    if not TOKEN_FORM.fullmatch(token):
        raise UserError(f"{path}: not a token, which has 32 to 256 letters, digits, - or _; {make}")
    return token


def _listen(host: str, port: int | None) -> socket.socket:
    if port is not None:
        return _bound(host, port)
    try:
        return _bound(host, PORT)
    except PortTaken:
        return _bound(host, 0)


class PortTaken(UserError):
    pass


def _bound(host: str, port: int) -> socket.socket:
    try:
        everywhere = ip_address(host).is_unspecified
    except ValueError:
        everywhere = False
    if everywhere:
        raise UserError(
            f"--listen {host} is every address of this machine; name the one that browsers will "
            "use: requests for any other name are refused"
        )
    try:
        family, kind, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    except socket.gaierror as error:
        unknown = f"--listen {host}: {error.strerror}; name an address of this machine"
        raise UserError(unknown) from error
    listening = socket.socket(family, kind)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(address)
        listening.listen()
    except OSError as error:
        listening.close()
        if error.errno == errno.EADDRINUSE:
            raise PortTaken(
                f"port {port} is taken; choose another one with --port, or any free one: --port 0"
            ) from error
        if error.errno == errno.EADDRNOTAVAIL:
            raise UserError(f"--listen {host} is not an address of this machine") from error
        raise UserError(f"{host} port {port}: {error.strerror}") from error
    return listening


def _is_journal(environment: Mapping[str, str]) -> bool:
    """Whether systemd's journal keeps what is printed."""
    if JOURNAL not in environment:
        return False
    state = os.fstat(sys.stdout.fileno())
    return environment[JOURNAL] == f"{state.st_dev}:{state.st_ino}"


@contextmanager
def _written(path: Path, address: str) -> Iterator[None]:
    """Keep the address in a file that only its owner can read; delete it at the end."""
    from defl.node.report.telemetry import write_private  # noqa: PLC0415 - seldom needed

    try:
        write_private(path, f"{address}\n")
    except OSError as error:
        raise UserError(f"{path}: cannot be written: {error.strerror}; name another file") from (
            error
        )
    try:
        yield
    finally:
        path.unlink(missing_ok=True)


@contextmanager
def _leading_file(address: str) -> Iterator[Path]:
    """A page that leads to the address. Other users can see a browser's arguments, not this."""
    with tempfile.NamedTemporaryFile("w", prefix="defl-dashboard-", suffix=".html") as file:
        file.write(f'<meta http-equiv="refresh" content="0; url={escape(address)}">\n')
        file.flush()
        yield Path(file.name)
