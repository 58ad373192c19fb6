"""Errors as answers of calls."""

import pytest

from pixy import errors
from pixy.errors import (
    Internal,
    OffsetOutOfRange,
    PixyError,
    ResourceExhausted,
    ServiceDisabled,
    ShuttingDown,
    Unavailable,
)
from pixy.peers.failures import decode_answer, decode_failure, encode_failure
from pixy.proto import peers_pb2 as pb
from pixy.proto.node_calls_pb2 import LeadersResponse

WITHOUT_TEXT = (ShuttingDown, ServiceDisabled)
CLASSES = [getattr(errors, name) for name in errors.__all__]


@pytest.mark.parametrize("kind", [each for each in CLASSES if each not in (*WITHOUT_TEXT, OffsetOutOfRange)])
def test_every_error_reaches_the_caller_as_it_is(kind: type[PixyError]) -> None:
    found = decode_failure(encode_failure(kind("topic t is gone")))
    assert type(found) is kind
    assert str(found) == "topic t is gone"


@pytest.mark.parametrize("kind", WITHOUT_TEXT)
def test_errors_with_a_text_of_their_own_keep_it(kind: type[ShuttingDown | ServiceDisabled]) -> None:
    found = decode_failure(encode_failure(kind()))
    assert type(found) is kind
    assert str(found) == str(kind())


def test_the_range_of_an_offset_is_kept() -> None:
    found = decode_failure(encode_failure(OffsetOutOfRange("offset 7", 10, 20)))
    assert isinstance(found, OffsetOutOfRange)
    assert (str(found), found.begin, found.end) == ("offset 7", 10, 20)


def test_the_limit_that_was_reached_is_kept() -> None:
    found = decode_failure(encode_failure(ResourceExhausted("full").at_limit("staging.max_bytes")))
    assert found.limit == "staging.max_bytes"
    assert decode_failure(encode_failure(ResourceExhausted("full"))).limit == ""


def test_an_error_of_a_later_release_is_internal() -> None:
    found = decode_failure(pb.Failure(error="QuotaViolated", message="too much").SerializeToString())
    assert type(found) is Internal
    assert str(found) == "QuotaViolated: too much"


def test_a_name_of_something_else_is_internal() -> None:
    for name in ("annotations", "ClassVar", "__all__", ""):
        assert type(decode_failure(pb.Failure(error=name).SerializeToString())) is Internal


def test_damage_is_internal() -> None:
    assert type(decode_failure(b"\xff\xff\xff")) is Internal


def test_a_long_text_is_cut() -> None:
    assert len(str(decode_failure(encode_failure(Internal("x" * 100_000))))) == 4000


def test_an_answer_of_more_bytes_than_what_was_asked_for_can_have_is_none() -> None:
    answer = LeadersResponse(raft_groups=range(1000)).SerializeToString()
    assert len(decode_answer(LeadersResponse, answer, len(answer)).raft_groups) == 1000
    with pytest.raises(
        Unavailable, match=f"LeadersResponse of {len(answer)} bytes, at most 100 are possible"
    ):
        decode_answer(LeadersResponse, answer, 100)
    with pytest.raises(Unavailable, match="at most 65536 are possible"):
        decode_answer(LeadersResponse, answer * 100)
