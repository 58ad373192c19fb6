"""Steps from the configuration of a raft group to the one that it should have."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pixy.cluster.peering.voter_changes import (
    HandOver,
    LeaderView,
    MemberView,
    VoterChanges,
    WantedMembers,
    leader_view,
    partition_members,
    state_group_members,
)
from pixy.cluster.state.metadata import METADATA_GROUP
from pixy.raft import ConfChangeSingle, ConfChangeType, ConfChangeV2, ConfState, RaftConfig, RaftNode
from pixy.raft.conf_change import Changer
from pixy.raft.progress import Inflights, Progress
from tests.raft.memory_storage import MemoryStorage

ADD, LEARNER, REMOVE = ConfChangeType.ADD_NODE, ConfChangeType.ADD_LEARNER_NODE, ConfChangeType.REMOVE_NODE
GROUPS_GROUP = 2
PATIENCE = 1.0


def view(
    configuration: ConfState,
    leader: int = 1,
    *,
    down: Iterable[int] = (),
    behind: Iterable[int] = (),
    settled: bool = True,
    term: int = 1,
) -> LeaderView:
    members = {
        each: MemberView(3 if each in behind else 10, each not in down, each not in behind)
        for each in configuration.members
    }
    return LeaderView(leader, term, settled, 10, 5, configuration, members)


def change(*steps: tuple[ConfChangeType, int]) -> ConfChangeV2:
    return ConfChangeV2(tuple(ConfChangeSingle(*step) for step in steps))


def step(wanted: Sequence[int], seen: LeaderView, now: float = 0.0) -> ConfChangeV2 | HandOver | None:
    return VoterChanges(PATIENCE).next_change(state_group_members(GROUPS_GROUP, wanted), seen, now)


# --- the configuration that a group should have ---------------------------------------------------


@pytest.mark.parametrize(
    ("nodes", "of_metadata", "of_others"),
    [
        ([1], [1], [1]),
        ([1, 2], [1, 2], [1, 2]),
        ([1, 2, 3], [1, 2, 3], [1, 2, 3]),
        ([4, 3, 2, 1], [1, 2, 3], [1, 2, 3]),
        ([2, 4, 5, 7, 9], [2, 4, 5, 7, 9], [2, 4, 5]),
        ([1, 2, 3, 4, 5, 6], [1, 2, 3, 4, 5], [1, 2, 3]),
    ],
)
def test_the_lowest_ids_are_voters_and_the_others_learners(
    nodes: list[int], of_metadata: list[int], of_others: list[int]
) -> None:
    for raft_group, voters in ((METADATA_GROUP, of_metadata), (GROUPS_GROUP, of_others)):
        learners = sorted(set(nodes) - set(voters))
        wanted = WantedMembers(tuple(voters), tuple(learners), frozenset(nodes))
        assert state_group_members(raft_group, nodes) == wanted


def test_a_node_on_its_first_start_is_a_learner_whatever_its_id() -> None:
    for started, starting, expected in (
        ([1], [2], ((1,), (2,))),
        ([1, 3], [2], ((1, 3), (2,))),
        ([1, 2, 4, 5], [3, 6], ((1, 2, 4), (3, 5, 6))),
    ):
        assert state_group_members(GROUPS_GROUP, started, starting)[:2] == expected


def test_the_members_of_a_partition_are_its_replicas() -> None:
    assert partition_members((3, 1), [1, 2, 3]) == WantedMembers((1, 3), (), frozenset([1, 2, 3]))


# --- single steps ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("wanted", "seen", "expected"),
    [
        pytest.param([1, 2], view(ConfState((1, 2))), None, id="nothing to do"),
        pytest.param([1, 2, 3], view(ConfState((1,))), change((LEARNER, 2)), id="a new node is a learner"),
        pytest.param([1, 2, 3], view(ConfState((1,), (2,))), change((LEARNER, 3)), id="one at a time"),
        pytest.param([1, 2], view(ConfState((1,), (2,))), change((ADD, 2)), id="the second voter"),
        pytest.param(
            [1, 2, 3], view(ConfState((1,), (2, 3))), change((ADD, 2), (ADD, 3)), id="two voters at once"
        ),
        pytest.param([1, 2, 3], view(ConfState((1, 2), (3,))), change((ADD, 3)), id="the third voter"),
        pytest.param([1, 2], view(ConfState((1,), (2,)), behind=[2]), None, id="a learner is behind"),
        pytest.param([1, 2], view(ConfState((1,), (2,)), down=[2]), None, id="a learner is down"),
        pytest.param([1, 2], view(ConfState((1,)), settled=False), None, id="not settled"),
        pytest.param(
            [1, 2, 3], view(ConfState((1, 2), (), (1,), (), auto_leave=True)), None, id="the core leaves it"
        ),
        pytest.param(
            [1, 2, 3],
            view(ConfState((1, 2), (), (1,))),
            ConfChangeV2(),
            id="left behind in a joint configuration",
        ),
        pytest.param(
            [1, 2, 4],
            view(ConfState((1, 2, 3), (4,)), down=[3]),
            change((ADD, 4), (REMOVE, 3)),
            id="a learner replaces a voter that left",
        ),
        pytest.param(
            [1, 2],
            view(ConfState((1, 2, 3)), down=[3]),
            change((REMOVE, 3)),
            id="a voter left, no replacement",
        ),
        pytest.param(
            [1, 2], view(ConfState((1, 2, 3)), down=[2]), None, id="the rest could not decide: nobody goes"
        ),
        pytest.param(
            [1, 2], view(ConfState((1, 2, 3)), behind=[2]), None, id="one that stays waits for a copy"
        ),
        pytest.param(
            [1, 2, 4],
            view(ConfState((1, 2, 3, 4)), behind=[2]),
            change((REMOVE, 3)),
            id="most of those that stay have everything",
        ),
        pytest.param(
            [2, 3, 4],
            view(ConfState((1, 2, 3), (4,)), behind=[3]),
            HandOver(2),
            id="the leader left: hands over to one that takes entries",
        ),
        pytest.param(
            [2],
            view(ConfState((1,), (2,))),
            change((ADD, 2)),
            id="the leader alone left: the other one joins it",
        ),
        pytest.param([2], view(ConfState((1, 2))), HandOver(2), id="then leads"),
        pytest.param([2], view(ConfState((1, 2)), leader=2), change((REMOVE, 1)), id="then removes it"),
        pytest.param([2], view(ConfState((1, 2)), behind=[2]), None, id="nobody can lead yet"),
        pytest.param(
            [1, 2, 3], view(ConfState((1, 2, 3), (4,))), change((REMOVE, 4)), id="a learner left the cluster"
        ),
        pytest.param(
            [1, 2, 3, 4],
            view(ConfState((1, 2, 4), (3,))),
            change((ADD, 3), (LEARNER, 4)),
            id="a voter becomes a learner",
        ),
    ],
)
def test_the_next_step(wanted: list[int], seen: LeaderView, expected: object) -> None:
    assert step(wanted, seen) == expected


def test_metadata_goes_from_three_voters_to_five_in_one_change() -> None:
    wanted = state_group_members(METADATA_GROUP, [1, 2, 3, 4, 5])
    membership = VoterChanges(PATIENCE)
    waiting = view(ConfState((1, 2, 3), (4, 5)), behind=[5])
    assert membership.next_change(wanted, waiting, 0) is None
    assert membership.next_change(wanted, waiting, 99) is None, "four voters are worth no more than three"
    ready = view(ConfState((1, 2, 3), (4, 5)))
    assert membership.next_change(wanted, ready, 100) == change((ADD, 4), (ADD, 5))


def test_a_learner_that_is_ready_waits_for_the_others_for_a_time() -> None:
    membership, wanted = VoterChanges(PATIENCE), state_group_members(GROUPS_GROUP, [1, 2, 3])
    seen = view(ConfState((1,), (2, 3)), behind=[3])
    assert membership.next_change(wanted, seen, 10.0) is None
    # A moment without an answer does not start the wait anew.
    assert membership.next_change(wanted, view(ConfState((1,), (2, 3)), down=[2], behind=[3]), 10.5) is None
    assert membership.next_change(wanted, seen, 10.9) is None
    assert membership.next_change(wanted, seen, 11.0) == change((ADD, 2))


def test_voters_that_go_are_replaced_one_for_one_those_that_are_down_first() -> None:
    membership, wanted = VoterChanges(PATIENCE), state_group_members(METADATA_GROUP, [1, 2, 3, 6, 7])
    seen = view(ConfState((1, 2, 3, 4, 5), (6, 7)), down=[5], behind=[7])
    assert membership.next_change(wanted, seen, 0.0) is None
    assert membership.next_change(wanted, seen, 1.0) == change((ADD, 6), (REMOVE, 5))


def test_the_target_of_a_learner_is_fixed_until_another_leader_comes() -> None:
    membership, wanted = VoterChanges(PATIENCE), state_group_members(GROUPS_GROUP, [1, 2])

    def seen(committed: int, match: int, term: int = 1) -> LeaderView:
        members = {1: MemberView(committed, True, True), 2: MemberView(match, True, True)}
        return LeaderView(1, term, True, committed, 5, ConfState((1,), (2,)), members)

    assert membership.next_change(wanted, seen(100, 99), 0) is None
    assert membership.next_change(wanted, seen(200, 199, term=2), 0) is None
    assert membership.next_change(wanted, seen(300, 199, term=2), 0) is None
    assert membership.next_change(wanted, seen(300, 200, term=2), 0) == change((ADD, 2))


def test_nobody_goes_before_most_of_those_that_stay_have_what_was_committed() -> None:
    membership, wanted = VoterChanges(PATIENCE), state_group_members(GROUPS_GROUP, [1, 2])

    def seen(committed: int, match: int) -> LeaderView:
        members = {
            1: MemberView(committed, True, True),
            2: MemberView(match, True, True),
            3: MemberView(committed, True, True),
        }
        return LeaderView(1, 1, True, committed, 5, ConfState((1, 2, 3)), members)

    assert membership.next_change(wanted, seen(100, 99), 0) is None
    assert membership.next_change(wanted, seen(300, 100), 0) == change((REMOVE, 3))


def test_a_learner_has_the_newest_configuration_before_it_votes() -> None:
    wanted = state_group_members(GROUPS_GROUP, [1, 2])
    members = {1: MemberView(12, True, True), 2: MemberView(11, True, True)}
    seen = LeaderView(1, 1, True, 11, 12, ConfState((1,), (2,)), members)
    assert VoterChanges(PATIENCE).next_change(wanted, seen, 0) is None


def test_only_a_leader_has_a_view_and_is_settled_once_its_term_has_an_entry() -> None:
    storage = MemoryStorage()
    storage.set_conf_state(ConfState((1,)), 0)
    node = RaftNode(1, storage, RaftConfig(), Random(1))
    assert leader_view(node.raft) is None
    node.campaign()
    views = [leader_view(node.raft)]
    while (work := node.work()) is not None:
        if work.append is not None:
            storage.append(work.append.entries)
            node.stored(work.append)
        if work.committed_entries:
            node.applied(work.committed_entries)
        views.append(leader_view(node.raft))
    settled = [seen.settled for seen in views if seen is not None]
    assert settled[0] is False
    assert settled[-1] is True
    last = views[-1]
    assert last is not None
    assert (last.leader, last.term, last.committed, last.configuration) == (1, 1, 1, ConfState((1,)))
    assert last.members == {1: MemberView(1, True, True)}
    node.propose_conf_change(change((LEARNER, 2)))
    pending = leader_view(node.raft)
    assert pending is not None
    assert pending.settled is False


# --- whole sequences ------------------------------------------------------------------------------


def majorities(voters: tuple[int, ...]) -> list[frozenset[int]]:
    return [frozenset(each) for each in combinations(voters, len(voters) // 2 + 1)]


def quorums(configuration: ConfState) -> list[frozenset[int]]:
    """The smallest sets of nodes that decide."""
    incoming = majorities(configuration.voters)
    if not configuration.voters_outgoing:
        return incoming
    return [each | other for each in incoming for other in majorities(configuration.voters_outgoing)]


def new_progress(learner: bool) -> Progress:
    return Progress(1, Inflights(1), learner=learner)


@dataclass
class AbstractGroup:
    """A raft group whose members do everything at once, except those that are down.

    Attributes:
        registered: nodes that have not left the cluster.
        down, lost: nodes that do not answer, and those of them that never will.
        behind: members that have not the newest entries, while they catch up.
    """

    raft_group: int
    registered: set[int] = field(default_factory=lambda: {1})
    down: set[int] = field(default_factory=set)
    lost: set[int] = field(default_factory=set)
    behind: set[int] = field(default_factory=set)
    configuration: ConfState = field(default_factory=lambda: ConfState((1,)))
    leader: int = 1
    term: int = 1
    now: float = 0.0
    membership: VoterChanges = field(default_factory=lambda: VoterChanges(PATIENCE))

    @property
    def wanted(self) -> WantedMembers:
        return state_group_members(self.raft_group, sorted(self.registered))

    def decides(self, without: set[int]) -> bool:
        return any(not quorum & without for quorum in quorums(self.configuration))

    def look(self) -> bool:
        """One look of the leader; False if nothing was to be done."""
        self.now += 0.3
        configuration = self.configuration
        if not self.decides(self.down):
            return False
        if self.leader in self.down or self.leader not in configuration.voters:
            able = set(configuration.voters) - self.down
            self.lead(min(able - self.behind or able))
        if configuration.voters_outgoing:
            assert configuration.auto_leave
            self.switch(ConfChangeV2())
            return True
        seen = view(
            configuration, self.leader, down=self.down, behind=self.behind - {self.leader}, term=self.term
        )
        step = self.membership.next_change(self.wanted, seen, self.now)
        if isinstance(step, HandOver):
            assert step.node_id not in self.down
            assert step.node_id != self.leader
            self.lead(step.node_id)
        elif step is not None:
            self.switch(step)
        return step is not None

    def lead(self, node_id: int) -> None:
        self.leader = node_id
        self.term += 1
        self.behind.discard(node_id)

    def switch(self, step: ConfChangeV2) -> None:
        before = self.configuration
        progress = {each: new_progress(each in before.learners) for each in sorted(before.members)}
        self.configuration, _ = Changer(before, progress, new_progress).change(step)
        self.behind |= self.configuration.members - before.members
        assert all(old & new for old in quorums(before) for new in quorums(self.configuration))
        assert self.decides(self.down), "the group cannot decide any more"
        assert self.leader in self.configuration.voters
        if not self.configuration.voters_outgoing and self.leader in self.wanted.voters:
            grew = len(self.configuration.voters) > len(before.voters)
            assert not (grew and len(self.configuration.voters) == 4)


EVENTS = st.lists(
    st.tuples(
        st.sampled_from(["join", "join", "remove", "lose", "down", "up", "catch up", "look", "look", "look"]),
        st.integers(0, 9),
    ),
    max_size=60,
)


def happen(group: AbstractGroup, what: str, which: int) -> None:
    registered = sorted(group.registered)
    node = registered[which % len(registered)]
    if what == "join" and len(registered) < 7:
        group.registered.add(max(group.configuration.members | group.registered | group.lost) + 1)
    elif what == "remove" and len(registered) > 1:
        group.registered.discard(node)
    elif what == "lose" and len(registered) > 1 and group.decides(group.lost | {node}):
        group.registered.discard(node)
        group.down.add(node)
        group.lost.add(node)
    elif what == "down":
        group.down.add(node)
    elif what == "up":
        group.down &= group.lost
    elif what == "catch up":
        group.behind -= {each for each in group.behind if each % 2 == which % 2} - group.down
    elif what == "look":
        group.look()


@pytest.mark.slow
@given(st.sampled_from([METADATA_GROUP, GROUPS_GROUP]), EVENTS)
def test_whatever_happens_quorums_overlap_and_the_group_ends_as_it_should(
    raft_group: int, events: list[tuple[str, int]]
) -> None:
    group = AbstractGroup(raft_group)
    for what, which in events:
        happen(group, what, which)
    group.down = set(group.lost)
    for _ in range(100):
        group.behind &= group.down
        group.look()
    wanted = group.wanted
    assert group.configuration == ConfState(wanted.voters, wanted.learners)
    assert group.leader in wanted.voters
    assert not group.look()


@pytest.mark.slow
@given(st.integers(2, 7), st.integers(0, 2**32))
def test_a_cluster_grows_without_a_moment_of_four_voters(nodes: int, seed: int) -> None:
    random = Random(seed)
    group = AbstractGroup(random.choice([METADATA_GROUP, GROUPS_GROUP]))
    sizes = set()
    for _ in range(300):
        if len(group.registered) < nodes and random.random() < 0.3:
            group.registered.add(len(group.registered) + 1)
        if random.random() < 0.5 and group.behind:
            group.behind.discard(random.choice(sorted(group.behind)))
        group.look()
        if not group.configuration.voters_outgoing:
            sizes.add(len(group.configuration.voters))
    assert sizes <= {1, 2, 3, 5}
    assert group.configuration.voters == group.wanted.voters
