"""Functions of the product with one rule of moves left out; `move_rules` says which."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from pixy.cluster.log import PartitionReplica
from pixy.cluster.peering.voter_reconciler import VoterReconciler
from pixy.cluster.replicas import Partitions
from pixy.cluster.state.topic import Topic
from pixy.errors import PixyError
from pixy.multiraft import Driver, RaftGroup
from pixy.multiraft.departed_groups import DepartedGroups
from pixy.proto.state_pb2 import PartitionMove, TopicRecord
from pixy.raft import ConfState, HardState, Message, MessageType

_add = DepartedGroups.add
_compact = RaftGroup.compact
_depart = Driver.depart
_look_at = VoterReconciler._look_at
_record = Topic.record
_takes = Driver._takes
_topic_without = Topic.without
_wanted_of_partition = VoterReconciler._wanted_of_partition


# --- newcomers ------------------------------------------------------------------------------------


def founds_what_it_moves_to(_: Partitions, replica: PartitionReplica) -> ConfState:
    """A newcomer takes the nodes that a partition moves to for its members."""
    nodes = replica.replicas if replica.move is None else replica.move.target
    return ConfState(tuple(sorted(nodes)))


def forgets_founders(self: Topic, node_id: int) -> Topic:
    """A replica that opens after the loss of a node takes those that are left for founders."""
    return replace(_topic_without(self, node_id), founders={})


def keeps_first_entries(self: RaftGroup, index: int) -> None:
    """A leader that has changed the members has the first entry."""
    if index > 1:
        _compact(self, index)


def takes_first_entries(self: Driver, group: RaftGroup, message: Message) -> bool:
    """A newcomer takes the first entries of members that it does not know."""
    if not group.is_blank or message.type is not MessageType.APP:
        return _takes(self, group, message)
    sideloads = self._peers.sideloads
    return self._hooks.keeps_up() and (sideloads is None or sideloads.admits(group, message))


def votes_without_members(self: Driver, group: RaftGroup, message: Message) -> bool:
    """A replica that is back votes before it knows the members."""
    return (group.is_blank and message.type is not MessageType.APP) or _takes(self, group, message)


# --- the leader -----------------------------------------------------------------------------------


def by_old_metadata(
    self: VoterReconciler, group: RaftGroup, replica: PartitionReplica, registered: list[int]
) -> Any:
    """A leader changes members by metadata as it has it."""
    self._read[group] = group.term
    return _wanted_of_partition(self, group, replica, registered)


def ends_before_the_swap(self: VoterReconciler, group: RaftGroup, registered: list[int], now: float) -> None:
    """A leader ends a move whatever the voters are."""
    _look_at(self, group, registered, now)
    replica = group.application
    if isinstance(replica, PartitionReplica) and replica.move is not None:
        self._note_end(group, replica)


def record_without_moves(self: Topic) -> TopicRecord:
    """A checkpoint of metadata has no moves."""
    return _record(replace(self, moves={}))


def whatever_the_plan(topic: Topic, asked: PartitionMove) -> str:
    """A move is known by its target alone."""
    number = asked.partition
    if not 0 <= number < len(topic.raft_groups) or topic.raft_groups[number] != asked.raft_group:
        return "there is no such partition"
    return "" if topic.placement(number) == asked.placement else "it has moved meanwhile"


# --- departures -----------------------------------------------------------------------------------


def goes_when_a_move_begins(self: Partitions, replica: PartitionReplica) -> bool:
    """A replica that is to go does so at the begin of its move."""
    nodes = replica.replicas if replica.move is None else replica.move.target
    return not replica.deleted and self.node_id not in nodes


async def sure_at_once(_: object) -> bool:
    """A replica departs by metadata as it is here."""
    return True


def departs_for_good(self: Driver, group: RaftGroup, error: PixyError, then: Callable[[], None]) -> None:
    """A departed node numbers its proposals from 1 again."""
    _depart(self, group, error, then)
    self.sequences.pop(group.raft_group, None)


def forgets_its_vote(self: DepartedGroups, raft_group: int, _: HardState, then: Callable[[], None]) -> None:
    """A replica that departs keeps neither term nor vote."""
    _add(self, raft_group, HardState(), then)
