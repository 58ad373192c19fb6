"""`pixy topics` and `pixy consumers`: what there is, and who reads it."""

from typing import TYPE_CHECKING, Any

import click

from pixy.cli.connection import Connection, client_command
from pixy.cli.output import print_json, print_table

if TYPE_CHECKING:
    from pixy.proto.kafkapixy_pb2 import GetTopicMetadataRs

__all__ = ["consumers", "topics"]


@click.group()
def topics() -> None:
    """List topics, or show one."""


@topics.command("list")
@client_command
def list_(connection: Connection) -> None:
    """List the topics and how many partitions each one has.

    With --json an object: topic -> version, config, partitions.
    """
    from pixy.proto import kafkapixy_pb2

    request = kafkapixy_pb2.ListTopicRq(cluster=connection.cluster, with_partitions=True)
    with connection.open() as stub:
        found = dict(stub.ListTopics(request, timeout=connection.timeout).topics)
    if connection.as_json:
        print_json({name: _described(found[name]) for name in sorted(found)})
    else:
        print_table(["TOPIC", "PARTITIONS"], [[name, len(found[name].partitions)] for name in sorted(found)])


@topics.command()
@click.argument("topic")
@client_command
def show(connection: Connection, topic: str) -> None:
    """Show the partitions and the options of TOPIC."""
    from pixy.proto import kafkapixy_pb2

    request = kafkapixy_pb2.GetTopicMetadataRq(cluster=connection.cluster, topic=topic, with_partitions=True)
    with connection.open() as stub:
        found = stub.GetTopicMetadata(request, timeout=connection.timeout)
    if connection.as_json:
        print_json(_described(found))
        return
    rows = [[p.partition, p.leader, _numbers(p.replicas), _numbers(p.isr)] for p in found.partitions]
    print_table(["PARTITION", "LEADER", "REPLICAS", "IN SYNC"], rows)
    if found.config:
        click.echo()
        print_table(["OPTION", "VALUE"], sorted(found.config.items()))


@click.command()
@click.argument("topic")
@click.option("--group", "-g", default="", help="Only this consumer group.")
@client_command
def consumers(connection: Connection, topic: str, group: str) -> None:
    """List who consumes TOPIC, and which partitions each consumer has.

    With --json an object: consumer group -> client -> partitions.
    """
    from pixy.proto import kafkapixy_pb2

    request = kafkapixy_pb2.ListConsumersRq(cluster=connection.cluster, topic=topic, group=group)
    with connection.open() as stub:
        groups = stub.ListConsumers(request, timeout=connection.timeout).groups
    found = {
        name: {client: sorted(held.partitions) for client, held in sorted(members.consumers.items())}
        for name, members in sorted(groups.items())
    }
    if connection.as_json:
        print_json(found)
    else:
        rows = [
            [name, client, _numbers(held)]
            for name, held_by in found.items()
            for client, held in held_by.items()
        ]
        print_table(["GROUP", "CLIENT", "PARTITIONS"], rows)


def _described(topic: "GetTopicMetadataRs") -> dict[str, Any]:
    return {
        "version": topic.version,
        "config": dict(sorted(topic.config.items())),
        "partitions": [
            {"partition": p.partition, "leader": p.leader, "replicas": list(p.replicas), "isr": list(p.isr)}
            for p in topic.partitions
        ],
    }


def _numbers(values: Any) -> str:
    return ",".join(map(str, values))
