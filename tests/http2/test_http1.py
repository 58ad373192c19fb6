"""HTTP/1 at a port of HTTP/2, `pixy.http2.http1`."""

import pytest

from pixy.http2.http1 import HTTP1_REQUEST, NO_PREFACE, no_preface


@pytest.mark.parametrize("begin", [b"GET / HTTP/1.1\r\n", b"POST ", b"O", b"PO", b"CONNECT a:1 HTTP/1.1"])
def test_bytes_that_begin_a_request_of_http1_are_recognized(begin: bytes) -> None:
    assert no_preface(begin).reason == HTTP1_REQUEST


@pytest.mark.parametrize(
    "begin", [b"\x16\x03\x01", b"PRI * HTTP/1.1", b"GETS", b"get / HTTP/1.1", b"SSH-2.0"]
)
def test_other_bytes_are_no_request_of_http1(begin: bytes) -> None:
    assert no_preface(begin).reason == NO_PREFACE
