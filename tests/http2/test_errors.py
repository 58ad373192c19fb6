"""Protocol errors, `pixy.http2.errors`."""

from pixy.http2 import ErrorCode
from pixy.http2.errors import Http2ConnectionError, Http2Error, Http2StreamError


def test_the_codes_are_those_of_the_specification() -> None:
    # RFC 9113 §7, in its order.
    assert [code.name for code in sorted(ErrorCode)] == [
        "NO_ERROR",
        "PROTOCOL_ERROR",
        "INTERNAL_ERROR",
        "FLOW_CONTROL_ERROR",
        "SETTINGS_TIMEOUT",
        "STREAM_CLOSED",
        "FRAME_SIZE_ERROR",
        "REFUSED_STREAM",
        "CANCEL",
        "COMPRESSION_ERROR",
        "CONNECT_ERROR",
        "ENHANCE_YOUR_CALM",
        "INADEQUATE_SECURITY",
        "HTTP_1_1_REQUIRED",
    ]
    assert list(ErrorCode) == list(range(14))


def test_an_error_has_code_reason_and_stream() -> None:
    error = Http2StreamError(3, ErrorCode.CANCEL, "why")
    assert (error.stream_id, error.code, error.reason, str(error)) == (3, ErrorCode.CANCEL, "why", "why")
    assert isinstance(error, Http2Error)
    assert not isinstance(error, Http2ConnectionError)
