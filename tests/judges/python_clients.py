"""Clients of kafkapixy.proto on grpcio, blocking and asyncio: they call every RPC at least once and
return a transcript, one line per call.

The clients in `go` and `java` make the same calls, so all transcripts are equal.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc

from pixy.proto import kafkapixy_pb2 as pb
from pixy.proto.kafkapixy_pb2_grpc import KafkaPixyStub
from tests.integration.daemon import CHANNEL_OPTIONS

GROUP = "judges"
LARGE_BYTES = 900_000
AT_ONCE = 1000
SECONDS = 60.0

Call = tuple[str, str, Any, Callable[[Any], str]]
"""Start of the line, RPC, request, and formatter of the response."""


def script(topic: str) -> list[Call]:
    """The calls, in order."""
    consume: dict[str, Any] = {"topic": topic, "group": GROUP}
    keyless: dict[str, Any] = {"topic": topic, "key_undefined": True}
    headers = [pb.RecordHeader(key="a", value=b"1"), pb.RecordHeader(key="b", value=b"2")]
    first = pb.ProdRq(topic=topic, key_value=b"k", message=b"first", headers=headers)
    moved = pb.SetOffsetsRq(**consume, offsets=[pb.PartitionOffset(partition=0, offset=1)])
    return [
        ("Produce", "Produce", first, _produced),
        ("Produce without a key", "Produce", pb.ProdRq(**keyless, message=b"second"), _produced),
        (
            "Produce asynchronously",
            "Produce",
            pb.ProdRq(**keyless, message=b"third", async_mode=True),
            _produced,
        ),
        ("Produce much", "Produce", pb.ProdRq(**keyless, message=b"x" * LARGE_BYTES), _produced),
        ("ConsumeNAck", "ConsumeNAck", pb.ConsNAckRq(**consume, no_ack=True), _consumed),
        ("ConsumeNAck that acks", "ConsumeNAck", pb.ConsNAckRq(**consume), _consumed),
        ("Ack", "Ack", pb.AckRq(**consume, offset=1), _ok),
        ("ConsumeNAck that acks itself", "ConsumeNAck", pb.ConsNAckRq(**consume, auto_ack=True), _consumed),
        ("ConsumeNAck of much", "ConsumeNAck", pb.ConsNAckRq(**consume, auto_ack=True), _consumed),
        ("ListConsumers", "ListConsumers", pb.ListConsumersRq(topic=topic), _listed),
        ("SetOffsets", "SetOffsets", moved, _ok),
        ("GetOffsets", "GetOffsets", pb.GetOffsetsRq(**consume), _offsets),
        (
            "GetTopicMetadata",
            "GetTopicMetadata",
            pb.GetTopicMetadataRq(topic=topic, with_partitions=True),
            _described,
        ),
        (
            "ListTopics",
            "ListTopics",
            pb.ListTopicRq(with_partitions=True),
            lambda answer: _described(answer.topics[topic]),
        ),
        ("Produce to nowhere", "Produce", pb.ProdRq(cluster="nowhere", topic=topic), _produced),
        ("Ack of nothing", "Ack", pb.AckRq(topic=f"{topic}-unknown", group=GROUP), _ok),
    ]


def talk_sync(
    address: str, topic: str, *, deadlines: bool, credentials: grpc.ChannelCredentials | None
) -> list[str]:
    """Transcript of a blocking client."""
    timeout = SECONDS if deadlines else None
    lines = []
    with _channel(grpc, address, credentials) as channel:
        stub = KafkaPixyStub(channel)
        for name, method, request, show in script(topic):
            try:
                lines.append(f"{name}: {show(getattr(stub, method)(request, timeout=timeout))}")
            except grpc.RpcError as error:
                lines.append(f"{name}: {_status(error)}")
        try:
            stub.ConsumeNAck(_nothing(topic), timeout=0.2)
        except grpc.RpcError as error:
            lines.append(_too_little_time(error))
        with ThreadPoolExecutor(20) as threads:
            answers = list(threads.map(lambda _: stub.Produce(_one(topic), timeout=timeout), range(AT_ONCE)))
        lines.append(_at_once(answers))
    return lines


async def talk_aio(
    address: str, topic: str, *, deadlines: bool, credentials: grpc.ChannelCredentials | None
) -> list[str]:
    """Transcript of an asyncio client."""
    timeout = SECONDS if deadlines else None
    lines = []
    async with _channel(grpc.aio, address, credentials) as channel:
        stub: Any = KafkaPixyStub(channel)
        for name, method, request, show in script(topic):
            try:
                lines.append(f"{name}: {show(await getattr(stub, method)(request, timeout=timeout))}")
            except grpc.RpcError as error:
                lines.append(f"{name}: {_status(error)}")
        try:
            await stub.ConsumeNAck(_nothing(topic), timeout=0.2)
        except grpc.RpcError as error:
            lines.append(_too_little_time(error))
        calls: list[Awaitable[pb.ProdRs]] = [
            stub.Produce(_one(topic), timeout=timeout) for _ in range(AT_ONCE)
        ]
        lines.append(_at_once(await asyncio.gather(*calls)))
    return lines


def _channel(library: Any, address: str, credentials: grpc.ChannelCredentials | None) -> Any:
    if credentials is None:
        return library.insecure_channel(address, options=CHANNEL_OPTIONS)
    return library.secure_channel(address, credentials, options=CHANNEL_OPTIONS)


def _one(topic: str) -> pb.ProdRq:
    return pb.ProdRq(topic=topic, key_undefined=True, message=b"one of many")


def _nothing(topic: str) -> pb.ConsNAckRq:
    return pb.ConsNAckRq(topic=f"{topic}-empty", group=GROUP, no_ack=True)


def _status(error: Any) -> str:
    return f"{error.code().name} {error.details()}"


def _too_little_time(error: Any) -> str:
    return f"ConsumeNAck in too little time: {error.code().name}"


def _at_once(answers: Sequence[pb.ProdRs]) -> str:
    return f"Produce at once: {len({answer.offset for answer in answers})} offsets"


def _ok(answer: object) -> str:
    return "ok"


def _produced(answer: pb.ProdRs) -> str:
    return f"partition {answer.partition} offset {answer.offset}"


def _consumed(answer: pb.ConsRs) -> str:
    key = "no key" if answer.key_undefined else f"key {answer.key_value.decode()}"
    message = f"{len(answer.message)} bytes" if len(answer.message) > 100 else answer.message.decode()
    parts = [f"partition {answer.partition} offset {answer.offset}", key, f"message {message}"]
    parts += [f"header {header.key}={header.value.decode()}" for header in answer.headers]
    return ", ".join(parts)


def _listed(answer: pb.ListConsumersRs) -> str:
    lines = [
        f"group {group} client {client} partitions {_list(of.partitions)}"
        for group, consumers in answer.groups.items()
        for client, of in consumers.consumers.items()
    ]
    return "; ".join(sorted(lines))


def _offsets(answer: pb.GetOffsetsRs) -> str:
    of = answer.offsets[0]
    return (
        f"{len(answer.offsets)} partitions, partition {of.partition} begin {of.begin} end {of.end} count {of.count} "
        f"offset {of.offset} lag {of.lag}"
    )


def _described(answer: pb.GetTopicMetadataRs) -> str:
    of = answer.partitions[0]
    return (
        f"{len(answer.partitions)} partitions, partition {of.partition} leader {of.leader} "
        f"replicas {_list(of.replicas)} isr {_list(of.isr)}"
    )


def _list(numbers: Sequence[int]) -> str:
    return f"[{' '.join(map(str, numbers))}]"
