"""pixy/web/router.py: routes by method and path."""

import pytest

from pixy.http1.head import parse_head
from pixy.web import Answer, Exchange, Route, Router


def handler(exchange: Exchange) -> None:
    raise AssertionError


ROUTER = Router(
    [
        Route("GET", "/topics", handler),
        Route("GET", "/topics/{topic}", handler),
        Route("GET", "/topics/{topic}/messages", handler),
        Route("POST", "/topics/{topic}/messages", handler),
        Route("GET", "/clusters/{cluster}/topics", handler),
        Route("GET", "/", handler),
    ]
)


def found(target: str, method: str = "GET") -> object:
    """Pattern and parameters, or status and location."""
    match = ROUTER.match(parse_head(f"{method} {target} HTTP/1.1\r\nHost: h\r\n\r\n".encode()))
    if not isinstance(match, Answer):
        return match.route.pattern, dict(match.parameters)
    assert isinstance(match, Answer)
    for line in match.head.encoded.decode().split("\r\n"):
        if line.startswith("Location: "):
            return match.head.status, line.removeprefix("Location: ")
    return match.head.status


@pytest.mark.parametrize(
    ("target", "result"),
    [
        ("/topics", ("/topics", {})),
        ("/", ("/", {})),
        ("http://h/topics", ("/topics", {})),
        ("/topics/a.b", ("/topics/{topic}", {"topic": "a.b"})),
        ("/topics/a%2Eb+c", ("/topics/{topic}", {"topic": "a.b+c"})),
        ("/topics/a/messages?x", ("/topics/{topic}/messages", {"topic": "a"})),
        ("/clusters/c/topics", ("/clusters/{cluster}/topics", {"cluster": "c"})),
        ("/topics/clusters/topics", 404),
        ("/topics/", 404),
        ("/Topics", 404),
        ("/topics/a%2Fmessages/messages", 404),
        ("/topics/a%2fb", 404),
        ("*", (301, "/%2A")),
        ("/topics/%zz", 400),
        ("/topics/%ff", 400),
        ("//topics?a=b", (301, "/topics?a=b")),
        ("/x/../topics", (301, "/topics")),
        ("/topics/%2e%2e/%0d%0aX:y/", (301, "/%0D%0AX%3Ay/")),
        ("/topics//messages", (301, "/topics/messages")),
    ],
)
def test_a_path_has_its_route(target: str, result: object) -> None:
    assert found(target) == result


def test_other_methods_of_a_path_are_named() -> None:
    assert found("/topics/a/messages", "PUT") == 405
    assert found("/topics", "HEAD") == 405
    assert found("/topics", "POST") == 405


def test_two_routes_of_one_pattern_are_a_bug() -> None:
    with pytest.raises(AssertionError, match="GET /a has two routes"):
        Router([Route("GET", "/a", handler), Route("GET", "/a", handler)])
