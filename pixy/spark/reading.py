"""Reading tasks: fetch ranges and decode them, in batch and streaming queries.

Missing records (deleted by retention, or with a topic that was deleted or recreated) are an error,
or with `failOnDataLoss=false` a warning, and reading continues after the gap. The same holds for
records that cannot be decoded.
"""

import warnings
from collections.abc import Iterator, Sequence
from contextlib import closing

import pyarrow as pa

from pixy.errors import OffsetOutOfRange
from pixy.proto import pixy_log_pb2 as pb
from pixy.spark.addresses import first_of_task
from pixy.spark.client import LogClient
from pixy.spark.connection import ConnectionOptions
from pixy.spark.decode import decode
from pixy.spark.ranges import PlannedRange
from pixy.spark.span import Span

_REASONS = {
    pb.END_OF_LOG: "the log ends there",
    pb.OFFSET_OUT_OF_RANGE: "the log does not have that offset",
    pb.UNKNOWN_PARTITION: "the topic was deleted or recreated",
}


def read_ranges(
    connection: ConnectionOptions,
    ranges: Sequence[PlannedRange],
    *,
    include_headers: bool,
    fail_on_data_loss: bool,
) -> Iterator[pa.RecordBatch]:
    """Rows of the ranges. Closing the iterator ends the fetch.

    Raises:
        OffsetOutOfRange: records are lost, with `fail_on_data_loss`.
        CorruptData: a response is damaged, or with `fail_on_data_loss` records in it cannot be
            decoded.
        PixyError: the daemon rejected the call, or did not answer in time.
    """
    client = LogClient(connection, first_of_task())
    left = list(ranges)
    while left:
        after_gaps: list[PlannedRange] = []
        with closing(client.fetch([_request(each) for each in left])) as responses:
            for number, response in responses:
                wanted = left[number]
                if response.batches:
                    span = Span(wanted.topic, wanted.partition, wanted.first, wanted.end)
                    yield from decode(
                        response.batches, span, include_headers=include_headers, fail=fail_on_data_loss
                    )
                if response.state not in (pb.MORE, pb.END_OF_RANGE):
                    _lost(wanted, response, fail=fail_on_data_loss)
                    if response.next_offset < response.log_begin_offset < wanted.end:
                        after_gaps.append(wanted._replace(first=response.log_begin_offset))
        left = after_gaps


def _request(planned: PlannedRange) -> pb.FetchRange:
    return pb.FetchRange(
        topic=planned.topic,
        partition=planned.partition,
        from_offset=planned.first,
        to_offset=planned.end,
        topic_id=planned.topic_id,
    )


def _lost(planned: PlannedRange, response: pb.FetchResponse, *, fail: bool) -> None:
    begin, end = response.log_begin_offset, response.log_end_offset
    message = (
        f"records of {planned.topic}-{planned.partition} are lost: offsets {planned.first} to {planned.end} cannot be read from "
        f"{response.next_offset} on: {_REASONS.get(response.state, 'the fetch ended')}; the log has {begin} to {end}"
    )
    if fail:
        raise OffsetOutOfRange(
            f"{message}. With failOnDataLoss=false reading continues with the existing records", begin, end
        )
    warnings.warn(message, stacklevel=2)
