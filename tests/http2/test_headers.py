"""Validation and caching of header sections, `pixy.http2.headers`."""

import tracemalloc
from collections.abc import Callable
from functools import partial

import hpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pixy.http2 import ErrorCode, Field, ResponseTemplate, headers
from pixy.http2.errors import Http2ConnectionError, Http2Error, Http2StreamError
from pixy.http2.headers import HeaderReader, RequestHeaders, encode_headers
from pixy.http2.hpack import Decoder, encode
from tests.http2.peer import REQUEST

PSEUDO, REGULAR = REQUEST[:4], REQUEST[4:]


def read_request(stream_id: int, fields: list[Field]) -> RequestHeaders:
    return headers.read_request(stream_id, fields, 16_384)


def read_trailers(stream_id: int, fields: list[Field]) -> list[Field]:
    return headers.read_trailers(stream_id, fields, 16_384)


def without(name: bytes) -> list[Field]:
    return [field for field in REQUEST if field[0] != name]


def test_pseudo_header_fields_are_attributes_of_a_request() -> None:
    request = read_request(1, [*REQUEST, (b"content-length", b"12")])
    assert (request.method, request.scheme, request.path) == (b"POST", b"http", b"/KafkaPixy/Produce")
    assert (request.authority, request.content_length, request.memo) == (b"localhost", 12, None)
    assert request.fields == [*REGULAR, (b"content-length", b"12")]


@pytest.mark.parametrize(
    "fields",
    [
        REQUEST,
        without(b":authority"),
        [*REQUEST, (b"host", b"LOCALHOST")],
        [*without(b":authority"), (b"host", b"elsewhere")],
        [*REQUEST, (b"x-blank", b"")],
        [*REQUEST, (b"x-inner", b"a \tb")],
        [*REQUEST, (b"x-bin", bytes(range(0x80, 0x100)))],
        [*REQUEST, (b"content-length", b"5"), (b"content-length", b"5")],
        [(b":method", b"OPTIONS"), (b":scheme", b"https"), (b":path", b"*")],
        [(b":method", b"GET"), (b":scheme", b"ftp"), (b":path", b"x")],
        [(b":method", b"CONNECT"), (b":authority", b"host:1")],
    ],
)
def test_valid_requests_are_accepted(fields: list[Field]) -> None:
    assert read_request(1, fields).fields == [field for field in fields if not field[0].startswith(b":")]


@pytest.mark.parametrize(
    "fields",
    [
        [],
        without(b":method"),
        without(b":scheme"),
        without(b":path"),
        [*without(b":path"), (b":path", b"/")],
        [*PSEUDO[:3], (b":path", b"/"), *REGULAR],
        [*PSEUDO, (b":protocol", b"websocket"), *REGULAR],
        [(b":status", b"200"), *REQUEST],
        [*PSEUDO, (b":x", b""), *REGULAR],
        [*without(b":path")[:3], (b":path", b""), *REGULAR],
        [*without(b":path")[:3], (b":path", b"no-slash"), *REGULAR],
        [(b":method", b"CONNECT"), *PSEUDO[1:]],
        [(b":method", b"CONNECT")],
        *(
            [*REQUEST, (name, b"x")]
            for name in (b"connection", b"keep-alive", b"proxy-connection", b"upgrade")
        ),
        [*REQUEST, (b"transfer-encoding", b"chunked")],
        [*without(b"te"), (b"te", b"gzip")],
        [*REQUEST, (b"host", b"elsewhere")],
        *([*REQUEST, (name, b"x")] for name in (b"", b"Upper", b"a b", b"a:b", b"\x80", b"a\0", b"(", b":")),
        *(
            [*REQUEST, (b"x", value)]
            for value in (b"a\0b", b"a\nb", b"a\rb", b" a", b"a ", b"\ta", b"a\t", b"\x7f")
        ),
        *(
            [*REQUEST, (b"content-length", value)]
            for value in (b"", b"-1", b"+1", b"1 1", b"1" * 19, "²".encode())
        ),
        [*REQUEST, (b"content-length", b"5"), (b"content-length", b"6")],
    ],
)
def test_requests_that_break_a_rule_are_malformed(fields: list[Field]) -> None:
    with pytest.raises(Http2StreamError) as caught:
        read_request(7, fields)
    assert (caught.value.stream_id, caught.value.code) == (7, ErrorCode.PROTOCOL_ERROR)


@pytest.mark.slow
@pytest.mark.parametrize("byte", range(256))
def test_each_byte_is_either_allowed_or_rejected_in_names_and_values(byte: int) -> None:
    """RFC 9110 §5.6.2 and §5.5, RFC 9113 §8.2.1."""
    char = bytes((byte,))
    in_name = char in b"!#$%&'*+-.^_`|~0123456789abcdefghijklmnopqrstuvwxyz"
    in_value = byte == 0x09 or (byte >= 0x20 and byte != 0x7F)
    for field, allowed in (((b"x" + char, b""), in_name), ((b"x", b"a" + char + b"b"), in_value)):
        for read in (
            lambda field: read_request(1, [*REQUEST, field]),
            lambda field: read_trailers(1, [field]),
        ):
            if allowed:
                assert read(field)
                assert encode_headers([field])
            else:
                with pytest.raises(Http2StreamError):
                    read(field)
                with pytest.raises(ValueError, match="invalid HTTP/2 fields"):
                    encode_headers([field])


@pytest.mark.parametrize(
    "fields", [[(b":path", b"/")], [(b":status", b"1")], [(b"connection", b"close")], [(b"A", b"")]]
)
def test_trailers_with_pseudo_header_or_invalid_fields_are_malformed(fields: list[Field]) -> None:
    with pytest.raises(Http2StreamError) as caught:
        read_trailers(3, [(b"x", b"y"), *fields])
    assert caught.value.code is ErrorCode.PROTOCOL_ERROR


def test_a_repeated_block_yields_the_same_object() -> None:
    reader, encoder = HeaderReader(16_384), hpack.Encoder()
    blocks = [encoder.encode(REQUEST) for _ in range(3)]
    assert blocks[0] != blocks[1] == blocks[2]
    first, second, third = (reader.request(stream_id, block)[0] for stream_id, block in enumerate(blocks, 1))
    assert second is third is reader.cache[blocks[1]][0]
    assert first is not second
    assert first.fields == second.fields


def test_a_block_that_changes_the_table_clears_the_cache() -> None:
    reader, encoder = HeaderReader(16_384), hpack.Encoder()
    for _ in range(2):
        reader.request(1, encoder.encode(REQUEST))
    assert reader.cache
    changing = encoder.encode([*REQUEST, (b"grpc-timeout", b"1S")])
    reader.request(3, changing)
    assert not reader.cache
    # Every index has moved: the old block has another meaning.
    assert reader.request(5, encoder.encode(REQUEST))[0].path == b"/KafkaPixy/Produce"
    for trailers in ([(b"new", b"1")], [(b"new", b"2")]):
        reader.request(7, encoder.encode(REQUEST))
        assert reader.cache
        reader.read(encoder.encode(trailers))
        assert not reader.cache


@pytest.mark.slow
@given(
    st.lists(
        st.tuples(
            st.sampled_from([b"/A/a", b"/B/b", b"/C/c"]),
            st.sampled_from([b"1S", b"2S", b"x" * 3000]),
            st.sampled_from([None, 0, 200, 4096]),
        ),
        max_size=40,
    )
)
def test_requests_are_the_same_with_and_without_the_cache(
    calls: list[tuple[bytes, bytes, int | None]],
) -> None:
    reader, encoder, oracle = HeaderReader(16_384), hpack.Encoder(), hpack.Decoder()
    for path, timeout, resize in calls:
        if resize is not None:
            encoder.header_table_size = resize
        block = encoder.encode([*without(b":path")[:3], (b":path", path), (b"grpc-timeout", timeout)])
        request, varying_field = reader.request(1, block)
        assert (request.path, whole(request, varying_field)) == (path, [(b"grpc-timeout", timeout)])
        oracle.decode(block)
        reader.check_invariants()


def test_requests_that_differ_in_one_literal_share_a_pattern() -> None:
    reader, encoder = HeaderReader(16_384), hpack.Encoder()
    behind = (b"x-behind", b"y")
    requests = [
        reader.request(1, encoder.encode([*REQUEST, (b"grpc-timeout", b"%dm" % number), behind]))
        for number in range(5)
    ]
    # All fields of the first block are literals, so its last one is taken for the varying field.
    assert [varying_field for _, varying_field in requests[:2]] == [None, None]
    pattern = requests[2][0]
    assert pattern.fields == (*REGULAR, behind)
    assert (pattern.method, pattern.path, pattern.authority) == (b"POST", b"/KafkaPixy/Produce", b"localhost")
    for number, (request, _) in enumerate(requests[:2]):
        assert request.fields == [*REGULAR, (b"grpc-timeout", b"%dm" % number), behind]
    assert requests[2:] == [(pattern, (b"grpc-timeout", b"%dm" % number)) for number in range(2, 5)]


def test_a_literal_with_a_repeated_name_keeps_its_position() -> None:
    reader, encoder = HeaderReader(16_384), hpack.Encoder()
    for number in range(5):
        fields = [*REQUEST, (b"x", b"%d" % number), (b"x", b"last")]
        request, varying_field = reader.request(1, encoder.encode(fields))
        assert varying_field is None
        assert [*REQUEST[:4], *request.fields] == fields


def test_fields_with_rules_of_their_own_are_validated_in_each_request() -> None:
    reader, encoder = HeaderReader(16_384), hpack.Encoder()
    for name, right, wrong in (
        (b"te", b"trailers", b"gzip"),
        (b"host", b"localhost", b"elsewhere"),
        (b"content-length", b"5", b"six"),
        (b"x", b"y", b"y\n"),
        (b"x", b"y", b" y"),
    ):
        others = [field for field in REQUEST if field[0] != name]
        reader.request(1, encoder.encode([*others, (name, right)]))
        with pytest.raises(Http2StreamError):
            reader.request(5, encoder.encode([*others, (name, wrong)]))


def whole(request: RequestHeaders, varying_field: Field | None) -> list[Field]:
    """All regular fields of a request. The position of the varying field has no meaning."""
    return sorted(
        [*request.fields, *([] if varying_field is None else [varying_field])], key=lambda field: field[0]
    )


def outcome(read: Callable[[], tuple[RequestHeaders, Field | None]]) -> tuple[object, ...]:
    """The parts of a request, or its error."""
    try:
        request, varying_field = read()
    except Http2Error as error:
        return (error.code,)
    parts = request.method, request.scheme, request.authority, request.path
    return (*parts, whole(request, varying_field), request.content_length)


@pytest.mark.slow
@given(
    st.lists(
        st.tuples(
            st.sampled_from([b"/A/a", b"/B/b"]),
            st.sampled_from(
                [
                    b"grpc-timeout",
                    b"te",
                    b"host",
                    b"content-length",
                    b"x",
                    b":path",
                    b":method",
                    b"connection",
                ]
            ),
            st.sampled_from(
                [b"1S", b"2S", b"trailers", b"here", b"\n", b" 1", b"7", b"/C", b"", b"y" * 700, b"y" * 900]
            ),
            st.integers(0, 9),
        ),
        max_size=30,
    )
)
def test_a_request_by_pattern_equals_one_without(
    calls: list[tuple[bytes, bytes, bytes, int]],
) -> None:
    reader, encoder = HeaderReader(1200), hpack.Encoder()
    for path, name, value, at in calls:
        fields = [(b":method", b"POST"), (b":scheme", b"http"), (b":path", path), (b"a", b"b"), (b"c", b"d")]
        fields.insert(min(at, len(fields)), (name, value))
        remembering = outcome(partial(reader.request, 1, encoder.encode(fields)))

        def on_its_own(fields: list[Field] = fields) -> tuple[RequestHeaders, Field | None]:
            return headers.read_request(1, fields, 1200), None

        assert remembering == outcome(on_its_own)
        reader.check_invariants()


def test_most_blocks_of_a_client_that_indexes_each_deadline_are_predicted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    decoded: list[bytes] = []
    decode = Decoder.decode

    def counting(decoder: Decoder, block: bytes) -> list[Field]:
        decoded.append(block)
        return decode(decoder, block)

    monkeypatch.setattr(Decoder, "decode", counting)
    reader, encoder = HeaderReader(16_384), hpack.Encoder()
    # Far more than fits the table, so that all other fields are evicted and inserted again and
    # again.
    for number in range(1000):
        fields = [*REQUEST, (b"grpc-timeout", b"%du" % (1_000_000 - number))]
        request, varying_field = reader.request(1, encoder.encode(fields))
        assert [*REQUEST[:4], *request.fields, *([varying_field] if varying_field else [])] == fields
        reader.check_invariants()
    assert len(decoded) < 40


@pytest.mark.slow
@given(
    st.lists(
        st.tuples(
            st.sampled_from([b"/A", b"/A", b"/A", b"/B"]),
            st.sampled_from([b"t", b"t", b"t", b"te", b"u"]),
            st.sampled_from([b"1S", b"2S", b"3S", b"\n", b"", b"y" * 60, b"y" * 200]),
            st.sampled_from([None, None, None, None, None, 0, 100, 200, 4096]),
            st.sampled_from([b"", b"", b"", b"", b"\x82", b"\xbe", b"\x40", b"\x7e\x81", b"cut"]),
        ),
        max_size=30,
    )
)
def test_a_predicted_block_equals_the_decoded_one(
    calls: list[tuple[bytes, bytes, bytes, int | None, bytes]],
) -> None:
    reader, encoder, decoder = HeaderReader(1200), hpack.Encoder(), Decoder()
    for path, name, value, resize, tail in calls:
        if resize is not None:
            encoder.header_table_size = resize
        fields = [(b":method", b"POST"), (b":scheme", b"http"), (b":path", path), (b"a", b"b"), (name, value)]
        block = encoder.encode(fields)
        block = block[:-1] if tail == b"cut" else block + tail

        def on_its_own(block: bytes = block) -> tuple[RequestHeaders, Field | None]:
            return headers.read_request(1, decoder.decode(block), 1200), None

        expected = outcome(on_its_own)
        assert outcome(partial(reader.request, 1, block)) == expected
        assert reader._decoder._dynamic == decoder._dynamic
        reader.check_invariants()
        if expected == (ErrorCode.COMPRESSION_ERROR,):
            return


def test_patterns_are_bounded() -> None:
    reader, encoder = HeaderReader(16_384), hpack.Encoder()
    for number in range(100):
        reader.request(1, encoder.encode([*REQUEST, (b"path", b"%d" % number), (b"x", b"y%d" % number)]))
        reader.check_invariants()
    large = (b"large", b"z" * 1000)
    requests = [reader.request(1, encoder.encode([*REQUEST, large, (b"x", b"%d" % n)])) for n in range(5)]
    assert [varying_field for _, varying_field in requests] == [None] * 5


@pytest.mark.slow
def test_the_cache_is_bounded() -> None:
    reader = HeaderReader(16_384)
    for number in range(2000):
        reader.request(1, encode([*REQUEST, (b"x", b"%d" % number)]))
        reader.check_invariants()
    large = encode([*REQUEST, (b"x", b"\xff" * 2000)])
    reader.request(1, large)
    assert large not in reader.cache


def test_a_header_list_that_is_too_large_is_a_stream_error_but_updates_the_dynamic_table() -> None:
    reader, encoder = HeaderReader(1024), hpack.Encoder()
    with pytest.raises(Http2StreamError) as caught:
        reader.request(9, encoder.encode([*REQUEST, (b"x", b"y" * 800)]))
    assert (caught.value.stream_id, caught.value.code) == (9, ErrorCode.ENHANCE_YOUR_CALM)
    assert reader.request(11, encoder.encode(REQUEST))[0].authority == b"localhost"
    exact = [*REQUEST, (b"x", b"")]
    size = 1024 - sum(len(name) + len(value) + 32 for name, value in exact)
    exact[-1] = (b"x", b"y" * size)
    assert reader.request(13, encoder.encode(exact))[0].fields[-1] == exact[-1]
    exact[-1] = (b"x", b"y" * (size + 1))
    with pytest.raises(Http2StreamError):
        reader.request(15, encoder.encode(exact))


def test_a_small_block_of_many_large_fields_is_not_joined() -> None:
    reader, encoder = HeaderReader(16_384), hpack.Encoder()
    reader.request(1, encoder.encode([*REQUEST, (b"bomb", b"b" * 3000)]))
    tracemalloc.start()
    try:
        with pytest.raises(Http2StreamError) as caught:
            reader.request(3, b"\xbe" * 2000)
        assert tracemalloc.get_traced_memory()[1] < 2**20
    finally:
        tracemalloc.stop()
    assert caught.value.code is ErrorCode.ENHANCE_YOUR_CALM


def test_a_block_of_too_many_fields_ends_the_connection() -> None:
    reader = HeaderReader(16_384)
    with pytest.raises(Http2StreamError):
        reader.request(1, b"\x82" * 2048)
    with pytest.raises(Http2ConnectionError) as caught:
        reader.request(3, b"\x82" * 2049)
    assert caught.value.code is ErrorCode.ENHANCE_YOUR_CALM


def test_a_template_is_a_response_around_a_body() -> None:
    template = ResponseTemplate([(b":status", b"200"), (b"x", b"1")], [(b"grpc-status", b"0")])
    decoder = hpack.Decoder()
    assert [tuple(field) for field in decoder.decode(template.headers, raw=True)] == [
        (b":status", b"200"),
        (b"x", b"1"),
    ]
    assert template.trailers_start == len(template.trailers).to_bytes(3, "big") + b"\x01\x05"
    with pytest.raises(ValueError, match="does not fit a frame"):
        ResponseTemplate([(b":status", b"200"), (b"x", b"\xff" * 17_000)], [])
