"""`pixy topics purge`: removes the older records of a topic.

Offsets are found here, so that a dry run knows what would go. The end is that of the moment at
which it is asked for: records that come meanwhile stay.
"""

import re
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

import click

from pixy.cli.confirmation import confirm
from pixy.cli.connection import CallFailed, DaemonConnection, client_command, no_partition
from pixy.cli.output import print_json, print_line, print_table
from pixy.cli.peek import list_offsets
from pixy.cli.times import parse_time_ms
from pixy.elements_per_call import ELEMENTS_PER_CALL

if TYPE_CHECKING:
    from pixy.proto.pixy_topics_pb2 import PartitionDescription


class PurgedPartition(NamedTuple):
    """The records that go from one partition: those from `begin` to `before`."""

    partition: int
    begin: int
    end: int
    before: int

    @property
    def removed(self) -> int:
        """Offsets that go, of which some may have had no record."""
        return max(0, self.before - self.begin)


@click.command()
@click.argument("topic")
@click.option(
    "--partition",
    "-p",
    "numbers",
    multiple=True,
    type=click.IntRange(0, (1 << 31) - 1),
    help="Partition; repeatable. [default: all]",
)
@click.option(
    "--before",
    metavar="OFFSET|TIME",
    help="Remove the records below OFFSET, or before the first one at or after TIME, or so long ago: 168h. "
    "[default: all records]",
)
@click.option("--dry-run", is_flag=True, help="Show how many records would go, and remove nothing.")
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
@client_command
def purge(
    connection: DaemonConnection,
    topic: str,
    numbers: tuple[int, ...],
    before: str | None,
    dry_run: bool,
    yes: bool,
) -> None:
    """Remove the records of TOPIC below an offset or before a time, or all of them.

    Topic, partitions and committed offsets stay; consumer groups that are behind go on with the
    first record that is left. The disk has the room again when whole segments are removed. Asks for
    confirmation; without a terminal, --yes is required. With --json a list of objects: partition,
    begin, end, before (the begin from then on), removed.
    """
    if before is not None and re.fullmatch(r"[0-9]+", before) and not numbers:
        raise click.UsageError("--before OFFSET needs --partition")
    planned = _plan(connection, topic, numbers, before)
    count = sum(each.removed for each in planned)
    if not dry_run:
        if count and not yes:
            question = f"Remove {count} records of topic {topic} for good?"
            confirm(question, f"nothing of {topic} was removed")
        _remove(connection, topic, [each for each in planned if each.removed])
    _print(connection, topic, planned, "would be removed" if dry_run else "removed")


def _plan(
    connection: DaemonConnection, topic: str, numbers: Sequence[int], before: str | None
) -> list[PurgedPartition]:
    from pixy.proto import pixy_topics_pb2

    request = pixy_topics_pb2.DescribeTopicRequest(cluster=connection.cluster, topic=topic)
    with connection.open_topics() as stub:
        found = {
            each.partition: each
            for each in stub.DescribeTopic(request, timeout=connection.timeout).partitions
        }
    for number in numbers:
        if number not in found:
            raise no_partition(topic, number, len(found))
    wanted = {number: found[number] for number in sorted({*numbers} or found)}
    for number, each in wanted.items():
        if not each.HasField("offsets"):
            raise CallFailed(f"the offsets of {topic}/{number} are not known: try again")
    befores = _befores(connection, topic, wanted, before)
    return [
        PurgedPartition(
            number, each.offsets.begin, each.offsets.end, max(each.offsets.begin, befores[number])
        )
        for number, each in wanted.items()
    ]


def _befores(
    connection: DaemonConnection, topic: str, wanted: "Mapping[int, PartitionDescription]", before: str | None
) -> Mapping[int, int]:
    """Offsets below which records go."""
    ends = {number: each.offsets.end for number, each in wanted.items()}
    if before is None:
        return ends
    if re.fullmatch(r"[0-9]+", before):
        for number, end in ends.items():
            if int(before) > end:
                raise CallFailed(f"partition {number} of {topic} ends at {end}, before offset {before}")
        return dict.fromkeys(ends, int(before))
    from pixy.proto import pixy_log_pb2

    try:
        timestamp_ms = parse_time_ms(before, round(time.time() * 1000))
    except ValueError as error:
        raise click.UsageError(f"--before: {error}") from None
    queries = [
        pixy_log_pb2.OffsetQuery(topic=topic, partition=number, timestamp_ms=timestamp_ms) for number in ends
    ]
    with connection.open_log() as stub:
        answers = list_offsets(connection, stub, queries)
    return {
        number: ends[number] if answer.offset < 0 else answer.offset
        for number, answer in zip(ends, answers, strict=True)
    }


def _remove(connection: DaemonConnection, topic: str, planned: Sequence[PurgedPartition]) -> None:
    from pixy.proto import pixy_topics_pb2

    partitions = [
        pixy_topics_pb2.RecordsToDelete(partition=each.partition, before_offset=each.before)
        for each in planned
    ]
    with connection.open_topics() as stub:
        for at in range(0, len(partitions), ELEMENTS_PER_CALL):
            request = pixy_topics_pb2.DeleteRecordsRequest(
                cluster=connection.cluster, topic=topic, partitions=partitions[at : at + ELEMENTS_PER_CALL]
            )
            stub.DeleteRecords(request, timeout=connection.timeout)


def _print(connection: DaemonConnection, topic: str, planned: Sequence[PurgedPartition], done: str) -> None:
    if connection.as_json:
        print_json([{**each._asdict(), "removed": each.removed} for each in planned])
        return
    rows = [[each.partition, each.begin, each.end, each.before, each.removed] for each in planned]
    print_table(["PARTITION", "BEGIN", "END", "BEFORE", "REMOVED"], rows)
    count = sum(each.removed for each in planned)
    print_line(f"{count} record{'' if count == 1 else 's'} of {topic} {done}")
