"""pixy/api/http/server.py: the limits of a configuration hold for connections of HTTP."""

from dataclasses import replace
from typing import Any

import pytest

from pixy.api.http.server import web_options
from pixy.config import GrpcConfig
from pixy.http1 import Http1Options
from tests.api.http.conftest import CONFIG
from tests.fakes.backend import FakeBackend
from tests.fakes.http_server import serve_http

TIMES = ("handshake_timeout", "request_timeout", "idle_timeout")


def test_the_times_of_a_connection_are_those_of_grpc_and_it_always_ends_when_it_is_idle() -> None:
    default = GrpcConfig()
    assert web_options(default).http1 == Http1Options(head_s=10, body_s=default.request_timeout, idle_s=120)
    quick = replace(default, handshake_timeout=1, request_timeout=2, idle_timeout=3)
    assert web_options(quick).http1 == Http1Options(head_s=1, body_s=2, idle_s=3)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("option", "sent", "text"),
    [
        ("handshake_timeout", b"GET /_ping", "the head was not complete within 0.2 s"),
        (
            "request_timeout",
            b"POST /topics/t/messages HTTP/1.1\r\nHost: h\r\nContent-Type: text/plain\r\n"
            b"Content-Length: 5\r\n\r\nhe",
            "the body was not complete within 0.2 s",
        ),
        ("idle_timeout", b"", ""),
    ],
    ids=["head", "body", "idle"],
)
async def test_a_client_that_sends_nothing_more_is_let_go(option: str, sent: bytes, text: str) -> None:
    """Of the three times, the one that is meant ends: the others are long."""
    times: dict[str, Any] = dict.fromkeys(TIMES, 3600.0) | {option: 0.2}
    config = replace(CONFIG, grpc=replace(GrpcConfig(), **times))
    async with serve_http(FakeBackend(), config) as served:
        served.client.send(sent)
        told = (await served.client.closed()).decode()
    assert told.startswith("HTTP/1.1 408 ") == bool(text)
    assert text in told
