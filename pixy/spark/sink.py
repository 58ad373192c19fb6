"""The writers: tasks stage what they write, and one call on the driver publishes it all or nothing of it.

Spark may run a task twice, die between any two steps, and commit a batch of a stream again after a restart, with the same number. What
makes it exactly-once is that rows have no offsets before they are published, and that a sink remembers the number of the batch that it
published last.

Spark makes a new writer for the commit of a stream, in another process: everything that the commit needs is in the messages of the tasks.
"""

import uuid
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)

from pixy.errors import FailedPrecondition, InvalidArgument, PixyError
from pixy.proto import pixy_log_pb2 as pb
from pixy.spark.client import LogClient
from pixy.spark.options import WriteOptions
from pixy.spark.schema import WriteColumns
from pixy.spark.writing import StageWriter

__all__ = ["BatchWriter", "Staged", "StreamWriter", "refuse_overwrite"]

_QUERY_ID = "sql.streaming.queryId"


@dataclass
class Staged(WriterCommitMessage):
    """What a task has staged: the names of its stages, none if it had no rows; whose sink it is, and of which query."""

    stage_ids: list[str]
    sink_id: str
    query_id: str = ""


def refuse_overwrite(overwrite: bool, allowed: str) -> None:
    """Prove that nothing is to be overwritten.

    Raises:
        InvalidArgument: a log is never overwritten.
    """
    if overwrite:
        raise InvalidArgument(f"pixy appends and never overwrites: {allowed}")


class BatchWriter(DataSourceArrowWriter):
    """Writes a DataFrame once. Made when Spark plans, then pickled into the tasks and into the commit."""

    def __init__(self, options: WriteOptions, columns: WriteColumns) -> None:
        self._options = options
        self._columns = columns
        self._sink_id = f"batch-{uuid.uuid4().hex}"

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Staged:
        """Stage the rows of one task."""
        return Staged(_stage(self._options, self._columns, self._sink_id, iterator), self._sink_id)

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Publish. Spark does not call it again, but what it calls may be repeated on the way."""
        stage_ids = _stage_ids(messages)
        if stage_ids:
            client = LogClient(self._options.connection)
            client.publish(pb.PublishRequest(sink_id=self._sink_id, epoch=0, stage_ids=stage_ids))

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Drop what was staged; what was published stays."""
        _discard(self._options, messages)


class StreamWriter(DataSourceStreamArrowWriter):
    """Writes the batches of a query. Made anew for each batch, and once more for the commits."""

    def __init__(self, options: WriteOptions, columns: WriteColumns) -> None:
        self._options = options
        self._columns = columns

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Staged:
        """Stage the rows of one task."""
        context = TaskContext.get()
        query_id = context.getLocalProperty(_QUERY_ID) if context is not None else None
        if not query_id:
            raise PixyError(f"Spark did not tell the task the id of its query ({_QUERY_ID})")
        sink_id = self._options.sink_id or query_id
        return Staged(_stage(self._options, self._columns, sink_id, iterator), sink_id, query_id)

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        """Publish the batch, unless it has been published before."""
        staged = [each for each in messages if isinstance(each, Staged)]
        request = pb.PublishRequest(
            sink_id=staged[0].sink_id,
            epoch=batchId,
            query_id=staged[0].query_id,
            stage_ids=_stage_ids(messages),
        )
        client = LogClient(self._options.connection)
        try:
            answer = client.publish(request)
        except FailedPrecondition:
            if not self._options.sink_reset:
                raise
            # Only now: for a query whose sink it is already, a reset would make it forget what is published.
            request.reset_sink = True
            answer = client.publish(request)
        if not answer.published:
            # It was published with other stages, or with these.
            _discard(self._options, messages)

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        """Drop what was staged; what was published stays."""
        _discard(self._options, messages)


def _stage(
    options: WriteOptions, columns: WriteColumns, sink_id: str, batches: Iterator[pa.RecordBatch]
) -> list[str]:
    return StageWriter(LogClient(options.connection), sink_id, options, columns).write(batches)


def _stage_ids(messages: Sequence[WriterCommitMessage | None]) -> list[str]:
    """The stages of those tasks that got through and had rows."""
    return [stage_id for each in messages if isinstance(each, Staged) for stage_id in each.stage_ids]


def _discard(options: WriteOptions, messages: Sequence[WriterCommitMessage | None]) -> None:
    stage_ids = _stage_ids(messages)
    sinks = {each.sink_id for each in messages if isinstance(each, Staged)}
    for sink_id in sinks if stage_ids else ():
        try:
            LogClient(options.connection).discard(sink_id, stage_ids)
        except PixyError as error:
            warnings.warn(
                f"stages of {sink_id} were not dropped and are left to expire: {error}", stacklevel=2
            )
