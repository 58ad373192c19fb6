"""Consumer groups with many committed offsets, and checkpoints of them."""

from pixy.cluster.state.groups import GroupsState
from pixy.multiraft.dedup_table import DedupTable
from pixy.multiraft.group_states import checkpoint_record
from pixy.multiraft.raft_storage import RaftStorage
from pixy.proto.state_pb2 import CommitOffsets, CommittedOffset, GroupsCommand
from pixy.raft import ConfState

GROUPS, PARTITIONS = 40, 1000
STEP_S = 0.03
"""Longest step of the loop. To restore such a state takes twenty times as long."""


def large_state(topic_id: bytes = b"t") -> GroupsState:
    """The same partitions in each group."""
    state = GroupsState()
    offsets = [
        CommittedOffset(topic="t", topic_id=topic_id, partition=number, offset=number)
        for number in range(PARTITIONS)
    ]
    for at in range(GROUPS):
        command = CommitOffsets(group=f"group-{at}", offsets=offsets)
        state.apply(GroupsCommand(commit_offsets=command).SerializeToString())
    return state


def large_records(topic_id: bytes = b"t") -> list[tuple[bytes, bytes]]:
    """A checkpoint of that state at a node alone."""
    storage = RaftStorage(ConfState((1,)))
    return [checkpoint_record(DedupTable().snapshot(), storage), *large_state(topic_id).snapshot()]
