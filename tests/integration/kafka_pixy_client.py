"""A kafka-pixy client, with grpcio and stubs of the original interface and without pixy.

    python kafka_pixy_client.py ADDRESS FOLDER_OF_STUBS sync|aio PREFIX

Topic names start with PREFIX. Runs every scenario against a daemon and prints one JSON object:
scenario -> null, or the failure.
"""

import asyncio
import importlib
import json
import sys
import time
import traceback
from collections.abc import Awaitable, Callable
from typing import Any

import grpc

SECONDS = 60.0
PARTITIONS = 4
EMPTY, A, BAR, FOO = 3, 0, 2, 1  # kafka-pixy's partitions of these keys, of 4

pb: Any = None
Scenario = Callable[["Client"], Awaitable[None]]
SCENARIOS: dict[str, Scenario] = {}


def scenario(function: Scenario) -> Scenario:
    SCENARIOS[function.__name__] = function
    return function


class Client:
    """One stub, blocking or asynchronous; each scenario has its own topics and groups."""

    def __init__(self, stub: Any, name: str) -> None:
        self.stub = stub
        self.name = name
        self.group = f"readers of {name}"

    async def call(self, method: str, request: Any, timeout: float = SECONDS) -> Any:
        answer = getattr(self.stub, method)(request, timeout=timeout)
        return await answer if isinstance(answer, Awaitable) else answer

    def begin(self, method: str, request: Any) -> Any:
        """Send a request without waiting for its response."""
        method_of_stub = getattr(self.stub, method)
        return getattr(method_of_stub, "future", method_of_stub)(request, timeout=SECONDS)

    @staticmethod
    async def end(call: Any) -> str:
        """Status of a request sent with `begin`."""
        try:
            await call if isinstance(call, Awaitable) else call.result()
        except grpc.RpcError as error:
            return code_of(error)
        return "OK"

    async def fails(self, method: str, request: Any, code: str, text: str = "") -> None:
        while True:
            try:
                answer = await self.call(method, request)
            except grpc.RpcError as error:
                failure = error
            else:
                raise AssertionError(f"{method} was answered: {answer}, expected {code}")
            # The first poll of a group may end before a busy machine has let it join.
            if "has not begun to consume" not in str(failure.details()):
                break
        details = str(failure.details())
        assert (code_of(failure), text in details) == (code, True), f"{method}: {code_of(failure)}: {details}"

    async def produce(self, topic: str, message: bytes, key: bytes | None = None, **fields: Any) -> Any:
        request = pb.ProdRq(
            topic=topic, message=message, key_value=key or b"", key_undefined=key is None, **fields
        )
        return await self.call("Produce", request)

    async def consume(self, topic: str, group: str, **fields: Any) -> Any:
        """The next message, over several long polls if necessary: a group may rebalance slowly."""
        deadline = asyncio.get_running_loop().time() + SECONDS
        while True:
            try:
                return await self.call("ConsumeNAck", pb.ConsNAckRq(topic=topic, group=group, **fields))
            except grpc.RpcError as error:
                if (
                    code_of(error) not in ("NOT_FOUND", "UNAVAILABLE")
                    or asyncio.get_running_loop().time() > deadline
                ):
                    raise

    async def consume_nothing(self, topic: str, group: str, **fields: Any) -> None:
        request = pb.ConsNAckRq(topic=topic, group=group, **fields)
        await self.fails("ConsumeNAck", request, "NOT_FOUND", "long polling timeout")

    async def offsets(self, topic: str, group: str) -> list[Any]:
        return list((await self.call("GetOffsets", pb.GetOffsetsRq(topic=topic, group=group))).offsets)

    async def committed(self, topic: str, group: str, partition: int, offset: int, sparse: str = "") -> None:
        """Wait until a position is committed."""
        seen: Any = None
        deadline = asyncio.get_running_loop().time() + SECONDS
        while asyncio.get_running_loop().time() < deadline:
            seen = (await self.offsets(topic, group))[partition]
            if (seen.offset, seen.sparse_acks) == (offset, sparse):
                return
        raise AssertionError(f"expected {offset} {sparse!r}, is {seen}")

    async def set_offsets(self, topic: str, group: str, *entries: tuple[int, int]) -> None:
        await self.call("SetOffsets", set_request(topic, group, *entries))


def code_of(error: grpc.RpcError) -> str:
    return str(error.code().name)


def set_request(
    topic: str, group: str, *entries: tuple[int, int], cluster: str = "", metadata: str = ""
) -> Any:
    offsets = [pb.PartitionOffset(partition=p, offset=offset, metadata=metadata) for p, offset in entries]
    return pb.SetOffsetsRq(topic=topic, group=group, cluster=cluster, offsets=offsets)


@scenario
async def a_message_goes_where_its_key_says_and_offsets_count_up(client: Client) -> None:
    for key, partition in ((b"", EMPTY), (b"A", A), (b"bar", BAR), (b"foo", FOO)):
        for offset in range(3):
            answer = await client.produce(client.name, b"m", key)
            assert (answer.partition, answer.offset) == (partition, offset), (key, answer)


@scenario
async def an_async_message_is_answered_at_once_and_arrives(client: Client) -> None:
    answer = await client.produce(client.name, b"later", async_mode=True)
    assert (answer.partition, answer.offset) == (-1, -1)
    assert (await client.consume(client.name, client.group, auto_ack=True)).message == b"later"


@scenario
async def a_message_comes_back_as_it_was(client: Client) -> None:
    headers = [pb.RecordHeader(key="name", value=b"one"), pb.RecordHeader(key="name", value=b"\x00\xff")]
    for key in (None, b"", b"\xff\x00"):
        await client.produce(client.name, b"\x00body\xff", key, headers=headers)
        answer = await client.consume(client.name, client.group, auto_ack=True)
        assert (answer.key_undefined, answer.key_value) == (key is None, key or b""), answer
        assert answer.message == b"\x00body\xff"
        assert [(header.key, header.value) for header in answer.headers] == [
            ("name", b"one"),
            ("name", b"\x00\xff"),
        ]
    await client.produce(client.name, b"")
    assert (await client.consume(client.name, client.group, auto_ack=True)).message == b""


@scenario
async def an_empty_poll_is_not_found(client: Client) -> None:
    await client.consume_nothing(client.name, client.group, no_ack=True)
    await client.consume_nothing(client.name, client.group, auto_ack=True)


@scenario
async def acks_that_ride_on_requests_are_committed(client: Client) -> None:
    for _ in range(3):
        await client.produce(client.name, b"m", b"foo")
    answer = await client.consume(client.name, client.group, no_ack=True)
    for offset in (1, 2):
        ack = {"ack_partition": answer.partition, "ack_offset": answer.offset}
        answer = await client.consume(client.name, client.group, **ack)
        assert answer.offset == offset
    await client.committed(client.name, client.group, FOO, 2)
    await client.consume_nothing(client.name, client.group, ack_partition=FOO, ack_offset=2)
    await client.committed(client.name, client.group, FOO, 3)


@scenario
async def acks_on_their_own_may_come_in_any_order(client: Client) -> None:
    for _ in range(4):
        await client.produce(client.name, b"m", b"foo")
        await client.consume(client.name, client.group, no_ack=True)

    def ack(offset: int) -> Any:
        return pb.AckRq(topic=client.name, group=client.group, partition=FOO, offset=offset)

    for offset in (3, 1):
        await client.call("Ack", ack(offset))
    await client.committed(client.name, client.group, FOO, 0, "1-2,3-4")
    for offset in (0, 0, 3, 2):
        await client.call("Ack", ack(offset))
    await client.committed(client.name, client.group, FOO, 4)


@scenario
async def auto_ack_acks_unless_no_ack_is_set_too(client: Client) -> None:
    for _ in range(2):
        await client.produce(client.name, b"m", b"foo")
    await client.consume(client.name, client.group, auto_ack=True)
    await client.consume(client.name, client.group, auto_ack=True, no_ack=True)
    await client.committed(client.name, client.group, FOO, 1)
    await client.consume_nothing(client.name, client.group, auto_ack=True)
    assert (await client.offsets(client.name, client.group))[FOO].offset == 1


@scenario
async def a_request_with_all_defaults_acks_the_first_message_only_if_it_was_offered(client: Client) -> None:
    await client.produce(client.name, b"first", b"A")
    answer = await client.consume(client.name, client.group)
    assert (answer.partition, answer.offset, answer.message) == (0, 0, b"first")
    assert (await client.offsets(client.name, client.group))[0].offset <= 0
    await client.consume_nothing(client.name, client.group)
    await client.committed(client.name, client.group, 0, 1)
    assert (await client.consume(client.name, f"{client.group} too")).message == b"first"


@scenario
async def impossible_acks_are_invalid(client: Client) -> None:
    await client.produce(client.name, b"m", b"A")
    await client.consume(client.name, client.group, no_ack=True)
    for partition, offset, text in (
        (-1, 0, "invalid ack: bad partition: -1"),
        (0, -1, "invalid ack: bad offset: -1"),
        (PARTITIONS, 0, "bad partition"),
        (0, 1, "bad offset: 1"),
    ):
        ack = pb.AckRq(topic=client.name, group=client.group, partition=partition, offset=offset)
        await client.fails("Ack", ack, "INVALID_ARGUMENT", text)
        riding = pb.ConsNAckRq(
            topic=client.name, group=client.group, ack_partition=partition, ack_offset=offset
        )
        await client.fails("ConsumeNAck", riding, "INVALID_ARGUMENT", text)
    await client.fails("Ack", pb.AckRq(topic="absent", group=client.group), "NOT_FOUND", "absent")


@scenario
async def offsets_of_a_group_that_never_committed(client: Client) -> None:
    for _ in range(3):
        await client.produce(client.name, b"m", b"foo")
    entries = await client.offsets(client.name, "never")
    assert [entry.partition for entry in entries] == list(range(PARTITIONS))
    entry = entries[FOO]
    assert (entry.begin, entry.end, entry.count, entry.offset, entry.lag) == (0, 3, 3, -1, 0), entry
    assert (entry.metadata, entry.sparse_acks) == ("", "")


@scenario
async def a_group_is_moved_while_it_consumes(client: Client) -> None:
    for _ in range(5):
        await client.produce(client.name, b"m", b"foo")
    for offset in range(5):
        assert (await client.consume(client.name, client.group, auto_ack=True)).offset == offset
    await client.set_offsets(client.name, client.group, (FOO, -2))
    assert (await client.consume(client.name, client.group, auto_ack=True)).offset == 0
    await client.set_offsets(client.name, client.group, (FOO, 3))
    entry = (await client.offsets(client.name, client.group))[FOO]
    assert (entry.offset, entry.lag) == (3, 2)
    assert (await client.consume(client.name, client.group, auto_ack=True)).offset == 3
    await client.set_offsets(client.name, client.group, (FOO, -1))
    entry = (await client.offsets(client.name, client.group))[FOO]
    assert (entry.offset, entry.lag) == (5, 0)
    await client.consume_nothing(client.name, client.group, auto_ack=True)
    await client.call("SetOffsets", set_request(client.name, client.group, (FOO, 0), metadata="BD"))
    entry = (await client.offsets(client.name, client.group))[FOO]
    assert (entry.offset, entry.metadata, entry.sparse_acks) == (0, "BD", "1-4")
    assert [(await client.consume(client.name, client.group, auto_ack=True)).offset for _ in range(2)] == [
        0,
        4,
    ]


@scenario
async def offsets_are_set_all_or_none(client: Client) -> None:
    await client.produce(client.name, b"m", b"A")
    await client.set_offsets(client.name, client.group, (0, 1), (1, 0))
    for entry in ((PARTITIONS, 0), (-1, 0), (1, -3)):
        request = set_request(client.name, client.group, (0, 0), entry)
        await client.fails("SetOffsets", request, "INVALID_ARGUMENT")
    assert [entry.offset for entry in await client.offsets(client.name, client.group)] == [1, 0, -1, -1]
    await client.fails("SetOffsets", set_request("absent", client.group, (0, 0)), "NOT_FOUND", "absent")


@scenario
async def offsets_beyond_the_end_and_any_metadata_are_kept_as_they_were_set(client: Client) -> None:
    await client.produce(client.name, b"m", b"A")
    request = set_request(client.name, client.group, (FOO, 1100), (A, 0), metadata="A100")
    await client.call("SetOffsets", request)
    offsets = await client.offsets(client.name, client.group)
    assert [(offsets[p].offset, offsets[p].metadata, offsets[p].lag) for p in (FOO, A)] == [
        (1100, "A100", 0),
        (0, "A100", 1),
    ]
    assert (await client.consume(client.name, client.group, auto_ack=True)).message == b"m"
    await client.produce(client.name, b"at the end", b"foo")
    assert (await client.consume(client.name, client.group, auto_ack=True)).message == b"at the end"


def requests_of_all_methods(topic: str, group: str, cluster: str) -> dict[str, Any]:
    return {
        "Produce": pb.ProdRq(cluster=cluster, topic=topic, message=b"m", key_value=b"A"),
        "ConsumeNAck": pb.ConsNAckRq(cluster=cluster, topic=topic, group=group, no_ack=True),
        "Ack": pb.AckRq(cluster=cluster, topic=topic, group=group),
        "GetOffsets": pb.GetOffsetsRq(cluster=cluster, topic=topic, group=group),
        "SetOffsets": set_request(topic, group, (0, 0), cluster=cluster),
        "ListTopics": pb.ListTopicRq(cluster=cluster),
        "ListConsumers": pb.ListConsumersRq(cluster=cluster, topic=topic, group=group),
        "GetTopicMetadata": pb.GetTopicMetadataRq(cluster=cluster, topic=topic),
    }


@scenario
async def every_method_refuses_an_unknown_cluster_and_takes_the_named_one(client: Client) -> None:
    for method, request in requests_of_all_methods(client.name, client.group, "nowhere").items():
        await client.fails(method, request, "INVALID_ARGUMENT", "proxy `nowhere` does not exist")
    for method, request in requests_of_all_methods(client.name, client.group, "default").items():
        if method == "ConsumeNAck":
            await client.consume(client.name, client.group, cluster="default", no_ack=True)
        else:
            await client.call(method, request)


@scenario
async def an_empty_group_is_invalid(client: Client) -> None:
    await client.produce(client.name, b"m")
    requests = requests_of_all_methods(client.name, "", "")
    for method in ("ConsumeNAck", "Ack", "GetOffsets", "SetOffsets"):
        await client.fails(method, requests[method], "INVALID_ARGUMENT", "group")


@scenario
async def impossible_topic_names_are_invalid(client: Client) -> None:
    for name in ("", ".", "..", "a/b", "a b", "\u00fc", "x" * 250):
        requests = requests_of_all_methods(name, client.group, "")
        del requests["ListTopics"]
        for method, request in requests.items():
            await client.fails(method, request, "INVALID_ARGUMENT", "invalid topic name")
    await client.produce("x" * 249, b"m")


@scenario
async def a_message_that_is_too_large_is_invalid(client: Client) -> None:
    await client.produce(client.name, b"x" * 97, b"key")
    request = pb.ProdRq(topic=client.name, message=b"x" * 98, key_value=b"key")
    await client.fails("Produce", request, "INVALID_ARGUMENT", "max_message_bytes")
    request = pb.ProdRq(topic=client.name, message=b"x" * (5 << 20))
    await client.fails("Produce", request, "RESOURCE_EXHAUSTED")
    await client.produce(client.name, b"the connection is still good")


@scenario
async def a_topic_is_created_by_its_first_use_unless_that_is_switched_off(client: Client) -> None:
    for method in ("GetOffsets", "SetOffsets", "Ack", "ListConsumers", "GetTopicMetadata"):
        await client.fails(
            method, requests_of_all_methods(client.name, client.group, "")[method], "NOT_FOUND", client.name
        )
    assert client.name not in (await client.call("ListTopics", pb.ListTopicRq())).topics
    await client.consume_nothing(client.name, client.group, no_ack=True)
    assert client.name in (await client.call("ListTopics", pb.ListTopicRq())).topics
    for method in ("Produce", "ConsumeNAck"):
        request = requests_of_all_methods(f"{client.name}-closed", client.group, "closed")[method]
        await client.fails(method, request, "INVALID_ARGUMENT", "auto_create_topics is off")


@scenario
async def consumers_are_listed_while_they_consume(client: Client) -> None:
    other = f"{client.name}-other"
    await client.produce(other, b"m")
    await client.produce(client.name, b"m")
    await client.consume(client.name, "listed-" + client.name, auto_ack=True)
    for group in ("", "listed-" + client.name):
        request = pb.ListConsumersRq(topic=client.name, group=group)
        groups = (await client.call("ListConsumers", request)).groups
        assert list(groups) == ["listed-" + client.name]
        ((_, consumer),) = groups["listed-" + client.name].consumers.items()
        assert list(consumer.partitions) == list(range(PARTITIONS))
    request = pb.ListConsumersRq(topic=other, group="listed-" + client.name)
    await client.fails("ListConsumers", request, "NOT_FOUND", "is not consumed by")
    request = pb.ListConsumersRq(topic=other, group="nobody")
    await client.fails("ListConsumers", request, "NOT_FOUND", "unknown consumer group nobody")
    assert not (await client.call("ListConsumers", pb.ListConsumersRq(topic=other))).groups


@scenario
async def topics_are_described(client: Client) -> None:
    await client.produce(client.name, b"m")
    for with_partitions in (False, True):
        request = pb.GetTopicMetadataRq(topic=client.name, with_partitions=with_partitions)
        give_up_at = time.monotonic() + SECONDS
        while True:
            one = await client.call("GetTopicMetadata", request)
            listed = await client.call("ListTopics", pb.ListTopicRq(with_partitions=with_partitions))
            leaders_are_there = all(partition.leader in partition.isr for partition in one.partitions)
            if listed.topics[client.name] == one and leaders_are_there:
                break  # else partitions are getting other leaders
            assert time.monotonic() < give_up_at, (one, listed.topics[client.name])
            await asyncio.sleep(0.05)
        expected = list(range(PARTITIONS)) if with_partitions else []
        assert one.version == 1
        assert [partition.partition for partition in one.partitions] == expected
        for partition in one.partitions:
            assert partition.leader in partition.isr
            assert set(partition.isr) <= set(partition.replicas)


@scenario
async def consuming_can_be_switched_off(client: Client) -> None:
    await client.call("Produce", pb.ProdRq(cluster="silent", topic=client.name, message=b"m"))
    request = pb.ConsNAckRq(cluster="silent", topic=client.name, group=client.group, no_ack=True)
    await client.fails("ConsumeNAck", request, "UNAVAILABLE", "disabled")


@scenario
async def more_waiting_requests_than_allowed_are_refused(client: Client) -> None:
    request = pb.ConsNAckRq(cluster="narrow", topic=client.name, group=client.group, no_ack=True)
    calls = [client.begin("ConsumeNAck", request) for _ in range(5)]
    statuses = sorted([await client.end(call) for call in calls])
    assert statuses == ["NOT_FOUND"] * 2 + ["RESOURCE_EXHAUSTED"] * 3


@scenario
async def a_deadline_of_the_caller_ends_a_poll_before_its_time(client: Client) -> None:
    loop = asyncio.get_running_loop()
    began = loop.time()
    request = pb.ConsNAckRq(cluster="patient", topic=client.name, group=client.group, no_ack=True)
    status = ""
    try:
        await client.call("ConsumeNAck", request, timeout=0.5)
    except grpc.RpcError as error:
        status = code_of(error)
    assert status in ("NOT_FOUND", "DEADLINE_EXCEEDED")
    assert loop.time() - began < SECONDS
    await client.call("Produce", pb.ProdRq(cluster="patient", topic=client.name, message=b"m"))
    assert (await client.call("ConsumeNAck", request)).message == b"m"


async def run_all(stub: Any, prefix: str) -> dict[str, str | None]:
    results: dict[str, str | None] = {}
    for name, function in SCENARIOS.items():
        try:
            await function(Client(stub, f"{prefix}-{name}"))
        except Exception:
            results[name] = traceback.format_exc()
        else:
            results[name] = None
    return results


async def main(address: str, stubs: str, mode: str, prefix: str) -> None:
    global pb  # noqa: PLW0603 - the stubs are imported only here
    sys.path.insert(0, stubs)
    pb = importlib.import_module("kafka_pixy_pb2")
    make_stub = importlib.import_module("kafka_pixy_pb2_grpc").KafkaPixyStub
    assert not [name for name in sys.modules if name.partition(".")[0] == "pixy"], "it must not know pixy"
    options = [("grpc.enable_http_proxy", 0)]
    if mode == "sync":
        with grpc.insecure_channel(address, options=options) as channel:
            print(json.dumps(await run_all(make_stub(channel), f"{prefix}{mode}")))
    else:
        async with grpc.aio.insecure_channel(address, options=options) as channel:
            print(json.dumps(await run_all(make_stub(channel), f"{prefix}{mode}")))


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
