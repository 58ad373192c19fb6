"""Offsets of consumer groups, carried from the source to the target.

An offset becomes that of the same record at the target, or of one before it, never beyond what is
there. Acks above it are not carried: their messages come again.

    the group has at the target                 then its offset there
    ------------------------------------------  --------------------------------------------------
    consumers of the topic                      is its own, and stays
    no offset                                   is set
    one that a mirror has set, and nobody else  follows the source, back too
    one that a consumer has committed           goes on with the source, never back

What a mirror has set is known by the metadata of the commit.
"""

from collections.abc import Mapping

from pixy.elements_per_call import ELEMENTS_PER_CALL
from pixy.errors import FailedPrecondition, InvalidArgument, NotFound, PixyError
from pixy.mirror.cluster_client import ClusterClient
from pixy.mirror.events import Event, Tell
from pixy.mirror.positions import Positions
from pixy.proto import kafkapixy_pb2 as pb
from pixy.proto import pixy_topics_pb2 as topics_pb
from pixy.proto.kafkapixy_pb2_grpc import KafkaPixyStub
from pixy.proto.pixy_topics_pb2_grpc import TopicsStub
from pixy.records import TopicPartition

MARK = "-mirrored-"
"""Metadata of offsets that a mirror has set. Its first character is in no encoding of acks, so
it acknowledges nothing.
"""

_NOTHING = -1


class CarriedOffsets:
    """The groups of two clusters.

    Args:
        tell: takes what could not be carried.
    """

    def __init__(self, source: ClusterClient, target: ClusterClient, tell: Tell) -> None:
        self._source = source
        self._target = target
        self._tell = tell
        # Reasons that were told, by group and topic.
        self._told: dict[tuple[str, str], str] = {}

    def carry(self, positions: Positions, source_ids: Mapping[str, bytes]) -> int:
        """Carry the offsets of all groups in some topics; returns how many were set.

        Args:
            source_ids: topics, with their ids at the source.
        """
        groups = self._source.call(TopicsStub, "ListGroups", topics_pb.ListGroupsRequest()).groups
        count = 0
        for group in sorted(groups):
            for topic, source_id in source_ids.items():
                try:
                    count += self._carry(positions, group, topic, source_id)
                except (FailedPrecondition, InvalidArgument) as error:
                    self._refused(group, topic, error)
                except NotFound:
                    continue  # a topic was deleted meanwhile
                else:
                    self._told.pop((group, topic), None)
        return count

    def _carry(self, positions: Positions, group: str, topic: str, source_id: bytes) -> int:
        wanted: dict[int, int] = {}
        for each in self._offsets(self._source, group, topic):
            if each.offset != _NOTHING:
                partition = TopicPartition(topic, each.partition)
                offset = positions.translated(partition, source_id, each.offset)
                if offset is not None:
                    wanted[each.partition] = offset
        if not wanted:
            return 0
        changes = {
            each.partition: wanted[each.partition]
            for each in self._offsets(self._target, group, topic)
            if each.partition in wanted and is_carried(each.offset, each.metadata, wanted[each.partition])
        }
        if not changes or self._is_consumed(group, topic):
            return 0
        offsets = [
            pb.PartitionOffset(partition=number, offset=offset, metadata=MARK)
            for number, offset in sorted(changes.items())
        ]
        for at in range(0, len(offsets), ELEMENTS_PER_CALL):
            request = pb.SetOffsetsRq(topic=topic, group=group, offsets=offsets[at : at + ELEMENTS_PER_CALL])
            self._target.call(KafkaPixyStub, "SetOffsets", request)
        return len(offsets)

    def _offsets(self, client: ClusterClient, group: str, topic: str) -> list[pb.PartitionOffset]:
        request = pb.GetOffsetsRq(topic=topic, group=group)
        return list(client.call(KafkaPixyStub, "GetOffsets", request).offsets)

    def _is_consumed(self, group: str, topic: str) -> bool:
        request = pb.ListConsumersRq(topic=topic, group=group)
        try:
            found = self._target.call(KafkaPixyStub, "ListConsumers", request).groups
        except NotFound:
            return False
        return any(each.consumers for each in found.values())

    def _refused(self, group: str, topic: str, error: PixyError) -> None:
        if self._told.get((group, topic)) != str(error):
            self._told[group, topic] = str(error)
            text = f"offsets of group {group} in topic {topic} are not carried: {error}"
            self._tell(Event("refused", text, {"group": group, "topic": topic}))


def is_carried(offset: int, metadata: str, wanted: int) -> bool:
    """True if the offset of a group that nobody consumes in becomes another one.

    Args:
        offset, metadata: that it has at the target, -1 for none.
        wanted: that of the source, translated.
    """
    if offset == _NOTHING:
        return True
    return wanted != offset if metadata == MARK else wanted > offset
