"""Header sections: validation and limits of requests and trailers (RFC 9113 §8), and pre-encoded
responses.

A field that breaks a rule makes its message malformed, which is a stream error (RFC 9113 §8.1.1).
The block is decoded nevertheless, so other streams are not affected.

Clients send the same few bytes over and over: after its first call, a client's header block is a
list of indexes. `cache` maps the bytes of a block to its decoded request. It is valid as long as
the dynamic table is unchanged, so a block that changes the table clears the cache. Such a block is
not cached itself, because decoding it again would change the table again.

A client that sends a new value in each call and has it indexed, as grpc-go does with deadlines,
changes the table with every call. Its blocks must be decoded, but need no full validation:
`_patterns` has requests that were validated before, keyed by all fields except the varying one.
While such a client calls a single method, not even the whole block is decoded: see
`hpack.BlockPredictor`.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from pixy.http2 import hpack
from pixy.http2.errors import ErrorCode, Http2StreamError
from pixy.http2.frames import MIN_MAX_FRAME_BYTES
from pixy.http2.hpack import Field

_CACHED_BLOCK_BYTES_MAX = 1024
_FIELDS_FACTOR = 4
"""A block may have this many times the fields that fit a header list, so that a list slightly over
the limit costs only its stream.
"""
_CACHE_BYTES_MAX = 4096
"""Bytes of cached blocks per connection: a few hundred requests of a typical client.

A hostile client can make 150 KB of decoded fields of them.
"""
_CACHED_BODY_BYTES = 1024
"""Largest body size for which the start of a response is cached."""
_PATTERNS_MAX = 8
_PATTERN_BYTES_MAX = 1024
"""Number of request patterns kept per connection, and the size limit of each, counted as for header
lists.
"""

# RFC 9110 §5.6.2, lower case only. The colon is not among them.
_NAME_BYTES = b"!#$%&'*+-.^_`|~0123456789abcdefghijklmnopqrstuvwxyz"
# RFC 9110 §5.5: visible ASCII, obs-text, space and tab; that is, everything but control characters.
_VALUE_FORBIDDEN_BYTES = bytes(byte for byte in range(0x20) if byte != 0x09) + b"\x7f"
_SLASH = ord("/")
# RFC 9113 §8.2.2
_CONNECTION_FIELDS = frozenset(
    (b"connection", b"keep-alive", b"proxy-connection", b"transfer-encoding", b"upgrade")
)
_CHECKED_FIELDS = _CONNECTION_FIELDS | {b"", b"te", b"host", b"content-length"}
_REQUEST_PSEUDO_FIELDS = frozenset((b":method", b":scheme", b":authority", b":path"))


class RequestHeaders:
    """A valid header section of a request.

    Attributes:
        method, scheme, authority, path: pseudo-header fields, b"" if absent.
        fields: all other fields, in order.
        content_length: value of content-length, None if absent.
        memo: free for the layer above to cache what it derives from the fields. The object lives as
            long as the client repeats the block, or sends blocks that differ from it in one field.
    """

    __slots__ = ("authority", "content_length", "fields", "memo", "method", "path", "scheme")

    def __init__(
        self, pseudo: dict[bytes, bytes], fields: Sequence[Field], content_length: int | None
    ) -> None:
        self.method = pseudo.get(b":method", b"")
        self.scheme = pseudo.get(b":scheme", b"")
        self.authority = pseudo.get(b":authority", b"")
        self.path = pseudo.get(b":path", b"")
        self.fields = fields
        self.content_length = content_length
        self.memo: object = None


Request = tuple[RequestHeaders, Field | None]
"""Header section of a request, and the one field it lacks if it is shared with requests that differ
only in that field.
"""


@dataclass(frozen=True, slots=True)
class _RequestPattern:
    """A request without its varying field, whose value needs no validation if it has letters and
    digits only and at most `value_bytes_max` of them.
    """

    pseudo: dict[bytes, bytes]
    request: RequestHeaders
    value_bytes_max: int

    def accepts(self, value: bytes) -> bool:
        """True if the value needs no further validation.

        Letters and digits are valid in every field.
        """
        return len(value) <= self.value_bytes_max and value.isalnum()


class HeaderReader:
    """Decodes and validates the header blocks of one connection.

    Args:
        max_list_bytes: largest header list; each field counts 32 extra bytes (RFC 9113 §6.5.2).
    """

    __slots__ = ("_cached_bytes", "_decoder", "_max_list_bytes", "_patterns", "_predictor", "cache")

    def __init__(self, max_list_bytes: int) -> None:
        self._decoder = hpack.Decoder(
            fields_max=max_list_bytes // hpack.FIELD_OVERHEAD_BYTES * _FIELDS_FACTOR
        )
        self._max_list_bytes = max_list_bytes
        # Results of `request` by block. Invariant: decoding any of the blocks would yield an equal
        # request and leave the dynamic table unchanged; their lengths add up to _cached_bytes <=
        # _CACHE_BYTES_MAX.
        self.cache: dict[bytes, Request] = {}
        self._cached_bytes = 0
        # Keyed by position and name of the varying field, and all other fields. None until there is
        # one. Invariant: at most _PATTERNS_MAX.
        self._patterns: dict[tuple[int, bytes, tuple[Field, ...]], _RequestPattern] | None = None
        # Predicts the next block, together with the pattern it matches.
        self._predictor: tuple[hpack.BlockPredictor, _RequestPattern] | None = None

    def read(self, block: bytes) -> list[Field]:
        """Decode a block of unknown content; the fields are in order and not validated.

        Raises:
            Http2ConnectionError: COMPRESSION_ERROR; the compression state is lost.
        """
        changes = self._decoder.changes
        fields = self._decoder.decode(block)
        if self._decoder.changes != changes and self.cache:
            self._clear_cache()
        return fields

    def trailers(self, stream_id: int, fields: list[Field]) -> list[Field]:
        """Validate the fields of a trailer section.

        Raises:
            Http2StreamError: PROTOCOL_ERROR, malformed; ENHANCE_YOUR_CALM, the list is too large.
        """
        return read_trailers(stream_id, fields, self._max_list_bytes)

    def request(self, stream_id: int, block: bytes) -> Request:
        """Decode and validate a block that opens a request.

        Raises:
            Http2ConnectionError: COMPRESSION_ERROR; the compression state is lost.
            Http2StreamError: PROTOCOL_ERROR, malformed; ENHANCE_YOUR_CALM, the list is too large.
        """
        if self._predictor is not None:
            predictor, pattern = self._predictor
            field = predictor.maybe_decode(block)
            if field is not None:
                if self.cache:
                    self._clear_cache()
                value = field[1]
                if (
                    len(value) <= pattern.value_bytes_max and value.isalnum()
                ):  # inlines `_RequestPattern.accepts`
                    return pattern.request, field
                fields = [*pattern.pseudo.items(), *pattern.request.fields, field]
                return read_request(stream_id, fields, self._max_list_bytes), None
        found = self.cache.get(block)
        if found is None:
            changes = self._decoder.changes
            fields = self.read(block)
            if self._decoder.changes != changes:
                return self._matching_request(stream_id, block, fields)
            found = read_request(stream_id, fields, self._max_list_bytes), None
            self._remember(block, found)
        return found

    def _matching_request(self, stream_id: int, block: bytes, fields: list[Field]) -> Request:
        """Request of a block that changed the table, by a known pattern.

        The varying field is the last literal of the block.
        """
        at = self._decoder.literal_at
        if at >= len(fields):  # the block has table size updates only
            return read_request(stream_id, fields, self._max_list_bytes), None
        field = fields[at]
        key = (at, field[0], (*fields[:at], *fields[at + 1 :]))
        pattern = None if self._patterns is None else self._patterns.get(key)
        if pattern is None or not pattern.accepts(field[1]):
            request = read_request(stream_id, fields, self._max_list_bytes)
            self._remember_pattern(key, request)
            return request, None
        start = hpack.BlockPredictor.maybe_prefix(block, at) if at == len(fields) - 1 else None
        if start is not None:
            self._predictor = hpack.BlockPredictor(self._decoder, start, field[0]), pattern
        return pattern.request, field

    def _remember_pattern(self, key: tuple[int, bytes, tuple[Field, ...]], request: RequestHeaders) -> None:
        _, name, others = key
        size = sum(len(name) + len(value) + hpack.FIELD_OVERHEAD_BYTES for name, value in others)
        size += len(name) + hpack.FIELD_OVERHEAD_BYTES
        if size > _PATTERN_BYTES_MAX or name.startswith(b":") or name in _CHECKED_FIELDS:
            return
        if any(other == name for other, _ in others):
            return  # the order of fields that share a name is significant (RFC 9110 §5.3)
        if self._patterns is None or len(self._patterns) >= _PATTERNS_MAX:
            self._patterns = {}
        pseudo = {name: value for name, value in others if name.startswith(b":")}
        first = RequestHeaders(pseudo, others[len(pseudo) :], request.content_length)
        self._patterns[key] = _RequestPattern(pseudo, first, self._max_list_bytes - size)

    def check_invariants(self) -> None:
        """Assert the documented invariants."""
        assert self._cached_bytes == sum(map(len, self.cache)) <= _CACHE_BYTES_MAX
        assert len(self._patterns or ()) <= _PATTERNS_MAX
        self._decoder.check_invariants()

    def _remember(self, block: bytes, found: Request) -> None:
        if len(block) > _CACHED_BLOCK_BYTES_MAX:
            return
        if self._cached_bytes + len(block) > _CACHE_BYTES_MAX:
            self._clear_cache()
        self.cache[block] = found
        self._cached_bytes += len(block)

    def _clear_cache(self) -> None:
        self.cache.clear()
        self._cached_bytes = 0


def read_request(stream_id: int, fields: list[Field], max_list_bytes: int) -> RequestHeaders:
    """Validate the header section of a request (RFC 9113 §8.2, §8.3).

    Raises:
        Http2StreamError: PROTOCOL_ERROR if it is malformed; ENHANCE_YOUR_CALM if it is too large.
    """
    pseudo_fields = _check_fields(stream_id, fields, max_list_bytes)
    pseudo = dict(fields[:pseudo_fields])
    if len(pseudo) != pseudo_fields or not _REQUEST_PSEUDO_FIELDS.issuperset(pseudo):
        raise _malformed(stream_id, "pseudo-header field is unknown, duplicate, or after a regular field")
    content_length = None
    regular = fields[pseudo_fields:]
    for name, value in regular:
        if name in _CHECKED_FIELDS:
            if name == b"content-length":
                content_length = _content_length(stream_id, value, content_length)
            else:
                _check_field(stream_id, name, value, pseudo)
    request = RequestHeaders(pseudo, regular, content_length)
    _check_pseudo(stream_id, request, pseudo)
    return request


def read_trailers(stream_id: int, fields: list[Field], max_list_bytes: int) -> list[Field]:
    """Validate a trailer section (RFC 9113 §8.1, §8.2).

    Raises:
        Http2StreamError: PROTOCOL_ERROR if it is malformed; ENHANCE_YOUR_CALM if it is too large.
    """
    if _check_fields(stream_id, fields, max_list_bytes):
        raise _malformed(stream_id, "pseudo-header field in a trailer section")
    for name, value in fields:
        if name in _CONNECTION_FIELDS or not name:
            _check_field(stream_id, name, value, {})
    return fields


def _malformed(stream_id: int, reason: str) -> Http2StreamError:
    return Http2StreamError(stream_id, ErrorCode.PROTOCOL_ERROR, f"malformed message: {reason}")


def _check_fields(stream_id: int, fields: Sequence[Field], max_list_bytes: int) -> int:
    """Check size and characters (RFC 9113 §6.5.2, §8.2.1); returns the number of pseudo-header
    fields.

    The section is checked as a whole, because checking byte by byte costs more than decoding. With
    all valid name characters removed, what remains of the names is one colon per pseudo-header
    field, unless a name is invalid.
    """
    # Check the count first: a small block can expand to so many large fields that joining them
    # would itself be the attack.
    overhead = len(fields) * hpack.FIELD_OVERHEAD_BYTES
    if overhead > max_list_bytes:
        raise _too_large(stream_id)
    names = b"".join([name for name, _ in fields])
    values = b"".join([value for _, value in fields])
    if overhead + len(names) + len(values) > max_list_bytes:
        raise _too_large(stream_id)
    colons = names.translate(None, _NAME_BYTES)
    if colons.strip(b":"):
        raise _malformed(stream_id, "field name with a character that HTTP/2 does not allow")
    if len(values.translate(None, _VALUE_FORBIDDEN_BYTES)) != len(values):
        raise _malformed(stream_id, "field value with a control character")
    if (b" " in values or b"\t" in values) and any(value.strip(b" \t") != value for _, value in fields):
        raise _malformed(stream_id, "field value with leading or trailing whitespace")
    return len(colons)


def _too_large(stream_id: int) -> Http2StreamError:
    return Http2StreamError(stream_id, ErrorCode.ENHANCE_YOUR_CALM, "header list too large")


def _check_pseudo(stream_id: int, request: RequestHeaders, pseudo: dict[bytes, bytes]) -> None:
    """RFC 9113 §8.3.1 and §8.5."""
    if request.method == b"CONNECT":
        if b":scheme" in pseudo or b":path" in pseudo or b":authority" not in pseudo:
            raise _malformed(stream_id, "CONNECT requires :authority, and allows neither :scheme nor :path")
    elif not (request.method and request.scheme and request.path):
        raise _malformed(stream_id, ":method, :scheme or :path is missing or empty")
    elif request.path[0] != _SLASH and request.path != b"*" and request.scheme in (b"http", b"https"):
        raise _malformed(stream_id, ":path does not begin with a slash")


def _check_field(stream_id: int, name: bytes, value: bytes, pseudo: dict[bytes, bytes]) -> None:
    if not name:
        raise _malformed(stream_id, "empty field name")
    if name in _CONNECTION_FIELDS:
        raise _malformed(stream_id, f"connection-specific field {name!r}")
    if name == b"te" and value != b"trailers":
        raise _malformed(stream_id, 'the field te may only say "trailers"')
    if name == b"host" and pseudo.get(b":authority", value).lower() != value.lower():
        raise _malformed(stream_id, "host and :authority differ")


def _content_length(stream_id: int, value: bytes, before: int | None) -> int:
    """RFC 9110 §8.6. No body needs more than eighteen digits."""
    if not value.isdigit() or len(value) > 18 or before not in (None, int(value)):
        raise _malformed(stream_id, "content-length is not a single number")
    return int(value)


# --- responses ------------------------------------------------------------------------------------


def encode_headers(fields: Sequence[Field]) -> bytes:
    """Encode a header or trailer section of a response. The block is stateless and can be reused.

    Raises:
        ValueError: a field would be malformed.
    """
    names = b"".join(name[1:] if name == b":status" else name for name, _ in fields)
    values = [value for _, value in fields]
    if (
        any(not name for name, _ in fields)
        or names.translate(None, _NAME_BYTES)
        or any(value.strip(b" \t") != value for value in values)
        or b"".join(values).translate(None, _VALUE_FORBIDDEN_BYTES) != b"".join(values)
    ):
        raise ValueError(f"invalid HTTP/2 fields: {fields!r}")
    return hpack.encode(fields)


class ResponseTemplate:
    """A response with a variable body: header section, one DATA frame, trailer section.

    Args:
        headers: header section, `:status` first.
        trailers: trailer section.

    Raises:
        ValueError: a field would be malformed, or a section needs more than one frame.
    """

    __slots__ = ("headers", "headers_start", "headers_to_data", "trailers", "trailers_start")

    def __init__(self, headers: Sequence[Field], trailers: Sequence[Field]) -> None:
        # A section on the wire: the start of its frame up to the stream id, the stream id, the
        # block.
        self.headers = encode_headers(headers)
        self.trailers = encode_headers(trailers)
        self.headers_start = _frame_start(self.headers, b"\x01\x04")
        self.trailers_start = _frame_start(self.trailers, b"\x01\x05")
        # By body size: the header block and the start of the DATA frame up to the stream id.
        self.headers_to_data = _HeadersToData(self.headers).__getitem__


class _HeadersToData(dict[int, bytes]):
    """A header block and the start of the DATA frame behind it, by body size; computed on first
    use.
    """

    def __init__(self, block: bytes) -> None:
        super().__init__()
        self._block = block

    def __missing__(self, size: int) -> bytes:
        made = self._block + (size << 16).to_bytes(5, "big")
        if size <= _CACHED_BODY_BYTES:
            self[size] = made
        return made


def _frame_start(block: bytes, type_and_flags: bytes) -> bytes:
    if len(block) > MIN_MAX_FRAME_BYTES:
        raise ValueError(f"header block of {len(block)} bytes does not fit a frame of {MIN_MAX_FRAME_BYTES}")
    return len(block).to_bytes(3, "big") + type_and_flags
