"""Requests and responses of the table, compared with aiokafka's of the same versions."""

from io import BytesIO
from typing import Any

import pytest
from aiokafka.protocol.admin import (
    CreatePartitionsRequest,
    DeleteGroupsRequest,
    DeleteRecordsRequest,
    DeleteTopicsRequest,
    DescribeConfigsRequest,
)
from aiokafka.protocol.offset import OffsetRequest
from aiokafka.protocol.transaction import (
    AddOffsetsToTxnRequest,
    AddPartitionsToTxnRequest,
    EndTxnRequest,
    InitProducerIdRequest,
    TxnOffsetCommitRequest,
)

from pixy.kafka_protocol import (
    Api,
    RequestHeader,
    ResponseHeader,
    VersionMismatch,
    group_messages,
    messages,
    snapshot_messages,
    transaction_messages,
)
from pixy.kafka_protocol.api import Request
from pixy.kafka_protocol.group_messages import DELETE_GROUPS, HEARTBEAT
from pixy.kafka_protocol.messages import (
    CREATE_PARTITIONS,
    DELETE_RECORDS,
    DELETE_TOPICS,
    DESCRIBE_CONFIGS,
    LIST_OFFSETS,
    METADATA,
)
from pixy.kafka_protocol.transaction_messages import (
    ADD_OFFSETS_TO_TXN,
    ADD_PARTITIONS_TO_TXN,
    END_TXN,
    INIT_PRODUCER_ID,
    TXN_OFFSET_COMMIT,
)

ALL_VERSIONS = dict.fromkeys(range(100), (0, 99))
TABLE = [
    each
    for module in (messages, group_messages, snapshot_messages, transaction_messages)
    for each in vars(module).values()
    if isinstance(each, Api)
]


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (LIST_OFFSETS(-1, 1, [("t", [(0, -2)])]), OffsetRequest(-1, 1, [("t", [(0, -2)])])),
        (DELETE_RECORDS([("t", [(0, 5)])], 1000), DeleteRecordsRequest([("t", [(0, 5)])], 1000)),
        (DELETE_TOPICS(["t"], 1000), DeleteTopicsRequest(["t"], 1000)),
        (
            CREATE_PARTITIONS([("t", 3, None)], 1000, True),
            CreatePartitionsRequest([("t", (3, None))], 1000, True),
        ),
        (DESCRIBE_CONFIGS([(2, "t", None)], False), DescribeConfigsRequest([(2, "t", None)])),
        (DELETE_GROUPS(["g"]), DeleteGroupsRequest(["g"])),
        (INIT_PRODUCER_ID("id", 1000), InitProducerIdRequest("id", 1000)),
        (
            ADD_PARTITIONS_TO_TXN("id", 5, 1, [("t", [0])]),
            AddPartitionsToTxnRequest("id", 5, 1, [("t", [0])]),
        ),
        (ADD_OFFSETS_TO_TXN("id", 5, 1, "g"), AddOffsetsToTxnRequest("id", 5, 1, "g")),
        (END_TXN("id", 5, 1, True), EndTxnRequest("id", 5, 1, True)),
        (
            TXN_OFFSET_COMMIT("id", "g", 5, 1, [("t", [(0, 9, "q")])]),
            TxnOffsetCommitRequest("id", "g", 5, 1, [("t", [(0, 9, "q")])]),
        ),
    ],
    ids=lambda each: each.api.name if isinstance(each, Request) else "",
)
def test_a_request_has_the_bytes_of_aiokafkas(ours: Request, theirs: Any) -> None:
    struct = theirs.prepare({ours.api.key: (0, ours.api.version)})
    assert (ours.api.key, ours.api.version) == (struct.API_KEY, struct.API_VERSION)
    header = ours.build_request_header(7, "client").encode()
    assert header == struct.build_request_header(7, "client").encode()
    assert ours.prepare(ALL_VERSIONS).encode() == struct.encode()
    assert ours.api.decode_request(BytesIO(ours.encode())) == ours.fields


def test_no_two_entries_of_the_table_have_one_key() -> None:
    keys = [(api.key, api.version) for api in TABLE]
    assert len(set(keys)) == len(keys) >= 26
    assert len({api.name for api in TABLE}) == len({api.key for api in TABLE})


def test_a_response_is_read_by_the_names_of_its_fields() -> None:
    answer = HEARTBEAT.decode(BytesIO(HEARTBEAT.encode_response((0, 27))))
    assert (answer.throttle_time_ms, answer.error_code) == (0, 27)


@pytest.mark.parametrize(
    ("request_", "tags"), [(HEARTBEAT("g", 1, "m", None), b""), (METADATA(None, False, False, {}), b"\0")]
)
def test_flexible_versions_have_tagged_fields_in_their_headers(request_: Request, tags: bytes) -> None:
    api = request_.api
    expected = api.key.to_bytes(2, "big") + api.version.to_bytes(2, "big") + b"\0\0\0\x07" + b"\0\2me" + tags
    assert request_.build_request_header(7, "me").encode() == expected
    assert request_.parse_response_header(BytesIO(b"\0\0\0\x07" + tags)).correlation_id == 7


@pytest.mark.parametrize("versions", [{}, {METADATA.key: (0, METADATA.version - 1)}])
def test_a_version_that_the_broker_lacks_is_rejected(versions: dict[int, tuple[int, int]]) -> None:
    with pytest.raises(VersionMismatch, match="of Metadata, version 12 is needed"):
        METADATA(None, False, False, {}).prepare(versions)


@pytest.mark.parametrize("api", [HEARTBEAT, METADATA])
def test_a_server_reads_the_header_of_a_request_and_answers_with_its_number(api: Api) -> None:
    apis = {(each.key, each.version): each for each in TABLE}
    header = RequestHeader(api, 7, "me")
    reader = BytesIO(header.encode() + b"rest")
    assert RequestHeader.decode(reader, apis) == header
    assert reader.read() == b"rest"
    answer = BytesIO(ResponseHeader(7).encode(api) + b"rest")
    assert Request(api, ()).parse_response_header(answer) == ResponseHeader(7)
    assert answer.read() == b"rest"


@pytest.mark.parametrize("asked", [(3, 11), (99, 0)])
def test_a_server_rejects_what_it_does_not_support(asked: tuple[int, int]) -> None:
    header = asked[0].to_bytes(2, "big") + asked[1].to_bytes(2, "big") + b"\0\0\0\x07\0\0"
    reason = f"API {asked[0]} in version {asked[1]} is not supported, only Metadata 12"
    with pytest.raises(ValueError, match=reason):
        RequestHeader.decode(BytesIO(header), {(3, 12): METADATA})
