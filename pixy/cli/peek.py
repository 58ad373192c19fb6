"""`pixy peek`: reads stored messages without a consumer group."""

import queue
import re
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import click

from pixy.cli.connection import (
    CallFailed,
    DaemonConnection,
    client_command,
    no_partition,
    no_reconnect_option,
)
from pixy.cli.message_output import MessageOutput, ShownMessage, output_options, separator_of
from pixy.cli.output import readable_bytes
from pixy.cli.reconnection import ReconnectingStub
from pixy.cli.times import parse_time_ms
from pixy.elements_per_call import ELEMENTS_PER_CALL

if TYPE_CHECKING:
    from pixy.proto.pixy_log_pb2 import FetchResponse, OffsetAnswer, OffsetQuery
    from pixy.proto.pixy_log_pb2_grpc import LogStub
    from pixy.records import Record

_FOLLOW_MS = 300_000
"""The daemon's maximum of `max_wait_ms`."""


@click.command()
@click.argument("topic")
@click.option("--partition", "-p", type=click.IntRange(0, (1 << 31) - 1), help="Show only this partition.")
@click.option(
    "--offset", "-o", type=click.IntRange(0, (1 << 63) - 1), help="First offset; needs --partition."
)
@click.option(
    "--from-end", type=click.IntRange(0), metavar="N", help="Show only the last N of each partition."
)
@click.option(
    "--since", metavar="TIME", help="Begin with the first message at or after TIME, or so long ago: 1h30m."
)
@click.option(
    "--until", metavar="TIME|OFFSET", help="End before the first message at or after TIME, or before OFFSET."
)
@click.option("--follow", "-f", is_flag=True, help="Keep printing new messages, until Ctrl-C.")
@no_reconnect_option
@output_options
@client_command
def peek(
    *,
    connection: DaemonConnection,
    topic: str,
    partition: int | None,
    offset: int | None,
    from_end: int | None,
    since: str | None,
    until: str | None,
    follow: bool,
    no_reconnect: bool,
    key_separator: str | None,
    raw: bool,
    null_separated: bool,
) -> None:
    """Show messages of TOPIC without consuming them: no consumer group is involved.

    One line per message, partition by partition: partition, offset, time, key, headers, a tab, and
    the value; value=null before the tab for a null value. Line ends and control characters are
    shown as \\n, \\x1b and so on, bytes that are not UTF-8 as base64:... With --key-separator or
    --raw only keys and values are shown. With --json one object per line: topic, partition, offset,
    timestamp_ms, key (null: none), value (null: null), headers (a list of objects with key and
    value); `pixy produce --from-json` takes these.

    A TIME is like 2026-01-31T12:00:00Z, or a duration ago.
    """
    from pixy.proto.pixy_log_pb2_grpc import LogStub

    _check_range(partition, offset, from_end, since, until, follow)
    separator, end = separator_of(key_separator), b"\0" if null_separated else b"\n"
    fields = None if raw or separator is not None else _fields
    output = MessageOutput(connection.as_json, fields, separator, raw, end)
    with ReconnectingStub(connection, LogStub, reconnects=not no_reconnect) as link:
        reader = _TopicReader(connection, link, topic)
        partitions = reader.partitions(partition)
        begins, ends = reader.ranges(partitions)
        if offset is not None and partition is not None:
            if not begins[partition] <= offset <= ends[partition]:
                raise _out_of_range(topic, partition, offset, begins[partition], ends[partition])
            begins = {partition: offset}
        elif from_end is not None:
            begins = {number: max(begin, ends[number] - from_end) for number, begin in begins.items()}
        elif since is not None:
            begins = reader.at_time(_time_ms(since), ends)
        if until is not None and re.fullmatch(r"[0-9]+", until):
            ends = {number: min(int(until), end) for number, end in ends.items()}
        elif until is not None:
            ends = reader.at_time(_time_ms(until), ends)
        for number, record in reader.stored(begins, ends):
            output.add(_shown(topic, number, record))
        output.flush()
        if follow:
            reader.follow(ends, output)


def _check_range(
    partition: int | None,
    offset: int | None,
    from_end: int | None,
    since: str | None,
    until: str | None,
    follow: bool,
) -> None:
    begins = {"--offset": offset, "--from-end": from_end, "--since": since}
    given = [name for name, value in begins.items() if value is not None]
    if offset is not None and partition is None:
        raise click.UsageError("--offset needs --partition")
    if len(given) > 1:
        raise click.UsageError(f"{' and '.join(given)} are mutually exclusive")
    if until is not None and follow:
        raise click.UsageError("--until and --follow are mutually exclusive")
    if until is not None and re.fullmatch(r"[0-9]+", until) and partition is None:
        raise click.UsageError("--until OFFSET needs --partition")


def _time_ms(text: str) -> int:
    try:
        return parse_time_ms(text, time.time_ns() // 1_000_000)
    except ValueError as error:
        raise click.UsageError(str(error)) from None


@dataclass(slots=True)
class _TopicReader:
    connection: DaemonConnection
    link: "ReconnectingStub[LogStub]"
    topic: str

    def partitions(self, wanted: int | None) -> list[int]:
        """All partitions of the topic, or the requested one."""
        from pixy.proto import pixy_log_pb2

        request = pixy_log_pb2.DescribeTopicsRequest(cluster=self.connection.cluster, topics=[self.topic])
        topics = self.link.stub.DescribeTopics(request, timeout=self.connection.timeout).topics
        self.link.answered()
        if not topics:
            raise CallFailed(f"topic {self.topic} does not exist")
        count = topics[0].partitions
        if wanted is not None and wanted >= count:
            raise no_partition(self.topic, wanted, count)
        return list(range(count)) if wanted is None else [wanted]

    def ranges(self, partitions: Sequence[int]) -> tuple[dict[int, int], dict[int, int]]:
        """Begin and end offset of each partition; the end is exclusive."""
        from pixy.proto import pixy_log_pb2

        query = pixy_log_pb2.OffsetQuery
        queries = [query(topic=self.topic, partition=number, earliest=True) for number in partitions]
        queries += [query(topic=self.topic, partition=number, latest=True) for number in partitions]
        answers = list_offsets(self.connection, self.link.stub, queries)
        begins, ends = answers[: len(partitions)], answers[len(partitions) :]
        return (
            {number: answer.offset for number, answer in zip(partitions, begins, strict=True)},
            {number: answer.offset for number, answer in zip(partitions, ends, strict=True)},
        )

    def at_time(self, timestamp_ms: int, ends: Mapping[int, int]) -> dict[int, int]:
        """Offset of the first record at or after a time in each partition, else its end."""
        from pixy.proto import pixy_log_pb2

        queries = [
            pixy_log_pb2.OffsetQuery(topic=self.topic, partition=number, timestamp_ms=timestamp_ms)
            for number in ends
        ]
        answers = list_offsets(self.connection, self.link.stub, queries)
        return {
            number: end if answer.offset < 0 else min(answer.offset, end)
            for (number, end), answer in zip(ends.items(), answers, strict=True)
        }

    def stored(self, begins: Mapping[int, int], ends: Mapping[int, int]) -> "Iterator[tuple[int, Record]]":
        """Stored records between these offsets, partition by partition."""
        for number, begin in begins.items():
            if begin < ends[number]:
                for record in self._records(self.link.stub, number, begin, ends[number], 0):
                    yield number, record

    def follow(self, begins: Mapping[int, int], output: MessageOutput) -> None:
        """Print records from these offsets on, as they are written; endless."""
        import grpc

        positions = dict(begins)
        while True:
            try:
                self._follow_all(positions, output)
            except grpc.RpcError as error:
                if not self.link.again(error):
                    raise

    def _follow_all(self, positions: dict[int, int], output: MessageOutput) -> None:
        """Print records until a call fails; the positions advance."""
        found: queue.Queue[tuple[int, Record] | Exception] = queue.Queue(1000)
        for number, begin in positions.items():
            arguments = (self.link.stub, number, begin, found)
            threading.Thread(
                target=self._follow, args=arguments, name=f"pixy-peek-{number}", daemon=True
            ).start()
        while True:
            if found.empty():
                output.flush()
            record = found.get()
            if isinstance(record, Exception):
                output.flush()
                raise record
            self.link.answered()
            number, taken = record
            output.add(_shown(self.topic, number, taken))
            positions[number] = taken.offset + 1

    def _follow(
        self, stub: "LogStub", number: int, begin: int, found: "queue.Queue[tuple[int, Record] | Exception]"
    ) -> None:
        import grpc

        try:
            while True:  # A fetch that waits ends when nothing has arrived for very long.
                for record in self._records(stub, number, begin, -1, _FOLLOW_MS):
                    begin = record.offset + 1
                    found.put((number, record))
        except (CallFailed, grpc.RpcError) as error:
            found.put(error)
        except ValueError:
            pass  # the channel is closed: the command has ended, or connects anew

    def _records(
        self, stub: "LogStub", number: int, begin: int, end: int, wait_ms: int
    ) -> "Iterator[Record]":
        from pixy.proto import pixy_log_pb2
        from pixy.records import batch_bytes, read_records

        wanted = pixy_log_pb2.FetchRange(topic=self.topic, partition=number, from_offset=begin, to_offset=end)
        request = pixy_log_pb2.FetchRequest(
            cluster=self.connection.cluster, ranges=[wanted], max_wait_ms=wait_ms
        )
        for answer in stub.Fetch(request):
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


def list_offsets(
    connection: DaemonConnection, stub: "LogStub", queries: "Sequence[OffsetQuery]"
) -> "list[OffsetAnswer]":
    """Answers to any number of queries."""
    from pixy.proto import pixy_log_pb2

    answers: list[OffsetAnswer] = []
    for at in range(0, len(queries), ELEMENTS_PER_CALL):
        request = pixy_log_pb2.ListOffsetsRequest(
            cluster=connection.cluster, queries=queries[at : at + ELEMENTS_PER_CALL]
        )
        answers += stub.ListOffsets(request, timeout=connection.timeout).answers
    return answers


def _out_of_range(topic: str, partition: int, offset: int, begin: int, end: int) -> CallFailed:
    return CallFailed(f"{topic}/{partition} does not have offset {offset}: expected {begin} to {end}")


def _readable_time(timestamp_ms: int) -> str:
    """A timestamp as ISO 8601; one outside the calendar's range as a number."""
    try:
        when = datetime.fromtimestamp(timestamp_ms / 1000, UTC)
    except (ValueError, OverflowError, OSError):
        return str(timestamp_ms)
    return when.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _shown(topic: str, partition: int, record: "Record") -> ShownMessage:
    return ShownMessage(
        topic, partition, record.offset, record.key, record.value, record.headers, record.timestamp
    )


def _fields(message: ShownMessage) -> list[str]:
    """Time, key and headers for people."""
    fields = [] if message.timestamp_ms is None else [f"time={_readable_time(message.timestamp_ms)}"]
    if message.key is not None:
        fields.append(f"key={readable_bytes(message.key)}")
    return fields + [f"{name}={readable_bytes(value or b'')}" for name, value in message.headers]
