"""Largest calls of other nodes: each repeated field of each request has a maximum."""

import time
from typing import Any

import pytest

from pixy.cluster.peering.call_maxima import ELEMENTS_MAX, REQUESTS, why_too_large
from pixy.cluster.peering.peer_messages import PeerMethod
from pixy.proto import copies_pb2 as copies_pb
from pixy.proto import node_calls_pb2 as pb
from pixy.proto.consumer_calls_pb2 import ConsumerCall
from pixy.rpc.field_limits import repeated_fields
from tests.cluster.state.test_command_maxima import command_of, name_of

KINDS: dict[int, Any] = {
    PeerMethod.OFFSETS: pb.OffsetsRequest,
    PeerMethod.LEADERS: pb.LeadersRequest,
    PeerMethod.CONSUME: ConsumerCall,
    PeerMethod.PUT_PIECES: pb.PutPiecesRequest,
}
OF_METHODS: dict[int, Any] = {
    PeerMethod.PROPOSE: pb.ProposeRequest,
    PeerMethod.FETCH: pb.FetchRequest,
    PeerMethod.JOIN: pb.JoinRequest,
    PeerMethod.STAGED: pb.StagedRequest,
    PeerMethod.RELAY: pb.Relayed,
    PeerMethod.GET_PIECE: pb.GetPieceRequest,
    PeerMethod.GIVE_UP: pb.GiveUpRequest,
    PeerMethod.IS_MEMBER: pb.IsMemberRequest,
    PeerMethod.BEGIN_COPY: copies_pb.BeginCopyRequest,
    PeerMethod.CHECK_COPY: copies_pb.CheckCopyRequest,
    PeerMethod.FETCH_COPY: copies_pb.FetchCopyRequest,
    PeerMethod.END_COPY: copies_pb.EndCopyRequest,
    PeerMethod.APPLIED: pb.AppliedRequest,
}
"""Those without lists; FETCH_SNAPSHOT has a codec of its own, the others are empty."""
CASES = [(method, path) for method, request in REQUESTS.items() for path in repeated_fields(request)]


def request_of(method: int, path: str, count: int) -> bytes:
    return command_of(KINDS[method], path, count)


def test_each_repeated_field_of_each_request_has_a_maximum_and_nothing_else() -> None:
    assert {method: kind.DESCRIPTOR for method, kind in KINDS.items()} == REQUESTS
    assert {name_of(REQUESTS[method], path) for method, path in CASES} == set(ELEMENTS_MAX)
    assert not [path for request in OF_METHODS.values() for path in repeated_fields(request.DESCRIPTOR)]
    others = {PeerMethod.FETCH_SNAPSHOT, PeerMethod.NODES, PeerMethod.STATUS, PeerMethod.BROKER}
    assert {*REQUESTS, *OF_METHODS, *others} == {*PeerMethod}


@pytest.mark.slow
@pytest.mark.parametrize(("method", "path"), CASES)
def test_elements_beyond_the_maximum_are_refused_before_they_are_parsed(method: int, path: str) -> None:
    maximum = ELEMENTS_MAX[name_of(REQUESTS[method], path)]
    assert why_too_large(method, request_of(method, path, maximum)) == ""
    assert f"more than {maximum} elements" in why_too_large(method, request_of(method, path, maximum + 1))
    begin = time.process_time()
    assert "more than" in why_too_large(method, request_of(method, path, 4_000_000))
    assert time.process_time() - begin < 1.0


@pytest.mark.parametrize("kind", [pb.LeadersRequest, pb.RangesRequest])
def test_all_partitions_of_a_cluster_may_be_asked_for_at_once(kind: Any) -> None:
    payload = kind(raft_groups=range(2**40, 2**40 + 20_000)).SerializeToString()
    assert why_too_large(PeerMethod.LEADERS, payload) == ""


@pytest.mark.parametrize("method", [0, 99, *PeerMethod])
def test_what_is_malformed_or_of_no_method_is_left_to_others(method: int) -> None:
    for byte in (b"\xff", b"\x0b", b"\x07"):
        assert isinstance(why_too_large(method, byte * 5000), str)
