"""pixy/http1/head.py: what a head says, and heads that are refused."""

import pytest

from pixy.http1 import HeadCache
from pixy.http1.head import HeadError, parse_head


def head(text: str) -> bytes:
    return text.replace("\n", "\r\n").encode("latin-1") + b"\r\n\r\n"


def test_a_head_has_its_fields_in_order_with_names_in_lower_case() -> None:
    parsed = parse_head(
        head(
            "POST /a%20b?c=d?e HTTP/1.1\nHost: h:1\nX-Kafka-Foo:  one \nx-kafka-foo: two\nContent-Length: 5 "
        )
    )
    assert (parsed.method, parsed.path, parsed.query) == ("POST", b"/a%20b", b"c=d?e")
    assert parsed.get(b"x-kafka-foo") == b"one"
    assert parsed.get_all(b"x-kafka-foo") == [b"one", b"two"]
    assert parsed.get(b"x") is None
    assert parsed.content_length == 5
    assert parsed.keep_alive
    assert not parsed.chunked


@pytest.mark.parametrize(
    ("text", "keep_alive"),
    [
        ("GET / HTTP/1.1\nHost: h", True),
        ("GET / HTTP/1.1\nHost: h\nConnection: x, Close", False),
        ("GET / HTTP/1.1\nHost: h\nConnection: x\nConnection: close", False),
        ("GET / HTTP/1.0", False),
        ("GET / HTTP/1.0\nConnection: Keep-Alive", True),
        ("GET / HTTP/1.1\nHost: h\nConnection: upgrade\nUpgrade: h2c", True),
    ],
)
def test_the_client_says_whether_more_requests_follow(text: str, keep_alive: bool) -> None:
    assert parse_head(head(text)).keep_alive is keep_alive


@pytest.mark.parametrize(
    ("target", "path"),
    [
        ("/x?y", b"/x"),
        ("http://h/x?y", b"/x"),
        ("HTTPS://h:1/x?y", b"/x"),
        ("http://h?y", b"/"),
        ("http://h", b"/"),
        ("*", b"*"),
    ],
)
def test_a_target_may_have_a_scheme_and_a_host(target: str, path: bytes) -> None:
    parsed = parse_head(head(f"GET {target} HTTP/1.1\nHost: h"))
    assert (parsed.path, parsed.query) == (path, b"y" if "?" in target else b"")


@pytest.mark.parametrize("method", ["BREW", "get", "CONNECT", "M-SEARCH", "PROPFIND"])
def test_any_token_is_a_method(method: str) -> None:
    target = "h:1" if method == "CONNECT" else "/"
    assert parse_head(head(f"{method} {target} HTTP/1.1\nHost: h")).method == method


@pytest.mark.parametrize(
    ("text", "status"),
    [
        ("GET /", 400),
        ("GET  / HTTP/1.1\nHost: h", 400),
        ("GET / HTTP/1.1 \nHost: h", 400),
        ("GET /a b HTTP/1.1\nHost: h", 400),
        ("GET / http/1.1\nHost: h", 400),
        ("G(T / HTTP/1.1\nHost: h", 400),
        ("GET /\xff HTTP/1.1\nHost: h", 400),
        ("GET /#f HTTP/1.1\nHost: h", 400),
        ("GET / HTTP/1.1", 400),
        ("GET / HTTP/1.1\nHost: a b", 400),
        ("GET / HTTP/1.1\nHost: h/x", 400),
        ("GET / HTTP/1.1\nHost: h\nHost: h", 400),
        ("GET / HTTP/1.1\nHost: h\nExpect: more", 417),
        ("GET / HTTP/2.0\nHost: h", 505),
        ("GET / HTTP/1.2\nHost: h", 505),
        ("GET / HTTP/0.9", 505),
        ("POST / HTTP/1.0\nTransfer-Encoding: chunked", 400),
        ("GET / HTTP/1.1\nHost: h\n" + "\n".join(f"X-{n}: y" for n in range(100)), 431),
        ("GET /" + "x" * 8200 + " HTTP/1.1\nHost: h", 414),
    ],
)
def test_a_head_that_could_be_read_in_two_ways_is_refused(text: str, status: int) -> None:
    with pytest.raises(HeadError) as caught:
        parse_head(head(text))
    assert caught.value.status == status
    assert caught.value.text


@pytest.mark.parametrize("host", ["h", "h:1", "127.0.0.1:19092", "[::1]:19092", "", "_"])
def test_a_host_is_a_name_or_an_address(host: str) -> None:
    assert parse_head(head(f"GET / HTTP/1.1\nHost: {host}")).get(b"host") == host.encode()


def test_a_cache_keeps_small_heads_and_is_bounded() -> None:
    cache = HeadCache()
    first = cache.add(head("GET / HTTP/1.1\nHost: h"))
    assert cache.get(head("GET / HTTP/1.1\nHost: h")) is first
    cache.add(head("GET / HTTP/1.1\nHost: h\nX: " + "x" * 3000))
    assert len(cache) == 1
    for number in range(2000):
        cache.add(head(f"GET /{number} HTTP/1.1\nHost: h"))
        assert len(cache) <= 512
