"""Commands that create, alter and delete topics.

Everything that can be rejected without looking at existing topics is rejected here.
"""

from collections.abc import Mapping

from pixy.cluster.state.metadata import METADATA_GROUP, check_partitions
from pixy.cluster.state.topic import Topic
from pixy.cluster.state.topic_config import check_option_names, check_topic_config
from pixy.errors import InvalidArgument
from pixy.proto.state_pb2 import AlterTopic, CreateTopic, DeleteTopic, MetadataCommand

_DELETE_TAG = MetadataCommand(delete_topic=DeleteTopic()).SerializeToString()[:1]


def create_command(name: str, topic_id: bytes, partitions: int, config: Mapping[str, str]) -> MetadataCommand:
    """Create a topic.

    Raises:
        InvalidArgument: the number of partitions or an option is not allowed.
    """
    check_topic_config(config)
    check_partitions(partitions)
    command = CreateTopic(name=name, topic_id=topic_id, partitions=partitions, config=config)
    return MetadataCommand(create_topic=command)


def alter_command(
    name: str,
    partitions: int | None,
    config: Mapping[str, str | None],
    topic_id: bytes = b"",
    alterations: int | None = None,
) -> MetadataCommand:
    """Add partitions to a topic, or change its options; None as an option's value removes it.

    Args:
        topic_id: of the topic; empty: of whichever has the name.
        alterations: of the topic as it was seen, None for any.

    Raises:
        InvalidArgument: as `create_command`.
    """
    wanted = {option: value for option, value in config.items() if value is not None}
    check_topic_config(wanted)
    if partitions is not None:
        check_partitions(partitions)
    unset = [option for option, value in config.items() if value is None]
    check_option_names(unset)
    command = AlterTopic(
        name=name,
        partitions=partitions or 0,
        set_config=wanted,
        unset_config=unset,
        topic_id=topic_id,
        alterations=alterations,
    )
    return MetadataCommand(alter_topic=command)


def delete_command(name: str, topic_id: bytes = b"") -> MetadataCommand:
    """Delete a topic; without an id, whichever has the name."""
    return MetadataCommand(delete_topic=DeleteTopic(name=name, topic_id=topic_id))


def is_topic_deletion(raft_group: int, payload: bytes | bytearray | memoryview) -> bool:
    """True for a command of a raft group that deletes a topic, which frees space on the disk."""
    return raft_group == METADATA_GROUP and payload[:1] == _DELETE_TAG


def why_no_such_replicas(
    wanted: Mapping[str, str], nodes: int, topic: Topic | None, *, move: bool
) -> InvalidArgument | None:
    """Reason why a topic cannot get as many replicas as its new options ask for, None if it can.

    Args:
        wanted: the options that are set.
        nodes: number of nodes of the cluster.
        topic: the topic to change, None for a new one.
        move: replicas come and go when the option changes.
    """
    if "replication" not in wanted:
        return None
    replication = int(wanted["replication"])
    if replication > nodes:
        return InvalidArgument(
            f"topic option replication is {replication}, and the cluster has {nodes} node{'' if nodes == 1 else 's'}: "
            "ask for no more, or let nodes join first"
        )
    present = {len(replicas) for replicas in topic.replicas} if topic is not None else {replication}
    if topic is None or present == {replication} or move:
        return None
    counts = " or ".join(map(str, sorted(present)))
    return InvalidArgument(
        f"topic option replication is {replication}, and the partitions of topic {topic.name} have {counts} "
        f"replica{'' if counts == '1' else 's'}, which stay where they are: make a new topic with replication "
        f"{replication}, and copy the records"
    )
