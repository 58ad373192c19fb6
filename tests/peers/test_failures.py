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
)
from pixy.peers.failures import decode_failure, encode_failure
from pixy.proto import peers_pb2 as pb

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
