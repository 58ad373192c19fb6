"""The state groups of a node, and their recovery at start.

`metadata` comes first: it holds the number of groups `groups-n`, which is written at the first
start and never changes, and the raft groups that were ever created. Each group is restored from its
newest valid checkpoint and the journal's entries after it.
"""

from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from itertools import chain

from pixy.aio.steps import in_steps
from pixy.cluster.log import NodeLog, RecoveredNode, StateMachine, StateReplica
from pixy.cluster.replicas.left_voters import why_stuck
from pixy.cluster.replicas.state_group_recovery import recover_state_group
from pixy.cluster.state import (
    FIRST_GROUPS_GROUP,
    FIRST_NODE,
    METADATA_GROUP,
    SINKS_GROUP,
    GroupsState,
    MetadataState,
    NodeInfo,
    SinksState,
    groups_index,
)
from pixy.errors import CorruptData, DataDirectoryError
from pixy.multiraft import ADVICE, Apply, RaftGroup, found_state, why_never_a_member
from pixy.proto.state_pb2 import ForgetTopics, GroupsCommand, HardState

GROUPS_COUNT = 8
"""Number of groups `groups-n` of a new cluster."""


class StateGroups:
    """The state groups of one node.

    Attributes:
        metadata, sinks: state machines; empty before `restore`.
        metadata_replica, sinks_replica: their raft groups, from `restore` on.
        groups: the state groups that hold offsets of consumer groups, from `restore` on.
    """

    metadata_replica: StateReplica
    sinks_replica: StateReplica

    def __init__(self) -> None:
        self.metadata = MetadataState()
        self.sinks = SinksState()
        self.groups: list[StateReplica] = []
        # Deleted topics whose offsets are not forgotten yet.
        self._deleted_topic_ids: list[bytes] = []
        self._complete = False

    def group_of(self, consumer_group: str) -> StateReplica:
        """State group that holds the offsets of a consumer group."""
        return self.groups[groups_index(consumer_group, len(self.groups))]

    def offsets_of(self, consumer_group: str) -> GroupsState:
        """State machine that holds the offsets of a consumer group."""
        machine = self.group_of(consumer_group).machine
        assert isinstance(machine, GroupsState)
        return machine

    def groups_states(self) -> list[GroupsState]:
        """State machines that hold the offsets of consumer groups."""
        return [group.machine for group in self.groups if isinstance(group.machine, GroupsState)]

    def topic_deleted(self, topic_id: bytes) -> None:
        """Note a deleted topic, whose offsets are to be forgotten."""
        self._deleted_topic_ids.append(topic_id)

    def forget_offsets(self, propose: Callable[[StateReplica, bytes], None]) -> None:
        """Propose to forget the offsets in topics that were deleted since the last call, in the
        groups for which this node decides.
        """
        if self._deleted_topic_ids:
            command = GroupsCommand(forget_topics=ForgetTopics(topic_ids=self._deleted_topic_ids))
            self._deleted_topic_ids.clear()
            for replica in self.groups:
                if replica.group.decides:
                    propose(replica, command.SerializeToString())

    def sweeps(self) -> Iterator[None]:
        """Remove the offsets in forgotten topics from all groups; see `GroupsState.sweep`."""
        return chain.from_iterable(state.sweep() for state in self.groups_states())

    def replicas(self) -> list[StateReplica]:
        """All state groups that are restored."""
        return [self.metadata_replica, *self.groups, *([self.sinks_replica] if self._complete else ())]

    @property
    def why_stuck(self) -> str:
        """See `left_voters`."""
        return why_stuck([each.group for each in self.replicas()], self.metadata.nodes)

    @property
    def feature_level(self) -> int:
        """Newest commands that every node knows which applies them: each registered one, and each
        that leaves.
        """
        return min([self.metadata.feature_level, *(node.feature_level for node in self.leaving())])

    @property
    def is_lone(self) -> bool:
        """True if one node alone applies commands."""
        return len(self.metadata.registered) == 1 and not self.leaving()

    def leaving(self) -> list[NodeInfo]:
        """Removed nodes that are members of metadata, which they are until they are of nothing
        else.
        """
        nodes, members = self.metadata.nodes, self.metadata_replica.group.storage.conf_state.members
        return [node for each in members if (node := nodes.get(each)) and node.removed and not node.lost]

    def find(self, name: str) -> StateReplica | None:
        """A state group by its name, None if there is none."""
        return next((each for each in self.replicas() if each.name == name), None)

    def deleted_topic_ids(self) -> list[bytes]:
        """Ids of topics with committed offsets that metadata does not have: deleted ones, if
        metadata is current.
        """
        live = {topic.topic_id for topic in self.metadata.topics.values()}
        known: set[bytes] = set()
        for state in self.groups_states():
            known |= state.topic_ids()
        return sorted(known - live)

    async def restore(
        self,
        recovered: RecoveredNode,
        node_log: NodeLog,
        apply: Apply,
        start_peers: Callable[[], Awaitable[None]] | None = None,
        waits_for: Callable[[Sequence[RaftGroup]], None] = lambda _: None,
    ) -> None:
        """Restore every state group. Their entries are applied by `apply`.

        Metadata comes first, with everything that was committed: what the others, and partitions,
        are judged by must be current.

        Args:
            start_peers: starts the exchange with other nodes, once metadata is restored as far as
                this node has it; None if there are none.
            waits_for: told of the groups that it waits for.

        Raises:
            DataDirectoryError: the node has others, and no way to them; or as `CorruptData`.
            CorruptData: a file cannot be used, or entries are missing from the journal.
        """

        async def restored(raft_group: int, name: str, machine: StateMachine) -> StateReplica:
            founder = HardState(voters=[FIRST_NODE])
            return await recover_state_group(node_log, recovered, raft_group, name, machine, founder, apply)

        async def catch_up(replicas: Iterable[StateReplica]) -> None:
            alone = start_peers is None
            groups = [each.group for each in replicas if each.group.has_tail or not alone]
            waits_for(groups)
            await node_log.driver.reads.catch_up(groups)

        self.metadata_replica = await restored(METADATA_GROUP, "metadata", self.metadata)
        if start_peers is not None:
            await start_peers()
        else:
            _check_alone(self.metadata_replica.group, node_log.driver.node_id)
        await catch_up([self.metadata_replica])
        for number in range(self.metadata.groups_count or GROUPS_COUNT):
            state = GroupsState()
            self.groups.append(await restored(FIRST_GROUPS_GROUP + number, f"groups-{number}", state))
        self._check_groups(recovered)
        self.sinks_replica = await restored(SINKS_GROUP, "sinks", self.sinks)
        self._complete = True
        own = self.metadata.nodes.get(node_log.driver.node_id)
        if own is None or not own.removed:  # else the others' leaders may tell it nothing any more
            await catch_up([*self.groups, self.sinks_replica])
        async for _ in in_steps(self.sweeps()):
            pass
        if start_peers is None:
            self._deleted_topic_ids = self.deleted_topic_ids()

    def _check_groups(self, recovered: RecoveredNode) -> None:
        """Check the raft groups in the journal by metadata, which is current.

        Raises:
            CorruptData: metadata does not know one.
            DataDirectoryError: a member of one never was in the cluster.
        """
        for raft_group, found in recovered.journal.groups.items():
            if raft_group >= self.metadata.next_raft_group:
                raise CorruptData(
                    f"the journal has records of raft group {raft_group}, but the entry that created it is missing"
                )
            reason = why_never_a_member(found_state(found).hard_state, self.metadata.next_node_id)
            if reason:
                raise DataDirectoryError(f"raft group {raft_group} cannot be used: {reason}; {ADVICE}")


def _check_alone(metadata: RaftGroup, node_id: int) -> None:
    members = metadata.storage.conf_state.members
    if {*members} != {node_id}:
        raise DataDirectoryError(
            f"node {node_id} belongs to a cluster of several nodes, and cannot be reached by them: set peer_addr, which is "
            "empty or used by another process"
        )
