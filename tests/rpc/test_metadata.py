"""pixy/rpc/metadata.py: round trips of text and binary values."""

import base64
import re
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pixy.http2.headers import encode_headers
from pixy.rpc.metadata import decode_metadata, encode_metadata

NAMES = st.text("abcdefghijklmnopqrstuvwxyz0123456789_-.", min_size=1, max_size=9).map(
    lambda name: f"x{name}"
)
TEXT = st.tuples(
    NAMES.filter(lambda name: not name.endswith("-bin")),
    st.text(st.characters(min_codepoint=33, max_codepoint=126), max_size=20),
)
BINARY = st.tuples(NAMES.map(lambda name: f"{name}-bin"), st.binary(max_size=20))


@pytest.mark.slow
@given(st.lists(st.one_of(TEXT, BINARY), max_size=5))
def test_metadata_is_decoded_as_it_was_encoded(metadata: list[tuple[str, str | bytes]]) -> None:
    assert decode_metadata(encode_metadata(metadata)) == metadata


@given(st.binary(max_size=20))
def test_binary_values_are_read_with_and_without_padding(value: bytes) -> None:
    encoded = base64.b64encode(value)
    for form in (encoded, encoded.rstrip(b"=")):
        assert decode_metadata([(b"a-bin", form)]) == [("a-bin", value)]


def test_joined_binary_values_are_separated() -> None:
    assert decode_metadata([(b"a-bin", b"AQ==,Ag")]) == [("a-bin", b"\1"), ("a-bin", b"\2")]


@pytest.mark.parametrize("value", [b"!", b"A", b"AAAAA", b"AA A"])
def test_binary_values_that_are_not_base64_are_refused(value: bytes) -> None:
    with pytest.raises(ValueError, match="a-bin is not base64"):
        decode_metadata([(b"a-bin", value)])


def test_fields_of_grpc_and_http_are_not_metadata() -> None:
    fields = [(b"grpc-timeout", b"1S"), (b"content-type", b"x"), (b"te", b"trailers"), (b"user-agent", b"me")]
    assert decode_metadata(fields) == [("user-agent", "me")]


@pytest.mark.parametrize(
    "pair",
    [
        ("grpc-a", "1"),
        ("te", "1"),
        ("a", b"1"),
        ("a-bin", "1"),
        ("é", "1"),
        ("", "1"),
        ("Upper", "1"),
        ("a b", "1"),
        (":path", "1"),
        ("a\n", "1"),
        ("a", "é"),
        ("a", "1\r\nb: 2"),
        ("a", "1\n"),
        ("a", "\t"),
        ("a", "\x7f"),
        ("a", " 1"),
        ("a", "1 "),
    ],
)
def test_metadata_that_cannot_be_sent_is_an_error_that_names_it(pair: tuple[str, str | bytes]) -> None:
    with pytest.raises(
        ValueError,
        match=f"of {re.escape(pair[0])} |name {re.escape(repr(pair[0]))} |name {re.escape(pair[0])} ",
    ):
        encode_metadata([pair])


@pytest.mark.slow
@given(st.text(max_size=3), st.text(max_size=4))
def test_encoded_metadata_are_fields_of_http2(key: str, value: str) -> None:
    with suppress(ValueError):
        fields = encode_metadata([(key, value)])
        try:
            encode_headers(fields)
        except ValueError:
            pytest.fail(f"{fields} were accepted")
