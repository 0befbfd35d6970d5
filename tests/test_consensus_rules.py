"""The pure consensus rules as tables: commit, lock, proposals, votes and timeouts."""

from dataclasses import dataclass, field

import pytest
from msgspec.structs import replace

from defl.committee import Committee, Rules, Timing
from defl.consensus.chain import Chain, Fork
from defl.consensus.leaders import leader_of, order_of_lap
from defl.consensus.pacemaker import (
    BACK_OFF,
    FAILED_LEADER_SHARE_MIN,
    GOOD_VIEWS_KEPT,
    Pacemaker,
)
from defl.consensus.rules import RULES, ChainRules, admissible, commit_target
from defl.consensus.tally import Tally
from defl.consensus.tree import BLOCKS_MAX, Tree
from defl.fields import members_in
from defl.ids import Digest, Height, NodeId, View, digest_of
from defl.messages import (
    QC,
    TC,
    Block,
    Evidence,
    Header,
    Snapshot,
    Timeout,
    Transaction,
    Vote,
    genesis_header,
    genesis_qc,
    transactions_root,
)
from defl.output import Durable
from defl.sim.bare_replicas import Tape, mark
from support.builders import nodes

HOTSTUFF, JOLTEON = RULES[Rules.HOTSTUFF], RULES[Rules.JOLTEON]
SIGNATURE = bytes(64)
LEADER = NodeId(1)


def qc_on(block: Block) -> QC:
    return QC(block.view, block.id, b"\x07", (SIGNATURE,) * 3) if block.height else qc_0(block)


def qc_0(genesis: Block) -> QC:
    return genesis_qc(genesis.id)


@dataclass
class NamedTree:
    """A tree of named blocks, written as `a1 b2<a c3<b x4<a`: name, view and parent."""

    rules: ChainRules = HOTSTUFF
    blocks: dict[str, Block] = field(default_factory=dict)

    def __post_init__(self) -> None:
        root = Tape().root_of(Tape().genesis())
        self.blocks["g"] = Block(genesis_header(digest_of(b"chain"), 0, root), ())

    def grow(self, drawing: str, *, transactions: tuple[Transaction, ...] = ()) -> "NamedTree":
        for word in drawing.split():
            block, _, parent = word.partition("<")
            self.blocks[block[0]] = self._child(
                self.blocks[parent or "g"], View(int(block[1:])), transactions
            )
        return self

    def _child(self, parent: Block, view: View, transactions: tuple[Transaction, ...]) -> Block:
        header = Header(
            epoch=0,
            view=view,
            height=Height(parent.height + 1),
            parent=parent.id,
            qc=qc_on(parent),
            tc=None,
            transactions_root=transactions_root(transactions),
            committed=commit_target(parent, self.rules, self.get),
            state_root=self.blocks["g"].header.state_root,
            author=LEADER,
        )
        return Block(header, transactions)

    def get(self, block_id: Digest) -> Block | None:
        return next((b for b in self.blocks.values() if b.id == block_id), None)

    def name(self, block_id: Digest | None) -> str | None:
        return next((name for name, b in self.blocks.items() if b.id == block_id), None)

    def __getitem__(self, name: str) -> Block:
        return self.blocks[name]


# --- Commit: Algorithm 4 of HotStuff, section 3.2 of Jolteon --------------------------------

COMMITS = [
    # the tree, the certified block, the blocks that its QC commits by three-chain and by two-chain
    ("a2 b3<a c4<b", "c", "a", "b"),  # three in consecutive views
    ("a2 b3<a", "b", None, "a"),  # two only
    ("a2", "a", None, None),  # one only
    ("a2 b4<a c5<b", "c", None, "b"),  # a gap below the second
    ("a2 b3<a c5<b", "c", None, None),  # a gap below the third
    ("a2 b4<a c6<b", "c", None, None),  # gaps everywhere
    ("a2 b3<a x4<a y5<x", "y", None, "x"),  # a fork: views 3 and 4 are not in one chain
    ("a2 b3<a c4<b x5<b y6<x", "y", None, "x"),  # c is not an ancestor of y
    ("a2 b3<a c4<b d5<c e7<d", "d", "b", "c"),
    ("a2 b3<a c4<b d5<c e7<d", "e", None, None),
    ("a2 b3<a c4<b d5<c e6<d", "e", "c", "d"),
    ("a1 b2<a", "b", "g", "a"),  # the genesis block is of view 0
    ("a1", "a", None, "g"),
]


@pytest.mark.parametrize(("drawing", "certified", "three", "two"), COMMITS)
def test_a_qc_commits_the_first_of_a_chain_in_consecutive_views(
    drawing: str, certified: str, three: str | None, two: str | None
) -> None:
    grown = NamedTree().grow(drawing)
    for rules, expected in ((HOTSTUFF, three), (JOLTEON, two)):
        committed = rules.committed_by_qc_on(grown[certified], grown.get)
        assert (grown.name(committed.id) if committed is not None else None) == expected


TARGETS = [
    ("a1 b2<a c3<b d4<c", "c", "a", "b"),
    ("a1 b2<a c3<b d5<c e7<d", "e", "a", "b"),  # gaps commit nothing new: c's commit stays
    ("a1 b3<a c5<b", "c", "g", "g"),
]


@pytest.mark.parametrize(("drawing", "parent", "three", "two"), TARGETS)
def test_a_block_names_what_the_qcs_in_its_own_chain_commit(
    drawing: str, parent: str, three: str, two: str
) -> None:
    for rules, expected in ((HOTSTUFF, three), (JOLTEON, two)):
        grown = NamedTree(rules).grow(drawing)
        assert grown.name(commit_target(grown[parent], rules, grown.get)) == expected


# --- Lock: safeNode -------------------------------------------------------------------------


def test_a_three_chain_vote_locks_on_the_qc_inside_the_parent_a_two_chain_vote_on_its_own() -> None:
    grown = NamedTree().grow("a1 b2<a c3<b")

    assert HOTSTUFF.lock_after_vote(grown["c"], grown["b"]) == qc_on(grown["a"])
    assert JOLTEON.lock_after_vote(grown["c"], grown["b"]) == qc_on(grown["b"])


LOCKS = [
    # view of the block's QC, view of the lock, does the block extend the locked block, may vote
    (3, 3, True, True),
    (1, 3, True, True),
    (4, 3, False, True),  # a newer QC frees
    (3, 3, False, False),  # an equal view is not newer
    (2, 3, False, False),
    (0, 0, True, True),
]


@pytest.mark.parametrize(("qc_view", "lock_view", "extends", "safe"), LOCKS)
def test_a_block_is_safe_if_it_extends_the_lock_or_shows_a_newer_qc(
    qc_view: int, lock_view: int, extends: bool, safe: bool
) -> None:
    """No TC is involved here, so the TC rule cannot hide a fault in the lock."""
    block = proposal_header(view=9, qc_view=qc_view)
    lock = QC(View(lock_view), digest_of(b"locked"), b"\x07", ())

    assert HOTSTUFF.safe_to_vote(Block(block, ()), lock, extends_lock=extends) is safe
    assert JOLTEON.safe_to_vote(Block(block, ()), lock, extends_lock=extends) is True


# --- Admissible -----------------------------------------------------------------------------


def proposal_header(view: int, qc_view: int, tc: TC | None = None, author: int = LEADER) -> Header:
    qc = QC(View(qc_view), digest_of(b"parent"), b"\x07", ())
    return Header(
        epoch=0,
        view=View(view),
        height=Height(5),
        parent=qc.block,
        qc=qc,
        tc=tc,
        transactions_root=transactions_root(()),
        committed=digest_of(b"c"),
        state_root=digest_of(b"root"),
        author=NodeId(author),
    )


def tc_of(view: int, *high_views: int, carried: int | None = None) -> TC:
    qc = QC(View(max(high_views) if carried is None else carried), digest_of(b"x"), b"\x07", ())
    return TC(View(view), b"\x07", tuple(View(v) for v in high_views), (SIGNATURE,) * 3, qc)


EIGHT = View(8)
REPORTS = (3, 5, 4)
ADMISSIBLE = [
    # a proposal of view 8: what it shows, the view of its QC, its TC, its author, admissible
    ("the QC of the view before", 7, None, LEADER, True),
    ("an older QC and nothing else", 6, None, LEADER, False),
    ("the QC of its own view", 8, None, LEADER, False),
    ("the QC at the TC's maximum", 5, tc_of(7, *REPORTS), LEADER, True),
    ("the QC above the TC's maximum", 6, tc_of(7, *REPORTS), LEADER, True),
    ("the QC below the TC's maximum", 4, tc_of(7, *REPORTS), LEADER, False),
    ("the QC at the one that is attached", 4, tc_of(7, *REPORTS, carried=4), LEADER, False),
    ("a TC of an earlier view", 5, tc_of(6, *REPORTS), LEADER, False),
    ("a TC of its own view", 5, tc_of(8, *REPORTS), LEADER, False),
    ("a TC besides the QC of the view before", 7, tc_of(7, *REPORTS), LEADER, False),
    ("a member that is not the leader", 7, None, NodeId(2), False),
    ("a member that is not the leader, a TC", 5, tc_of(7, *REPORTS), NodeId(2), False),
]


@pytest.mark.parametrize(("shows", "qc_view", "tc", "author", "expected"), ADMISSIBLE)
def test_an_admissible_proposal_carries_a_certificate_of_the_view_before(
    shows: str, qc_view: int, tc: TC | None, author: NodeId, expected: bool
) -> None:
    assert admissible(proposal_header(EIGHT, qc_view, tc, author), LEADER) is expected, shows


# --- Tree and chain -------------------------------------------------------------------------


def tree_of(grown: NamedTree, names: str) -> Tree:
    tree = Tree(grown["g"])
    for name in names:
        assert tree.add(grown[name])
    return tree


def test_a_path_leads_to_the_ancestor_a_fork_or_a_missing_block() -> None:
    grown = NamedTree().grow("a1 b2<a c3<b x4<a y5<x")
    tree = tree_of(grown, "abcxy")

    assert tree.path(grown["c"], grown["g"]) == ([grown["a"], grown["b"], grown["c"]], grown["g"])
    assert tree.path(grown["y"], grown["b"]) == ([grown["y"]], grown["x"])
    assert tree_of(grown, "ac").path(grown["c"], grown["g"]) == ([grown["c"]], None)
    assert tree.extends(grown["c"], grown["a"])
    assert tree.extends(grown["a"], grown["a"])
    assert not tree.extends(grown["y"], grown["b"])
    assert not tree.extends(grown["a"], grown["b"])


def test_a_tree_drops_forks_older_than_the_highest_qc_and_what_lies_below_its_root() -> None:
    grown = NamedTree().grow("a1 b2<a c3<b d5<c e6<d f7<e w4<b x4<a y6<x z7<y")
    tree = tree_of(grown, "abcdefwxyz")
    tree.drop_forks(grown["d"])

    assert grown["w"].id not in tree
    assert grown["y"].id in tree  # a newer view: it may be certified yet
    assert grown["x"].id in tree  # then it is needed
    tree.drop_forks(grown["f"])
    assert grown["x"].id not in tree
    assert grown["y"].id not in tree
    assert grown["z"].id not in tree  # the same view: two blocks are never both certified
    tree.set_root(grown["e"])
    assert [name for name in "abcdef" if grown[name].id in tree] == ["e", "f"]


def test_what_a_newer_block_extends_is_kept_while_one_of_its_ancestors_is_missing() -> None:
    grown = NamedTree().grow("a1 x2<a y3<x z4<y b5<a c6<b u7<z")
    tree = tree_of(grown, "axzbcu")
    tree.drop_forks(grown["c"])

    assert grown["x"].id not in tree  # without y nobody knows that z extends it
    assert grown["z"].id in tree


def test_no_fork_is_dropped_while_an_ancestor_of_the_certified_block_is_missing() -> None:
    grown = NamedTree().grow("a1 b2<a c3<b d4<c x2<a")
    tree = tree_of(grown, "abxd")
    tree.drop_forks(grown["d"])

    assert grown["b"].id in tree  # without c it is unknown whether d extends b or x
    assert grown["x"].id in tree


def test_a_block_with_an_impossible_height_is_not_stored() -> None:
    grown = NamedTree().grow("a1 b2<a")
    absurd = NamedTree().grow("a1 b2<a")["b"]
    absurd = replace(absurd, header=replace(absurd.header, height=Height(2**40)))
    low = replace(absurd, header=replace(absurd.header, height=Height(1)))

    assert not tree_of(grown, "a").add(absurd)
    assert not tree_of(grown, "a").add(low)
    assert not tree_of(grown, "").add(absurd)  # even while the parent is unknown


def test_a_full_tree_drops_the_oldest_block_that_no_certificate_names() -> None:
    grown = NamedTree().grow("a1 b2<a c3<b")
    tree = tree_of(grown, "ab")
    siblings = [NamedTree().grow(f"a1 b2<a s{view}<b")["s"] for view in range(3, 3 + BLOCKS_MAX)]
    for sibling in siblings:
        assert tree.add(sibling)

    assert len(tree) == BLOCKS_MAX
    assert siblings[-1].id in tree
    assert siblings[0].id not in tree
    assert tree.extends(siblings[-1], grown["g"])


def chain_of(grown: NamedTree, names: str) -> Chain[bytes]:
    chain = Chain(grown.rules, Tape(), grown["g"], Durable(None))
    for name in names:
        chain.add(grown[name])
    return chain


def test_after_a_restart_with_too_many_blocks_the_certified_ones_stay() -> None:
    grown = NamedTree().grow("a1 b2<a")
    siblings = [NamedTree().grow(f"s{view}")["s"] for view in range(4, 4 + 2 * BLOCKS_MAX)]
    durable = Durable(None, blocks=(grown["a"], *siblings, grown["b"]))
    chain = Chain(grown.rules, Tape(), grown["g"], durable)
    chain.drop_forks(grown["b"])  # it has the highest QC
    chain.add(NamedTree().grow("a1 b2<a c3<b")["c"])

    assert len(chain) == BLOCKS_MAX
    assert chain.get(grown["b"].id) is not None


def test_ancestors_commit_first_and_nothing_commits_twice() -> None:
    grown = NamedTree().grow("a1 b3<a c4<b d5<c")
    chain = chain_of(grown, "abcd")

    assert chain.commit(grown["c"]) == []
    assert [c.block for c in chain.commit(grown["d"])] == [grown["a"], grown["b"]]
    assert chain.commit(grown["d"]) == []
    assert chain.head == grown["b"]
    assert chain.extends_committed(grown["d"])


def test_a_commit_that_forks_from_the_committed_block_raises() -> None:
    grown = NamedTree().grow("a1 b2<a c3<b x4 y5<x z6<y")
    chain = chain_of(grown, "abcxyz")
    chain.commit(grown["c"])
    for name in "xyz":
        chain.add(grown[name])

    assert not chain.extends_committed(grown["z"])
    grown.grow("u7<z v8<u w9<v")
    for name in "uvw":
        chain.add(grown[name])
    with pytest.raises(Fork):
        chain.commit(grown["w"])


def test_an_installed_snapshot_drops_the_forks_that_it_outdates() -> None:
    grown = NamedTree().grow("x1 y2<x a3 b4<a c5<b d6<c z7<y")
    chain = chain_of(grown, "xyz")
    state = Tape().encode(Tape().genesis())

    assert chain.install(Snapshot(grown["a"].header, state, grown["d"].header, qc_on(grown["d"])))
    assert chain.head == chain.root == grown["a"]
    assert chain.get(grown["x"].id) is chain.get(grown["y"].id) is None
    assert chain.get(grown["z"].id) is not None  # its view is newer than the snapshot's


def test_a_missing_ancestor_postpones_the_commit_and_is_named() -> None:
    grown = NamedTree().grow("a1 b2<a c3<b d4<c")
    chain = chain_of(grown, "bcd")

    assert chain.commit(grown["d"]) == []
    assert chain.missing_below(grown["d"]) == qc_on(grown["a"])
    chain.add(grown["a"])
    assert chain.missing_below(grown["d"]) is None
    assert [c.block for c in chain.commit(grown["d"])] == [grown["a"], grown["b"]]


def test_a_header_must_name_the_state_after_its_committed_block() -> None:
    """The root is that of c(b), however much the voter itself has committed."""
    grown = NamedTree().grow("a1", transactions=(mark(1),)).grow("b2<a c3<b d4<c")
    chain = chain_of(grown, "abcd")
    after_a, _ = Tape().execute(Tape().genesis(), grown["a"])
    expected = (grown["a"].id, Tape().root_of(after_a))

    assert chain.commitment_above(grown["c"]) == (grown["a"].id, None)  # not executed here yet
    chain.commit(grown["c"])
    assert chain.commitment_above(grown["c"]) == expected
    chain.commit(grown["d"])
    assert chain.head == grown["b"]
    assert chain.commitment_above(grown["c"]) == expected
    assert not chain.commitment_right(grown["d"].header, grown["c"])  # it names the old root
    assert chain.commitment_right(grown["c"].header, grown["b"])


# --- Tally ----------------------------------------------------------------------------------

FOUR = Committee(tuple(bytes([i]) * 32 for i in range(4)))


def vote(author: int, block: str = "b", view: int = 1) -> Vote:
    name = digest_of(block.encode())
    return Vote(0, View(view), name, NodeId(author), bytes([author]) * 64, View(0), View(0))


def timeout(author: int, high: int, view: int = 5) -> Timeout:
    qc = QC(View(high), digest_of(bytes([high])), b"\x07", ())
    return Timeout(0, View(view), qc, None, NodeId(author), bytes([author]) * 64)


def test_q_distinct_votes_for_one_block_make_a_qc() -> None:
    tally = Tally(FOUR)

    assert tally.add_vote(vote(3)) is None
    assert tally.add_vote(vote(3)) is None
    assert tally.add_vote(vote(0, "other")) is None
    assert tally.add_vote(vote(1)) is None
    qc = tally.add_vote(vote(2))
    assert isinstance(qc, QC)
    assert members_in(qc.signers) == (1, 2, 3)
    assert qc.signatures == (bytes([1]) * 64, bytes([2]) * 64, bytes([3]) * 64)


def test_a_second_vote_of_one_author_is_evidence_and_does_not_count() -> None:
    tally = Tally(FOUR)
    for author in (0, 1):
        tally.add_vote(vote(author))
    tally.add_vote(vote(2, "other"))

    assert tally.add_vote(vote(2)) == Evidence(vote(2, "other"), vote(2))
    assert isinstance(tally.add_vote(vote(3)), QC)


def test_a_tc_carries_the_newest_qc_of_its_signers_and_each_signers_view() -> None:
    tally = Tally(FOUR)

    assert tally.add_timeout(timeout(0, 2)) is None
    assert tally.add_timeout(timeout(2, 4)) is None
    assert tally.timeouts_for(View(5)) == 2
    tc = tally.add_timeout(timeout(3, 1))
    assert isinstance(tc, TC)
    assert (tc.view, members_in(tc.signers), tc.high_views) == (5, (0, 2, 3), (2, 4, 1))
    assert tc.qc == timeout(2, 4).high_qc


def test_a_second_timeout_with_another_qc_is_evidence_and_the_same_bytes_are_not() -> None:
    tally = Tally(FOUR)
    tally.add_timeout(timeout(0, 2))

    assert tally.add_timeout(timeout(0, 2)) is None
    assert isinstance(tally.add_timeout(timeout(0, 3)), Evidence)
    assert tally.timeouts_for(View(5)) == 1


def test_only_the_newest_past_view_keeps_its_votes_and_timeouts() -> None:
    tally = Tally(FOUR)
    for view in (1, 2, 3):
        tally.add_vote(vote(0, view=view))
        tally.add_timeout(timeout(0, 0, view=view))
    tally.entered(View(3))

    assert len(tally) == 4
    assert tally.timeouts_for(View(1)) == 0


# --- Pacemaker and leaders ------------------------------------------------------------------


def pacemaker(**timing: float) -> Pacemaker:
    return Pacemaker(View(1), Timing(view_base_s=2.0, **timing))


def next_view(pace: Pacemaker) -> None:
    """Members 1 and 2 send a message in every view."""
    pace.enter(View(pace.view + 1))
    pace.heard(LEADER)
    pace.heard(NodeId(2))


def fail_view(pace: Pacemaker, leader: NodeId = LEADER) -> None:
    pace.given_up(leader)
    next_view(pace)


def certify_view(pace: Pacemaker, *, took_s: float, leader: NodeId = LEADER) -> None:
    pace.run_while(True, leader, 0.0)
    pace.certified(leader, took_s)
    next_view(pace)


def test_the_timer_runs_exactly_while_there_is_work() -> None:
    pace = pacemaker()
    pace.run_while(False, LEADER, 10.0)
    assert pace.deadline is None
    pace.run_while(True, LEADER, 10.0)
    assert pace.deadline == 12.0
    pace.run_while(True, LEADER, 11.0)
    assert pace.deadline == 12.0
    assert not pace.expired(11.9)
    assert pace.expired(12.0)
    pace.run_while(False, LEADER, 12.0)
    assert not pace.expired(99.0)


def test_the_period_grows_only_with_failed_views_and_resets_at_a_commit() -> None:
    pace = pacemaker(view_cap_s=3.0)
    pace.run_while(True, LEADER, 0.0)
    pace.enter(View(2))
    assert pace.deadline is None
    assert pace.period(LEADER) == 2.0
    fail_view(pace)
    assert pace.period(LEADER) == 2.0 * BACK_OFF
    certify_view(pace, took_s=1.0)
    assert pace.period(LEADER) == 2.0 * BACK_OFF, "one QC does not show that the delay is outlasted"
    for _ in range(2000):
        fail_view(pace)
    assert pace.period(LEADER) == 3.0
    pace.committed()
    assert pace.period(LEADER) == 2.0


def test_failed_short_views_do_not_lengthen_a_full_view() -> None:
    pace, other = pacemaker(), NodeId(2)
    certify_view(pace, took_s=0.1)
    for _ in range(20):
        fail_view(pace)
    assert pace.period(LEADER) > 2.0
    assert pace.period(other) == 2.0 * BACK_OFF, "the first of them had a whole period"


def test_a_failed_leader_gets_twice_the_time_of_good_views_until_it_succeeds() -> None:
    pace = pacemaker()
    other = NodeId(2)
    fail_view(pace)
    pace.committed()
    assert pace.period(LEADER) == 2.0, "without a good view it is unknown how long one takes"
    certify_view(pace, took_s=0.3, leader=other)
    certify_view(pace, took_s=0.2, leader=other)
    assert pace.period(LEADER) == 0.6
    assert pace.period(other) == 2.0
    for _ in range(GOOD_VIEWS_KEPT):
        certify_view(pace, took_s=0.001, leader=other)
    assert pace.period(LEADER) == 2.0 * FAILED_LEADER_SHARE_MIN
    certify_view(pace, took_s=1.9, leader=other)
    assert pace.period(LEADER) == 2.0, "never more than the first period"
    for _ in range(GOOD_VIEWS_KEPT):
        certify_view(pace, took_s=0.1, leader=other)
    assert pace.period(LEADER) < 2.0
    certify_view(pace, took_s=0.1)
    assert pace.period(LEADER) == 2.0


def test_a_leader_silent_for_two_views_gets_little_time() -> None:
    """A member that is up votes or times out in every view."""
    pace = pacemaker()
    silent = NodeId(3)
    pace.heard(silent)
    certify_view(pace, took_s=0.3)
    certify_view(pace, took_s=0.3)
    assert pace.period(silent) == 2.0, "its vote may come a view late"
    certify_view(pace, took_s=0.3)
    assert pace.period(silent) == 0.6
    pace.heard(silent)
    assert pace.period(silent) == 2.0


def test_backoff_outlasts_any_delay_even_under_failed_leaders() -> None:
    pace = pacemaker()
    certify_view(pace, took_s=0.001)
    for _ in range(100):
        fail_view(pace)
    assert pace.period(LEADER) == Timing().view_cap_s


def test_a_timeout_is_not_repeated_sooner_because_its_leader_failed_before() -> None:
    pace = pacemaker()
    certify_view(pace, took_s=0.1)
    fail_view(pace)
    pace.committed()
    pace.run_while(True, LEADER, 10.0)
    assert pace.deadline == 10.0 + 2.0 * FAILED_LEADER_SHARE_MIN
    pace.again(LEADER, 11.0)
    assert pace.deadline == 13.0


CHAIN = digest_of(b"a federation")


@pytest.mark.parametrize("members", [4, 7, 31])
def test_every_member_leads_once_in_each_lap(members: int) -> None:
    for lap in range(5):
        views = range(lap * members, (lap + 1) * members)
        leaders = [leader_of(CHAIN, nodes(*range(members)), View(view)) for view in views]
        assert sorted(leaders) == list(range(members))


def test_only_active_members_lead() -> None:
    active = nodes(0, 2, 3, 6, 7)

    assert {leader_of(CHAIN, active, View(view)) for view in range(50)} == set(active)


def test_the_order_of_leaders_changes_with_the_lap_and_with_the_federation() -> None:
    ten = nodes(*range(10))
    orders = {order_of_lap(CHAIN, ten, lap) for lap in range(50)}
    assert len(orders) == 50
    assert order_of_lap(digest_of(b"another"), ten, 0) not in orders


@pytest.mark.parametrize("members", [10, 13, 31, 100])
def test_whichever_f_members_fail_three_good_leaders_come_in_a_row(
    members: int,
) -> None:
    """The members that hurt most in the first lap fail; a fixed order would repeat that lap."""
    faults, laps = (members - 1) // 3, 40
    first_lap = order_of_lap(CHAIN, nodes(*range(members)), 0)
    failed = {first_lap[position] for position in range(1, 3 * faults, 3)}
    run = chances = 0
    for view in range(laps * members):
        run = 0 if leader_of(CHAIN, nodes(*range(members)), View(view)) in failed else run + 1
        chances += run >= 3

    assert chances >= laps * members // 5
