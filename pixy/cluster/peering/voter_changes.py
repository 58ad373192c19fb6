"""Members of a raft group: the next step from its configuration to the one that it should have.

Pure: the leader of a group asks with what it knows, and proposes the answer. State groups have a
replica on every node. The lowest ids are voters:

    nodes              1   2   3   4   5   6
    voters of metadata 1   2   3   3   5   5
    voters of others   1   2   3   3   3   3

and the others learners, which have the state and take over when a voter leaves. A node that has
joined and not started yet is a learner at most, as it needs metadata to start. A partition's voters
are its replicas.

One change at a time, in this order:

    left behind in a joint configuration         it is left
    a node without a replica                     becomes a learner
    the leader is to go                          hands over to a voter that stays
    voters differ                                one change, joint if several nodes change
    a learner that has left the cluster          is removed

A member is *ready* when it has everything that was committed, and the newest configuration, when
the change was first found to be wanted (a moving end might never be reached: KAFKA-13959,
RATIS-2274), it answers and takes entries, and a new one has said that it is intact. A learner
becomes a voter then. All new voters come in one change if they are ready at the same time. If some
of them keep the others waiting, those that are ready replace voters that are to go, one for one,
and further ones come as long as the voters do not become an even number: four voters survive no
more failures than three, and two of four decide nothing. Only a lone voter takes a second one
alone.

Invariants, whatever the nodes do:

- No change while another one may be uncommitted, or before an entry of the leader's term is
  committed: quorums of consecutive configurations overlap (redpanda#17675).
- Most voters of the next configuration are ready. So no change ends in a group that cannot decide,
  with one that waits for a copy for instance; nobody is removed for the sake of nodes that are
  down; and what is committed is on most of those that stay.
- A voter goes only if the voters that should be there are ready, or one of them takes its place.
- A leader never removes itself, and never becomes a learner by its own change: the others might not
  learn of it, see "Limits" in `docs/raft.md`.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from pixy.cluster.state import METADATA_GROUP
from pixy.raft import (
    NONE,
    ConfChangeSingle,
    ConfChangeType,
    ConfChangeV2,
    ConfState,
    StateType,
)
from pixy.raft.progress import ProgressState
from pixy.raft.raft import Raft


class WantedMembers(NamedTuple):
    """Configuration that a group should have.

    Attributes:
        voters, learners: node ids, ascending.
        registered: nodes that are not removed from the cluster.
    """

    voters: tuple[int, ...]
    learners: tuple[int, ...]
    registered: frozenset[int]


def state_group_members(
    raft_group: int, started: Sequence[int], starting: Iterable[int] = ()
) -> WantedMembers:
    """Members of a state group.

    Args:
        started: nodes that have started and are not removed from the cluster, or needed yet.
        starting: nodes that are connected, for their first start.
    """
    nodes = sorted(started)
    most = 5 if raft_group == METADATA_GROUP and len(nodes) >= 5 else 3
    learners = sorted([*nodes[most:], *starting])
    return WantedMembers(tuple(nodes[:most]), tuple(learners), frozenset([*nodes, *learners]))


def partition_members(replicas: Iterable[int], registered: Sequence[int]) -> WantedMembers:
    """Members of a partition's group."""
    return WantedMembers(tuple(sorted(replicas)), (), frozenset(registered))


@dataclass(frozen=True, slots=True)
class MemberView:
    """A member as its leader sees it.

    Attributes:
        match: entries that it is known to have.
        active: it has answered in the last election timeout.
        replicating: it takes entries as they come, and no snapshot.
    """

    match: int
    active: bool
    replicating: bool


@dataclass(frozen=True, slots=True)
class LeaderView:
    """A group as its leader sees it.

    Attributes:
        leader: its id.
        term: its term.
        settled: an entry of its term is committed, and no change of the configuration or of the
            leader is under way.
        committed: the commit index.
        conf_index: index of the newest change of the configuration.
        configuration: as of that change.
        members: all members, by id.
        doubtful: new voters that have not said that their replicas are intact.
    """

    leader: int
    term: int
    settled: bool
    committed: int
    conf_index: int
    configuration: ConfState
    members: Mapping[int, MemberView]
    doubtful: frozenset[int] = frozenset()


def leader_view(raft: Raft) -> LeaderView | None:
    """A group as this node sees it, None unless it leads."""
    if raft.state is not StateType.LEADER:
        return None
    members = {
        node_id: MemberView(pr.match, pr.recently_active, pr.state is ProgressState.REPLICATE)
        for node_id, pr in raft.tracker.progress.items()
    }
    return LeaderView(
        leader=raft.id,
        term=raft.term,
        settled=(
            raft.committed_in_own_term()
            and raft.pending_conf_index <= raft.log.applied
            and raft.lead_transferee == NONE
        ),
        committed=raft.log.committed,
        conf_index=raft.conf_index,
        configuration=raft.tracker.config,
        members=members,
    )


class HandOver(NamedTuple):
    """The leader is to go: another voter has to lead first."""

    node_id: int


class VoterChanges:
    """Decides for one raft group, on the node that leads it.

    Args:
        patience: time that learners which are ready wait for others; an election timeout.
    """

    def __init__(self, patience: float) -> None:
        self._patience = patience
        self._term = 0
        # By voter, present or to be: the index up to which it must have the log; and the time when
        # a learner was first ready. Invariant: fixed within a term, so each can get there, and a
        # moment without an answer does not start the wait anew.
        self._targets: dict[int, int] = {}
        self._ready_at: dict[int, float] = {}

    def next_change(
        self, wanted: WantedMembers, view: LeaderView, now: float
    ) -> ConfChangeV2 | HandOver | None:
        """The next step, None if there is none at present.

        Args:
            wanted: configuration that the group should have.
            view: the group as its leader sees it.
            now: any clock, ascending, in the unit of `patience`.
        """
        configuration = view.configuration
        if view.term != self._term:
            self._term, self._targets, self._ready_at = view.term, {}, {}
        if not view.settled:
            return None
        if configuration.voters_outgoing:
            # One with `auto_leave` is left by the core.
            return None if configuration.auto_leave else ConfChangeV2()
        missing = sorted({*wanted.voters, *wanted.learners} - configuration.members)
        if missing:
            return _change([ConfChangeSingle(ConfChangeType.ADD_LEARNER_NODE, missing[0])])
        if configuration.voters != wanted.voters:
            step = self._change_voters(wanted, view, now)
            if step is not None:
                return step
        gone = sorted(set(configuration.learners) - {*wanted.voters, *wanted.learners})
        if gone:
            return _change([ConfChangeSingle(ConfChangeType.REMOVE_NODE, gone[0])])
        return None

    # --- voters -----------------------------------------------------------------------------------

    def _change_voters(
        self, wanted: WantedMembers, view: LeaderView, now: float
    ) -> ConfChangeV2 | HandOver | None:
        voters = self._next_voters(wanted, view, now)
        before = set(view.configuration.voters)
        if view.leader not in voters:
            successor = _successor(before & voters, view)
            if successor is not None:
                return HandOver(successor) if self._are_most_ready(voters, view) else None
            # Nobody of those that stay could lead now: the leader stays until somebody can.
            voters.add(view.leader)
        if voters == before or not self._are_most_ready(voters, view):
            return None
        steps = [ConfChangeSingle(ConfChangeType.ADD_NODE, node_id) for node_id in sorted(voters - before)]
        for node_id in sorted(before - voters):
            stays = node_id in wanted.learners
            kind = ConfChangeType.ADD_LEARNER_NODE if stays else ConfChangeType.REMOVE_NODE
            steps.append(ConfChangeSingle(kind, node_id))
        return _change(steps)

    def _next_voters(self, wanted: WantedMembers, view: LeaderView, now: float) -> set[int]:
        """Voters of the next configuration, without regard to the leader."""
        present = view.configuration.voters
        coming = [node_id for node_id in wanted.voters if node_id not in present]
        target = max(view.committed, view.conf_index)
        self._targets = {each: self._targets.get(each, target) for each in (*present, *coming)}
        ready = self._ready(coming, view, now)
        if ready == coming:
            return set(wanted.voters)
        if not ready or now - min([self._ready_at[node_id] for node_id in ready]) < self._patience:
            return set(present)
        going = [node_id for node_id in present if node_id not in wanted.voters]
        # Nodes that have left the cluster go first, and those that are down first of all.
        going.sort(key=lambda each: (each in wanted.registered, _is_active(each, view), each))
        swapped = min(len(going), len(ready))
        count = len(present)
        more = len(ready) - swapped
        if count + more > 2 and not (count + more) % 2:
            more = max(0, more - 1)
        return {*present, *ready[: swapped + more]} - set(going[:swapped])

    def _ready(self, coming: Sequence[int], view: LeaderView, now: float) -> list[int]:
        """Learners that may become voters."""
        ready = [node_id for node_id in coming if self._is_ready(node_id, view)]
        self._ready_at = {node_id: self._ready_at.get(node_id, now) for node_id in ready} | {
            node_id: at for node_id, at in self._ready_at.items() if node_id in coming
        }
        return ready

    def _is_ready(self, node_id: int, view: LeaderView) -> bool:
        if node_id in view.doubtful:
            return False
        return _takes_entries(node_id, view) and view.members[node_id].match >= self._targets[node_id]

    def _are_most_ready(self, voters: set[int], view: LeaderView) -> bool:
        ready = sum(each == view.leader or self._is_ready(each, view) for each in voters)
        return ready > len(voters) // 2


def _change(steps: Sequence[ConfChangeSingle]) -> ConfChangeV2:
    """One change: a joint one, which the leader leaves by itself, if there are several steps."""
    return ConfChangeV2(tuple(steps))


def _is_active(node_id: int, view: LeaderView) -> bool:
    return node_id == view.leader or (node_id in view.members and view.members[node_id].active)


def _takes_entries(node_id: int, view: LeaderView) -> bool:
    return _is_active(node_id, view) and view.members[node_id].replicating


def _successor(voters: set[int], view: LeaderView) -> int | None:
    """The voter that can lead soonest, None if none can."""
    able = [each for each in voters if _takes_entries(each, view)]
    return max(able, key=lambda each: (view.members[each].match, -each), default=None)
