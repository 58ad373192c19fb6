"""Batch reader: offsets are resolved once, when Spark plans, and every task reads its ranges."""

from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceReader, InputPartition

from pixy.errors import PixyError
from pixy.spark.client import LogClient
from pixy.spark.finder import OffsetFinder
from pixy.spark.options import ReadOptions
from pixy.spark.python_worker import set_up_worker
from pixy.spark.ranges import PlannedRange, plan_tasks
from pixy.spark.reading import read_ranges


@dataclass
class RangesPartition(InputPartition):
    """Ranges of one task; may be empty."""

    ranges: tuple[PlannedRange, ...]


def read_partition(options: ReadOptions, partition: InputPartition) -> Iterator[pa.RecordBatch]:
    """Rows of one task, of a batch or streaming query."""
    if not isinstance(partition, RangesPartition):
        raise PixyError(f"cannot read {partition!r}, expected a RangesPartition")
    if TaskContext.get() is not None:
        set_up_worker()
    return read_ranges(
        options.connection,
        partition.ranges,
        include_headers=options.include_headers,
        fail_on_data_loss=options.fail_on_data_loss,
    )


class BatchReader(DataSourceReader):
    """Reads from the start to the end position of the options. Pickled into the tasks."""

    def __init__(self, options: ReadOptions) -> None:
        self._options = options

    def partitions(self) -> list[InputPartition]:
        """Ranges of each task, resolved anew by each call."""
        options = self._options
        finder = OffsetFinder(
            LogClient(options.connection), options.subscription, fail_on_data_loss=options.fail_on_data_loss
        )
        topics = finder.topics()
        partitions = finder.partitions(topics, must_exist=True)
        start = finder.find(options.start, partitions)
        end = finder.find(options.end, partitions)
        ranges = [
            PlannedRange(*each, start[each], end[each], topics[each.topic].topic_id)
            for each in partitions
            if each in start and each in end
        ]
        tasks = plan_tasks(ranges, options.min_partitions, options.max_records_per_partition)
        # Spark would turn an empty list into a partition that is None.
        return [RangesPartition(each) for each in tasks] or [RangesPartition(())]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Rows of one task."""
        return read_partition(self._options, partition)
