"""`pixy top`: rates, lag and size of topics and consumer groups, and disks of nodes, live."""

import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from pixy.cli.connection import DaemonConnection, client_command, no_reconnect_option, status_name
from pixy.cli.offset_changes import NOTHING_COMMITTED, offsets_of
from pixy.cli.output import counted, print_json, print_line, print_table
from pixy.cli.reconnection import ReconnectingStub

if TYPE_CHECKING:
    import grpc

    from pixy.proto.kafkapixy_pb2_grpc import KafkaPixyStub
    from pixy.proto.pixy_cluster_pb2_grpc import ClusterStub
    from pixy.proto.pixy_topics_pb2 import OffsetRange
    from pixy.proto.pixy_topics_pb2_grpc import TopicsStub

_INTERVAL_SECONDS = 2.0
_CLEAR = "\x1b[H\x1b[2J"


@dataclass(frozen=True, slots=True)
class _Services:
    kafka_pixy: "KafkaPixyStub"
    topics: "TopicsStub"
    cluster: "ClusterStub"


class _Disk(NamedTuple):
    """Disk of a node."""

    node_id: int
    address: str
    total_bytes: int
    free_bytes: int


@dataclass(slots=True)
class _Sample:
    """Offsets of one moment: of partitions that have a leader by topic and number; position and lag
    by group and topic, in messages.
    """

    seconds: float
    partitions: dict[str, int] = field(default_factory=dict)
    offsets: dict[str, Mapping[int, "OffsetRange"]] = field(default_factory=dict)
    positions: dict[tuple[str, str], int] = field(default_factory=dict)
    lags: dict[tuple[str, str], int] = field(default_factory=dict)
    # None: the nodes of a Kafka cluster do not tell.
    disks: list[_Disk] | None = None


@click.command()
@click.option(
    "--interval",
    "-d",
    type=click.FloatRange(min=0.1),
    default=_INTERVAL_SECONDS,
    show_default=True,
    metavar="SECONDS",
    help="Time between two looks, over which rates are taken.",
)
@click.option(
    "--count", "-n", type=click.IntRange(min=0), default=0, help="Number of looks; 0: until Ctrl-C."
)
@no_reconnect_option
@client_command
def top(connection: DaemonConnection, interval: float, count: int, no_reconnect: bool) -> None:
    """Show messages a second, lag and disks of topics, consumer groups and nodes, until Ctrl-C.

    Topics with the most messages a second come first, and groups with the most lag. On a terminal
    each look replaces the one before. The disk of a node is the file system with its data. With
    --json one object a look: topics (topic, partitions, messages, rate), groups (group, topic, lag,
    rate), disks (node_id, address, total_bytes, free_bytes; null for Kafka); a rate is messages a
    second.
    """
    from pixy.proto.kafkapixy_pb2_grpc import KafkaPixyStub
    from pixy.proto.pixy_cluster_pb2_grpc import ClusterStub
    from pixy.proto.pixy_topics_pb2_grpc import TopicsStub

    def make(channel: "grpc.Channel") -> _Services:
        return _Services(KafkaPixyStub(channel), TopicsStub(channel), ClusterStub(channel))

    with ReconnectingStub(connection, make, reconnects=not no_reconnect) as link:
        samples = _samples(connection, link, interval, time.monotonic, time.sleep)
        before = next(samples)
        for number, sample in enumerate(samples, start=1):
            _print_look(connection, before, sample)
            before = sample
            if number == count:
                break


def _samples(
    connection: DaemonConnection,
    link: ReconnectingStub[_Services],
    interval: float,
    clock: Callable[[], float],
    sleep: Callable[[float], None],
) -> Iterator[_Sample]:
    """A sample, and one more after each interval."""
    import grpc

    while True:
        try:
            sample = _take_sample(connection, link.stub, clock)
        except grpc.RpcError as error:
            if not link.again(error):
                raise
            continue
        link.answered()
        yield sample
        sleep(interval)


def _take_sample(connection: DaemonConnection, services: _Services, clock: Callable[[], float]) -> _Sample:
    import grpc

    from pixy.proto import kafkapixy_pb2, pixy_topics_pb2

    cluster, timeout = connection.cluster, connection.timeout
    request = kafkapixy_pb2.ListTopicRq(cluster=cluster)
    topics = sorted(services.kafka_pixy.ListTopics(request, timeout=timeout).topics)
    groups_request = pixy_topics_pb2.ListGroupsRequest(cluster=cluster)
    groups = sorted(services.topics.ListGroups(groups_request, timeout=timeout).groups)
    sample = _Sample(clock(), disks=_disks_of(connection, services))
    for topic in topics:
        try:
            _add_topic(connection, services, sample, topic, groups)
        except grpc.RpcError as error:
            if status_name(error) != "NOT_FOUND":
                raise  # else it was deleted meanwhile
    return sample


def _disks_of(connection: DaemonConnection, services: _Services) -> list[_Disk] | None:
    import grpc

    from pixy.proto import pixy_cluster_pb2

    request = pixy_cluster_pb2.StatusRequest(cluster=connection.cluster)
    try:
        nodes = services.cluster.Status(request, timeout=connection.timeout).nodes
    except grpc.RpcError as error:
        if status_name(error) not in ("FAILED_PRECONDITION", "UNIMPLEMENTED"):
            raise
        return None
    return [
        _Disk(node.node_id, node.grpc_address or connection.address, node.disk_bytes, node.disk_free_bytes)
        for node in nodes
        if node.disk_bytes
    ]


def _add_topic(
    connection: DaemonConnection, services: _Services, sample: _Sample, topic: str, groups: list[str]
) -> None:
    from pixy.proto import pixy_topics_pb2

    request = pixy_topics_pb2.DescribeTopicRequest(cluster=connection.cluster, topic=topic)
    found = services.topics.DescribeTopic(request, timeout=connection.timeout).partitions
    sample.partitions[topic] = len(found)
    sample.offsets[topic] = {each.partition: each.offsets for each in found if each.HasField("offsets")}
    for group in groups:
        offsets = [
            each
            for each in offsets_of(connection, services.kafka_pixy, group, topic)
            if each.offset != NOTHING_COMMITTED
        ]
        if offsets:
            sample.positions[group, topic] = sum(each.offset for each in offsets)
            sample.lags[group, topic] = sum(each.lag for each in offsets)


def _print_look(connection: DaemonConnection, before: _Sample, sample: _Sample) -> None:
    """Print rates between two samples, and the lag of the later one."""
    seconds = max(sample.seconds - before.seconds, 1e-9)
    topics = _topic_rows(before, sample, seconds)
    groups = [
        {
            "group": group,
            "topic": topic,
            "lag": lag,
            "rate": _rate(before.positions, sample.positions, (group, topic), seconds),
        }
        for (group, topic), lag in sorted(sample.lags.items(), key=lambda item: (-item[1], item[0]))
    ]
    if connection.as_json:
        disks = None if sample.disks is None else [disk._asdict() for disk in sample.disks]
        print_json({"topics": topics, "groups": groups, "disks": disks})
        return
    if sys.stdout.isatty():
        click.echo(_CLEAR, nl=False)
    lag = sum(sample.lags.values())
    rate = sum(each["rate"] for each in topics)
    groups_seen = counted(len({name for name, _ in sample.lags}), "group")
    print_line(f"{counted(len(topics), 'topic')}, {rate} messages/s, {groups_seen}, lag {lag}")
    print_line("")
    print_table(["TOPIC", "PARTITIONS", "MESSAGES", "RATE/S"], [list(each.values()) for each in topics])
    print_line("")
    print_table(["GROUP", "TOPIC", "LAG", "RATE/S"], [list(each.values()) for each in groups])
    if sample.disks:
        print_line("")
        print_table(["NODE", "ADDRESS", "DISK", "FREE", "USED"], [_disk_row(disk) for disk in sample.disks])


def _disk_row(disk: _Disk) -> list[object]:
    used = round(100 * (1 - disk.free_bytes / disk.total_bytes))
    return [
        disk.node_id,
        disk.address,
        _gibibytes(disk.total_bytes),
        _gibibytes(disk.free_bytes),
        f"{used} %",
    ]


def _gibibytes(size: int) -> str:
    return f"{size / (1 << 30):.1f} GiB"


def _topic_rows(before: _Sample, sample: _Sample, seconds: float) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    for topic, offsets in sample.offsets.items():
        earlier = before.offsets.get(topic, {})
        written = sum(offsets[number].end - earlier[number].end for number in offsets.keys() & earlier)
        rows.append(
            {
                "topic": topic,
                "partitions": sample.partitions[topic],
                "messages": sum(each.end - each.begin for each in offsets.values()),
                "rate": round(written / seconds),
            }
        )
    return sorted(rows, key=lambda row: (-row["rate"], row["topic"]))


def _rate(before: Mapping[Any, int], after: Mapping[Any, int], key: Any, seconds: float) -> int:
    """Messages a second; of a group that is new, from its first look on."""
    return round((after[key] - before.get(key, after[key])) / seconds)
