"""pixy/rpc/status.py: a status on the wire."""

from urllib.parse import unquote

import grpc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pixy.http2 import ResponseTemplate
from pixy.rpc.status import GrpcError, Status, status_fields


def test_the_codes_are_those_of_grpc() -> None:
    assert {status.name: int(status) for status in Status} == {
        code.name: code.value[0] for code in grpc.StatusCode
    }


def test_a_status_without_a_message_is_one_field() -> None:
    assert status_fields(GrpcError(Status.ABORTED, "")) == [(b"grpc-status", b"10")]


@pytest.mark.slow
@given(st.text(st.characters(exclude_categories=["Cs"]), max_size=200))
def test_any_message_is_a_field_value_that_reads_back(message: str) -> None:
    fields = dict(status_fields(GrpcError(Status.UNKNOWN, message)))
    encoded = fields.get(b"grpc-message", b"")
    assert unquote(encoded.decode("ascii")) == message
    ResponseTemplate([(b":status", b"200")], [(b"grpc-message", encoded)])  # raises if it is none


def test_readable_text_stays_readable_and_the_rest_is_percent_encoded() -> None:
    ((_, _), (_, message)) = status_fields(GrpcError(Status.UNKNOWN, " a/b?c `d` 5% \tü "))
    assert message == b"%20a/b?c `d` 5%25 %09%C3%BC%20"


def test_half_of_a_pair_of_surrogates_is_replaced() -> None:
    assert status_fields(GrpcError(Status.UNKNOWN, "\ud800"))[1] == (b"grpc-message", b"?")


def test_a_long_message_is_cut() -> None:
    assert len(status_fields(GrpcError(Status.UNKNOWN, "x" * 100_000))[1][1]) == 1024


def test_details_and_metadata_follow_the_message() -> None:
    error = GrpcError(Status.ABORTED, "m", b"\x08\x0a", [("a", "1"), ("b-bin", b"\xff")])
    assert status_fields(error)[2:] == [
        (b"grpc-status-details-bin", b"CAo"),
        (b"a", b"1"),
        (b"b-bin", b"/w"),
    ]


def test_invalid_metadata_raises_in_the_constructor() -> None:
    with pytest.raises(ValueError, match="grpc-a"):
        GrpcError(Status.ABORTED, "m", metadata=[("grpc-a", "1")])
