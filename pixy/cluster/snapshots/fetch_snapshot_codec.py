"""Requests and answers of FetchSnapshot as this cluster uses them, to bytes and back. Pure.

The bytes are Kafka's (`kafka_protocol.snapshot_messages`), with Kafka's headers, which name the
version. The topic is the name of a state group, the partition is 0, an epoch is a Raft term, and
the end offset of a snapshot the index of the last entry in it.
"""

from dataclasses import dataclass
from io import BytesIO
from typing import Any, NamedTuple

from pixy.errors import InvalidArgument
from pixy.kafka_protocol import Api, RequestHeader, ResponseHeader
from pixy.kafka_protocol.fields import COMPACT_STRING
from pixy.kafka_protocol.snapshot_messages import (
    CLUSTER_ID_TAG,
    CURRENT_LEADER,
    CURRENT_LEADER_TAG,
    FETCH_SNAPSHOT_V0,
    FETCH_SNAPSHOT_V1,
)
from pixy.storage import CheckpointId

NO_CHECKPOINT = CheckpointId(0, 0)
"""The id in an answer with an error."""

_APIS = {(api.key, api.version): api for api in (FETCH_SNAPSHOT_V0, FETCH_SNAPSHOT_V1)}
_NO_TAGS: dict[int, bytes] = {}


class WantedSlice(NamedTuple):
    """The part of a request about one snapshot.

    `epoch` is the term that the sender is in.
    """

    topic: str
    partition: int
    epoch: int
    id: CheckpointId
    position: int


@dataclass(frozen=True, slots=True)
class SliceRequest:
    """A request for a slice of a snapshot.

    Attributes:
        cluster_id: None if the sender does not say.
        replica_id: the node that asks.
        max_bytes: largest slice to send.
        wanted: None if the request is not about exactly one snapshot.
    """

    cluster_id: str | None
    replica_id: int
    max_bytes: int
    wanted: WantedSlice | None


class CurrentLeader(NamedTuple):
    """Leader of a group as far as the sender knows, -1 for none, and the term."""

    node_id: int
    epoch: int


@dataclass(frozen=True, slots=True)
class SliceAnswer:
    """An answer to a `SliceRequest`.

    Attributes:
        error: Kafka's error code, 0 for none.
        wanted: what the answer is about; None in an error of the whole request.
        id: the snapshot.
        leader: None if the sender does not know the group.
        size: bytes of the whole snapshot.
        position: first byte of `content` in the snapshot.
    """

    error: int
    wanted: WantedSlice | None = None
    id: CheckpointId = NO_CHECKPOINT
    leader: CurrentLeader | None = None
    size: int = 0
    position: int = 0
    content: bytes = b""


def encode_request(request: SliceRequest, correlation_id: int) -> bytes:
    """A request with its header."""
    wanted = request.wanted
    assert wanted is not None
    partition = (wanted.partition, wanted.epoch, _snapshot_id(wanted.id), wanted.position, _NO_TAGS)
    tags = {} if request.cluster_id is None else {CLUSTER_ID_TAG: COMPACT_STRING.encode(request.cluster_id)}
    topics = [(wanted.topic, [partition], _NO_TAGS)]
    message = FETCH_SNAPSHOT_V1(request.replica_id, request.max_bytes, topics, tags)
    return (
        message.build_request_header(correlation_id, f"node {request.replica_id}").encode() + message.encode()
    )


def decode_request(payload: bytes) -> tuple[RequestHeader, SliceRequest]:
    """A request with its header.

    Raises:
        InvalidArgument: the bytes are malformed, or of a version that is not supported.
    """
    reader = BytesIO(payload)
    try:
        header = RequestHeader.decode(reader, _APIS)
        fields = header.api.decode_request(reader)
        cluster_id = fields.tags.get(CLUSTER_ID_TAG)
        if cluster_id is not None:
            cluster_id = COMPACT_STRING.decode(BytesIO(cluster_id))
    except ValueError as error:
        raise InvalidArgument(f"a malformed FetchSnapshot request: {error}") from None
    return header, SliceRequest(cluster_id, fields.replica_id, fields.max_bytes, _only_one(fields.topics))


def _only_one(topics: list[Any] | None) -> WantedSlice | None:
    """The only partition of the only topic."""
    if topics is None or len(topics) != 1:
        return None
    name, partitions, _ = topics[0]
    if partitions is None or len(partitions) != 1:
        return None
    partition, epoch, (end_offset, snapshot_epoch, _), position, _ = partitions[0]
    return WantedSlice(name or "", partition, epoch, CheckpointId(snapshot_epoch, end_offset), position)


def encode_answer(header: RequestHeader, answer: SliceAnswer) -> bytes:
    """An answer to a request with this header."""
    wanted = answer.wanted
    if wanted is None:
        return _framed(header, (0, answer.error, [], _NO_TAGS))
    tags = {}
    if answer.leader is not None:
        tags[CURRENT_LEADER_TAG] = CURRENT_LEADER.encode((*answer.leader, _NO_TAGS))
    slice_fields = (answer.size, answer.position, answer.content, tags)
    partition = (wanted.partition, answer.error, _snapshot_id(answer.id), *slice_fields)
    return _framed(header, (0, 0, [(wanted.topic, [partition], _NO_TAGS)], _NO_TAGS))


def _snapshot_id(id: CheckpointId) -> tuple[Any, ...]:
    return id.end_offset, id.epoch, _NO_TAGS


def _framed(header: RequestHeader, fields: tuple[Any, ...]) -> bytes:
    api: Api = header.api
    return ResponseHeader(header.correlation_id).encode(api) + api.encode_response(fields)


def decode_answer(payload: bytes, wanted: WantedSlice, correlation_id: int) -> SliceAnswer:
    """The answer to a request of `encode_request`.

    Args:
        wanted: what was asked for.

    Raises:
        ValueError: the bytes are malformed, or answer another request.
    """
    reader = BytesIO(payload)
    header = FETCH_SNAPSHOT_V1(0, 0, [], _NO_TAGS).parse_response_header(reader)
    if header.correlation_id != correlation_id:
        raise ValueError(f"an answer to request {header.correlation_id}, expected {correlation_id}")
    fields = FETCH_SNAPSHOT_V1.decode(reader)
    if fields.error_code:
        return SliceAnswer(fields.error_code)
    found = [
        partition
        for name, partitions, _ in fields.topics or ()
        for partition in partitions or ()
        if (name, partition[0]) == (wanted.topic, wanted.partition)
    ]
    if len(found) != 1:
        raise ValueError(f"{len(found)} answers about {wanted.topic}, expected one")
    _, error, (end_offset, epoch, _), size, position, content, tags = found[0]
    leader = None
    if CURRENT_LEADER_TAG in tags:
        leader_id, leader_epoch, _ = CURRENT_LEADER.decode(BytesIO(tags[CURRENT_LEADER_TAG]))
        leader = CurrentLeader(leader_id, leader_epoch)
    return SliceAnswer(error, wanted, CheckpointId(epoch, end_offset), leader, size, position, content or b"")
