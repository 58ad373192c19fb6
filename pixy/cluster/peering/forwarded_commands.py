"""Commands of other nodes, judged by what this node knows, when it leads their raft group.

What can be judged by a command alone is in `command_rules`. This depends on other raft groups:

    command               is appended
    --------------------  --------------------------------------------------------------------------
    that only a leader    without content
    decides
    ForgetNode            if this node does not reach the node
    RemoveNode            if the raft groups can do without the node; with the nodes that stay
    DrainNode             if all nodes know the command, as the next two
    BeginMoves, EndMoves
    PublishStages, not    if the sender has the only replica of each partition whose topic is there
    replicated
    FinishPublications    with those publications that the sender rolls forward: not replicated, and
                          as above
    AddPiece              if the partitions whose topics are there exist, in these raft groups
    any with limits       with this node's, where they are lower
    any with a time       with this node's, if that is further away than a minute
    CreateTopic           if no other topic has its id
    any with partitions   if no id of a topic that is there has another name
    ForgetTopics          without topics that are there
    PublishParts          if `sinks` has the publication unfinished: as this node makes it, whatever
                          came; also if the partition has it, without effect

This node may be behind: what it does not find is looked for again once it has everything that was
committed to `sinks` and metadata before. Then the command is refused. A topic that is unknown was
deleted: what is for it has no effect.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence

from pixy.cluster.log import PartitionReplica
from pixy.cluster.replicas import Partitions
from pixy.cluster.state import (
    METADATA_GROUP,
    MOVES_LEVEL,
    SINKS_GROUP,
    WHY_NO_MOVES,
    ClusterLimits,
    SinksState,
    decoded,
    empty_of,
    part_commands,
    partition_command,
    removal,
)
from pixy.errors import VoidEntry
from pixy.multiraft import FIRST_PARTITION_GROUP, RaftGroup
from pixy.proto.state_pb2 import (
    AddPiece,
    FinishPublications,
    ForgetTopics,
    GroupsCommand,
    MetadataCommand,
    PartitionCommand,
    PiecePart,
    PublicationPart,
    PublishParts,
    SinksCommand,
)

_KEPT_MAX = 4
_TIME_OFF_MS = 60_000
"""A time of another node that is further from this node's is replaced by it: what has a time far
ahead would never expire, and what has one long ago would at once.
"""

_Commands = dict[tuple[bytes, int], PublishParts]


class ForwardedCommands:
    """Commands of other nodes at one node.

    Args:
        limits: of the cluster, as metadata is applied here.
        sinks: as applied here.
        partitions: of this node.
        confirm: returns once `sinks` and metadata have here what was committed before; raises
            `Unavailable` if that cannot be found out.
        is_reachable: true of a node that can be reached.
        reasons_to_keep: reasons against the removal of a node, as a client is told; raises
            `Unavailable` as well.
        now_ms: the node's time.
    """

    def __init__(
        self,
        limits: ClusterLimits,
        sinks: SinksState,
        partitions: Partitions,
        confirm: Callable[[], Awaitable[None]],
        is_reachable: Callable[[int], bool],
        reasons_to_keep: Callable[[int], Awaitable[Sequence[str]]],
        now_ms: Callable[[], int],
    ) -> None:
        self._limits = limits
        self._metadata = limits.metadata
        self._sinks = sinks
        self._partitions = partitions
        self._confirm = confirm
        self._is_reachable = is_reachable
        self._reasons_to_keep = reasons_to_keep
        self._now_ms = now_ms
        # What the newest publications that were asked for are for their partitions, by number.
        self._made: dict[int, _Commands] = {}
        # Once for all partitions that a publication comes to at a time.
        self._making = asyncio.Lock()

    def judge(self, group: RaftGroup, payload: bytes | bytearray, sender: int) -> bytes | bytearray | None:
        """The command as it may be appended; None: see `wait`.

        Raises:
            VoidEntry: it is refused.
        """
        if group.raft_group >= FIRST_PARTITION_GROUP:
            return self._to_partition(group, payload, sender)
        if group.raft_group == SINKS_GROUP:
            return self._to_sinks(payload, sender)
        if group.raft_group == METADATA_GROUP:
            return self._to_metadata(payload)
        return self._to_groups(payload, sender)

    async def wait(self, group: RaftGroup, payload: bytes | bytearray, sender: int) -> bytes | bytearray:
        """The command as it may be appended, of one for which `judge` gives None.

        Raises:
            VoidEntry: it is refused.
            Unavailable: this node cannot find that out.
        """
        number = 0
        if group.raft_group == METADATA_GROUP:
            node_id = MetadataCommand.FromString(bytes(payload)).remove_node.node_id
            staying = {*self._metadata.registered} - {node_id}
            reasons = await self._reasons_to_keep(node_id)
            if reasons:
                raise VoidEntry(f"node {node_id} is needed: {'; '.join(reasons)}")
            return removal(node_id, sorted(staying), self._limits.feature_level()).SerializeToString()
        if group.raft_group >= FIRST_PARTITION_GROUP:
            published = partition_command(payload)
            assert isinstance(published, PartitionCommand)
            number = published.publish_parts.publication
        if number not in self._sinks.publications:
            await self._confirm()
        await self._make(number)
        judged = self.judge(group, payload, sender)  # before another one is made
        if judged is None:
            raise VoidEntry(
                "it does not fit to what is staged or published, or to the replicas of its topics"
            )
        return judged

    # --- metadata, groups-n, and partitions -------------------------------------------------------

    def _to_metadata(self, payload: bytes | bytearray) -> bytes | bytearray | None:
        command = decoded(MetadataCommand, bytes(payload))
        if isinstance(command, VoidEntry):
            return payload
        nodes, created = self._metadata.nodes, command.create_topic
        match command.WhichOneof("command"):
            case "forget_node" if command.forget_node.node_id in nodes:
                node_id = command.forget_node.node_id
                if self._is_reachable(node_id):
                    raise VoidEntry(f"node {node_id} is running: only a lost node can be forgotten")
            case "remove_node" if (node := nodes.get(command.remove_node.node_id)) and not node.removed:
                return None
            case "drain_node" | "begin_moves" | "end_moves" if self._limits.feature_level() < MOVES_LEVEL:
                raise VoidEntry(WHY_NO_MOVES)
            case "create_topic" if self._are_misnamed([(created.name, created.topic_id)]):
                # To delete one of them would forget the offsets of both.
                raise VoidEntry(f"the id of topic {created.name} is another one's")
        return command.SerializeToString() if self._limits.lower(command) else payload

    def _to_groups(self, payload: bytes | bytearray, sender: int) -> bytes | bytearray:
        command = decoded(GroupsCommand, bytes(payload))
        if isinstance(command, VoidEntry):
            return payload  # which is refused
        empty = empty_of(command, sender)
        if empty is not None:
            return empty.SerializeToString()
        if command.WhichOneof("command") == "forget_topics":
            return self._forget_topics(command.forget_topics)
        is_other = self._limits.lower(command) | self._is_timed_anew(command)
        return command.SerializeToString() if is_other else payload

    def _is_timed_anew(self, command: SinksCommand | GroupsCommand) -> bool:
        """True if the command had a time that is replaced."""
        timed = getattr(command, command.WhichOneof("command") or "", None)
        now_ms = self._now_ms()
        if abs(getattr(timed, "timestamp_ms", now_ms) - now_ms) <= _TIME_OFF_MS:
            return False
        timed.timestamp_ms = now_ms  # type: ignore[union-attr]  # it has one
        return True

    def _forget_topics(self, command: ForgetTopics) -> bytes:
        live = {topic.topic_id for topic in self._metadata.topics.values()}
        gone = [topic_id for topic_id in command.topic_ids if topic_id not in live]
        return GroupsCommand(forget_topics=ForgetTopics(topic_ids=gone)).SerializeToString()

    def _to_partition(
        self, group: RaftGroup, payload: bytes | bytearray, sender: int
    ) -> bytes | bytearray | None:
        command, replica = partition_command(payload), group.application
        if isinstance(command, VoidEntry) or not isinstance(replica, PartitionReplica):
            return payload
        empty = empty_of(command, sender)
        if empty is not None:
            return empty.SerializeToString()
        number = command.publish_parts.publication
        if command.WhichOneof("command") != "publish_parts" or number <= replica.publication:
            return payload
        key = (replica.log.identity.topic_id, replica.partition.partition)
        made = self._made.get(number, {}).get(key)
        if made is None or number not in self._sinks.publications:
            return None
        return PartitionCommand(publish_parts=made).SerializeToString()

    async def _make(self, number: int) -> None:
        """Make the commands of a publication of replicated stages."""
        async with self._making:
            publication = self._sinks.publications.get(number)
            if publication is not None and publication.stages and number not in self._made:
                self._made[number] = await part_commands(publication)
                while len(self._made) > _KEPT_MAX:
                    del self._made[next(iter(self._made))]

    # --- sinks ------------------------------------------------------------------------------------

    def _to_sinks(self, payload: bytes | bytearray, sender: int) -> bytes | bytearray | None:
        command = decoded(SinksCommand, bytes(payload))
        if isinstance(command, VoidEntry):
            return payload
        empty = empty_of(command, sender)
        if empty is not None:
            return empty.SerializeToString()
        if self._is_timed_anew(command):
            payload = command.SerializeToString()
        match command.WhichOneof("command"):
            case "publish_stages" if not command.publish_stages.replicated:
                return payload if self._are_of(sender, command.publish_stages.parts) else None
            case "finish_publications":
                return self._finish(command.finish_publications, sender)
            case "add_piece":
                return payload if self._are_partitions(command.add_piece) else None
        return payload

    def _are_of(self, sender: int, parts: Iterable[PublicationPart]) -> bool:
        """True if a node has the only replica of each partition whose topic is there."""
        if self._are_misnamed(_names(parts)):
            return False
        return self._partitions.only_replicas(parts, self._metadata.topics) <= {sender}

    def _are_misnamed(self, named: Iterable[tuple[str, bytes]]) -> bool:
        """True if one of these names comes with the id of a topic that is there, and is not its
        own: publications would wait for each other in this partition, to which nobody would bring
        them.
        """
        topics = self._metadata.topics
        unknown = {
            topic_id
            for name, topic_id in set(named)
            if (topic := topics.get(name)) is None or topic.topic_id != topic_id
        }
        return bool(unknown) and any(topic.topic_id in unknown for topic in topics.values())

    def _finish(self, command: FinishPublications, sender: int) -> bytes | None:
        publications, numbers = self._sinks.publications, command.publications
        if any(number >= self._sinks.next_publication for number in numbers):
            return None
        kept = [
            number
            for number in numbers
            if (each := publications.get(number)) is not None
            and not each.stages
            and self._are_of(sender, each.parts)
        ]
        return SinksCommand(finish_publications=FinishPublications(publications=kept)).SerializeToString()

    def _are_partitions(self, command: AddPiece) -> bool:
        if self._are_misnamed(_names(command.piece.parts)):
            return False
        for part in command.piece.parts:
            topic = self._metadata.topics.get(part.topic)
            if topic is None or topic.topic_id != part.topic_id:
                continue
            raft_groups = topic.raft_groups
            if not 0 <= part.partition < len(raft_groups) or raft_groups[part.partition] != part.raft_group:
                return False
        return True


def _names(parts: Iterable[PublicationPart | PiecePart]) -> Iterable[tuple[str, bytes]]:
    return ((part.topic, part.topic_id) for part in parts)
