"""FetchSnapshot: byte vectors of both versions and directions, encoded by kio 0.6.5 from Kafka's
own message definitions.
"""

from io import BytesIO
from typing import Any

import pytest

from pixy.kafka_protocol import Api, RequestHeader, ResponseHeader
from pixy.kafka_protocol.fields import COMPACT_STRING
from pixy.kafka_protocol.snapshot_messages import (
    CLUSTER_ID_TAG,
    CURRENT_LEADER,
    CURRENT_LEADER_TAG,
    FETCH_SNAPSHOT_V0,
    FETCH_SNAPSHOT_V1,
    NODE_ENDPOINTS,
)

BOTH = [FETCH_SNAPSHOT_V0, FETCH_SNAPSHOT_V1]

ID: tuple[int, int, dict[int, bytes]] = (1000, 6, {})
CLUSTER = {CLUSTER_ID_TAG: COMPACT_STRING.encode("Y2x1c3Rlcg")}
LEADER = {CURRENT_LEADER_TAG: CURRENT_LEADER.encode((2, 7, {}))}

START = "00000003 00010000 02 09 6d65746164617461 02 00000000 00000007 00000000000003e8 00000006 00 0000000000001000"
"""Replica id, limit, the topic `metadata` with one partition, up to its position."""
END = "00 01 00 0b 0b 593278316333526c6367"
"""Tags of the topic and of the request, with the cluster id."""
ANSWER = (
    "00000000 0000 02 09 6d65746164617461 02 00000000 0000 00000000000003e8 00000006 00 0000000000001388 "
    "0000000000001000 06 736c696365 01 00 09 00000002 00000007 00 00"
)
"""A response up to the tags at its end."""


def request(directory: dict[int, bytes]) -> tuple[Any, ...]:
    partition = (0, 7, ID, 4096, directory)
    return 3, 65536, [("metadata", [partition], {})], CLUSTER


def response(endpoints: dict[int, bytes]) -> tuple[Any, ...]:
    partition = (0, 0, ID, 5000, 4096, b"slice", LEADER)
    return 0, 0, [("metadata", [partition], {})], endpoints


@pytest.mark.parametrize("api", BOTH)
def test_a_request_has_the_bytes_of_kafkas(api: Api) -> None:
    encoded = bytes.fromhex(START + "00" + END)
    assert api(*request({})).encode() == encoded
    assert tuple(api.decode_request(BytesIO(encoded))) == request({})


def test_a_request_may_name_the_directory_of_the_follower() -> None:
    directory = bytes(range(16))
    encoded = bytes.fromhex(START + "01 00 10" + directory.hex() + END)
    assert FETCH_SNAPSHOT_V1(*request({0: directory})).encode() == encoded
    assert tuple(FETCH_SNAPSHOT_V1.decode_request(BytesIO(encoded))) == request({0: directory})


def test_a_request_may_name_no_cluster_and_no_topic() -> None:
    encoded = bytes.fromhex("ffffffff 7fffffff 01 00")
    assert tuple(FETCH_SNAPSHOT_V0.decode_request(BytesIO(encoded))) == (-1, 0x7FFFFFFF, [], {})


@pytest.mark.parametrize("api", BOTH)
def test_a_response_has_the_bytes_of_kafkas(api: Api) -> None:
    encoded = bytes.fromhex(ANSWER + "00")
    assert api.encode_response(response({})) == encoded
    assert tuple(api.decode(BytesIO(encoded))) == response({})


def test_a_response_may_have_addresses_of_leaders() -> None:
    endpoints: list[tuple[object, ...]] = [(2, "h", 9092, {})]
    encoded = bytes.fromhex(ANSWER + "01 00 0a 02 00000002 02 68 2384 00")
    decoded = FETCH_SNAPSHOT_V1.decode(BytesIO(encoded))
    assert NODE_ENDPOINTS.decode(BytesIO(decoded.tags[0])) == endpoints
    assert FETCH_SNAPSHOT_V1.encode_response(response({0: NODE_ENDPOINTS.encode(endpoints)})) == encoded


def test_an_error_of_the_whole_response_has_no_topic() -> None:
    assert FETCH_SNAPSHOT_V0.encode_response((0, 104, [], {})) == bytes.fromhex("00000000 0068 01 00")


@pytest.mark.parametrize("api", BOTH)
def test_every_truncation_is_malformed(api: Api) -> None:
    asked, answered = api(*request({})).encode(), api.encode_response(response({}))
    for size in range(len(asked)):
        with pytest.raises(ValueError, match=r"are left|has \d+ bytes"):
            api.decode_request(BytesIO(asked[:size]))
    for size in range(len(answered)):
        with pytest.raises(ValueError, match=r"are left|has \d+ bytes"):
            api.decode(BytesIO(answered[:size]))


def test_a_header_names_the_version() -> None:
    for api in BOTH:
        header = RequestHeader(api, 7, "node 3").encode()
        assert header[:4] == bytes([0, 59, 0, api.version])
        apis = {(each.key, each.version): each for each in BOTH}
        assert RequestHeader.decode(BytesIO(header), apis) == RequestHeader(api, 7, "node 3")
        assert ResponseHeader(7).encode(api) == bytes.fromhex("00000007 00")
