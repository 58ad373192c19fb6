"""Commands that create, alter and delete topics.

Everything that can be rejected without looking at existing topics is rejected here.
"""

from collections.abc import Mapping

from pixy.cluster.metadata import check_partitions
from pixy.cluster.topic_config import check_option_names, check_topic_config
from pixy.proto.state_pb2 import AlterTopic, CreateTopic, DeleteTopic, MetadataCommand

__all__ = ["alter_command", "create_command", "delete_command"]


def create_command(name: str, topic_id: bytes, partitions: int, config: Mapping[str, str]) -> MetadataCommand:
    """Create a topic.

    Raises:
        InvalidArgument: the number of partitions or an option is not allowed.
    """
    check_topic_config(config)
    check_partitions(partitions)
    command = CreateTopic(name=name, topic_id=topic_id, partitions=partitions, config=config)
    return MetadataCommand(create_topic=command)


def alter_command(name: str, partitions: int | None, config: Mapping[str, str | None]) -> MetadataCommand:
    """Add partitions to a topic, or change its options; None as an option's value removes it.

    Raises:
        InvalidArgument: as `create_command`.
    """
    wanted = {option: value for option, value in config.items() if value is not None}
    check_topic_config(wanted)
    if partitions is not None:
        check_partitions(partitions)
    unset = [option for option, value in config.items() if value is None]
    check_option_names(unset)
    command = AlterTopic(name=name, partitions=partitions or 0, set_config=wanted, unset_config=unset)
    return MetadataCommand(alter_topic=command)


def delete_command(name: str) -> MetadataCommand:
    """Delete a topic."""
    return MetadataCommand(delete_topic=DeleteTopic(name=name))
