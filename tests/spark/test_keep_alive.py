"""A task that waits for rows keeps the stages of its sink alive."""

import threading
from collections.abc import Iterator

import pyarrow as pa
import pytest

from pixy.errors import Unavailable
from pixy.spark.client import LogClient
from pixy.spark.connection import ConnectionOptions
from pixy.spark.keep_alive import KeepAlive
from pixy.spark.options import Use, write_options
from pixy.spark.schema import WriteColumns
from pixy.spark.writing import StageWriter
from tests.spark.service import FakeService, serving

VALUE_ONLY = WriteColumns(value=0, key=None, headers=None, topic=None, partition=None)


def test_calls_are_repeated_until_the_end_whether_they_succeed_or_not() -> None:
    calls = threading.Semaphore(0)

    def call() -> None:
        calls.release()
        raise Unavailable("on purpose")

    before = set(threading.enumerate())
    with KeepAlive(call, seconds=0.001):
        (thread,) = set(threading.enumerate()) - before
        for _ in range(3):
            assert calls.acquire(timeout=60)
    thread.join(60)
    assert not thread.is_alive()


@pytest.mark.slow
def test_a_task_that_waits_for_rows_keeps_its_sink_alive() -> None:
    service = FakeService()

    def rows() -> Iterator[pa.RecordBatch]:
        service.wait_for("Discard", 2)
        yield pa.RecordBatch.from_pydict({"value": ["a"]})
        service.wait_for("Discard", 4)

    with serving(service) as address:
        options = write_options({"pixy.address": address, "topic": "t"}, Use.BATCH_WRITE)
        writer = StageWriter(
            LogClient(ConnectionOptions((address,))), "s", options, VALUE_ONLY, keep_alive_seconds=0.01
        )
        assert len(writer.write(rows())) == 1
    assert all((each.sink_id, list(each.stage_ids)) == ("s", []) for each in service.requests["Discard"])
