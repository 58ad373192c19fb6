"""`pixy topics` and `pixy consumers`: lists, creates, alters and deletes topics, and lists
consumers. What it removes of a topic is in `purge`.
"""

import re
from typing import TYPE_CHECKING, Any

import click

from pixy.cli.confirmation import confirm
from pixy.cli.connection import CallFailed, DaemonConnection, client_command, status_name
from pixy.cli.groups import group_names
from pixy.cli.moves import shown_move, status_of
from pixy.cli.output import print_json, print_line, print_table
from pixy.cli.purge import purge

if TYPE_CHECKING:
    from pixy.proto.kafkapixy_pb2 import GetTopicMetadataRs
    from pixy.proto.kafkapixy_pb2_grpc import KafkaPixyStub
    from pixy.proto.pixy_topics_pb2 import PartitionDescription, TopicDescription

_NUMBER = re.compile(r"-?[0-9]+")


class TopicOption(click.ParamType[tuple[str, str]]):
    """`NAME=VALUE`, with pixy's or Kafka's spelling of the name, and a number with or without a
    unit.
    """

    name = "NAME=VALUE"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, str]:
        name, sign, written = str(value).partition("=")
        if not name or not sign:
            self.fail(f"{value!r} is not NAME=VALUE", param, ctx)
        name = name.replace(".", "_")
        try:
            return name, _option_value(name, written.strip())
        except ValueError as error:
            self.fail(f"{name} {error}", param, ctx)


def _option_value(name: str, written: str) -> str:
    """A duration in milliseconds or a size in bytes; a value without a unit is sent as it is.

    Raises:
        ValueError: the text continues the option's name.
    """
    from pixy.config import parse_bytes, parse_duration

    if _NUMBER.fullmatch(written):
        return written
    if name.endswith("_ms"):
        milliseconds = parse_duration(written) * 1000
        if abs(milliseconds - round(milliseconds)) > 1e-6:
            raise ValueError(f"is {written}, which is not a whole number of milliseconds")
        return str(round(milliseconds))
    return str(parse_bytes(written)) if name.endswith("_bytes") else written


_config = click.option(
    "--config",
    multiple=True,
    type=TopicOption(),
    help="Option of the topic, such as retention_ms=168h or segment_bytes=64MiB; repeatable.",
)


@click.group()
def topics() -> None:
    """List, show, create, change, purge or delete topics."""


topics.add_command(purge)


@topics.command("list")
@client_command
def list_(connection: DaemonConnection) -> None:
    """List the topics with their number of partitions.

    With --json an object: topic -> version, config, partitions.
    """
    from pixy.proto import kafkapixy_pb2

    request = kafkapixy_pb2.ListTopicRq(cluster=connection.cluster, with_partitions=True)
    with connection.open() as stub:
        found = dict(stub.ListTopics(request, timeout=connection.timeout).topics)
    if connection.as_json:
        print_json({name: _metadata(found[name]) for name in sorted(found)})
    else:
        print_table(["TOPIC", "PARTITIONS"], [[name, len(found[name].partitions)] for name in sorted(found)])


@topics.command()
@click.argument("topic")
@client_command
def show(connection: DaemonConnection, topic: str) -> None:
    """Show the partitions of TOPIC with their offsets, and its options.

    With --json an object: topic, topic_id, version, config, partitions.
    """
    from pixy.proto import pixy_topics_pb2

    request = pixy_topics_pb2.DescribeTopicRequest(cluster=connection.cluster, topic=topic)
    with connection.open_topics() as stub:
        found = stub.DescribeTopic(request, timeout=connection.timeout)
    if connection.as_json:
        print_json(_described(found))
        return
    moves = any(p.moves_to for p in found.partitions)
    rows = [
        [
            p.partition,
            p.leader if p.leader >= 0 else "none",
            _numbers(p.replicas),
            _numbers(p.isr),
            *([_numbers(p.moves_to) or "-"] if moves else ()),
            *_shown_offsets(p),
        ]
        for p in found.partitions
    ]
    where = ["REPLICAS", "IN SYNC", *(["MOVES TO"] if moves else ())]
    print_table(["PARTITION", "LEADER", *where, "BEGIN", "END"], rows)
    if moves:
        print_line("")
        for each in status_of(connection).moves:
            if each.topic == topic:
                print_line(f"partition {each.partition} {shown_move(each)}")
    if found.config:
        print_line("")
        print_table(["OPTION", "VALUE"], sorted(found.config.items()))


@topics.command()
@click.argument("topic")
@click.option(
    "--partitions",
    type=click.IntRange(min=1, max=(1 << 31) - 1),
    help="Number of partitions. [default: the cluster's default_partitions]",
)
@_config
@client_command
def create(
    connection: DaemonConnection, topic: str, partitions: int | None, config: tuple[tuple[str, str], ...]
) -> None:
    """Create TOPIC.

    Options of a topic take precedence over the cluster's: retention_ms, retention_bytes,
    segment_bytes, segment_ms; replication is the number of replicas, at most that of the nodes.
    With cleanup_policy=compact all messages are kept, as nothing is compacted. Kafka's names
    (retention.ms) are accepted too. With --json an object as of `topics show`, without offsets.
    """
    from pixy.proto import pixy_topics_pb2

    request = pixy_topics_pb2.CreateTopicRequest(
        cluster=connection.cluster, topic=topic, partitions=partitions or 0, config=_named_once(config)
    )
    with connection.open_topics() as stub:
        _print_done(connection, "created", stub.CreateTopic(request, timeout=connection.timeout))


@topics.command()
@click.argument("topic")
@click.option(
    "--partitions",
    type=click.IntRange(min=1, max=(1 << 31) - 1),
    help="New number of partitions; it can only grow.",
)
@_config
@click.option(
    "--unset",
    multiple=True,
    metavar="NAME",
    help="Option to reset to the cluster's value; repeatable.",
)
@client_command
def alter(
    connection: DaemonConnection,
    topic: str,
    partitions: int | None,
    config: tuple[tuple[str, str], ...],
    unset: tuple[str, ...],
) -> None:
    """Change the number of partitions or the options of TOPIC, or both at once.

    More partitions move keys to other partitions: order of messages with the same key holds only
    from then on. Options are those of `topics create`; replicas stay as they are, unless the
    cluster can move them. With --json an object as of `topics show`, without offsets.
    """
    from pixy.proto import pixy_topics_pb2

    if partitions is None and not config and not unset:
        raise click.UsageError("nothing to change: give --partitions, --config or --unset")
    request = pixy_topics_pb2.AlterTopicRequest(
        cluster=connection.cluster,
        topic=topic,
        partitions=partitions or 0,
        set=_named_once(config),
        unset=unset,
    )
    with connection.open_topics() as stub:
        _print_done(connection, "changed", stub.AlterTopic(request, timeout=connection.timeout))


@topics.command()
@click.argument("topic")
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
@click.option(
    "--force",
    is_flag=True,
    help="Delete even if messages are staged for it, which are lost, or nodes with replicas of it cannot be reached, "
    "which may acknowledge further ones until they hear of it.",
)
@client_command
def delete(connection: DaemonConnection, topic: str, yes: bool, force: bool) -> None:
    """Delete TOPIC with all its messages, and the offsets that consumer groups have committed in
    it.

    Asks for confirmation; without a terminal, --yes is required. With --json an object: topic.
    """
    from pixy.proto import pixy_topics_pb2

    if not yes:
        question = f"Delete topic {topic} with all its messages and committed offsets?"
        confirm(question, f"{topic} was not deleted")
    request = pixy_topics_pb2.DeleteTopicRequest(cluster=connection.cluster, topic=topic, force=force)
    with connection.open_topics() as stub:
        stub.DeleteTopic(request, timeout=connection.timeout)
    connection.tell({"topic": topic}, f"deleted {topic}")


@click.command()
@click.argument("topic", required=False)
@click.option("--group", "-g", default="", help="Show only this consumer group.")
@client_command
def consumers(connection: DaemonConnection, topic: str | None, group: str) -> None:
    """List the consumers of TOPIC with their partitions, or without TOPIC all consumer groups.

    A group without members, which only has committed offsets, is shown with - for its topic and
    client. With --json an object: consumer group -> client -> partitions; without TOPIC: consumer
    group -> topic -> client -> partitions.
    """
    with connection.open() as stub:
        if topic is not None:
            _print_consumers(connection, _consumers(connection, stub, topic, group))
            return
        by_topic = {
            name: _consumers_of_any(connection, stub, name) for name in sorted(_topic_names(connection, stub))
        }
    known = {*group_names(connection), *(name for found in by_topic.values() for name in found)}
    groups = sorted(name for name in known if group in ("", name))
    if group and not groups:
        raise CallFailed(f"consumer group {group} consumes nothing")
    found = {name: {topic: held[name] for topic, held in by_topic.items() if name in held} for name in groups}
    if connection.as_json:
        print_json(found)
    else:
        rows = [
            [name, topic, client, _numbers(held)]
            for name, topics in found.items()
            for topic, held_by in (topics or {"-": {"-": []}}).items()
            for client, held in held_by.items()
        ]
        print_table(["GROUP", "TOPIC", "CLIENT", "PARTITIONS"], rows)


def _topic_names(connection: DaemonConnection, stub: "KafkaPixyStub") -> list[str]:
    from pixy.proto import kafkapixy_pb2

    request = kafkapixy_pb2.ListTopicRq(cluster=connection.cluster)
    return list(stub.ListTopics(request, timeout=connection.timeout).topics)


def _consumers(
    connection: DaemonConnection, stub: "KafkaPixyStub", topic: str, group: str
) -> dict[str, dict[str, list[int]]]:
    """Consumer group -> client -> partitions of a topic."""
    from pixy.proto import kafkapixy_pb2

    request = kafkapixy_pb2.ListConsumersRq(cluster=connection.cluster, topic=topic, group=group)
    groups = stub.ListConsumers(request, timeout=connection.timeout).groups
    return {
        name: {client: sorted(held.partitions) for client, held in sorted(members.consumers.items())}
        for name, members in sorted(groups.items())
    }


def _consumers_of_any(
    connection: DaemonConnection, stub: "KafkaPixyStub", topic: str
) -> dict[str, dict[str, list[int]]]:
    """As `_consumers`, for every group; empty if the topic has been deleted meanwhile."""
    import grpc

    try:
        return _consumers(connection, stub, topic, "")
    except grpc.RpcError as error:
        if status_name(error) != "NOT_FOUND":
            raise
        return {}


def _print_consumers(connection: DaemonConnection, found: dict[str, dict[str, list[int]]]) -> None:
    if connection.as_json:
        print_json(found)
        return
    rows = [
        [name, client, _numbers(held)] for name, held_by in found.items() for client, held in held_by.items()
    ]
    print_table(["GROUP", "CLIENT", "PARTITIONS"], rows)


def _named_once(config: tuple[tuple[str, str], ...]) -> dict[str, str]:
    names = [name for name, _ in config]
    for name in names:
        if names.count(name) > 1:
            raise click.UsageError(f"--config {name} is given more than once")
    return dict(config)


def _print_done(connection: DaemonConnection, done: str, topic: "TopicDescription") -> None:
    if connection.as_json:
        print_json(_described(topic))
        return
    count = len(topic.partitions)
    words = [f"{count} partition{'' if count == 1 else 's'}"]
    words += [f"{name}={value}" for name, value in sorted(topic.config.items())]
    print_line(f"{done} {topic.topic}: {', '.join(words)}")


def _metadata(topic: "GetTopicMetadataRs | TopicDescription") -> dict[str, Any]:
    return {
        "version": topic.version,
        "config": dict(sorted(topic.config.items())),
        "partitions": [
            {"partition": p.partition, "leader": p.leader, "replicas": list(p.replicas), "isr": list(p.isr)}
            for p in topic.partitions
        ],
    }


def _described(topic: "TopicDescription") -> dict[str, Any]:
    described = {"topic": topic.topic, "topic_id": topic.topic_id.hex(), **_metadata(topic)}
    for shown, partition in zip(described["partitions"], topic.partitions, strict=True):
        if partition.HasField("offsets"):
            shown |= {"begin": partition.offsets.begin, "end": partition.offsets.end}
        if partition.moves_to:
            shown["moves_to"] = list(partition.moves_to)
    return described


def _shown_offsets(partition: "PartitionDescription") -> list[object]:
    if not partition.HasField("offsets"):
        return ["-", "-"]
    return [partition.offsets.begin, partition.offsets.end]


def _numbers(values: Any) -> str:
    return ",".join(map(str, values))
