"""Kafka's own tool reads segments written by a daemon."""

from pathlib import Path

import pytest

from pixy.proto import kafkapixy_pb2 as pb
from tests.integration.conftest import MakeDaemon
from tests.integration.daemon import proxy_config
from tests.integration.kafka_tools import dump_log_segments, kafka_libs

pytestmark = pytest.mark.process

SECONDS = 60.0
# A batch that compression does not shrink stays uncompressed. With this padding every codec shrinks
# each record, even one that is flushed alone.
PADDING = "x" * 200
HEADERS = (("trace", b"abc"), ("trace", b""), ("binary", b"\x00\xff"))
# Key, value and headers of each record. The tool prints text, so keys and values are text here.
RECORDS = [
    (None, "no key" + PADDING, ()),
    ("", "empty key" + PADDING, ()),
    ("key", "", (("padding", PADDING.encode()),)),
    ("key", "with headers" + PADDING, HEADERS),
    *((f"key {number}", f"value {number} {PADDING}" + "x" * number * 20, ()) for number in range(40)),
]


@pytest.fixture(scope="module", autouse=True)
def _tools() -> None:
    """Skips before any start without Java and Kafka's jars."""
    kafka_libs()


@pytest.mark.parametrize("compression", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_kafka_reads_segments_of_the_daemon(make_daemon: MakeDaemon, compression: str) -> None:
    daemon = make_daemon(
        proxy_config(default_partitions=1, producer={"compression": compression, "flush_frequency": "50ms"})
    )
    daemon.start()
    stub = daemon.stub()
    calls = [
        stub.Produce.future(
            pb.ProdRq(
                topic="t",
                key_undefined=key is None,
                key_value=(key or "").encode(),
                message=value.encode(),
                headers=[pb.RecordHeader(key=name, value=content) for name, content in headers],
            )
        )
        for key, value, headers in RECORDS
    ]
    written = {
        call.result(timeout=SECONDS).offset: record for call, record in zip(calls, RECORDS, strict=True)
    }
    daemon.stop()
    (segment,) = segments(daemon.data)
    records = dump_log_segments(segment)
    assert [record.offset for record in records] == list(range(len(RECORDS)))
    for record in records:
        key, value, headers = written[record.offset]
        assert (record.key, record.value) == (key, value)
        assert record.header_names == tuple(name for name, _ in headers)
        assert record.batch.is_valid
        assert record.batch.codec == compression
        assert not record.batch.is_control


def segments(data: Path) -> list[Path]:
    return sorted((data / "topics" / "t-0").glob("*.log"))
