"""deploy/ keeps its promises: units, container file, compose file, manifests and their scripts.

What needs a tool (systemd-analyze, kubectl, shellcheck) is skipped where the tool is missing; the
rest needs neither root nor network.
"""

import configparser
import os
import re
import shutil
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
import yaml

import defl
from defl.cards import NAME_CHARACTERS_MAX
from defl.cli.exit_codes import ExitCode
from defl.node.files import PORT_FILE
from defl.node.setup.local import free_ports

ROOT = Path(__file__).parent.parent
DEPLOY = ROOT / "deploy"
MEMBER = DEPLOY / "container" / "member.sh"
HEALTH = DEPLOY / "container" / "health.py"
CONTAINERFILE = (DEPLOY / "container" / "Containerfile").read_text(encoding="utf-8")
UNITS = sorted((DEPLOY / "systemd").glob("*.service"))
MANIFESTS = sorted((DEPLOY / "kubernetes").rglob("*.yaml"))
OVERLAYS = sorted((DEPLOY / "kubernetes" / "overlays").iterdir())
NAMES = ("alice", "bob", "carol", "dan")


def tool(name: str) -> str:
    path = shutil.which(name)
    if path is None:
        pytest.skip(f"{name} is not installed")
    return path


def output(*command: object, **environment: str) -> str:
    done = subprocess.run(
        [str(word) for word in command],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, **environment},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def documents(text: str) -> list[dict[str, Any]]:
    return [document for document in yaml.safe_load_all(text) if document]


# --- systemd -------------------------------------------------------------------------------------


class Unit(configparser.ConfigParser):
    """A unit's settings; of one that is given twice, both lines."""

    def __init__(self, path: Path) -> None:
        super().__init__(strict=False, interpolation=None, delimiters=["="])
        self.optionxform = str  # type: ignore[assignment,method-assign]
        self.read(path, encoding="utf-8")


@pytest.mark.parametrize("path", UNITS, ids=lambda path: path.name)
def test_units_notify_and_are_not_restarted_when_that_cannot_help(path: Path) -> None:
    service = Unit(path)["Service"]

    assert service["Type"] == ("exec" if "dashboard" in path.name else "notify")
    assert service["Restart"] == "on-failure"
    assert service["RestartPreventExitStatus"] == str(int(ExitCode.REFUSED))
    assert service["User"] == "defl"
    assert service["NoNewPrivileges"] == "yes"
    assert service["LimitCORE"] == "0"
    assert "LimitFSIZE" not in service


def test_the_dashboards_token_goes_to_a_private_folder_and_not_to_the_journal() -> None:
    (path,) = [path for path in UNITS if "dashboard" in path.name]
    service = Unit(path)["Service"]

    assert service["RuntimeDirectoryMode"] == "0700"
    assert f"--address-file %t/{service['RuntimeDirectory']}/" in service["ExecStart"]


def test_training_that_takes_too_much_memory_does_not_stop_the_node() -> None:
    (path,) = [path for path in UNITS if "node" in path.name]
    service = Unit(path)["Service"]

    assert service["OOMPolicy"] == "continue"
    assert service["KillMode"] == "mixed"
    assert "MemoryDenyWriteExecute" not in service  # numba and torch compile


@pytest.mark.parametrize("path", UNITS, ids=lambda path: path.name)
def test_systemd_finds_no_fault_in_units_and_rates_them_safe(path: Path, tmp_path: Path) -> None:
    analyze = tool("systemd-analyze")
    text = path.read_text(encoding="utf-8")
    unit = tmp_path / path.name
    unit.write_text(text.replace("/opt/defl/bin/defl", "/bin/true"), encoding="utf-8")

    assert output(analyze, "verify", "--man=no", unit) == ""
    rated = output(analyze, "security", "--offline=true", "--no-pager", unit)

    exposure = re.search(r"exposure level for \S+: ([\d.]+)", rated)
    assert exposure is not None
    assert float(exposure[1]) < 3


# --- The container -------------------------------------------------------------------------------


def test_the_image_runs_as_another_user_than_root_with_its_state_on_a_volume() -> None:
    assert re.search(r"^USER \$\{UID\}:\$\{GID\}$", CONTAINERFILE, re.MULTILINE)
    assert re.search(r"^ARG UID=[1-9]\d{3,}$", CONTAINERFILE, re.MULTILINE)
    assert re.search(r"^VOLUME /var/lib/defl$", CONTAINERFILE, re.MULTILINE)
    assert re.search(r"^HEALTHCHECK .*defl-health", CONTAINERFILE, re.MULTILINE)


def test_nothing_but_what_is_named_enters_a_build() -> None:
    lines = (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines()
    rules = [line for line in lines if line and not line.startswith("#")]
    copied = re.findall(r"^COPY (?!--from)(?:--\S+ )*(.*) \S+$", CONTAINERFILE, re.MULTILINE)

    assert rules[0] == "*"
    allowed = {rule[1:] for rule in rules if rule.startswith("!")}
    assert allowed == {"LICENSE", "README.md", "constraints.txt", "pyproject.toml", "src"} | {
        "deploy/container"
    }
    for source in " ".join(copied).split():
        assert any(source == rule or source.startswith(f"{rule}/") for rule in allowed), source


def test_every_file_names_the_version_of_this_release() -> None:
    named = {
        path.relative_to(ROOT).as_posix(): set(
            re.findall(r"(?:defl:|newTag: |VERSION=)(\d+\.\d+\.\d+)", path.read_text("utf-8"))
        )
        for path in DEPLOY.rglob("*")
        if path.is_file()
    }

    assert {path: versions for path, versions in named.items() if versions} == {
        path: {defl.__version__}
        for path in (
            "deploy/compose/compose.yaml",
            "deploy/container/Containerfile",
            "deploy/container/README.md",
            "deploy/kubernetes/README.md",
            "deploy/kubernetes/base/kustomization.yaml",
        )
    }


def test_no_file_holds_a_key() -> None:
    for path in DEPLOY.rglob("*"):
        if path.is_file():
            assert "PRIVATE KEY" not in path.read_text(encoding="utf-8"), path


@pytest.fixture
def health_server() -> Iterator[HTTPServer]:
    """/healthz of a node; `code` is what it answers."""

    class Answer(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(self.server.code)  # type: ignore[attr-defined]
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Answer)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


def health(folder: Path, *options: str) -> int:
    command = [sys.executable, "-IS", str(HEALTH), *options]
    return subprocess.run(command, cwd=folder, capture_output=True, check=False).returncode


@pytest.mark.parametrize(("code", "ready"), [(200, 0), (503, 1)])
def test_a_node_that_may_not_sign_is_alive_but_not_healthy(
    code: int, ready: int, health_server: HTTPServer, tmp_path: Path
) -> None:
    health_server.code = code  # type: ignore[attr-defined]
    (tmp_path / "alice").mkdir()
    (tmp_path / "alice" / PORT_FILE).write_text(str(health_server.server_port))

    assert health(tmp_path) == health(tmp_path, "alice") == ready
    assert health(tmp_path, "--live") == 0


def test_a_node_that_does_not_answer_is_neither(tmp_path: Path) -> None:
    with socket.socket() as bound:  # nothing listens there
        bound.bind(("127.0.0.1", 0))
        (tmp_path / PORT_FILE).write_text(str(bound.getsockname()[1]))

        assert health(tmp_path, ".") == health(tmp_path, "--live", ".") == 1


def test_a_member_that_waits_for_the_federation_is_not_restarted(tmp_path: Path) -> None:
    assert health(tmp_path) == 1
    assert health(tmp_path, "--live") == 0


# --- The script of a member, and compose ---------------------------------------------------------


def test_the_members_script_is_plain_shell() -> None:
    output("sh", "-n", MEMBER)
    assert MEMBER.read_text(encoding="utf-8").startswith("#!/bin/sh\n")


def test_shellcheck_finds_no_fault_in_the_members_script() -> None:
    output(tool("shellcheck"), MEMBER)


def refusal(state: Path, user: int | None = None, **settings: str) -> str:
    """What the script prints when it refuses its settings; as another user, if stated."""
    environment = {"PATH": os.environ["PATH"], "STATE": str(state), **settings}
    done = subprocess.run(
        ["/bin/sh"], input=MEMBER.read_text(encoding="utf-8"), env=environment, cwd="/",
        user=user, capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip
    assert done.returncode == ExitCode.REFUSED, done.stdout + done.stderr
    (sentence,) = done.stderr.splitlines()
    return sentence


@pytest.mark.parametrize(
    "name",
    [
        "",
        "a/b",
        "/alice",
        "..",
        ".new",
        "-x",
        "a\nb",
        "a\x1b[2J",
        "a\u200b",
        "\u00e9" * 65,
        "\U0001f600" * 64,  # its card's file name is too long
        "example",
    ],
    ids=ascii,
)
def test_a_member_with_an_impossible_name_is_refused_before_anything_is_made(
    name: str, tmp_path: Path
) -> None:
    assert refusal(tmp_path, MEMBER_NAME=name).startswith("MEMBER_NAME ")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["alice", "hospital-b", "Klinik K\u00f6ln & Co.", "\u00e9" * 64])
def test_names_that_a_node_may_have_pass(name: str, tmp_path: Path) -> None:
    missing = tmp_path / "project"  # refused after the settings

    said = refusal(tmp_path, MEMBER_NAME=name, MEMBER_PROJECT=str(missing))
    assert said == f"{name}: there is no folder {missing}: mount your training code there"


def test_the_script_and_the_node_agree_on_the_length_of_a_name() -> None:
    assert f"len(name) > {NAME_CHARACTERS_MAX} " in MEMBER.read_text(encoding="utf-8")


def test_a_member_without_a_folder_that_it_may_write_is_refused(tmp_path: Path) -> None:
    missing = refusal(tmp_path / "volume", MEMBER_NAME="alice")
    nobody = 65534 if os.geteuid() == 0 else None
    unwritable = refusal(Path("/"), nobody, MEMBER_NAME="alice")

    assert missing.startswith(f"STATE: there is no folder {tmp_path / 'volume'}")
    assert "may not write in /:" in unwritable
    assert list(tmp_path.iterdir()) == []


def test_a_founder_without_members_is_refused_before_anything_is_made(tmp_path: Path) -> None:
    said = refusal(tmp_path, MEMBER_NAME="alice", FOUNDER="alice")

    assert said == "FOUNDER is set and MEMBERS is not: the names of all members"
    assert list(tmp_path.iterdir()) == []


def defl_command(folder: Path) -> str:
    """A PATH in which `defl` is this one."""
    folder.mkdir()
    command = folder / "defl"
    command.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m defl.cli.main "$@"\n')
    command.chmod(0o755)
    return f"{folder}:{os.environ['PATH']}"


@pytest.mark.parametrize("linked", ["initial.safetensors", "bob.card.toml"])
def test_a_link_that_another_member_publishes_is_not_followed(tmp_path: Path, linked: str) -> None:
    """A link could lead to this member's own key, and the key into what this member publishes."""
    state, public = tmp_path / "state", tmp_path / "public"
    theirs = tmp_path / "members" / "bob"
    for folder in (state, public, theirs):
        folder.mkdir(parents=True)
    secret = state / "alice" / "node.key"
    (theirs / linked).symlink_to(secret)
    settings = {"FOUNDER": "bob"} if linked == "initial.safetensors" else {"FOUNDER": "alice"}
    for name in ("federation.toml", "bob.card.toml"):
        if name != linked:
            (theirs / name).write_text("theirs", encoding="utf-8")
    # The card is a plain file when it is looked for, and a link when it is copied.
    script = MEMBER.read_text(encoding="utf-8")
    script = script.replace('is_file "$(from "$member")/', 'test -e "$(from "$member")/')
    done = subprocess.run(
        ["/bin/sh"],
        input=script,
        env={
            "PATH": defl_command(tmp_path / "bin"),
            "STATE": str(state),
            "PUBLIC": str(public),
            "MEMBERS_PUBLIC": str(tmp_path / "members"),
            "MEMBER_NAME": "alice",
            "MEMBERS": "alice bob",
            **settings,
        },
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
    )

    assert done.returncode == ExitCode.REFUSED, done.stdout + done.stderr
    assert f"{theirs / linked} is not a plain file" in done.stderr
    key = secret.read_bytes()
    copies = [path for path in tmp_path.rglob("*") if path.is_file() and path.read_bytes() == key]
    assert {path.resolve() for path in copies} == {secret.resolve()}


def compose() -> dict[str, Any]:
    (document,) = documents((DEPLOY / "compose" / "compose.yaml").read_text(encoding="utf-8"))
    return document


def mounts(service: dict[str, Any]) -> dict[str, tuple[str, bool]]:
    """Volume -> where it is mounted, and whether read-only."""
    parts = (mount.split(":") for mount in service["volumes"])
    return {part[0]: (part[1], part[2:] == ["ro"]) for part in parts}


def test_no_organisation_can_reach_what_is_anothers() -> None:
    services = compose()["services"]

    assert tuple(services) == NAMES
    for name, service in services.items():
        mounted = mounts(service)
        assert mounted.pop(name) == ("/var/lib/defl", False)
        assert mounted.pop(f"{name}-public") == ("/public", False)
        for volume, (place, read_only) in mounted.items():
            assert volume.endswith("-public")
            assert place == f"/members/{volume.removesuffix('-public')}"
            assert read_only
        assert service["networks"] == ["between", name]
        assert service["read_only"] is True
        assert service["cap_drop"] == ["ALL"]
        assert "ports" not in service


@pytest.mark.slow
def test_four_members_found_a_federation_by_themselves_and_train(tmp_path: Path) -> None:
    """What compose runs, as processes with folders instead of containers with volumes."""
    services = compose()["services"]
    path = defl_command(tmp_path / "bin")
    members = []
    for (name, service), port in zip(services.items(), free_ports(len(NAMES)), strict=True):
        state, public, others = (tmp_path / name / part for part in ("state", "public", "members"))
        for folder in (state, public, others):
            folder.mkdir(parents=True)
        for volume, (place, read_only) in mounts(service).items():
            if read_only:
                owner = volume.removesuffix("-public")
                (others / Path(place).name).symlink_to(tmp_path / owner / "public")
        environment = {
            **os.environ,
            **{key: str(value) for key, value in service["environment"].items()},
            "PATH": path,
            "MEMBER_ADDRESS": f"127.0.0.1:{port}",
            "ROUNDS": "2",
            "STATE": str(state),
            "PUBLIC": str(public),
            "MEMBERS_PUBLIC": str(others),
        }
        members.append(
            subprocess.Popen(
                ["/bin/sh", MEMBER],
                env=environment,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
        )
    try:
        printed = [member.communicate(timeout=100)[0] for member in members]
    finally:
        for member in members:
            member.kill()
            member.wait()

    assert [member.returncode for member in members] == [0] * len(NAMES), "\n".join(printed)
    fingerprints = {re.search(r": fingerprint (.*)", text)[1] for text in printed}  # type: ignore[index]
    assert len(fingerprints) == 1
    models = {(tmp_path / name / "state" / name / "model.safetensors") for name in NAMES}
    assert len({model.read_bytes() for model in models}) == 1
    assert not any((tmp_path / name / "public" / "node.key").exists() for name in NAMES)


# --- Kubernetes ----------------------------------------------------------------------------------


def stateful_set(manifests: list[dict[str, Any]]) -> dict[str, Any]:
    (found,) = [item for item in manifests if item["kind"] == "StatefulSet"]
    spec: dict[str, Any] = found["spec"]
    return spec


def test_no_second_pod_can_have_the_key() -> None:
    manifests = [item for path in MANIFESTS for item in documents(path.read_text("utf-8"))]
    spec = stateful_set(manifests)

    assert spec["replicas"] == 1
    (claim,) = spec["volumeClaimTemplates"]
    assert claim["spec"]["accessModes"] == ["ReadWriteOncePod"]
    kinds = {item["kind"] for item in manifests}
    assert kinds.isdisjoint({"Secret", "ConfigMap", "Deployment", "PodDisruptionBudget"})


def test_the_pod_is_allowed_what_the_strictest_standard_allows() -> None:
    text = (DEPLOY / "kubernetes" / "base" / "stateful-set.yaml").read_text(encoding="utf-8")
    pod = stateful_set(documents(text))["template"]["spec"]
    (container,) = pod["containers"]

    assert pod["securityContext"]["runAsNonRoot"] is True
    assert f"ARG UID={pod['securityContext']['runAsUser']}\n" in CONTAINERFILE
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    # Otherwise the key's mode changes at every start, and the node refuses it.
    assert pod["securityContext"]["fsGroupChangePolicy"] == "OnRootMismatch"
    assert pod["automountServiceAccountToken"] is False
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }


@pytest.mark.parametrize("overlay", OVERLAYS, ids=lambda path: path.name)
def test_overlays_render(overlay: Path) -> None:
    manifests = documents(output(tool("kubectl"), "kustomize", overlay))

    environment = stateful_set(manifests)["template"]["spec"]["containers"][0]["env"]
    address = [item for item in environment if item["name"] == "MEMBER_ADDRESS"]
    (policy,) = [item for item in manifests if item["kind"] == "NetworkPolicy"]
    published = [item for item in manifests if item.get("spec", {}).get("type") == "LoadBalancer"]
    # Who states an address is dialled there; who states none lets nothing in.
    assert len(address) == len(published) == len(policy["spec"]["ingress"])
    assert {item["metadata"].get("namespace", "defl") for item in manifests} == {"defl"}
