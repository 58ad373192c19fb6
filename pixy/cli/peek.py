"""`pixy peek`: reads stored messages without a consumer group."""

import queue
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import click

from pixy.cli.connection import CallFailed, DaemonConnection, client_command
from pixy.cli.output import json_bytes, message_line, print_json, print_line, readable_bytes

if TYPE_CHECKING:
    from pixy.proto.pixy_log_pb2 import FetchResponse, OffsetAnswer
    from pixy.proto.pixy_log_pb2_grpc import LogStub
    from pixy.records import Record

__all__ = ["peek"]

_FOLLOW_MS = 300_000
_QUERIES_MAX = 2000
"""The daemon's maxima of `max_wait_ms` and `queries`."""


@click.command()
@click.argument("topic")
@click.option("--partition", "-p", type=click.IntRange(0, (1 << 31) - 1), help="Show only this partition.")
@click.option(
    "--offset", "-o", type=click.IntRange(0, (1 << 63) - 1), help="First offset; needs --partition."
)
@click.option(
    "--from-end", type=click.IntRange(0), metavar="N", help="Show only the last N of each partition."
)
@click.option("--follow", "-f", is_flag=True, help="Keep printing new messages, until Ctrl-C.")
@client_command
def peek(
    *,
    connection: DaemonConnection,
    topic: str,
    partition: int | None,
    offset: int | None,
    from_end: int | None,
    follow: bool,
) -> None:
    """Show messages of TOPIC without consuming them: no consumer group is involved.

    One line per message, partition by partition: partition, offset, time, key, headers, a tab, and
    the value. Line ends and control characters are shown as \\n, \\x1b and so on, bytes that are
    not UTF-8 as base64:... With --json one object per line:
    topic, partition, offset, timestamp_ms, key (null: none), value (null: none), headers (a list of
    objects with key and value).
    """
    if offset is not None and partition is None:
        raise click.UsageError("--offset needs --partition")
    if offset is not None and from_end is not None:
        raise click.UsageError("--offset and --from-end are mutually exclusive")
    with connection.open_log() as stub:
        reader = _TopicReader(connection, stub, topic)
        begins, ends = reader.ranges(reader.partitions(partition))
        if offset is not None and partition is not None:
            if not begins[partition] <= offset <= ends[partition]:
                raise _out_of_range(topic, partition, offset, begins[partition], ends[partition])
            begins = {partition: offset}
        elif from_end is not None:
            begins = {number: max(begin, ends[number] - from_end) for number, begin in begins.items()}
        for number, record in reader.stored(begins, ends):
            _print_record(connection, topic, number, record)
        if follow:
            for number, record in reader.following(ends):
                _print_record(connection, topic, number, record)


@dataclass(slots=True)
class _TopicReader:
    connection: DaemonConnection
    stub: "LogStub"
    topic: str

    def partitions(self, wanted: int | None) -> list[int]:
        """All partitions of the topic, or the requested one."""
        from pixy.proto import pixy_log_pb2

        request = pixy_log_pb2.DescribeTopicsRequest(cluster=self.connection.cluster, topics=[self.topic])
        topics = self.stub.DescribeTopics(request, timeout=self.connection.timeout).topics
        if not topics:
            raise CallFailed(f"topic {self.topic} does not exist")
        count = topics[0].partitions
        if wanted is not None and wanted >= count:
            raise CallFailed(f"topic {self.topic} has no partition {wanted}, only 0 to {count - 1}")
        return list(range(count)) if wanted is None else [wanted]

    def ranges(self, partitions: Sequence[int]) -> tuple[dict[int, int], dict[int, int]]:
        """Begin and end offset of each partition; the end is exclusive."""
        from pixy.proto import pixy_log_pb2

        query = pixy_log_pb2.OffsetQuery
        queries = [query(topic=self.topic, partition=number, earliest=True) for number in partitions]
        queries += [query(topic=self.topic, partition=number, latest=True) for number in partitions]
        answers: list[OffsetAnswer] = []
        for at in range(0, len(queries), _QUERIES_MAX):
            request = pixy_log_pb2.ListOffsetsRequest(
                cluster=self.connection.cluster, queries=queries[at : at + _QUERIES_MAX]
            )
            answers += self.stub.ListOffsets(request, timeout=self.connection.timeout).answers
        begins, ends = answers[: len(partitions)], answers[len(partitions) :]
        return (
            {number: answer.offset for number, answer in zip(partitions, begins, strict=True)},
            {number: answer.offset for number, answer in zip(partitions, ends, strict=True)},
        )

    def stored(self, begins: Mapping[int, int], ends: Mapping[int, int]) -> "Iterator[tuple[int, Record]]":
        """Stored records between these offsets, partition by partition."""
        for number, begin in begins.items():
            if begin < ends[number]:
                for record in self._records(number, begin, ends[number], 0):
                    yield number, record

    def following(self, begins: Mapping[int, int]) -> "Iterator[tuple[int, Record]]":
        """Records from these offsets on, as they are written; endless."""
        found: queue.Queue[tuple[int, Record] | Exception] = queue.Queue(1000)
        for number, begin in begins.items():
            thread = threading.Thread(
                target=self._follow, args=(number, begin, found), name=f"pixy-peek-{number}", daemon=True
            )
            thread.start()
        while True:
            record = found.get()
            if isinstance(record, Exception):
                raise record
            yield record

    def _follow(self, number: int, begin: int, found: "queue.Queue[tuple[int, Record] | Exception]") -> None:
        import grpc

        try:
            while True:  # A fetch that waits ends when nothing has arrived for very long.
                for record in self._records(number, begin, -1, _FOLLOW_MS):
                    begin = record.offset + 1
                    found.put((number, record))
        except (CallFailed, grpc.RpcError) as error:
            found.put(error)
        except ValueError:
            pass  # the channel is closed: the command has ended

    def _records(self, number: int, begin: int, end: int, wait_ms: int) -> "Iterator[Record]":
        from pixy.proto import pixy_log_pb2
        from pixy.records import batch_bytes, read_records

        wanted = pixy_log_pb2.FetchRange(topic=self.topic, partition=number, from_offset=begin, to_offset=end)
        request = pixy_log_pb2.FetchRequest(
            cluster=self.connection.cluster, ranges=[wanted], max_wait_ms=wait_ms
        )
        for answer in self.stub.Fetch(request):
            at = 0
            while at < len(answer.batches):
                size = batch_bytes(answer.batches, at)
                for record in read_records(answer.batches[at : at + size]):
                    if begin <= record.offset and (record.offset < end or end < 0):
                        yield record
                at += size
            self._check(number, answer)

    def _check(self, number: int, answer: "FetchResponse") -> None:
        from pixy.proto import pixy_log_pb2

        if answer.state == pixy_log_pb2.OFFSET_OUT_OF_RANGE:
            raise _out_of_range(
                self.topic, number, answer.next_offset, answer.log_begin_offset, answer.log_end_offset
            )
        if answer.state == pixy_log_pb2.UNKNOWN_PARTITION:
            raise CallFailed(f"{self.topic}/{number} was deleted")


def _out_of_range(topic: str, partition: int, offset: int, begin: int, end: int) -> CallFailed:
    return CallFailed(f"{topic}/{partition} does not have offset {offset}: expected {begin} to {end}")


def _readable_time(timestamp_ms: int) -> str:
    """A timestamp as ISO 8601; one outside the calendar's range as a number."""
    try:
        when = datetime.fromtimestamp(timestamp_ms / 1000, UTC)
    except (ValueError, OverflowError, OSError):
        return str(timestamp_ms)
    return when.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _print_record(connection: DaemonConnection, topic: str, partition: int, record: "Record") -> None:
    if connection.as_json:
        print_json(
            {
                "topic": topic,
                "partition": partition,
                "offset": record.offset,
                "timestamp_ms": record.timestamp,
                "key": None if record.key is None else json_bytes(record.key),
                "value": None if record.value is None else json_bytes(record.value),
                "headers": [
                    {"key": name, "value": None if value is None else json_bytes(value)}
                    for name, value in record.headers
                ],
            }
        )
        return
    fields = [f"time={_readable_time(record.timestamp)}"]
    if record.key is not None:
        fields.append(f"key={readable_bytes(record.key)}")
    fields += [f"{name}={readable_bytes(value or b'')}" for name, value in record.headers]
    print_line(message_line(partition, record.offset, fields, record.value or b""))
