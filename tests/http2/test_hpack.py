"""Header compression, `pixy.http2.hpack`: the examples of RFC 7541, the package `hpack` as oracle,
and invalid blocks.
"""

import copy
from itertools import cycle

import hpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pixy.http2 import ErrorCode, Field
from pixy.http2.errors import Http2ConnectionError
from pixy.http2.hpack import EMPTY_TABLE, BlockPredictor, Decoder, encode

FIRST = [(b":method", b"GET"), (b":scheme", b"http"), (b":path", b"/"), (b":authority", b"www.example.com")]
SECOND = [*FIRST, (b"cache-control", b"no-cache")]
THIRD = [
    (b":method", b"GET"),
    (b":scheme", b"https"),
    (b":path", b"/index.html"),
    (b":authority", b"www.example.com"),
    (b"custom-key", b"custom-value"),
]
STATUS_302 = [
    (b":status", b"302"),
    (b"cache-control", b"private"),
    (b"date", b"Mon, 21 Oct 2013 20:13:21 GMT"),
    (b"location", b"https://www.example.com"),
]
STATUS_307 = [(b":status", b"307"), *STATUS_302[1:]]
STATUS_200 = [
    (b":status", b"200"),
    (b"cache-control", b"private"),
    (b"date", b"Mon, 21 Oct 2013 20:13:22 GMT"),
    (b"location", b"https://www.example.com"),
    (b"content-encoding", b"gzip"),
    (b"set-cookie", b"foo=ASDJKHQKBZXOQWEOPIUAXQWEOIU; max-age=3600; version=1"),
]

# RFC 7541 appendix C: name, table size, then the blocks of one connection with their fields and the
# resulting table size.
EXAMPLES: list[tuple[str, int, list[tuple[str, list[Field], int]]]] = [
    (
        "C.2.1 literal with indexing",
        4096,
        [
            (
                "400a 6375 7374 6f6d 2d6b 6579 0d63 7573 746f 6d2d 6865 6164 6572",
                [(b"custom-key", b"custom-header")],
                55,
            )
        ],
    ),
    (
        "C.2.2 literal without indexing",
        4096,
        [("040c 2f73 616d 706c 652f 7061 7468", [(b":path", b"/sample/path")], 0)],
    ),
    (
        "C.2.3 literal never indexed",
        4096,
        [("1008 7061 7373 776f 7264 0673 6563 7265 74", [(b"password", b"secret")], 0)],
    ),
    ("C.2.4 indexed", 4096, [("82", [(b":method", b"GET")], 0)]),
    (
        "C.3 requests without Huffman",
        4096,
        [
            ("8286 8441 0f77 7777 2e65 7861 6d70 6c65 2e63 6f6d", FIRST, 57),
            ("8286 84be 5808 6e6f 2d63 6163 6865", SECOND, 110),
            ("8287 85bf 400a 6375 7374 6f6d 2d6b 6579 0c63 7573 746f 6d2d 7661 6c75 65", THIRD, 164),
        ],
    ),
    (
        "C.4 requests with Huffman",
        4096,
        [
            ("8286 8441 8cf1 e3c2 e5f2 3a6b a0ab 90f4 ff", FIRST, 57),
            ("8286 84be 5886 a8eb 1064 9cbf", SECOND, 110),
            ("8287 85bf 4088 25a8 49e9 5ba9 7d7f 8925 a849 e95b b8e8 b4bf", THIRD, 164),
        ],
    ),
    (
        "C.5 responses without Huffman, with eviction",
        256,
        [
            (
                "4803 3330 3258 0770 7269 7661 7465 611d 4d6f 6e2c 2032 3120 4f63 7420 3230 3133 2032 303a 3133 3a32"
                "3120 474d 546e 1768 7474 7073 3a2f 2f77 7777 2e65 7861 6d70 6c65 2e63 6f6d",
                STATUS_302,
                222,
            ),
            ("4803 3330 37c1 c0bf", STATUS_307, 222),
            (
                "88c1 611d 4d6f 6e2c 2032 3120 4f63 7420 3230 3133 2032 303a 3133 3a32 3220 474d 54c0 5a04 677a 6970"
                "7738 666f 6f3d 4153 444a 4b48 514b 425a 584f 5157 454f 5049 5541 5851 5745 4f49 553b 206d 6178 2d61"
                "6765 3d33 3630 303b 2076 6572 7369 6f6e 3d31",
                STATUS_200,
                215,
            ),
        ],
    ),
    (
        "C.6 responses with Huffman, with eviction",
        256,
        [
            (
                "4882 6402 5885 aec3 771a 4b61 96d0 7abe 9410 54d4 44a8 2005 9504 0b81 66e0 82a6 2d1b ff6e 919d 29ad"
                "1718 63c7 8f0b 97c8 e9ae 82ae 43d3",
                STATUS_302,
                222,
            ),
            ("4883 640e ffc1 c0bf", STATUS_307, 222),
            (
                "88c1 6196 d07a be94 1054 d444 a820 0595 040b 8166 e084 a62d 1bff c05a 839b d9ab 77ad 94e7 821d d7f2"
                "e6c7 b335 dfdf cd5b 3960 d5af 2708 7f36 72c1 ab27 0fb5 291f 9587 3160 65c0 03ed 4ee5 b106 3d50 07",
                STATUS_200,
                215,
            ),
        ],
    ),
]

NAMES = st.sampled_from(
    [b":path", b":status", b"accept", b"a", b"grpc-timeout", b"x" * 150, b"authorization"]
)
FIELDS = st.lists(st.tuples(NAMES, st.binary(max_size=200)), max_size=12)


@pytest.mark.parametrize(("name", "table", "blocks"), EXAMPLES, ids=[name for name, _, _ in EXAMPLES])
def test_the_examples_of_the_specification(
    name: str, table: int, blocks: list[tuple[str, list[Field], int]]
) -> None:
    decoder = Decoder(table)
    for block, fields, table_bytes in blocks:
        assert decoder.decode(bytes.fromhex(block)) == fields
        assert decoder.table_bytes == table_bytes
        decoder.check_invariants()


def test_the_integers_of_the_specification() -> None:
    """RFC 7541 appendix C.1: 10 and 1337 with a prefix of five bits, 42 in one octet; here as sizes
    of a table and of a string.
    """
    for block, table_bytes in (("2a", 10), ("3f 9a 0a", 1337)):
        decoder = Decoder()
        assert decoder.decode(bytes.fromhex(block)) == []
        assert decoder._capacity == table_bytes
    assert encode([(b"a", b"X" * 42)])[3:] == b"\x2a" + b"X" * 42


@pytest.mark.slow
@given(st.lists(st.tuples(FIELDS, st.booleans(), st.sampled_from([None, 0, 64, 300, 4096])), max_size=12))
def test_blocks_encoded_by_the_oracle_are_decoded(
    sections: list[tuple[list[Field], bool, int | None]],
) -> None:
    encoder, decoder = hpack.Encoder(), Decoder()
    for fields, huffman, resize in sections:
        if resize is not None:
            encoder.header_table_size = resize
        assert decoder.decode(encoder.encode(fields, huffman=huffman)) == fields
        assert decoder.table_bytes == encoder.header_table._current_size
        decoder.check_invariants()


@given(FIELDS)
def test_the_oracle_decodes_our_blocks_and_its_table_stays_empty(fields: list[Field]) -> None:
    oracle = hpack.Decoder()
    for prefix in (b"", EMPTY_TABLE, b""):
        assert [tuple(field) for field in oracle.decode(prefix + encode(fields), raw=True)] == fields
    assert oracle.header_table._current_size == 0


@given(st.lists(st.binary(max_size=40), max_size=5))
def test_any_bytes_are_decoded_or_rejected_as_by_the_oracle(blocks: list[bytes]) -> None:
    oracle, decoder = hpack.Decoder(), Decoder()
    for block in blocks:
        try:
            expected = [tuple(field) for field in oracle.decode(block, raw=True)]
        except hpack.HPACKError:
            with pytest.raises(Http2ConnectionError):
                decoder.decode(block)
            return
        if _has_long_integer(decoder, block):
            # The oracle accepts integers of any length.
            return
        assert decoder.decode(block) == expected
        decoder.check_invariants()


def _has_long_integer(decoder: Decoder, block: bytes) -> bool:
    try:
        copy.deepcopy(decoder).decode(block)
    except Http2ConnectionError as error:
        return "more than five bytes" in error.reason
    return False


def test_secrets_are_sent_as_never_indexed() -> None:
    assert encode([(b"authorization", b"x")])[:2] == b"\x1f\x08"
    assert encode([(b"grpc-status", b"0")])[:1] == b"\x00"
    assert encode([(b"location", b"x")])[:2] == b"\x0f\x1f"


def test_every_prefix_of_a_block_is_rejected_or_has_fewer_fields() -> None:
    block = bytes.fromhex(EXAMPLES[5][2][0][0])
    for cut in range(len(block)):
        if cut <= 3:
            assert Decoder().decode(block[:cut]) == FIRST[:cut]
            continue
        with pytest.raises(Http2ConnectionError) as caught:
            Decoder().decode(block[:cut])
        assert caught.value.code is ErrorCode.COMPRESSION_ERROR


@pytest.mark.parametrize(
    ("block", "wrong"),
    [
        ("80", "index 0"),
        ("8001610161", "index 0 in front of what would be a field"),
        ("3fe19f808000", "a table size of more than five bytes"),
        ("be", "an index behind the end of the table"),
        ("ff80808080", "an integer that does not end"),
        ("ff8080808001", "an integer of more than five bytes"),
        ("7f8080808001", "a name's index of more than five bytes"),
        ("7e0161", "a name's index behind the end of the table"),
        ("3fe21f", "a table of 4097 bytes"),
        ("8220", "a table size update behind a field"),
        ("0003616263", "a value that is missing"),
        ("00056162", "a name that is cut off"),
        ("007f8080808001", "a length of more than five bytes"),
        ("008118", "a name with bad Huffman padding"),
        ("0082ffff0161", "a name of padding alone"),
    ],
)
def test_invalid_blocks_are_a_compression_error(block: str, wrong: str) -> None:
    with pytest.raises(Http2ConnectionError) as caught:
        Decoder().decode(bytes.fromhex(block))
    assert caught.value.code is ErrorCode.COMPRESSION_ERROR


def test_the_peer_may_resize_the_table_within_its_limit_and_too_large_an_entry_empties_it() -> None:
    decoder = Decoder()
    decoder.decode(bytes.fromhex(EXAMPLES[4][2][0][0]))
    assert decoder.table_bytes == 57
    assert decoder.decode(bytes.fromhex("3fe11f") + b"\xbe") == [FIRST[3]]
    assert decoder.decode(b"\x20") == []
    assert decoder.table_bytes == 0
    # A field of 57 bytes does not fit in 56.
    assert decoder.decode(bytes.fromhex("3f19") + bytes.fromhex(EXAMPLES[4][2][0][0])) == FIRST
    assert decoder.table_bytes == 0


def test_only_insertions_and_resizes_change_the_table() -> None:
    decoder = Decoder()
    seen = [decoder.changes]
    for block in ("82", "040161", "100161 0161", "410161", "be", "20", "82"):
        decoder.decode(bytes.fromhex(block))
        seen.append(decoder.changes)
    assert seen == [0, 0, 0, 0, 1, 1, 2, 2]


STATIC_POST = (b":method", b"POST")


def predictor(max_table_bytes: int = 4096) -> tuple[Decoder, BlockPredictor]:
    """The state after a=b, t=1 and a=b, t=2, with each new field inserted."""
    decoder = Decoder(max_table_bytes)
    assert decoder.decode(b"\x40\x01a\x01b\x40\x01t\x011") == [(b"a", b"b"), (b"t", b"1")]
    block = b"\xbf\x7e\x012"
    assert decoder.decode(block) == [(b"a", b"b"), (b"t", b"2")]
    start = BlockPredictor.maybe_prefix(block, 1)
    assert start == b"\xbf"
    return decoder, BlockPredictor(decoder, start, b"t")


def test_the_next_block_is_predicted_except_for_its_value() -> None:
    decoder, blocks = predictor()
    another = copy.deepcopy(decoder)
    for index in range(0xC0, 0xFF):
        block = bytes((index, 0x7E, 0x01, index & 0x7F))
        field = blocks.maybe_decode(block)
        assert another.decode(block) == [(b"a", b"b"), field]
        assert decoder._dynamic == another._dynamic
        decoder.check_invariants()


def test_prediction_continues_where_an_index_needs_a_second_byte() -> None:
    decoder, blocks = predictor()
    another = copy.deepcopy(decoder)
    # As many as fit the table next to the first field, at 34 bytes each.
    for age in range(3, 4096 // 34):
        index = 61 + age
        name = bytes((0x80 | index,)) if index < 0x7F else bytes((0xFF, index - 0x7F))
        block = name + b"\x7e\x013"
        assert blocks.maybe_decode(block) == (b"t", b"3")
        assert another.decode(block) == [(b"a", b"b"), (b"t", b"3")]
    assert index > 0x7F + 50
    changes = decoder.changes
    assert blocks.maybe_decode(b"\xff\x36\x7e\x013") == (b"t", b"3")
    assert decoder.changes == changes + 1
    assert (b"a", b"b") not in decoder._dynamic
    assert blocks.maybe_decode(b"\xff\x37\x7e\x013") is None


def test_prediction_supports_indexes_of_two_bytes_and_static_ones() -> None:
    decoder, _ = predictor()
    for _ in range(70):
        decoder.decode(b"\x7e\x01x")
    start = BlockPredictor.maybe_prefix(b"\x83\xff\x07\xbe\x7e\x01y", 3)
    assert start == b"\x83\xff\x07\xbe"
    assert decoder.decode(start + b"\x7e\x01y") == [STATIC_POST, (b"a", b"b"), (b"t", b"x"), (b"t", b"y")]
    another = copy.deepcopy(decoder)
    blocks = BlockPredictor(decoder, start, b"t")
    block = b"\x83\xff\x08\xbf\x7e\x01z"
    assert blocks.maybe_decode(block) == (b"t", b"z")
    assert another.decode(block) == [STATIC_POST, (b"a", b"b"), (b"t", b"x"), (b"t", b"z")]
    assert decoder._dynamic == another._dynamic


def test_prediction_ends_where_a_field_is_evicted() -> None:
    decoder, blocks = predictor(max_table_bytes=110)
    assert blocks.maybe_decode(b"\xc0\x7e\x013") == (b"t", b"3")
    assert (b"a", b"b") not in decoder._dynamic
    assert blocks.maybe_decode(b"\xc1\x7e\x014") is None
    with pytest.raises(Http2ConnectionError):
        decoder.decode(b"\xc1\x7e\x014")


@pytest.mark.slow
@pytest.mark.parametrize("sizes", [(1,), (1, 30), (30, 1, 1, 1), (90, 1), (1, 1, 1, 60)])
@pytest.mark.parametrize("start", [b"\x83", b"\xbe", b"\x83\xbe"])
def test_prediction_agrees_with_the_decoder_for_every_small_table(
    start: bytes, sizes: tuple[int, ...]
) -> None:
    """RFC 7541 §4.4: a field larger than the table empties it, so the next one cannot refer to its
    name.
    """
    foreseen = refused = 0
    for capacity in range(300):
        plain, decoder = Decoder(capacity), Decoder(capacity)
        plain.insert((b"a", b"b"))
        decoder.insert((b"a", b"b"))
        predictor: BlockPredictor | None = None
        for number, size in zip(range(40), cycle(sizes)):
            indexed = bytes(index + number * (index >= 0xBE) for index in start)
            block = indexed + (b"\x7e" if number else b"\x40\x01t") + bytes((size,)) + b"v" * size
            try:
                expected = plain.decode(block)
            except Http2ConnectionError:
                refused += 1
                assert predictor is None or predictor.maybe_decode(block) is None
                break
            field = None if predictor is None else predictor.maybe_decode(block)
            if field is not None:
                foreseen += 1
                assert field == expected[-1]
            else:
                assert decoder.decode(block) == expected
                predictor = BlockPredictor(decoder, indexed, b"t")
            assert decoder._dynamic == plain._dynamic
    assert foreseen
    assert refused


def test_prediction_ends_where_another_block_changes_the_table() -> None:
    for between in (b"\x40\x01x\x01y", b"\x3f\x81\x1f"):
        decoder, blocks = predictor()
        decoder.decode(between)
        assert blocks.maybe_decode(b"\xc0\x7e\x013") is None


@pytest.mark.parametrize(
    "block",
    [
        b"",
        b"\xc0",
        b"\xc0\x7e",
        b"\xbf\x7e\x013",
        b"\xc0\x0f\x2f\x013",
        b"\xc0\x7e\x013\x82",
        b"\xc0\x7e\x013\x7e",
    ],
)
def test_a_block_other_than_the_predicted_one_changes_nothing(block: bytes) -> None:
    decoder, blocks = predictor()
    changes = decoder.changes
    assert blocks.maybe_decode(block) is None
    assert decoder.changes == changes
    assert blocks.maybe_decode(b"\xc0\x7e\x013") == (b"t", b"3")


def test_an_invalid_value_in_a_predicted_block_is_an_error() -> None:
    _, blocks = predictor()
    with pytest.raises(Http2ConnectionError) as caught:
        blocks.maybe_decode(b"\xc0\x7e\x81\x00")
    assert caught.value.code is ErrorCode.COMPRESSION_ERROR


@pytest.mark.parametrize(
    "value", [b"\x053", b"\x013\x82", b"\x7f\x00" + b"v" * 127, b"\xff\x00" + b"v" * 127]
)
def test_a_value_that_is_long_or_does_not_end_its_block_is_not_predicted(value: bytes) -> None:
    decoder, blocks = predictor()
    changes = decoder.changes
    assert blocks.maybe_decode(b"\xc0\x7e" + value) is None
    assert decoder.changes == changes


@pytest.mark.parametrize(
    ("block", "indexed", "start"),
    [
        (b"\xbf\x7e\x01x", 1, b"\xbf"),
        (b"\x83\xfe\x40\x01t\x01x", 2, b"\x83\xfe"),
        (b"\x83\xff\x00\x7e\x01x", 2, b"\x83\xff\x00"),
        (b"\xff\x00\x7e\x01x", 1, b"\xff\x00"),
        (b"\xff\x00\x7e\x01x", 2, None),
        (b"\xff\x80\x00\x7e\x01x", 1, None),
        (b"\xff\x7e\x7e\x01x", 1, None),
        (b"\xbf\x0f\x2f\x01x", 1, None),
        (b"\x41\x01x\x7e\x01x", 1, None),
        (b"\x20\xbf\x7e\x01x", 1, None),
        (b"\x7e\x01x", 0, None),
        (b"\xbf", 1, None),
    ],
)
def test_a_predictable_block_has_indexes_in_their_shortest_encoding_and_a_literal(
    block: bytes, indexed: int, start: bytes | None
) -> None:
    assert BlockPredictor.maybe_prefix(block, indexed) == start
