"""pixy/api/grpc/log.py: topics, offsets and appends over a real gRPC server, on a real embedded log
and on one in memory.
"""

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import pytest
from structlog.testing import capture_logs

from pixy.config import Config, ConsumerConfig, ProxyConfig
from pixy.errors import PixyError, Unavailable
from pixy.proto import kafkapixy_pb2 as kafkapixy
from pixy.proto import pixy_log_pb2 as pb
from pixy.proto.kafkapixy_pb2_grpc import KafkaPixyStub
from pixy.records import COMPRESSION
from tests.api.grpc.bulk import T0, ServedBulk, fails, offsets, range_of, serve
from tests.fakes.backend import FakeBackend
from tests.fakes.batches import (
    as_batches,
    batch_of,
    bomb,
    crowded_record,
    patched,
    raw_batch,
    raw_record,
    values_in,
    varint,
)
from tests.fakes.node import make_embedded

pytestmark = pytest.mark.slow

CODE = grpc.StatusCode


# --- DescribeTopics -------------------------------------------------------------------------------


async def test_topics_are_described_for_writers(bulk: ServedBulk) -> None:
    await bulk.backend.create_topic("a", 3)
    described = await bulk.log.DescribeTopics(pb.DescribeTopicsRequest())
    assert [(each.topic, each.partitions, len(each.topic_id)) for each in described.topics] == [
        ("a", 3, 16),
        ("t", 2, 16),
    ]
    assert described.partitioner == "hash"
    assert described.max_message_bytes == 1_000_000
    assert described.topics[0].topic_id != described.topics[1].topic_id


async def test_a_changed_topic_has_a_greater_version(bulk: ServedBulk) -> None:
    request = pb.DescribeTopicsRequest(topics=["t"])
    before = (await bulk.log.DescribeTopics(request)).topics[0]
    await bulk.backend.alter_topic("t", partitions=5)
    after = (await bulk.log.DescribeTopics(request)).topics[0]
    assert (after.partitions, after.topic_id) == (5, before.topic_id)
    assert after.version > before.version


async def test_requested_topics_are_listed_once_and_sorted_without_missing_ones(bulk: ServedBulk) -> None:
    await bulk.backend.create_topic("a", 1)
    described = await bulk.log.DescribeTopics(pb.DescribeTopicsRequest(topics=["t", "none", "a", "t"]))
    assert [each.topic for each in described.topics] == ["a", "t"]


async def test_missing_topics_are_created_if_requested(bulk: ServedBulk) -> None:
    request = pb.DescribeTopicsRequest(topics=["new", "t"], create_missing=True)
    with capture_logs() as logs:
        described = await bulk.log.DescribeTopics(request)
    (made,) = [each for each in logs if each["event"] == "a topic was made on its first use"]
    assert made["asked_by"].startswith("127.0.0.1:")
    assert [(each.topic, each.partitions) for each in described.topics] == [("new", 3), ("t", 2)]


async def test_an_invalid_name_is_rejected_before_anything_is_created(bulk: ServedBulk) -> None:
    request = pb.DescribeTopicsRequest(topics=["new", "a b"], create_missing=True)
    await fails(bulk.log.DescribeTopics(request), CODE.INVALID_ARGUMENT, "invalid topic name 'a b'")
    assert bulk.backend.topic("new") is None


async def test_no_topic_is_created_while_draining(bulk: ServedBulk) -> None:
    bulk.proxy.begin_drain()
    request = pb.DescribeTopicsRequest(topics=["new"], create_missing=True)
    await fails(bulk.log.DescribeTopics(request), CODE.UNAVAILABLE, "service is shutting down")
    request.topics[0] = "t"
    assert len((await bulk.log.DescribeTopics(request)).topics) == 1


# --- ListOffsets ----------------------------------------------------------------------------------


async def test_offsets_are_listed_by_position_and_by_timestamp_in_the_order_of_the_queries(
    bulk: ServedBulk,
) -> None:
    await bulk.append(b"a", b"b", timestamp_ms=1000)
    await bulk.append(b"c", timestamp_ms=2000)
    queries = [
        pb.OffsetQuery(topic="t", partition=0, latest=True),
        pb.OffsetQuery(topic="t", partition=0, earliest=True),
        pb.OffsetQuery(topic="t", partition=0, timestamp_ms=1001),
        pb.OffsetQuery(topic="t", partition=0, timestamp_ms=1002),
        pb.OffsetQuery(topic="t", partition=0, timestamp_ms=2001),
        pb.OffsetQuery(topic="t", partition=0, timestamp_ms=-(2**63)),
        pb.OffsetQuery(topic="t", partition=1, latest=True),
        pb.OffsetQuery(topic="t", partition=1, timestamp_ms=0),
    ]
    answers = (await bulk.log.ListOffsets(pb.ListOffsetsRequest(queries=queries))).answers
    assert [each.offset for each in answers] == [3, 0, 1, 2, -1, 0, 0, -1]
    assert not any(each.unknown_partition for each in answers)


async def test_a_missing_partition_is_marked_and_does_not_affect_others(bulk: ServedBulk) -> None:
    wrong = [("t", 2), ("t", -1), ("none", 0)]
    queries = [
        query
        for topic, partition in wrong
        for query in (
            pb.OffsetQuery(topic=topic, partition=partition, latest=True),
            pb.OffsetQuery(topic=topic, partition=partition, timestamp_ms=0),
        )
    ]
    queries.append(pb.OffsetQuery(topic="t", partition=1, latest=True))
    answers = (await bulk.log.ListOffsets(pb.ListOffsetsRequest(queries=queries))).answers
    assert [(each.offset, each.unknown_partition) for each in answers] == [(-1, True)] * 6 + [(0, False)]


async def test_an_empty_query_is_rejected(bulk: ServedBulk) -> None:
    request = pb.ListOffsetsRequest(queries=[pb.OffsetQuery(topic="t", partition=1)])
    text = "partition 1 of topic t has no position, expected one of earliest, latest and timestamp_ms"
    await fails(bulk.log.ListOffsets(request), CODE.INVALID_ARGUMENT, text)
    request = pb.ListOffsetsRequest(queries=[pb.OffsetQuery(topic="", earliest=True)])
    await fails(bulk.log.ListOffsets(request), CODE.INVALID_ARGUMENT, "invalid topic name ''")


async def test_the_earliest_offset_is_the_log_begin_offset(fake: tuple[ServedBulk, FakeBackend]) -> None:
    bulk, backend = fake
    await bulk.append(b"a")
    await bulk.append(b"b")
    backend.move_log_begin(T0, 1)
    queries = [pb.OffsetQuery(topic="t", earliest=True), pb.OffsetQuery(topic="t", timestamp_ms=0)]
    answers = (await bulk.log.ListOffsets(pb.ListOffsetsRequest(queries=queries))).answers
    assert [each.offset for each in answers] == [1, 1]


# --- Append ---------------------------------------------------------------------------------------


async def ends(bulk: ServedBulk) -> list[int]:
    """End offsets of the topic's partitions."""
    return [served.end for _, served in sorted((await bulk.backend.offset_ranges("t")).items())]


def batches_for(partition: int, *batches: bytes, topic: str = "t") -> pb.PartitionBatches:
    return pb.PartitionBatches(topic=topic, partition=partition, batches=b"".join(batches))


async def test_batches_get_offsets_in_order_and_are_readable_when_answered(bulk: ServedBulk) -> None:
    await bulk.append(b"before")
    request = pb.AppendRequest(
        cluster="first",
        partitions=[
            batches_for(1, batch_of(b"x")),
            batches_for(0, batch_of(b"a", b"b"), batch_of(b"c"), batch_of(b"d", compression=3)),
        ],
    )
    results = (await bulk.log.Append(request)).results
    assert [(each.base_offset, each.code, each.message) for each in results] == [(0, 0, ""), (1, 0, "")]
    first, second = await bulk.fetch(range_of(1), range_of(partition=1))
    assert values_in(first.batches) == [b"a", b"b", b"c", b"d"]
    assert values_in(second.batches) == [b"x"]


async def test_appended_records_are_consumed_and_produced_ones_fetched(bulk: ServedBulk) -> None:
    await bulk.append(b"appended", partition=1)
    kafkapixy_stub = KafkaPixyStub(bulk.channel)
    got = await kafkapixy_stub.ConsumeNAck(kafkapixy.ConsNAckRq(topic="t", group="g", auto_ack=True))
    assert (got.partition, got.offset, got.key_value, got.message) == (1, 0, b"key", b"appended")
    produced = await kafkapixy_stub.Produce(kafkapixy.ProdRq(topic="t", message=b"produced"))
    answers = await bulk.fetch(range_of(produced.offset, partition=produced.partition))
    assert values_in(answers[0].batches) == [b"produced"]


async def test_an_empty_append_succeeds(bulk: ServedBulk) -> None:
    assert list((await bulk.log.Append(pb.AppendRequest())).results) == []


async def test_only_the_missing_partition_fails(bulk: ServedBulk) -> None:
    wrong = [
        batches_for(0, batch_of(b"x"), topic="none"),
        batches_for(2, batch_of(b"x"), batch_of(b"y")),
        batches_for(-1, batch_of(b"x")),
    ]
    request = pb.AppendRequest(partitions=[*wrong, batches_for(1, batch_of(b"a"))])
    results = (await bulk.log.Append(request)).results
    not_found = CODE.NOT_FOUND.value[0]
    assert [(each.base_offset, each.code) for each in results] == [(-1, not_found)] * 3 + [(0, 0)]
    assert [text in each.message for each, text in zip(results, ("none", "2", "-1"), strict=False)] == [
        True
    ] * 3
    assert bulk.backend.topic("none") is None


async def test_a_request_with_one_invalid_batch_writes_nothing(bulk: ServedBulk) -> None:
    good = batch_of(b"good")
    for wrong, text in [
        (b"", "partition 1 of topic t: no record batch"),
        (good[:60], "partition 1 of topic t: record batch 0 at byte 0 has 60 bytes"),
        (good + good[:-1], f"record batch 1 at byte {len(good)} has a length field of {len(good)} bytes"),
        (good[:-1] + bytes([good[-1] ^ 1]), "record batch 0 at byte 0 has CRC-32C"),
        (patched(good, 43, bytes(8)), "has producer id 0, expected -1"),
        (batch_of(bytes(1_100_000)), "producer.max_message_bytes allows 1000000"),
    ]:
        request = pb.AppendRequest(partitions=[batches_for(0, good), batches_for(1, wrong)])
        await fails(bulk.log.Append(request), CODE.INVALID_ARGUMENT, text)
    for request, text in [
        (
            pb.AppendRequest(partitions=[batches_for(0, good)] * 2),
            "partition 0 of topic t is there more than once",
        ),
        (pb.AppendRequest(partitions=[batches_for(0, good, topic="a b")]), "invalid topic name 'a b'"),
        (pb.AppendRequest(cluster="x", partitions=[batches_for(0, good)]), "proxy `x` does not exist"),
    ]:
        await fails(bulk.log.Append(request), CODE.INVALID_ARGUMENT, text)
    assert await ends(bulk) == [0, 0]


async def test_a_request_larger_than_the_limit_is_rejected(bulk: ServedBulk) -> None:
    batches = [batch_of(bytes(900_000)) for _ in range(5)]
    request = pb.AppendRequest(partitions=[batches_for(0, *batches)])
    await fails(bulk.log.Append(request), CODE.RESOURCE_EXHAUSTED, "grpc.max_message_bytes allows 4194304")
    assert await ends(bulk) == [0, 0]


async def test_records_partitioned_with_another_version_are_rejected(
    bulk: ServedBulk,
) -> None:
    described = (await bulk.log.DescribeTopics(pb.DescribeTopicsRequest(topics=["t"]))).topics[0]
    request = pb.AppendRequest(
        partitions=[batches_for(0, batch_of(b"a"))],
        versions=[pb.TopicVersion(topic="t", version=described.version)],
    )
    await bulk.log.Append(request)
    altered = await bulk.backend.alter_topic("t", partitions=3)
    text = f"topic t has version {altered.version}, the request was made for {described.version}"
    await fails(bulk.log.Append(request), CODE.FAILED_PRECONDITION, text)
    assert await ends(bulk) == [1, 0, 0]
    request.versions[0].version = altered.version
    await bulk.log.Append(request)
    request.versions.add(topic="t", version=described.version)
    await fails(bulk.log.Append(request), CODE.FAILED_PRECONDITION, text)
    assert await ends(bulk) == [2, 0, 0]


async def test_records_for_a_deleted_topic_of_the_same_name_and_version_are_rejected(
    bulk: ServedBulk,
) -> None:
    old = (await bulk.log.DescribeTopics(pb.DescribeTopicsRequest(topics=["t"]))).topics[0]
    meant = pb.TopicVersion(topic="t", version=old.version, topic_id=old.topic_id)
    request = pb.AppendRequest(partitions=[batches_for(0, batch_of(b"a"))], versions=[meant])
    await bulk.log.Append(request)
    await bulk.backend.delete_topic("t")
    await bulk.backend.create_topic("t", 5)
    new = (await bulk.log.DescribeTopics(pb.DescribeTopicsRequest(topics=["t"]))).topics[0]
    assert new.version == old.version
    text = f"topic t has id {new.topic_id.hex()}, the request was made for {old.topic_id.hex()}"
    await fails(bulk.log.Append(request), CODE.FAILED_PRECONDITION, text)
    assert await ends(bulk) == [0] * 5
    request.versions[0].topic_id = new.topic_id
    await bulk.log.Append(request)
    # A client without ids is checked by version only.
    request.versions[0].topic_id = b""
    await bulk.log.Append(request)
    assert await ends(bulk) == [2, 0, 0, 0, 0]


async def test_an_id_of_a_wrong_length_is_rejected(bulk: ServedBulk) -> None:
    request = pb.AppendRequest(
        partitions=[batches_for(0, batch_of(b"a"))],
        versions=[pb.TopicVersion(topic="t", version=0, topic_id=b"short")],
    )
    text = "topic_id of t has 5 bytes, expected none or 16"
    await fails(bulk.log.Append(request), CODE.INVALID_ARGUMENT, text)
    assert await ends(bulk) == [0, 0]


async def test_a_version_of_a_missing_topic_fails_its_partitions(
    bulk: ServedBulk,
) -> None:
    request = pb.AppendRequest(
        partitions=[batches_for(0, batch_of(b"a"), topic="none")],
        versions=[pb.TopicVersion(topic="none", version=1)],
    )
    (result,) = (await bulk.log.Append(request)).results
    assert result.code == CODE.NOT_FOUND.value[0]


async def test_a_batch_that_decompresses_too_far_is_reported_only_to_readers_that_decode_it(
    tmp_path: Path,
) -> None:
    consumer = replace(ConsumerConfig(), long_polling_timeout=2)
    config = Config(grpc_addr="127.0.0.1:0", proxies={"first": replace(ProxyConfig(), consumer=consumer)})
    where = "partition 0 of topic t: record batch at offset 0 cannot be decoded, the next batch is at 1: "
    async with serve(make_embedded(tmp_path / "data"), config) as bulk:
        await store_unchecked(bulk, bomb(1000), batch_of(b"behind", timestamp_ms=2000))
        await bulk.append(b"elsewhere", partition=1)
        query = pb.OffsetQuery(topic="t", partition=0, timestamp_ms=500)
        await fails(bulk.log.ListOffsets(pb.ListOffsetsRequest(queries=[query])), CODE.INTERNAL, where)
        query.timestamp_ms = 1500
        answers = (await bulk.log.ListOffsets(pb.ListOffsetsRequest(queries=[query]))).answers
        assert answers[0].offset == 1
        (fetched, *_) = await bulk.fetch(range_of())
        assert len(list(as_batches(fetched.batches))) == 2

        stub: Any = KafkaPixyStub(bulk.channel)
        consume = kafkapixy.ConsNAckRq(topic="t", group="g", auto_ack=True)
        assert (await stub.ConsumeNAck(consume)).message == b"elsewhere"
        await fails(stub.ConsumeNAck(consume), CODE.INTERNAL, where)
        passed = kafkapixy.PartitionOffset(partition=0, offset=1)
        await stub.SetOffsets(kafkapixy.SetOffsetsRq(topic="t", group="g", offsets=[passed]))
        assert (await stub.ConsumeNAck(consume)).message == b"behind"


async def store_unchecked(bulk: ServedBulk, *batches: bytes) -> None:
    """Store batches as they are, as earlier releases did."""
    for batch in batches:
        stored: asyncio.Future[PixyError | None] = asyncio.get_running_loop().create_future()
        bulk.backend.append(T0, bytearray(batch), 1, lambda _, error, to=stored: to.set_result(error))  # type: ignore[misc]
        assert await stored is None


LYING = {
    "an offset beyond the batch": raw_batch([raw_record(1000, b"lie")]),
    "an offset beyond all numbers": raw_batch([raw_record(2**62, b"lie")]),
    "offsets that repeat": raw_batch([raw_record(0, b"lie"), raw_record(0, b"lie")]),
    "garbage": raw_batch([bytes(range(120, 180))]),
    "a huge count": raw_batch([raw_record(0, b"lie")], count=2**31 - 1, codec=4),
    "headers that are not there": raw_batch([raw_record(0, b"lie", headers=varint(3))]),
    "a length beyond the batch": raw_batch([raw_record(0, b"lie", length=1000)]),
    "a decompression bomb": bomb(),
    "two million headers": raw_batch([crowded_record(0, 2_000_000)], codec=COMPRESSION["zstd"]),
    "headers of all that follows": raw_batch(
        [crowded_record(0, 1_900_000, length=9, count=2_000_000)], codec=COMPRESSION["zstd"]
    ),
}


@pytest.mark.parametrize("batch", LYING.values(), ids=LYING)
async def test_messages_around_a_batch_with_wrong_fields_reach_every_group_once(
    tmp_path: Path, batch: bytes
) -> None:
    consumer = replace(ConsumerConfig(), long_polling_timeout=60, max_retries=1)
    config = Config(grpc_addr="127.0.0.1:0", proxies={"first": replace(ProxyConfig(), consumer=consumer)})
    async with serve(make_embedded(tmp_path / "data"), config) as bulk:
        (refused,) = (await bulk.log.Append(pb.AppendRequest(partitions=[batches_for(0, batch)]))).results
        assert (refused.base_offset, refused.code) == (-1, CODE.INVALID_ARGUMENT.value[0])
        assert "record batch 0 at byte 0" in refused.message
        await bulk.append(*[b"%d" % number for number in range(5)])
        await store_unchecked(bulk, batch)
        await bulk.append(*[b"%d" % number for number in range(5, 10)])
        (end,) = (await bulk.backend.offset_ranges("t", [0])).values()
        stub: Any = KafkaPixyStub(bulk.channel)
        for group in ("first", "second"):
            found: list[bytes] = []
            while len(found) < 10:
                try:
                    got = await stub.ConsumeNAck(kafkapixy.ConsNAckRq(topic="t", group=group, auto_ack=True))
                except grpc.aio.AioRpcError as error:
                    if error.code() not in (CODE.INTERNAL, CODE.NOT_FOUND):
                        raise
                    continue
                found += [each for each in (got.message,) if each != b"lie"]
            assert found == [b"%d" % number for number in range(10)]
            await committed(stub, group, end.end)


@pytest.mark.parametrize("size", [5 << 20, 9 << 20], ids=["client", "output_buffer_bytes"])
async def test_a_record_that_no_client_takes_is_a_retry_each_time_and_stops_no_other(
    tmp_path: Path, size: int
) -> None:
    consumer = replace(ConsumerConfig(), long_polling_timeout=0.3, ack_timeout=0.5, max_retries=1)
    config = Config(grpc_addr="127.0.0.1:0", proxies={"first": replace(ProxyConfig(), consumer=consumer)})
    async with serve(make_embedded(tmp_path / "data"), config) as bulk:
        await bulk.append(b"before")
        await store_unchecked(bulk, raw_batch([raw_record(0, bytes(size))], codec=COMPRESSION["zstd"]))
        await bulk.append(b"behind")
        stub: Any = KafkaPixyStub(bulk.channel)
        found: list[bytes] = []
        failures = offset = 0
        with capture_logs() as logs:
            async with asyncio.timeout(60):
                while offset < 3:
                    try:
                        got = await stub.ConsumeNAck(
                            kafkapixy.ConsNAckRq(topic="t", group="g", auto_ack=True)
                        )
                        found.append(got.message)
                    except grpc.aio.AioRpcError as error:
                        # Nothing to deliver, or the group has not begun.
                        failures += error.code() not in (CODE.NOT_FOUND, CODE.UNAVAILABLE)
                    answer = await stub.GetOffsets(kafkapixy.GetOffsetsRq(topic="t", group="g"))
                    offset = next(each.offset for each in answer.offsets if each.partition == 0)
        assert found == [b"before", b"behind"]
        # A client may refuse what is with its transport already, which acks it.
        assert failures <= 6, "three deliveries, and three of the retry"
        if size > 8 << 20:
            assert failures == 6
            (said,) = [entry for entry in logs if "cannot be delivered" in entry["event"]]
            assert (said["offset"], said["bytes"], said["group"]) == (1, size, "g")
            assert [entry["first"] for entry in logs if "dropped" in entry["event"]] == [1]


async def committed(stub: Any, group: str, end: int) -> None:
    """Wait until a group has committed the end of partition 0."""
    async with asyncio.timeout(60):
        while True:
            answer = await stub.GetOffsets(kafkapixy.GetOffsetsRq(topic="t", group=group))
            found = next(each for each in answer.offsets if each.partition == 0)
            assert found.end == end
            assert found.offset <= end
            if (found.offset, found.lag) == (end, 0):
                return
            await asyncio.sleep(0.05)


@pytest.mark.parametrize("codec", [0, COMPRESSION["zstd"]])
async def test_a_record_has_as_many_headers_as_a_message_however_it_comes(
    bulk: ServedBulk, codec: int
) -> None:
    def partitions(headers: int) -> list[pb.PartitionBatches]:
        batch = raw_batch([raw_record(0, b"x"), crowded_record(1, headers)], codec=codec)
        return [batches_for(0, batch)]

    (right,) = (await bulk.log.Append(pb.AppendRequest(partitions=partitions(1024)))).results
    assert right.code == 0
    for headers in (1025, 100_000):
        (wrong,) = (await bulk.log.Append(pb.AppendRequest(partitions=partitions(headers)))).results
        text = f"partition 0 of topic t: record batch 0 at byte 0: record 1 has {headers} headers, producer.max_headers allows 1024"
        assert (wrong.code, wrong.message) == (CODE.INVALID_ARGUMENT.value[0], text)
        stage = pb.StageRequest(sink_id="s", stage_id="a", partitions=partitions(headers))
        await fails(bulk.log.Stage(stage), CODE.INVALID_ARGUMENT, text)


async def test_a_request_that_decompresses_to_too_much_writes_nothing(bulk: ServedBulk) -> None:
    zeros = raw_batch([raw_record(number, bytes(999_900)) for number in range(4)], codec=COMPRESSION["zstd"])
    partitions = [batches_for(0, *[zeros] * 100), batches_for(1, batch_of(b"right"))]
    text = "the batches of the request decompress to more than 134217728 bytes"
    await fails(bulk.log.Append(pb.AppendRequest(partitions=partitions)), CODE.INVALID_ARGUMENT, text)
    stage = pb.StageRequest(sink_id="s", stage_id="a", partitions=partitions)
    await fails(bulk.log.Stage(stage), CODE.INVALID_ARGUMENT, text)
    assert await ends(bulk) == [0, 0]


async def test_an_append_does_not_wait_for_the_end_of_anothers_check(bulk: ServedBulk) -> None:
    values = [b"%d" % (number % 7) * (number % 2 + 1) for number in range(30_000)]
    costly = batches_for(0, *[batch_of(*values, compression=COMPRESSION["zstd"])] * 20)
    first = asyncio.ensure_future(
        bulk.log.Append(pb.AppendRequest(partitions=[costly, batches_for(1, b"no batch")]))
    )
    await asyncio.sleep(0.05)
    assert not first.done()
    other = batches_for(1, batch_of(*values))
    (appended,) = (await bulk.log.Append(pb.AppendRequest(partitions=[other]))).results
    assert appended.code == 0
    assert not first.done()
    await fails(first, CODE.INVALID_ARGUMENT, "partition 1 of topic t")


async def test_a_partition_with_wrong_records_fails_alone_and_a_stage_as_a_whole(bulk: ServedBulk) -> None:
    lying = raw_batch([raw_record(0, b"x"), raw_record(2, b"y")])
    partitions = [batches_for(0, lying), batches_for(1, batch_of(b"right"))]
    wrong, right = (await bulk.log.Append(pb.AppendRequest(partitions=partitions))).results
    assert (wrong.base_offset, wrong.code) == (-1, CODE.INVALID_ARGUMENT.value[0])
    text = "partition 0 of topic t: record batch 0 at byte 0: record 1 has offset delta 2, expected 1"
    assert wrong.message == text
    assert (right.base_offset, right.code) == (0, 0)
    stage = pb.StageRequest(sink_id="s", stage_id="a", partitions=partitions)
    await fails(bulk.log.Stage(stage), CODE.INVALID_ARGUMENT, text)


async def test_an_error_of_the_backend_has_its_status_and_reason(
    fake: tuple[ServedBulk, FakeBackend],
) -> None:
    bulk, backend = fake
    backend.fail_appends(Unavailable("the disk is full"))
    request = pb.AppendRequest(partitions=[batches_for(0, batch_of(b"a")), batches_for(1, batch_of(b"b"))])
    results = (await bulk.log.Append(request)).results
    assert [(each.base_offset, each.code, each.message) for each in results] == [
        (-1, CODE.UNAVAILABLE.value[0], "the disk is full"),
        (0, 0, ""),
    ]


async def test_while_draining_appends_are_rejected_and_reads_served(bulk: ServedBulk) -> None:
    await bulk.append(b"a")
    bulk.proxy.begin_drain()
    request = pb.AppendRequest(partitions=[batches_for(0, batch_of(b"b"))])
    await fails(bulk.log.Append(request), CODE.UNAVAILABLE, "service is shutting down")
    assert offsets(await bulk.fetch(range_of())) == [0]
