"""pixy/rpc/headers.py: the meaning of header sections, and refusals."""

import pytest

from pixy.http2 import RequestHeaders
from pixy.rpc.headers import CallHeaders, read_call_headers, read_timeout, read_varying
from pixy.rpc.messages import Encoding
from pixy.rpc.methods import method_table
from tests.fakes.echo import Echo

METHODS = method_table([Echo().service()])
GRPC = (b"content-type", b"application/grpc")


def read(
    *fields: tuple[bytes, bytes], path: bytes = b"/test.Echo/Unary", method: bytes = b"POST"
) -> CallHeaders:
    pseudo = {b":method": method, b":path": path, b":scheme": b"http", b":authority": b"here"}
    return read_call_headers(RequestHeaders(pseudo, fields, None), METHODS)


def refused(call: CallHeaders) -> dict[bytes, bytes]:
    assert call.called is None
    assert call.refusal is not None
    return dict(call.refusal.fields)


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        (b"1H", 3600),
        (b"2M", 120),
        (b"3S", 3),
        (b"99999999m", 99_999.999),
        (b"5u", 5e-6),
        (b"7n", 7e-9),
        (b"0S", 0),
        (b"", None),
        (b"S", None),
        (b"1", None),
        (b"1s", None),
        (b"-1S", None),
        (b"1.5S", None),
        (b"123456789S", None),
        (b" 1S", None),
    ],
)
def test_a_timeout_has_at_most_eight_digits_and_a_unit(value: bytes, seconds: float | None) -> None:
    assert read_timeout(value) == pytest.approx(seconds)


def test_a_usual_call_has_a_method_and_nothing_else() -> None:
    call = read(GRPC, (b"te", b"trailers"), (b"user-agent", b"x"))
    assert call.called is METHODS[b"/test.Echo/Unary"]
    assert (call.timeout_s, call.encoding, call.accepts_gzip, call.authority) == (
        None,
        Encoding.IDENTITY,
        False,
        b"here",
    )


def test_timeout_and_encodings_are_read() -> None:
    call = read(
        GRPC, (b"grpc-timeout", b"2S"), (b"grpc-encoding", b"gzip"), (b"grpc-accept-encoding", b"gzip")
    )
    assert (call.timeout_s, call.encoding, call.accepts_gzip) == (2.0, Encoding.GZIP, True)


def test_a_section_that_differs_in_one_field_is_read_with_it() -> None:
    pseudo = {b":method": b"POST", b":path": b"/test.Echo/Unary", b":scheme": b"http", b":authority": b"here"}
    like = RequestHeaders(pseudo, (GRPC, (b"grpc-timeout", b"2S")), None)
    call = read_varying(like, (b"id", b"1"), METHODS)
    assert (call.called, call.timeout_s, call.fields[-1]) == (
        METHODS[b"/test.Echo/Unary"],
        2.0,
        (b"id", b"1"),
    )
    for field, status in (((b"grpc-timeout", b"soon"), b"13"), ((b"grpc-encoding", b"br"), b"12")):
        differing = RequestHeaders(pseudo, (GRPC,), None)
        assert refused(read_varying(differing, field, METHODS))[b"grpc-status"] == status


@pytest.mark.parametrize(
    "content_type", [b"application/grpc", b"application/grpc+proto", b"application/grpc;v=1"]
)
def test_content_types_of_grpc_with_protobuf_are_served(content_type: bytes) -> None:
    assert read((b"content-type", content_type)).called is not None


@pytest.mark.parametrize(
    "content_type",
    [b"", b"application/grpc-web", b"application/grpcx", b"application/grpc+json", b"text/plain"],
)
def test_other_content_types_are_415(content_type: bytes) -> None:
    assert refused(read((b"content-type", content_type)))[b":status"] == b"415"


def test_no_content_type_is_415_and_another_method_than_post_405() -> None:
    assert refused(read())[b":status"] == b"415"
    assert refused(read(GRPC, method=b"GET"))[b":status"] == b"405"


@pytest.mark.parametrize(
    ("fields", "path", "status"),
    [
        (((b"grpc-timeout", b"soon"),), b"/test.Echo/Unary", b"13"),
        ((), b"/test.Echo/None", b"12"),
        ((), b"/test.Echo/Unserved", b"12"),
        (((b"grpc-encoding", b"br"),), b"/test.Echo/Unary", b"12"),
    ],
)
def test_other_refusals_have_a_status_of_grpc(
    fields: tuple[tuple[bytes, bytes], ...], path: bytes, status: bytes
) -> None:
    found = refused(read(GRPC, *fields, path=path))
    assert (found[b":status"], found[b"grpc-status"]) == (b"200", status)
