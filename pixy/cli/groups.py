"""`pixy groups`: lists, shows and deletes consumer groups."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import click

from pixy.cli.confirmation import confirm
from pixy.cli.connection import CallFailed, DaemonConnection, client_command, status_name
from pixy.cli.offset_changes import NOTHING_COMMITTED, offsets_of
from pixy.cli.output import print_json, print_line, print_table

if TYPE_CHECKING:
    from pixy.proto.kafkapixy_pb2 import PartitionOffset
    from pixy.proto.kafkapixy_pb2_grpc import KafkaPixyStub


@click.group()
def groups() -> None:
    """List, show or delete consumer groups."""


@groups.command("list")
@client_command
def list_(connection: DaemonConnection) -> None:
    """List the consumer groups: those with members, and those that only have offsets.

    With --json a list of names.
    """
    names = group_names(connection)
    if connection.as_json:
        print_json(names)
        return
    for name in names:
        print_line(name)


def group_names(connection: DaemonConnection) -> list[str]:
    """Names of all consumer groups, sorted."""
    from pixy.proto import pixy_topics_pb2

    request = pixy_topics_pb2.ListGroupsRequest(cluster=connection.cluster)
    with connection.open_topics() as stub:
        return sorted(stub.ListGroups(request, timeout=connection.timeout).groups)


@groups.command()
@click.argument("group")
@client_command
def show(connection: DaemonConnection, group: str) -> None:
    """Show GROUP in all topics: offset and lag of each partition, and the client that has it.

    The last line is the lag of all together. With --json an object: group, lag, topics (topic ->
    list of objects with partition, begin, end, offset, lag (null: no offset), client (null: none)).
    """
    from pixy.proto import kafkapixy_pb2

    request = kafkapixy_pb2.ListTopicRq(cluster=connection.cluster)
    found: dict[str, list[dict[str, object]]] = {}
    with connection.open() as stub:
        for topic in sorted(stub.ListTopics(request, timeout=connection.timeout).topics):
            partitions = _partitions_of(connection, stub, group, topic)
            if partitions:
                found[topic] = partitions
    if not found:
        raise CallFailed(f"consumer group {group} consumes nothing and has no offsets")
    lags = [each["lag"] for partitions in found.values() for each in partitions]
    lag = sum(each for each in lags if isinstance(each, int))
    if connection.as_json:
        print_json({"group": group, "lag": lag, "topics": found})
        return
    rows = [
        [topic, *("-" if value is None else value for value in each.values())]
        for topic, partitions in found.items()
        for each in partitions
    ]
    print_table(["TOPIC", "PARTITION", "BEGIN", "END", "OFFSET", "LAG", "CLIENT"], rows)
    print_line(f"lag {lag} in {len(found)} topic{'' if len(found) == 1 else 's'}")


@groups.command()
@click.argument("group")
@click.option("--topic", "-t", default="", help="Delete its offsets in this topic alone.")
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
@client_command
def delete(connection: DaemonConnection, group: str, topic: str, yes: bool) -> None:
    """Delete GROUP: the offsets that it has committed, in all topics or with --topic in one.

    It starts anew when it consumes again. Refused while it has consumers; a client counts as one
    for a while after its last call (consumer.subscription_timeout). Asks for confirmation; without
    a terminal, --yes is required. With --json an object: group, topic (null: all).
    """
    delete_offsets(connection, group, topic, yes=yes)


def delete_offsets(connection: DaemonConnection, group: str, topic: str, *, yes: bool) -> None:
    """Delete the offsets of a group in a topic, or with an empty name in all, and say so.

    Args:
        yes: do not ask before.
    """
    from pixy.proto import pixy_topics_pb2

    if not yes:
        where = f"topic {topic}" if topic else "all topics"
        confirm(
            f"Delete the committed offsets of {group} in {where}?", f"offsets of {group} were not deleted"
        )
    request = pixy_topics_pb2.DeleteGroupRequest(cluster=connection.cluster, group=group, topic=topic)
    with connection.open_topics() as stub:
        stub.DeleteGroup(request, timeout=connection.timeout)
    done = f"deleted offsets of {group} in {topic}" if topic else f"deleted {group}"
    connection.tell({"group": group, "topic": topic or None}, done)


def _partitions_of(
    connection: DaemonConnection, stub: "KafkaPixyStub", group: str, topic: str
) -> list[dict[str, object]]:
    """Partitions of a topic in which the group has an offset, or which a member has."""
    import grpc

    try:
        offsets = offsets_of(connection, stub, group, topic)
        owners = _owners(connection, stub, group, topic)
    except grpc.RpcError as error:
        if status_name(error) != "NOT_FOUND":
            raise
        return []  # deleted meanwhile
    return _rows(offsets, owners)


def _owners(connection: DaemonConnection, stub: "KafkaPixyStub", group: str, topic: str) -> dict[int, str]:
    """Client by partition."""
    from pixy.proto import kafkapixy_pb2

    request = kafkapixy_pb2.ListConsumersRq(cluster=connection.cluster, topic=topic)
    members = stub.ListConsumers(request, timeout=connection.timeout).groups[group].consumers
    return {partition: client for client, held in members.items() for partition in held.partitions}


def _rows(offsets: "Sequence[PartitionOffset]", owners: Mapping[int, str]) -> list[dict[str, object]]:
    return [
        {
            "partition": each.partition,
            "begin": each.begin,
            "end": each.end,
            "offset": None if each.offset == NOTHING_COMMITTED else each.offset,
            "lag": None if each.offset == NOTHING_COMMITTED else each.lag,
            "client": owners.get(each.partition),
        }
        for each in offsets
        if each.offset != NOTHING_COMMITTED or each.partition in owners
    ]
