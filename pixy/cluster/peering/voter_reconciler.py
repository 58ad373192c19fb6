"""Members of the raft groups that a node leads: configurations follow the nodes of the cluster.

`voter_changes` decides each step, one configuration change at a time; this module proposes it.
State groups have a replica on every node; the members of a partition are its replicas, or the
target of its move. A node that is removed leaves partitions first, then the state groups, those of
consumer groups once it has no members there, for it commits their acks, and metadata last.

A leader may lag behind metadata, and know neither a move nor its end: it would undo what its
predecessor has done. So it changes the members of a partition once it has read metadata in its
term: every later change is its own. When the voters are the target, and nothing else is on its way,
it proposes the end of the move. Nobody else knows.

Before that the leader commits an empty entry that it has proposed behind its last change. Whoever
has this entry knows, durably, that the change is committed. Otherwise the leader might be the only
one that knows, and its successors need votes of nodes that have departed.
"""

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import structlog

from pixy.cluster.log import PartitionReplica, StateReplica
from pixy.cluster.peering.departures import Departures
from pixy.cluster.peering.newcomer_checks import NewcomerChecks
from pixy.cluster.peering.ticker import TICK_S
from pixy.cluster.peering.voter_changes import (
    HandOver,
    LeaderView,
    VoterChanges,
    WantedMembers,
    leader_view,
    partition_members,
    state_group_members,
)
from pixy.cluster.replicas import Partitions, StateGroups, group_name
from pixy.cluster.state import LEAVING_LEVEL, METADATA_GROUP, MOVES_MAX, GroupsState, partition_move
from pixy.errors import PixyError
from pixy.multiraft import Driver, RaftGroup
from pixy.proto.state_pb2 import EndMoves, MetadataCommand, PartitionMove
from pixy.raft import ConfState
from pixy.records import TopicPartition
from pixy.storage import EntryType

log = structlog.get_logger(__name__)

_LOOK_S = 0.2
_PATIENCE_S = 10 * TICK_S


class MoveHooks(NamedTuple):
    """Functions of its node that moves of partitions need.

    Attributes:
        partitions: of this node.
        propose: proposes a command to metadata, and calls back with its result.
        needs_only_replicas: true of a topic whose partitions cannot get other replicas yet.
        has_all_groups: False while the start has not opened all raft groups: a new one would have
            forgotten what the journal has of it.
    """

    partitions: Partitions
    propose: Callable[[bytes, Callable[[Any], None]], None]
    needs_only_replicas: Callable[[bytes], bool]
    has_all_groups: Callable[[], bool]


class VoterReconciler:
    """Keeps the configurations of one node's raft groups.

    Args:
        driver: of the groups.
        groups: the state groups, `metadata` with the nodes among them.
        moves: see `MoveHooks`.
        departures: tells whether the other nodes need one that leaves.
        newcomers: tells which of them have intact replicas.
        is_reachable: true of a node that can be reached.
    """

    def __init__(
        self,
        driver: Driver,
        groups: StateGroups,
        moves: MoveHooks,
        departures: Departures,
        newcomers: NewcomerChecks,
        is_reachable: Callable[[int], bool],
    ) -> None:
        self._driver = driver
        self._groups = groups
        self._moves = moves
        self._departures = departures
        self._newcomers = newcomers
        self._is_reachable = is_reachable
        self._loop = asyncio.get_running_loop()
        self._next_look = 0.0
        # The registered nodes by which the groups were looked at last.
        self._registered: list[int] = []
        # Of the groups whose members are not yet those that they should be.
        self._changing: dict[RaftGroup, VoterChanges] = {}
        # Terms in which this node, as the leader of a group, has read metadata, or has to.
        self._read: dict[RaftGroup, int] = {}
        self._unread: dict[RaftGroup, int] = {}
        self._reading = False
        # By group, configurations of this leader behind which it has an entry, committed or not.
        self._sealing: dict[RaftGroup, _Seal] = {}
        # Moves that have ended: those to propose, and plan by group of those that are proposed.
        self._ended: list[PartitionMove] = []
        self._ending: dict[int, int] = {}

    def tick(self) -> None:
        """Propose the next changes."""
        now = self._loop.time()
        if now < self._next_look:
            return
        self._next_look = now + _LOOK_S
        registered = self._groups.metadata.registered
        if registered != self._registered:
            self._registered = registered
            for group in self._driver.groups.values():
                group.met = None
        if self._moves.has_all_groups():
            self._lead_moving()
        for group in list(self._driver.groups.values()):
            if not group.leads:
                if self._changing:
                    self._changing.pop(group, None)
                if self._read:
                    self._read.pop(group, None)
                if self._sealing:
                    self._sealing.pop(group, None)
            elif group.met is None or not _is_still_met(group):
                self._look_at(group, registered, now)
        known = (*self._changing, *self._read, *self._sealing)
        for group in [each for each in known if each.removed is not None]:
            self._changing.pop(group, None)
            self._read.pop(group, None)
            self._sealing.pop(group, None)
        self._newcomers.tick()
        self._read_metadata()
        self._end_moves()

    def _look_at(self, group: RaftGroup, registered: list[int], now: float) -> None:
        """Propose the next change of a group that this node leads, if it needs one."""
        if group.has_peers:
            self._tell(group)
        configuration, wanted = group.storage.conf_state, self._wanted(group, registered)
        if wanted is not None and not _is_met(wanted, configuration):
            group.met = None
            self._step(group, wanted, now)
            return
        self._changing.pop(group, None)
        replica = group.application
        if wanted is None or not isinstance(replica, PartitionReplica):
            return
        if replica.move is None:
            group.met = configuration, replica.replicas
        else:
            self._note_end(group, replica)

    def _wanted(self, group: RaftGroup, registered: list[int]) -> WantedMembers | None:
        replica = group.application
        if isinstance(replica, PartitionReplica):
            return self._wanted_of_partition(group, replica, registered)
        metadata, present = self._groups.metadata, group.storage.conf_state.members
        starting = [each for each in metadata.waiting if each in present or self._is_reachable(each)]
        needed = present.intersection(self._needed_by(group))
        return state_group_members(group.raft_group, [*metadata.started, *needed], starting)

    def _wanted_of_partition(
        self, group: RaftGroup, replica: PartitionReplica, registered: list[int]
    ) -> WantedMembers | None:
        configuration, move = group.storage.conf_state, replica.move
        if not group.has_peers and move is not None and self._needs_only_replica(replica):
            return None
        # Nodes come by a move alone.
        nodes = configuration.members.intersection(replica.replicas) if move is None else move.target
        wanted = partition_members(nodes, registered)
        if self._read.get(group) == group.term or (move is None and _is_met(wanted, configuration)):
            return wanted
        self._unread[group] = group.term
        return None

    def _needs_only_replica(self, replica: PartitionReplica) -> bool:
        """True while stages in a directory here are to become part of a partition."""
        return self._moves.needs_only_replicas(replica.log.identity.topic_id)

    # --- moves ------------------------------------------------------------------------------------

    def _lead_moving(self) -> None:
        """Lead the partitions that move, and have this node as their only voter: they may not have
        been used yet.
        """
        for topic in self._groups.metadata.topics.values():
            for number in topic.moves:
                if self._driver.node_id not in topic.replicas[number]:
                    continue
                replica = self._moves.partitions.get(TopicPartition(topic.name, number))
                if replica is not None and replica.raft_group == topic.raft_groups[number]:
                    self._driver.seek_leader(self._moves.partitions.group_of(replica))

    def _read_metadata(self) -> None:
        """Read metadata for the groups that wait for it, one read at a time."""
        if not self._unread or self._reading:
            return
        terms, self._unread, self._reading = self._unread, {}, True
        group = self._groups.metadata_replica.group
        self._driver.reads.begin(group, partial(self._has_read, terms))

    def _has_read(self, terms: dict[RaftGroup, int]) -> None:
        self._reading = False
        self._read |= terms

    def _note_end(self, group: RaftGroup, replica: PartitionReplica) -> None:
        """Propose the end of a move, if its leader has seen it in its own term."""
        assert group.node is not None
        view, move = leader_view(group.node.raft), replica.move
        topic = self._groups.metadata.topics.get(replica.partition.topic)
        number = replica.partition.partition
        if view is None or not view.settled or topic is None or topic.moves.get(number) != move:
            return
        if not self._is_sealed(group, view):
            return
        if move is not None and self._ending.get(group.raft_group) != move.plan:
            self._ending[group.raft_group] = move.plan
            self._ended.append(partition_move(topic, number, move.target))

    def _is_sealed(self, group: RaftGroup, view: LeaderView) -> bool:
        """True if the members know that their configuration is committed: see the module."""
        seal = self._sealing.get(group)
        if seal is None or (seal.term, seal.conf_index) != (view.term, view.conf_index):
            seal = self._sealing[group] = _Seal(view.term, view.conf_index)
            self._driver.propose(group, EntryType.EMPTY, b"", seal.applied)
        elif seal.has_failed:
            del self._sealing[group]
        return seal.is_committed

    def _end_moves(self) -> None:
        while self._ended:
            some, self._ended = self._ended[:MOVES_MAX], self._ended[MOVES_MAX:]
            command = MetadataCommand(end_moves=EndMoves(moves=some))
            self._moves.propose(command.SerializeToString(), partial(self._have_ended, some))

    def _have_ended(self, moves: list[PartitionMove], _: Any) -> None:
        """A proposal is answered: what has not ended is proposed again."""
        for each in moves:
            if self._ending.get(each.raft_group) == each.plan:
                del self._ending[each.raft_group]

    def _needed_by(self, group: RaftGroup) -> Iterable[int]:
        """Nodes that leave, and that a state group does not let go yet: see `departures`. A node
        that leaves itself is told nothing of groups that it has left, and hands over.
        """
        leaving = {node.node_id for node in self._groups.leaving()}
        if not leaving or self._driver.node_id in leaving:
            return ()
        is_last = group.raft_group == METADATA_GROUP
        waits = is_last or self._groups.feature_level >= LEAVING_LEVEL
        if waits and not self._departures.partitions_let_go(leaving):
            return leaving
        if is_last:
            return leaving if self._departures.are_members(leaving, METADATA_GROUP + 1) else ()
        machine = group.application.machine if isinstance(group.application, StateReplica) else None
        if not isinstance(machine, GroupsState):
            return ()
        # They commit the acks of their members.
        return leaving.intersection(process.node_id for process in machine.processes())

    def _tell(self, group: RaftGroup) -> None:
        """Log a change of the members."""
        before, group.told = group.told, group.storage.conf_state
        members = group.told
        if before is not None and before != members and not members.voters_outgoing:
            log.info(
                "a raft group has other members",
                raft_group=group_name(group),
                voters=",".join(map(str, members.voters)),
                learners=",".join(map(str, members.learners)),
            )

    def _step(self, group: RaftGroup, wanted: WantedMembers, now: float) -> None:
        assert group.node is not None
        membership = self._changing.setdefault(group, VoterChanges(_PATIENCE_S))
        view = leader_view(group.node.raft)
        if view is not None and isinstance(group.application, PartitionReplica):
            coming = {*wanted.voters}.intersection(view.configuration.learners)
            intact = {each for each in coming if self._newcomers.is_intact(each, group.raft_group)}
            view = replace(view, doubtful=frozenset(coming - intact))
        step = None if view is None else membership.next_change(wanted, view, now)
        if isinstance(step, HandOver):
            self._driver.transfer(group, step.node_id)
        elif step is not None:
            self._driver.change_configuration(group, step)


class _Seal:
    """An entry that a leader has proposed behind a change of the configuration.

    Attributes:
        term: of the leader.
        conf_index: index of the change.
        is_committed, has_failed: what became of it; both False while it is not known.
    """

    __slots__ = ("conf_index", "has_failed", "is_committed", "term")

    def __init__(self, term: int, conf_index: int) -> None:
        self.term = term
        self.conf_index = conf_index
        self.is_committed = self.has_failed = False

    def applied(self, result: object) -> None:
        """The proposal is answered."""
        self.has_failed = isinstance(result, PixyError)
        self.is_committed = not self.has_failed


def _is_still_met(group: RaftGroup) -> bool:
    """True if neither configuration nor replicas of a partition have changed since the former was
    found to be as it should, by the registered nodes.
    """
    replica, met = group.application, group.met
    return (
        met is not None
        and isinstance(replica, PartitionReplica)
        and replica.move is None
        and met[0] is group.storage.conf_state
        and met[1] is replica.replicas
    )


def _is_met(wanted: WantedMembers, configuration: ConfState) -> bool:
    """True if a configuration is the wanted one."""
    return (
        configuration.voters == wanted.voters
        and configuration.learners == wanted.learners
        and not configuration.voters_outgoing
    )
