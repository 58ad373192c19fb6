"""Writers: tasks stage their rows, and one call of the driver publishes all or none of them.

Spark may run a task twice, die between any two steps, and commit a batch of a stream again after a
restart, with the same number. Writes are exactly-once because rows have no offsets before they are
published, and because a sink remembers the number of the batch that it published last.

Spark creates a new writer for the commit of a stream, in another process: the commit takes
everything it needs from the messages of the tasks.

A batch write is a sink of its own, for one publication. In `foreachBatch` it can use a lasting
sink, with the option `sinkId`: then it is published under the number of the stream's batch, which
Spark passes to the tasks in the local properties of the thread that runs the batch. Nothing else
visible to a data source identifies the batch. Spark Connect runs the write in another thread,
without these properties, and there options replace them.
"""

import re
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

from pixy.elements_per_call import ELEMENTS_PER_CALL
from pixy.errors import FailedPrecondition, InvalidArgument, PixyError
from pixy.proto import pixy_log_pb2 as pb
from pixy.spark.addresses import first_of_task
from pixy.spark.client import LogClient
from pixy.spark.options import WriteOptions
from pixy.spark.python_worker import set_up_worker
from pixy.spark.schema import WriteColumns
from pixy.spark.writing import StageWriter

_QUERY_ID = "sql.streaming.queryId"
_BATCH_ID = "streaming.sql.batchId"


@dataclass
class Staged(WriterCommitMessage):
    """Commit message of a task: the ids of its stages (none without rows), the sink, its query, and
    the number of the batch.
    """

    stage_ids: list[str]
    sink_id: str
    query_id: str = ""
    batch_id: int = 0


def reject_overwrite(overwrite: bool, allowed: str) -> None:
    """Reject a write that would overwrite.

    Raises:
        InvalidArgument: the write would overwrite.
    """
    if overwrite:
        raise InvalidArgument(f"pixy appends and never overwrites: {allowed}")


class BatchWriter(DataSourceArrowWriter):
    """Writes a DataFrame once. Created when Spark plans, then pickled into the tasks and the
    commit.
    """

    def __init__(self, options: WriteOptions, columns: WriteColumns) -> None:
        self._options = options
        self._columns = columns
        self._sink_id = options.sink_id or f"batch-{uuid.uuid4().hex}"

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Staged:
        """Stage the rows of one task."""
        query_id, batch_id = ("", 0) if self._options.sink_id is None else self._batch()
        stage_ids = _stage(self._options, self._columns, self._sink_id, iterator)
        return Staged(stage_ids, self._sink_id, query_id, batch_id)

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Publish. Spark calls it once, but the call to the daemon may be retried."""
        staged = [each for each in messages if isinstance(each, Staged)]
        # A batch without rows matters to the sink of a query, which may belong to another query.
        if staged and (self._options.sink_id is not None or _stage_ids(messages)):
            _publish(self._options, messages, staged[0].batch_id)

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Drop the stages; published ones stay."""
        _discard(self._options, messages)

    def _batch(self) -> tuple[str, int]:
        """Query and number of the batch that a task writes."""
        query_id, batch_id = self._options.query_id, self._options.batch_id
        if query_id is None or batch_id is None:
            query_id, number = _property(_QUERY_ID), _property(_BATCH_ID)
            if not query_id or not number:
                raise InvalidArgument(
                    f"option sinkId={self._sink_id!r} in a batch write: the tasks do not know the query and its batch, which Spark passes "
                    "in foreachBatch without Spark Connect, in the calling thread; set queryId and batchId"
                )
            batch_id = int(number)
        return query_id, batch_id


class StreamWriter(DataSourceStreamArrowWriter):
    """Writes the batches of a query. Created anew for each batch, and once more for the commits."""

    def __init__(self, options: WriteOptions, columns: WriteColumns) -> None:
        self._options = options
        self._columns = columns

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Staged:
        """Stage the rows of one task."""
        query_id = _property(_QUERY_ID)
        if not query_id:
            raise PixyError(f"Spark did not pass the id of its query to the task ({_QUERY_ID})")
        sink_id = self._options.sink_id or query_id
        return Staged(_stage(self._options, self._columns, sink_id, iterator), sink_id, query_id)

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        """Publish the batch, unless it has been published already."""
        _publish(self._options, messages, batchId)

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        """Drop the stages; published ones stay."""
        _discard(self._options, messages)


_OWNER = re.compile(r"belongs to query '([a-zA-Z0-9._-]+)'")
"""The query that has a sink, in the daemon's refusal of another one."""


def _property(name: str) -> str | None:
    """Local property of the driver's thread that started the task."""
    context = TaskContext.get()
    return context.getLocalProperty(name) if context is not None else None


def _publish(options: WriteOptions, messages: Sequence[WriterCommitMessage | None], epoch: int) -> None:
    """Publish the stages of the tasks, unless the epoch has been published already.

    Raises:
        InvalidArgument: they are more than one publication may have.
    """
    stage_ids = _stage_ids(messages)
    if len(stage_ids) > ELEMENTS_PER_CALL:
        raise InvalidArgument(
            f"{len(stage_ids)} stages, one of each task with rows and of each 512 MiB, are more than the {ELEMENTS_PER_CALL} that "
            "are published together: let fewer tasks write, with DataFrame.coalesce, or split the write"
        )
    first = next(each for each in messages if isinstance(each, Staged))
    request = pb.PublishRequest(
        sink_id=first.sink_id,
        epoch=epoch,
        query_id=first.query_id,
        replaces_query_id=options.replaces_query_id,
        stage_ids=stage_ids,
    )
    try:
        answer = LogClient(options.connection).publish(request)
    except FailedPrecondition as error:
        owner = _OWNER.search(str(error))
        if owner is None:
            raise
        raise FailedPrecondition(
            f"{error}. With the option sinkReset={owner[1]} this query takes the sink over; with another sinkId it has one of its own"
        ) from None
    if not answer.published:
        # The epoch was published with other stages, or with these.
        _discard(options, messages)


def _stage(
    options: WriteOptions, columns: WriteColumns, sink_id: str, batches: Iterator[pa.RecordBatch]
) -> list[str]:
    if TaskContext.get() is not None:
        set_up_worker()
    client = LogClient(options.connection, first_of_task())
    return StageWriter(client, sink_id, options, columns).write(batches)


def _stage_ids(messages: Sequence[WriterCommitMessage | None]) -> list[str]:
    """The stages of successful tasks with rows."""
    return [stage_id for each in messages if isinstance(each, Staged) for stage_id in each.stage_ids]


def _discard(options: WriteOptions, messages: Sequence[WriterCommitMessage | None]) -> None:
    stage_ids = _stage_ids(messages)
    sinks = {each.sink_id for each in messages if isinstance(each, Staged)}
    for sink_id in sinks if stage_ids else ():
        try:
            LogClient(options.connection).discard(sink_id, stage_ids)
        except PixyError as error:
            warnings.warn(f"stages of {sink_id} were not dropped and will expire: {error}", stacklevel=2)
