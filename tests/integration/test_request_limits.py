"""The largest request of every method, and one that is larger, at daemons that go on meanwhile.

The cases are made from the descriptors of all services: of each repeated field of each method as
many elements as are allowed, one more, and as many as fit into a message; and for each method as
many bytes as fit into any text, and into fields that nobody knows. A method or field without a row
in the tables here or in `pixy.api.grpc.maxima` fails.

The longest step of the loop is asserted on the processor's time of its thread. It fails if steps of
the same kind were long each time: neighbours on a busy machine, which use the same caches, and
collections of garbage lengthen any step, but not the same one again and again. One element in
Python for each two bytes takes a second.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import grpc
import pytest
from google.protobuf.descriptor import Descriptor, FieldDescriptor, MethodDescriptor

from pixy.api.grpc.maxima import LARGE_FIELDS, REPEATED_MAX
from pixy.proto import kafkapixy_pb2, pixy_cluster_pb2, pixy_log_pb2, pixy_topics_pb2
from pixy.proto.pixy_topics_pb2_grpc import TopicsStub
from pixy.proto.state_pb2 import PartitionMove
from pixy.rpc import HEALTH, Reflection
from pixy.rpc.field_limits import FIELD_BYTES_MAX, repeated_fields
from tests.fakes.batches import batch_of
from tests.fakes.waiting import until_blocking
from tests.integration.clusters import Cluster, ClusterNode
from tests.integration.daemon import CHANNEL_OPTIONS
from tests.integration.measured_daemon import MEASURED, Step, take_steps

pytestmark = [pytest.mark.slow, pytest.mark.process]

Code = grpc.StatusCode

BYTES = 4 << 20
"""Default of `grpc.max_message_bytes`."""
STEP_MS = 10.0
SECONDS = 60.0
ATTEMPTS = 10
"""A machine that is busy for a second changes leaders and has long steps, but not each time."""
WIDE = {1: 2000, 3: 60}
"""Partitions of the topic, by the number of nodes."""
FULL = 256
"""Offsets with the largest metadata that a request may set."""

_SERVICES = [
    module.DESCRIPTOR.services_by_name[name]
    for module, name in (
        (kafkapixy_pb2, "KafkaPixy"),
        (pixy_topics_pb2, "Topics"),
        (pixy_log_pb2, "Log"),
        (pixy_cluster_pb2, "Cluster"),
    )
]
_OTHERS = [HEALTH, *(service.descriptor for service in Reflection([]).services())]
METHODS = [method for service in (*_SERVICES, *_OTHERS) for method in service.methods]
"""All methods of a daemon."""


class Served(NamedTuple):
    """Running nodes, and a connection to the first."""

    nodes: list[ClusterNode]
    channel: grpc.Channel


# --- requests -------------------------------------------------------------------------------------


def _partitions(count: int) -> list[pixy_log_pb2.PartitionBatches]:
    batches = bytes(batch_of(b"x"))
    return [pixy_log_pb2.PartitionBatches(topic="t", partition=at, batches=batches) for at in range(count)]


def _versions(count: int) -> list[pixy_log_pb2.TopicVersion]:
    return [pixy_log_pb2.TopicVersion(topic="t", version=1)] * count


def _ids(count: int) -> list[str]:
    return [f"{'s' * 240}{at:06}" for at in range(count)]


def _moves(count: int) -> list[bytes]:
    moves = (PartitionMove(raft_group=at, placement=1, target=[1]) for at in range(count))
    return [each.SerializeToString() for each in moves]


Make = Callable[[int], Any]

OK, INVALID = Code.OK, Code.INVALID_ARGUMENT
ELEMENTS: Mapping[str, tuple[Make, set[Code]]] = {
    "KafkaPixy.Produce.headers": (
        lambda n: kafkapixy_pb2.ProdRq(
            topic="t", message=b"x", headers=[kafkapixy_pb2.RecordHeader(key="k", value=b"v")] * n
        ),
        {INVALID},
    ),
    "KafkaPixy.SetOffsets.offsets": (
        lambda n: kafkapixy_pb2.SetOffsetsRq(
            topic="t",
            group="g",
            offsets=[kafkapixy_pb2.PartitionOffset(partition=at, metadata="B" * 100) for at in range(n)],
        ),
        {OK, INVALID},
    ),
    "Topics.CreateTopic.config": (
        lambda n: pixy_topics_pb2.CreateTopicRequest(topic="new", config={f"o{at}": "1" for at in range(n)}),
        {INVALID},
    ),
    "Topics.AlterTopic.set": (
        lambda n: pixy_topics_pb2.AlterTopicRequest(topic="t", set={f"o{at}": "1" for at in range(n)}),
        {INVALID},
    ),
    "Topics.AlterTopic.unset": (
        lambda n: pixy_topics_pb2.AlterTopicRequest(topic="t", unset=[f"o{at}" for at in range(n)]),
        {INVALID},
    ),
    "Topics.DeleteRecords.partitions": (
        lambda n: pixy_topics_pb2.DeleteRecordsRequest(
            topic="t",
            partitions=[pixy_topics_pb2.RecordsToDelete(partition=at, before_offset=-1) for at in range(n)],
        ),
        {OK, INVALID},
    ),
    "Log.DescribeTopics.topics": (lambda n: pixy_log_pb2.DescribeTopicsRequest(topics=_ids(n)), {OK}),
    "Log.ListOffsets.queries": (
        lambda n: pixy_log_pb2.ListOffsetsRequest(
            queries=[pixy_log_pb2.OffsetQuery(topic="t", partition=at, latest=True) for at in range(n)]
        ),
        {OK},
    ),
    "Log.Fetch.ranges": (
        lambda n: pixy_log_pb2.FetchRequest(
            ranges=[pixy_log_pb2.FetchRange(topic="t", partition=at, to_offset=-1) for at in range(n)]
        ),
        {OK},
    ),
    "Log.ConsumeBatch.acks": (
        lambda n: pixy_log_pb2.ConsumeBatchRequest(
            topic="t",
            group="batches",
            max_messages=1,
            acks=[pixy_log_pb2.MessagePosition(partition=at % 2000, offset=at) for at in range(n)],
        ),
        {OK, INVALID, Code.UNAVAILABLE, Code.NOT_FOUND, Code.FAILED_PRECONDITION},
    ),
    "Log.Append.partitions": (lambda n: pixy_log_pb2.AppendRequest(partitions=_partitions(n)), {OK}),
    "Log.Append.versions": (
        lambda n: pixy_log_pb2.AppendRequest(partitions=_partitions(1), versions=_versions(n)),
        {OK},
    ),
    "Log.Stage.partitions": (
        lambda n: pixy_log_pb2.StageRequest(sink_id="s", stage_id="a", partitions=_partitions(n)),
        {OK, Code.NOT_FOUND},
    ),
    "Log.Stage.versions": (
        lambda n: pixy_log_pb2.StageRequest(
            sink_id="s", stage_id="b", partitions=_partitions(1), versions=_versions(n)
        ),
        {OK},
    ),
    "Log.Publish.stage_ids": (
        lambda n: pixy_log_pb2.PublishRequest(sink_id="s", epoch=1, stage_ids=[*_ids(n - 1), *_ids(1)]),
        {INVALID},
    ),
    "Log.Discard.stage_ids": (
        lambda n: pixy_log_pb2.DiscardRequest(sink_id="s", stage_ids=_ids(n)),
        {OK},
    ),
    "Cluster.BeginMoves.tokens": (
        lambda n: pixy_cluster_pb2.BeginMovesRequest(tokens=_moves(n)),
        {OK, Code.FAILED_PRECONDITION},
    ),
}
"""A request with a number of elements, and statuses of the largest one, by method and field."""


class Text(NamedTuple):
    """A field that fills a request, its path, and the request."""

    path: str
    body: bytes


def _texts(message: Descriptor) -> Iterator[Text]:
    """Requests with one text, or with one element that has one."""
    for field in message.fields:
        if field.type in (FieldDescriptor.TYPE_STRING, FieldDescriptor.TYPE_BYTES):
            yield Text(field.name, _long_field(field, b"x" * (BYTES - 64)))
        elif field.message_type is not None:
            for path, body in _texts(field.message_type):
                yield Text(f"{field.name}.{path}", _long_field(field, body))


def _long_field(field: FieldDescriptor, content: bytes) -> bytes:
    return _varint(field.number << 3 | 2) + _varint(len(content)) + content


def _strangers() -> Iterator[bytes]:
    """Requests with fields that nobody knows."""
    for unit in (b"\xf8\x7f\x01", b"\xfa\x7f\x00", b"\xfb\x7f\xfc\x7f"):
        yield unit * (BYTES // len(unit))


def _strange_elements(message: Descriptor, count: int) -> Iterator[tuple[bytes, set[Code] | None]]:
    """Requests whose elements have fields that nobody knows, and their statuses."""
    for field in message.fields:
        if field.message_type is not None:
            small, scanned, large = (_long_field(field, b"\x78\x01" * size) for size in (16, 30, 2000))
            yield small * count, None
            yield scanned * count, None
            yield large * (BYTES // len(large)), {INVALID}


def _varint(number: int) -> bytes:
    encoded = bytearray()
    while number > 0x7F:
        encoded.append(number & 0x7F | 0x80)
        number >>= 7
    encoded.append(number)
    return bytes(encoded)


# --- tests ----------------------------------------------------------------------------------------


@pytest.fixture(scope="module", params=[1, 3], ids=["one node", "three nodes"])
def served(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("limits")
    with Cluster(folder, request.param, program=MEASURED) as cluster:
        cluster.start()
        with grpc.insecure_channel(cluster[1].address, options=CHANNEL_OPTIONS) as channel:
            wide = pixy_topics_pb2.CreateTopicRequest(topic="t", partitions=WIDE[request.param])
            TopicsStub(channel).CreateTopic(wide, timeout=SECONDS)
            until_blocking(lambda: _is_settled(cluster[1], channel), cluster.logs)
            yield Served(cluster.nodes, channel)


def _call(channel: grpc.Channel, method: MethodDescriptor, body: bytes) -> tuple[Code, str]:
    """Send a request, again if a leader is being elected; returns its status."""
    for _ in range(ATTEMPTS):
        code, details = _call_once(channel, method, body)
        if code is not Code.UNAVAILABLE:
            break
    return code, details


def _call_once(channel: grpc.Channel, method: MethodDescriptor, body: bytes) -> tuple[Code, str]:
    """Send a request; returns its status. Of a stream without an end only the first answer is
    awaited.
    """
    path = f"/{method.containing_service.full_name}/{method.name}"
    raw: Any = channel  # without serializers it takes and gives bytes
    try:
        if method.client_streaming:
            list(raw.stream_stream(path)(iter([body]), timeout=SECONDS))
        elif method.server_streaming:
            call = raw.unary_stream(path)(body, timeout=SECONDS)
            for _ in call:
                if method.name == "Watch":
                    call.cancel()
                    break
        else:
            raw.unary_unary(path)(body, timeout=SECONDS)
    except grpc.RpcError as error:
        return error.code(), error.details() or ""
    return OK, ""


def _leaders(nodes: list[ClusterNode]) -> dict[str, tuple[int, int]]:
    """Leader and term of each raft group."""
    return {group.name: (group.leader, group.term) for group in nodes[0].status().groups}


def _is_settled(node: ClusterNode, channel: grpc.Channel) -> bool:
    """True when all groups have the leaders that they keep."""
    asked = pixy_topics_pb2.DescribeTopicRequest(topic="t")
    topic = TopicsStub(channel).DescribeTopic(asked, timeout=SECONDS)
    groups = [group for group in node.status().groups if not group.is_partition and group.name != "metadata"]
    return all(each.leader == each.replicas[0] for each in topic.partitions) and all(
        group.leader == sorted(group.voters)[group.raft_group % len(group.voters)] for group in groups
    )


@pytest.mark.parametrize("method", METHODS, ids=lambda method: method.full_name)
def test_no_request_stops_a_daemon(served: Served, method: MethodDescriptor) -> None:
    nodes, channel = served
    maxima = REPEATED_MAX.get(method.containing_service.name, {}).get(method.name, {})
    assert sorted(maxima) == sorted(repeated_fields(method.input_type)), "each repeated field has a maximum"
    _assert_short_steps(nodes, lambda: _send_all(channel, method))


def _long_steps(nodes: list[ClusterNode], work: Callable[[], None]) -> dict[str, Step]:
    """Steps of the daemons that take too long while something is done, by kind."""
    for node in nodes:
        take_steps(node.folder)
    work()
    steps = [step for node in nodes for step in take_steps(node.folder)]
    return {re.sub(r"[0-9a-fx]*\d[0-9a-fx]*", "", step.what): step for step in steps if step.ms > STEP_MS}


def _assert_short_steps(nodes: list[ClusterNode], work: Callable[[], None]) -> None:
    """Assert that no kind of step is long each time, and that leaders stay once."""
    long: dict[str, Step] | None = None
    is_stable = False
    for _ in range(ATTEMPTS):
        leaders = _leaders(nodes)
        steps = _long_steps(nodes, work)
        after = _leaders(nodes)
        is_stable |= {name: after[name] for name in leaders} == leaders
        long = steps if long is None else {kind: step for kind, step in steps.items() if kind in long}
        if is_stable and not long:
            return
    raise AssertionError(f"long steps {long}, or leaders change: {leaders}, then {after}")


def _send_all(channel: grpc.Channel, method: MethodDescriptor) -> None:
    """Send the largest requests of a method and larger ones, and check their statuses."""
    service, request = method.containing_service, method.input_type
    maxima = REPEATED_MAX.get(service.name, {}).get(method.name, {})
    for field, maximum in maxima.items():
        make, expected = ELEMENTS[f"{service.name}.{method.name}.{field}"]
        code, details = _call(channel, method, make(maximum).SerializeToString())
        assert code in expected, details
        assert "elements" not in details
        text = f"the request has {maximum + 1} elements of {field} or more, at most {maximum} are allowed"
        larger = make(maximum + 1).SerializeToString()
        most = _varint(request.fields_by_name[field].number << 3 | 2) + b"\x00"
        for body in (larger, most * (BYTES // len(most))):
            assert _call(channel, method, body) == (INVALID, text)
    for body in _strangers():
        assert _call(channel, method, body)[0] is INVALID
    for body, statuses in _strange_elements(request, max(maxima.values(), default=1)):
        code, details = _call(channel, method, body)
        assert code in statuses if statuses else code not in (Code.INTERNAL, Code.UNKNOWN), details
    large = LARGE_FIELDS.get(service.name, {}).get(method.name, ())
    for path, body in _texts(request):
        code, details = _call(channel, method, body)
        if path in large:
            assert code not in (Code.INTERNAL, Code.UNKNOWN), details
        else:
            assert (code, details[-25:]) == (INVALID, f"at most {FIELD_BYTES_MAX} are allowed"), path


def test_the_largest_metadata_of_many_partitions_stops_nobody(served: Served) -> None:
    nodes, channel = served
    count = min(WIDE[len(nodes)], 600)  # of a thousand, GetOffsets has more than an answer may
    largest = [kafkapixy_pb2.PartitionOffset(partition=at, metadata="BB" * 2048) for at in range(count)]

    def sets(group: str, size: int) -> Iterator[tuple[str, Any, Code]]:
        for at in range(0, len(largest), size):
            offsets = largest[at : at + size]
            yield (
                "SetOffsets",
                kafkapixy_pb2.SetOffsetsRq(topic="t", group=group, offsets=offsets),
                OK if len(offsets) <= FULL else INVALID,
            )

    def set_and_consume() -> None:
        for name, asked, expected in (
            *sets("full", FULL),
            *sets("fuller", count),
            ("GetOffsets", kafkapixy_pb2.GetOffsetsRq(topic="t", group="full"), OK),
            ("ConsumeNAck", kafkapixy_pb2.ConsNAckRq(topic="t", group="full", no_ack=True), None),
            *sets("full", FULL),
        ):
            method = next(each for each in METHODS if each.full_name == f"KafkaPixy.{name}")
            code, details = _call(channel, method, asked.SerializeToString())
            assert code is expected or expected is None, details

    _assert_short_steps(nodes, set_and_consume)


def test_all_of_a_topic_with_many_partitions_is_answered_in_steps(served: Served) -> None:
    nodes, channel = served

    def ask_all() -> None:
        for name, asked in (
            ("KafkaPixy.GetOffsets", kafkapixy_pb2.GetOffsetsRq(topic="t", group="g")),
            ("KafkaPixy.ListTopics", kafkapixy_pb2.ListTopicRq(with_partitions=True)),
            ("KafkaPixy.GetTopicMetadata", kafkapixy_pb2.GetTopicMetadataRq(topic="t", with_partitions=True)),
            ("KafkaPixy.ListConsumers", kafkapixy_pb2.ListConsumersRq(topic="t")),
            ("pixy.topics.v1.Topics.DescribeTopic", pixy_topics_pb2.DescribeTopicRequest(topic="t")),
            ("pixy.topics.v1.Topics.ListGroups", pixy_topics_pb2.ListGroupsRequest()),
            ("pixy.log.v1.Log.DescribeTopics", pixy_log_pb2.DescribeTopicsRequest()),
            ("pixy.cluster.v1.Cluster.Status", pixy_cluster_pb2.StatusRequest()),
        ):
            method = next(each for each in METHODS if each.full_name == name)
            assert _call(channel, method, asked.SerializeToString()) == (OK, "")

    _assert_short_steps(nodes, ask_all)
