"""The Huffman code, `pixy.http2.huffman`, against the package `hpack` as oracle."""

import pytest
from hpack.huffman import HuffmanEncoder
from hpack.huffman_constants import REQUEST_CODES, REQUEST_CODES_LENGTH
from hpack.huffman_table import decode_huffman
from hypothesis import given
from hypothesis import strategies as st

from pixy.http2 import ErrorCode
from pixy.http2.errors import Http2ConnectionError
from pixy.http2.huffman import decode, encode, encoded_length

ORACLE = HuffmanEncoder(REQUEST_CODES, REQUEST_CODES_LENGTH)


@pytest.mark.parametrize("symbol", range(256))
def test_every_symbol_has_the_code_of_the_specification(symbol: int) -> None:
    string = bytes((symbol,))
    assert encode(string) == ORACLE.encode(string)
    assert decode(encode(string)) == string


@pytest.mark.slow
@given(st.binary())
def test_strings_are_encoded_as_by_the_oracle_and_round_trip(string: bytes) -> None:
    encoded = encode(string)
    assert encoded == ORACLE.encode(string)
    assert len(encoded) == encoded_length(string)
    assert decode(encoded) == string


@given(st.binary())
def test_any_bytes_are_decoded_or_rejected_as_by_the_oracle(encoded: bytes) -> None:
    try:
        expected = decode_huffman(encoded)
    except Exception:  # any exception of the oracle
        with pytest.raises(Http2ConnectionError):
            decode(encoded)
    else:
        assert decode(encoded) == expected


@pytest.mark.parametrize(
    ("encoded", "wrong"),
    [
        ("1f ff", "eight ones of padding and more"),
        ("18", "padding of zeros"),
        ("1e", "padding that is not all ones"),
        ("ff ff ff ff", "the end-of-string symbol"),
        ("ff ff ff fc 1f", "the end-of-string symbol and a letter behind it"),
        ("ff", "a byte of nothing but padding"),
    ],
)
def test_invalid_padding_is_a_compression_error(encoded: str, wrong: str) -> None:
    with pytest.raises(Http2ConnectionError) as caught:
        decode(bytes.fromhex(encoded))
    assert caught.value.code is ErrorCode.COMPRESSION_ERROR


def test_seven_ones_are_valid_padding() -> None:
    # "a" has five bits and "0" has five: one string per number of padding bits.
    paddings = {(-len(bits) % 8) for bits in ("00011" * count for count in range(1, 9))}
    assert paddings == set(range(8))
    for count in range(1, 9):
        assert decode(encode(b"a" * count)) == b"a" * count
