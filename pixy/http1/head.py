"""Heads of requests: request line and header fields, judged by llhttp in its strict mode.

llhttp refuses what smuggles requests past a server in front: Content-Length beside
Transfer-Encoding, two of either, folded lines, lines that end in a bare LF, spaces before the
colon, control characters. Added here:

    Transfer-Encoding        only `chunked`, and only in HTTP/1.1
    Host                     exactly one in HTTP/1.1, and well-formed      # RFC 9112 §3.2
    request line             single spaces, no fragment, HTTP/1.0 or 1.1
    number of fields         at most `FIELDS_MAX`

A method that llhttp does not know is a method nevertheless, which no route has.

Clients repeat their heads, so `HeadCache` keeps parsed ones by their bytes.
"""

import re
from typing import Any

import httptools

FIELDS_MAX = 100
_TARGET_BYTES_MAX = 8192
_TOKEN = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_HOST = re.compile(rb"(?:\[[0-9A-Fa-f:.%]+\]|[A-Za-z0-9._~!$&'()*+,;=%-]*)(?::[0-9]*)?")
_ABSOLUTE = re.compile(rb"(?i:https?)://[^/?#]*")
_CACHED_MAX = 512
_CACHED_BYTES_MAX = 2048


class HeadError(Exception):
    """A head that is refused.

    Args:
        status: of the answer.
        text: for the client.
    """

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status
        self.text = text


class RequestHead:
    """A request without its body. Never changed but for `body_bytes_max`, `memo` and `route`.

    Attributes:
        method: such as GET.
        path: of the target, as it came, percent-encoded.
        query: behind the question mark; b"" for none.
        fields: names in lower case and values, in their order.
        content_length: of the body, None if the field is missing.
        chunked: the body comes in chunks.
        keep_alive: the client may send further requests.
        is_1_0: HTTP/1.0.
        expects_continue: the client waits for `100 Continue` before the body.
        body_bytes_max, route, memo: kept with the head by those who serve it, because heads are
            repeated.
    """

    __slots__ = (
        "body_bytes_max",
        "chunked",
        "content_length",
        "expects_continue",
        "fields",
        "is_1_0",
        "keep_alive",
        "memo",
        "method",
        "path",
        "query",
        "route",
    )

    def __init__(
        self, method: str, target: bytes, fields: list[tuple[bytes, bytes]], *, is_1_0: bool
    ) -> None:
        self.method = method
        self.path, _, self.query = target.partition(b"?")
        self.fields = fields
        self.is_1_0 = is_1_0
        length = self.get(b"content-length")
        self.content_length = None if length is None else int(length)
        self.chunked = _is_chunked(self)
        options = {each.strip().lower() for each in b",".join(self.get_all(b"connection")).split(b",")}
        self.keep_alive = b"close" not in options and (not is_1_0 or b"keep-alive" in options)
        self.expects_continue = _expects_continue(self)
        self.body_bytes_max: int | None = None
        self.route: Any = None
        self.memo: Any = None

    def get(self, name: bytes) -> bytes | None:
        """The first value of a field, by its name in lower case."""
        for each, value in self.fields:
            if each == name:
                return value
        return None

    def get_all(self, name: bytes) -> list[bytes]:
        """All values of a field, by its name in lower case."""
        return [value for each, value in self.fields if each == name]


class HeadCache:
    """Parsed heads by their bytes. A full cache is emptied."""

    __slots__ = ("_heads", "get")

    def __init__(self) -> None:
        self._heads: dict[bytes, RequestHead] = {}
        self.get = self._heads.get

    def __len__(self) -> int:
        return len(self._heads)

    def add(self, section: bytes) -> RequestHead:
        """Parse a head that is not in the cache.

        Raises:
            HeadError: it is refused.
        """
        head = parse_head(section)
        if len(section) <= _CACHED_BYTES_MAX:
            if len(self._heads) >= _CACHED_MAX:
                self._heads.clear()
            self._heads[section] = head
        return head


class _HeadParts:
    """Takes the callbacks of llhttp."""

    __slots__ = ("complete", "fields", "target")

    def __init__(self) -> None:
        self.target = b""
        self.fields: list[tuple[bytes, bytes]] = []
        self.complete = False

    def on_url(self, url: bytes) -> None:
        self.target += url

    def on_header(self, name: bytes, value: bytes) -> None:
        self.fields.append((name.lower(), value.strip(b" \t")))

    def on_headers_complete(self) -> None:
        self.complete = True


def parse_head(section: bytes) -> RequestHead:
    """A head from its bytes, up to and with the empty line.

    Raises:
        HeadError: it is refused.
    """
    line = section[: section.index(b"\r\n")]
    if len(line) > _TARGET_BYTES_MAX:
        raise HeadError(414, f"the request line has {len(line)} bytes, {_TARGET_BYTES_MAX} are allowed")
    words = line.split(b" ")
    if len(words) != 3:
        raise HeadError(
            400, "a request line has a method, a target and a version, with one space between them"
        )
    method, target, version = words
    if not _TOKEN.fullmatch(method):
        raise HeadError(400, "the method is no token")
    if version not in {b"HTTP/1.1", b"HTTP/1.0"}:
        is_http = version.startswith(b"HTTP/")
        raise HeadError(505 if is_http else 400, "this port speaks HTTP/1.1 and HTTP/1.0")
    parts = _feed(section, method)
    if len(parts.fields) > FIELDS_MAX:
        raise HeadError(431, f"the head has {len(parts.fields)} fields, {FIELDS_MAX} are allowed")
    head = RequestHead(method.decode(), _origin_form(target), parts.fields, is_1_0=version == b"HTTP/1.0")
    _check_host(head)
    return head


def check_trailers(section: bytes) -> None:
    """Check the trailer section of a chunked body, up to and with the empty line.

    Raises:
        HeadError: it is refused.
    """
    parts = _feed(b"GET / HTTP/1.1\r\n" + section, b"GET")
    framing = {b"content-length", b"transfer-encoding", b"host"}
    if any(name in framing for name, _ in parts.fields):  # RFC 9110 §6.5.1
        raise HeadError(400, "a trailer section has no fields of framing or routing")


def _feed(section: bytes, method: bytes) -> _HeadParts:
    parts = _HeadParts()
    try:
        httptools.HttpRequestParser(parts).feed_data(section)
    except httptools.HttpParserUpgrade:
        pass  # An upgrade may be ignored (RFC 9110 §7.8), and a CONNECT has no route.
    except httptools.HttpParserInvalidMethodError:
        if method == b"GET":
            raise HeadError(400, "the method cannot be parsed") from None
        return _feed(b"GET" + section[len(method) :], b"GET")
    except httptools.HttpParserError as error:
        raise HeadError(400, str(error)) from None
    if not parts.complete:
        raise HeadError(400, "the head cannot be parsed")
    return parts


def _origin_form(target: bytes) -> bytes:
    """The target without scheme and host, which a server has to accept (RFC 9112 §3.2.2)."""
    if b"#" in target:
        raise HeadError(400, "a target has no fragment")
    match = _ABSOLUTE.match(target)
    if match is None:
        return target
    rest = target[match.end() :]
    return rest if rest.startswith(b"/") else b"/" + rest


def _check_host(head: RequestHead) -> None:
    hosts = head.get_all(b"host")
    if len(hosts) > 1 or (not hosts and not head.is_1_0):
        raise HeadError(400, f"one field Host is expected, there are {len(hosts)}")
    if hosts and not _HOST.fullmatch(hosts[0]):
        raise HeadError(400, "the field Host is malformed")


def _is_chunked(head: RequestHead) -> bool:
    codings = head.get_all(b"transfer-encoding")
    if not codings:
        return False
    if head.is_1_0 or [each.lower() for each in codings] != [b"chunked"]:
        raise HeadError(400, "the only Transfer-Encoding is chunked, in HTTP/1.1")
    if head.content_length is not None:
        raise HeadError(400, "Content-Length beside Transfer-Encoding")
    return True


def _expects_continue(head: RequestHead) -> bool:
    expected = head.get(b"expect")
    if expected is None:
        return False
    if expected.lower() != b"100-continue":
        raise HeadError(417, "the only expectation is 100-continue")
    return not head.is_1_0
