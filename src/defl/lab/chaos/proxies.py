"""Debian's squid and tinyproxy on a host of the laboratory, with Basic authentication."""

import shutil
import socket
import time
from pathlib import Path

from defl.errors import UserError
from defl.lab.chaos.hosts import Host, run

USER, PASSWORD = "member", "correct-horse"
SQUID_PORT = 3128
TINYPROXY_PORT = 8888
START_TIME_MAX_S = 20.0

# As Debian's own file has it: tunnels to 443 only.
SQUID = """\
auth_param basic program /usr/lib/squid/basic_ncsa_auth {folder}/passwords
acl SSL_ports port 443
acl members proxy_auth REQUIRED
http_access deny CONNECT !SSL_ports
http_access allow members
http_access deny all
http_port {address}:{port}
cache deny all
cache_log {folder}/cache.log
access_log none
pid_filename {folder}/squid.pid
coredump_dir {folder}
shutdown_lifetime 1 second
"""

TINYPROXY = """\
User tinyproxy
Group tinyproxy
Port {port}
Listen {address}
Timeout 600
MaxClients 100
LogFile "{folder}/tinyproxy.log"
PidFile "{folder}/tinyproxy.pid"
BasicAuth {user} {password}
ConnectPort 443
"""


def start_squid(host: Host, folder: Path) -> str:
    """Its URL, with the password."""
    place = _folder_for("proxy", folder / "squid")
    hashed = run("openssl", "passwd", "-apr1", PASSWORD).strip()
    (place / "passwords").write_text(f"{USER}:{hashed}\n", encoding="ascii")
    (place / "squid.conf").write_text(
        SQUID.format(folder=place, address=host.address, port=SQUID_PORT), encoding="ascii"
    )
    host.start(["squid", "-N", "-f", str(place / "squid.conf")], place / "output.log")
    return _url_once_it_listens(host, SQUID_PORT)


def start_tinyproxy(host: Host, folder: Path) -> str:
    place = _folder_for("tinyproxy", folder / "tinyproxy")
    (place / "tinyproxy.conf").write_text(
        TINYPROXY.format(
            folder=place, address=host.address, port=TINYPROXY_PORT, user=USER, password=PASSWORD
        ),
        encoding="ascii",
    )
    host.start(["tinyproxy", "-d", "-c", str(place / "tinyproxy.conf")], place / "output.log")
    return _url_once_it_listens(host, TINYPROXY_PORT)


def url_of(host_address: str, port: int) -> str:
    return f"http://{USER}:{PASSWORD}@{host_address}:{port}"


def _folder_for(user: str, folder: Path) -> Path:
    folder.mkdir()
    shutil.chown(folder, user, user)
    return folder


def _url_once_it_listens(host: Host, port: int) -> str:
    until = time.monotonic() + START_TIME_MAX_S
    while True:
        try:
            host.call(socket.create_connection, (host.address, port), 1.0).close()
            return url_of(host.address, port)
        except OSError as error:
            if time.monotonic() > until:
                raise UserError(f"the proxy at {host.address}:{port} does not start") from error
            time.sleep(0.1)
