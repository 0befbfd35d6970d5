"""ARCHITECTURE.md's table "Where is ...?": the places that do it, and no others.

The first part reads the source as syntax trees: `search` collects every place that does the thing
and must return `only`. It must also detect an intruder: an added function that does the same. The
second part runs the places: a change to one changes the behaviour.
"""

import ast
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pytest

import defl
from defl import messages
from defl.aggregation.adaptive import Judgement
from defl.aggregation.geometric import Verdict
from defl.aggregation.rules import rule_named
from defl.committee import DEFAULTS
from defl.crypto import Tag
from defl.ids import Digest, NodeId
from defl.output import Durable, Persist
from defl.sim.conditions import Conditions
from defl.sim.scenario import cluster_of
from defl.sim.signer import NoopSigner
from defl.waiting import Waiting
from support.source_places import (
    Source,
    all_uses,
    callers,
    dotted,
    functions,
    product,
    users,
    without_simulator,
)
from test_docs import DOCUMENTS, architecture, definitions, rows_after
from test_layers import LAYER, MACHINE

# --- The ten questions ---------------------------------------------------------------------------


def signs_a_vote(source: Source) -> set[str]:
    own = without_simulator(source)
    of_votes = users(own, "defl.messages.vote_statement", "defl.crypto.Tag.VOTE")
    return callers(own, "defl.messages.Vote") | (callers(own, ".sign") & of_votes)


# They read files that a node has written, not what a peer sends.
READS_FILES = {"node/report/archive.py", "node/report/evidence_file.py"}
# It gets handovers of a file that setup/joining.py has verified.
LEARNS_LINEAGE = "node/node.py:Node.learn"


def checks_a_peers_bytes(source: Source) -> set[str]:
    own = without_simulator(source)
    own = {file: text for file, text in own.items() if file not in READS_FILES}
    events = callers(own, "defl.output.Received", "defl.output.ReceivedChunk")
    frames = users(own, "defl.wire.decode", "._verifier.examine", "._verifier.check")
    values = ("defl.pool.weights.check_payload", "defl.pool.weights.is_valid_chunk")
    return (events - {LEARNS_LINEAGE}) | frames | users(own, *values)


def closes_a_round(source: Source) -> set[str]:
    return callers(without_simulator(source), "defl.output.ClosedRound")


def waits_for_a_member(source: Source) -> set[str]:
    """Files that read the agreed limits of waiting, and places that submit an AGG."""
    machine = {
        file: text
        for file, text in source.items()
        if LAYER.get(file.split("/")[0].removesuffix(".py"), MACHINE + 1) <= MACHINE
        and file != "committee.py"  # declares and checks them
    }
    reading = users(machine, ".gst_lt_min_s", ".gst_lt_max_s")
    return {place.split(":")[0] for place in reading} | callers(machine, "._submit_agg")


def turns_weights_into_bytes(source: Source) -> set[str]:
    own = {file: text for file, text in source.items() if not file.startswith(("sim/", "node/"))}
    raw = {use.place for use in all_uses(own) if use.name.endswith((".tobytes", ".data.cast"))}
    return raw | users(own, "defl.pool.weights.encode") | callers(own, "defl.messages.Manifest")


def decides_who_is_left_out(source: Source) -> set[str]:
    """Folders that compute the weights of updates, and places that apply a rule to a round."""
    result = "defl.aggregation.aggregate.AggregationResult"
    deciding = callers(source, "defl.aggregation.geometric.Verdict", result)
    return {place.split("/")[0] for place in deciding} | users(source, "self.function")


def pins_tls_keys(source: Source) -> set[str]:
    """Places that create or configure a TLS context, or compare peers' certificates."""
    making = callers(
        source, "ssl.SSLContext", "ssl.create_default_context", "ssl._create_unverified_context"
    )
    trusting = users(source, ".load_verify_locations", ".load_default_certs")
    trusting |= {use.place for use in all_uses(source) if use.stored and use.name.endswith(
        (".verify_mode", ".check_hostname")
    )}  # fmt: skip
    return making | trusting | certificate_comparers(source)


def certificate_comparers(source: Source) -> set[str]:
    """Comparisons of peers' certificates. The preflight compares this node's own files."""
    comparers = set()
    for file, text in source.items():
        if file.startswith("node/net/"):
            for place, body in functions(file, ast.parse(text)):
                compared = [
                    dotted(operand)
                    for statement in body
                    for node in ast.walk(statement)
                    if isinstance(node, ast.Compare) and isinstance(node.ops[0], ast.Eq | ast.NotEq)
                    for operand in (node.left, *node.comparators)
                ]
                if any(name.endswith(".certificate") for name in compared):
                    comparers.add(place)
    return comparers


def runs_user_code(source: Source) -> set[str]:
    """Places that load or call a client, and places that start the process for it."""
    own = {file: text for file, text in source.items() if not file.startswith("clients/")}
    process = "defl.node.work.worker_process"
    loading = users(own, "defl.node.work.user_code.load_client")
    calling = callers(
        own, "defl.clients.protocol.Training", ".initial_weights", f"{process}.Runner"
    )
    return loading | calling | users(own, f"'{process}'")


def writes_to_disk(source: Source) -> set[str]:
    """Places that change a running node's state; OPERATING.md's list of files has its own test."""
    blobs = (".blobs.store_chunk", ".blobs.place", ".blobs.sync", ".blobs.drop")
    return users(source, ".records.persist", *blobs) | callers(source, "._writing.begin")


def offered_by_import(source: Source) -> set[str]:
    """The public names of the package."""
    tree = ast.parse(source["__init__.py"])
    imported = {
        alias.asname or alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.Import | ast.ImportFrom)
        for alias in node.names
    }
    return imported - {"importlib", "Any", "TYPE_CHECKING"}


@dataclass(frozen=True)
class Claim:
    places: tuple[str, ...]  # that the table names
    search: Callable[[Source], set[str]]
    only: set[str]
    intruder: tuple[str, str, str]  # a file, the code added to it, and the place then found as well


IN_POOL = "pool/intruder.py"
IN_NODE = "node/intruder.py"
CLAIMS = {
    "where a vote is signed": Claim(
        ("consensus/safety.py:Safety.sign_vote",),
        signs_a_vote,
        {"consensus/safety.py:Safety.sign_vote"},
        (
            IN_POOL,
            "import defl.messages as m\ndef vote(key, *it): return key.sign(m.vote_statement(*it))",
            f"{IN_POOL}:vote",
        ),
    ),
    "where a peer's bytes are checked": Claim(
        (
            "ingress.py:Ingress.read",
            "ingress.py:Ingress.examine",
            "ingress.py:Ingress.check",
            "ingress.py:Ingress.accept",
            "node/work/checked_values.py:CheckedValues.are_valid",
            "work.py:validate",
        ),
        checks_a_peers_bytes,
        {
            "ingress.py:Ingress.read",
            "ingress.py:Ingress.examine",
            "ingress.py:Ingress.check",
            "ingress.py:Ingress.accept",
            "node/work/checked_values.py:CheckedValues.are_valid",
            "work.py:validate",
        },
        (
            IN_NODE,
            "from defl import output\ndef trust(peer, it): return output.Received(peer, it)",
            f"{IN_NODE}:trust",
        ),
    ),
    "where a round closes": Claim(
        ("ledger.py:Ledger._close_if_due",),
        closes_a_round,
        {"ledger.py:Ledger._close_if_due"},
        (
            "ledger.py",
            "def close(*fields): return ClosedRound(*fields)",
            "ledger.py:close",
        ),
    ),
    "where a member is waited for": Claim(
        (
            "waiting.py:Waiting.vote_at",
            "waiting.py:Waiting.deadline",
            "client.py:RoundClient.advance",
        ),
        waits_for_a_member,
        {"waiting.py", "client.py:RoundClient.advance"},
        (
            "finish.py",
            "def linger(timing): return timing.gst_lt_max_s",
            "finish.py",
        ),
    ),
    "where weights become bytes": Claim(
        ("pool/weights.py:encode", "pool/weights.py:manifest_of", "work.py:update_blob"),
        turns_weights_into_bytes,
        {
            "pool/weights.py:encode",
            "pool/weights.py:_encode_int8",
            "pool/weights.py:manifest_of",
            "work.py:_blob",
        },
        (
            "client.py",
            "def pack(row): return row.tobytes()",
            "client.py:pack",
        ),
    ),
    "where the rule decides who is left out": Claim(
        (
            "aggregation/rules.py:AggregationRule.__call__",
            "aggregation/adaptive.py:Judgement.verdict",
        ),
        decides_who_is_left_out,
        {"aggregation", "aggregation/rules.py:AggregationRule.__call__"},
        (
            "node/report/results.py",
            "import defl.aggregation.aggregate as a\ndef overrule(*it): a.AggregationResult(*it)",
            "node",
        ),
    ),
    "where TLS keys are pinned": Claim(
        ("node/net/tls.py:_pinned", "node/net/admission.py:check_hello"),
        pins_tls_keys,
        {
            "node/net/tls.py:_pinned",
            "node/net/tls.py:_listening_context",
            "node/net/tls.py:letterbox_server_context",
            "node/net/tls.py:looking_context",
            "node/net/tls.py:unusable",
            "node/net/tls.py:_dialling_context",
            "node/net/admission.py:check_hello",
        },
        (
            "node/net/transport.py",
            "import ssl\ndef lax(): return ssl.create_default_context()",
            "node/net/transport.py:lax",
        ),
    ),
    "where user code runs": Claim(
        (
            "node/work/worker_process.py:Runner",
            "node/work/child.py:Child._spawn",
            "node/work/first_weights.py:main",
            "sim/live.py:LiveClients",
        ),
        runs_user_code,
        {
            "node/work/worker_process.py:Runner.__init__",
            "node/work/worker_process.py:_Resumed.initial_weights",
            "node/work/worker_process.py:main",
            "node/work/child.py:Child._spawn",
            "node/work/first_weights.py:main",
            "sim/live.py:LiveClients.__init__",
            "simulating.py:_schema_of",
        },
        (
            "node/node.py",
            "from defl.node.work import user_code\ndef train(*it): user_code.load_client(*it)",
            "node/node.py:train",
        ),
    ),
    "what is written to disk, and when": Claim(
        (
            "output.py:Persist",
            "node/store/writing.py:Writing",
            "duty.py:Duty",
        ),
        writes_to_disk,
        {
            "node/store/writing.py:Writing._job",
            "node/store/writing.py:Writing._place",
            "node/driver.py:Driver._do_all",
        },
        (
            "node/report/results.py",
            "def save(storage, persist): storage.records.persist(persist)",
            "node/report/results.py:save",
        ),
    ),
    "what `import defl` offers": Claim(
        (),  # the file __init__.py, and docs/API.md
        offered_by_import,
        set(defl.__all__),
        ("__init__.py", "from defl.ledger import Ledger", "Ledger"),
    ),
}  # fmt: skip


def table() -> dict[str, str]:
    return {row[0]: row[1] for row in rows_after(architecture(), "## Where is ...?")}


def test_the_table_answers_these_ten_questions() -> None:
    assert list(table()) == list(CLAIMS)
    assert len(CLAIMS) == 10


@pytest.mark.parametrize("question", CLAIMS)
def test_the_table_names_the_place(question: str) -> None:
    named = re.findall(r"`([\w/]+\.py:[\w.]+)`", table()[question])

    assert tuple(named) == CLAIMS[question].places
    for place in named:
        file, _, name = place.partition(":")
        assert name in definitions(file)


@pytest.mark.parametrize("question", CLAIMS)
def test_no_other_place_does_it(question: str) -> None:
    claim = CLAIMS[question]

    assert claim.search(product()) == claim.only


@pytest.mark.parametrize("question", CLAIMS)
def test_an_intruder_is_detected(question: str) -> None:
    claim = CLAIMS[question]
    file, code, place = claim.intruder
    planted = {**product(), file: f"{product().get(file, '')}\n{code}\n"}

    assert claim.search(planted) == claim.only | {place}


@pytest.mark.parametrize("question", CLAIMS)
def test_a_place_that_no_longer_does_it_is_detected(question: str) -> None:
    claim = CLAIMS[question]
    files = {place.split(":")[0] for place in claim.places} or {"__init__.py"}
    emptied = {**product(), **dict.fromkeys(files, "")}

    assert claim.search(emptied) != claim.only


# --- The places at work --------------------------------------------------------------------------


def test_in_a_run_every_vote_is_signed_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """However a vote's statement reaches a signer."""
    statements: set[bytes] = set()
    signed_by: dict[bytes, str] = {}
    statement, sign = messages.statement, NoopSigner.sign

    def record_statement(tag: Tag, *fields: object) -> Digest:
        digest = statement(tag, *fields)
        if tag is Tag.VOTE:
            statements.add(digest)
        return digest

    def record_signer(self: NoopSigner, message: Digest) -> bytes:
        signed_by[message] = sys._getframe(1).f_code.co_qualname
        return sign(self, message)

    monkeypatch.setattr(messages, "statement", record_statement)
    monkeypatch.setattr(NoopSigner, "sign", record_signer)
    cluster_of(4, rounds=1, seed=3).run()

    assert {signed_by[message] for message in statements & signed_by.keys()} == {"Safety.sign_vote"}
    assert set(signed_by.values()) > {"Safety.sign_vote"}


SLOW = NodeId(3)


def authors_of_the_second_round() -> set[NodeId]:
    conditions = Conditions(work_s=5.0, work_factors=((SLOW, 8.0),), work_sigma=0.1)
    cluster = cluster_of(4, rounds=2, seed=3, conditions=conditions)
    cluster.run()
    last = cluster.nodes[0].behaviour.participant.state.last
    assert last is not None
    return {reference.author for reference in last.updates}


def test_a_slow_member_is_waited_for_there(monkeypatch: pytest.MonkeyPatch) -> None:
    assert SLOW in authors_of_the_second_round()

    def impatient(self: Waiting) -> float | None:
        return None if self._open is None else self._open.quorum_at

    monkeypatch.setattr(Waiting, "vote_at", property(impatient))

    assert SLOW not in authors_of_the_second_round()


def test_the_default_rule_leaves_out_the_members_its_judge_names(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rng = np.random.default_rng(1)
    base = np.zeros(50, np.float32)
    rows = [rng.normal(1, 0.1, 50).astype(np.float32) for _ in range(6)]
    rows.append(np.full(50, -30, np.float32))
    ties = [bytes([i]) for i in range(7)]

    def left_out() -> list[int]:
        weights = rule_named(DEFAULTS.aggregation)(rows, base, 2, ties).weights
        return [row for row, weight in enumerate(weights) if weight == 0]

    judge = Judgement.verdict

    def spare_the_outlier(judgement: Judgement) -> Verdict:
        verdict = judge(judgement)
        return Verdict((0.0, *[1 / 6] * 6), verdict.scores, verdict.reason)

    assert left_out() == [6]
    monkeypatch.setattr(Judgement, "verdict", spare_the_outlier)
    assert len(left_out()) == 1
    assert left_out() != [6]


def test_a_restart_recovers_what_a_node_persists() -> None:
    """Except `forget_round`, which deletes, and blobs, which are stored beside the records."""
    kept = {field.rstrip("s") for field in Persist.__struct_fields__} - {"forget_round"}

    assert kept == {field.rstrip("s") for field in Durable.__struct_fields__} - {"held"}


def test_the_public_names_are_defined_in_the_package() -> None:
    assert set(dir(defl)) - {"__version__"} == set(defl.__all__)
    assert all(getattr(defl, name).__module__.startswith("defl.") for name in defl.__all__)


def test_the_table_links_to_existing_pages() -> None:
    pages = re.findall(r"\]\(([\w.]+\.md)", "".join(table().values()))

    assert pages
    assert set(pages) <= {path.name for path in DOCUMENTS}
