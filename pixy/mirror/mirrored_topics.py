"""Topics of the target: made as those of the source are, and judged before anything is written."""

from collections.abc import Mapping

from pixy.errors import FailedPrecondition, InvalidArgument, TopicExists
from pixy.mirror.cluster_client import ClusterClient
from pixy.mirror.events import Event, Tell
from pixy.mirror.positions import TopicPositions
from pixy.proto import pixy_log_pb2 as log_pb
from pixy.proto import pixy_topics_pb2 as topics_pb
from pixy.proto.pixy_topics_pb2_grpc import TopicsStub
from pixy.records import TopicPartition

_OPTIONS = ("retention_ms", "retention_bytes", "segment_bytes", "segment_ms")
"""Those that both kinds of clusters have."""

_LEAST = {"segment_bytes": 1 << 20, "segment_ms": 60_000}
"""Smallest values that both kinds of clusters take."""


class MirrorError(FailedPrecondition):
    """The mirror cannot go on: somebody has to decide something."""


def options_of(config: Mapping[str, str]) -> dict[str, str]:
    """Options of a topic that its copy can have at any kind of cluster."""
    found = {name: config[name] for name in _OPTIONS if name in config}
    for name, least in _LEAST.items():
        if name in found:
            found[name] = str(max(int(found[name]), least))
    if "compact" in config.get("cleanup_policy", ""):
        # Kafka keeps the newest record of each key for ever; the copy keeps all.
        found |= {"retention_ms": "-1", "retention_bytes": "-1"}
    return found


def create_like(source: ClusterClient, target: ClusterClient, topic: log_pb.Topic, tell: Tell) -> None:
    """Make a topic at the target, with the partitions and the options of the source."""
    described = source.call(TopicsStub, "DescribeTopic", topics_pb.DescribeTopicRequest(topic=topic.topic))
    request = topics_pb.CreateTopicRequest(
        topic=topic.topic, partitions=topic.partitions, config=described.config
    )
    text = f"topic {topic.topic} was made at the target, with {topic.partitions} partitions"
    try:
        try:
            target.call(TopicsStub, "CreateTopic", request)
        except InvalidArgument as error:
            # Another kind of cluster, or fewer nodes than replicas.
            options = options_of(described.config)
            request.config.clear()
            request.config.update(options)
            target.call(TopicsStub, "CreateTopic", request)
            text += f" and the options {options}: {error}"
    except TopicExists:
        return
    tell(Event("created", text, {"topic": topic.topic, "partitions": topic.partitions}))


def grow(target: ClusterClient, topic: log_pb.Topic, tell: Tell) -> None:
    """Add the partitions that a topic of the source has and its copy lacks."""
    target.call(
        TopicsStub, "AlterTopic", topics_pb.AlterTopicRequest(topic=topic.topic, partitions=topic.partitions)
    )
    text = f"topic {topic.topic} has {topic.partitions} partitions at the target from now on"
    tell(Event("grown", text, {"topic": topic.topic, "partitions": topic.partitions}))


def check_copy(
    target: ClusterClient, source_topic: log_pb.Topic, copy: log_pb.Topic, known: TopicPositions | None
) -> None:
    """Check that a topic of the target is the copy of one of the source, or empty.

    Raises:
        MirrorError: it is another one.
    """
    name = copy.topic
    if source_topic.topic_id == copy.topic_id:
        raise MirrorError(f"topic {name} is the same at source and target: they are one cluster")
    if known is not None:
        if known.target_id != copy.topic_id:
            raise MirrorError(f"topic {name} was deleted at the target and made anew: {_WAYS_OUT}")
        return
    ends = target.ends([TopicPartition(name, number) for number in range(copy.partitions)])
    written = sum(1 for end in ends.values() if end > 0)
    if written:
        raise MirrorError(
            f"topic {name} has records at the target, in {written} partitions, that this mirror has not copied: "
            f"{_WAYS_OUT}"
        )


def check_not_deleted(name: str, known: TopicPositions | None) -> None:
    """Check that a topic which the target lacks was not there before.

    Raises:
        MirrorError: it was.
    """
    if known is not None:
        raise MirrorError(f"topic {name} was deleted at the target: {_WAYS_OUT}")


_WAYS_OUT = "leave it out of --topics, or delete it and mirror everything anew under another --name"
