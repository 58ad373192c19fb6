import pytest
from hypothesis import given
from hypothesis import strategies as st

from pixy.consume import AckRange, decode, describe, encode
from pixy.errors import InvalidOffset

VECTORS = [
    (301, [(302, 303)], "BB"),
    (301, [(302, 305), (307, 309), (310, 313)], "BDCCBD"),
    (312, [(398, 400), (4496, 4497)], "2CCggEB"),
    (7, [], ""),
]


@pytest.mark.parametrize(("base", "ranges", "metadata"), VECTORS)
def test_ranges_are_encoded_and_decoded_as_by_kafka_pixy(
    base: int, ranges: list[tuple[int, int]], metadata: str
) -> None:
    acked = [AckRange(*pair) for pair in ranges]
    assert encode(base, acked) == metadata
    assert decode(base, metadata) == acked


def test_encodings_accepted_by_kafka_pixy_are_decoded() -> None:
    assert len(decode(0, "abra1234+/P")) == 2


def test_a_range_that_touches_the_base_is_decoded() -> None:
    assert decode(10, "AB") == [AckRange(10, 11)]


@pytest.mark.parametrize(
    ("metadata", "message"),
    [
        ("B@", "bad char: @"),
        ("abra1234+/PS", "bad sequence: "),
        ("B", "bad sequence: "),
        ("Bg", "bad sequence: "),
        ("gggggggggggggBB", "bad sequence: "),
        ("BA", "bad range: "),
        ("AB", "bad range: "),
        ("BggggggggggggP", "bad range: "),
    ],
)
def test_invalid_encodings_are_rejected(metadata: str, message: str) -> None:
    with pytest.raises(InvalidOffset, match=message):
        decode(0, metadata)


def test_thirteen_characters_are_the_longest_number() -> None:
    assert decode(1, "ggggggggggggAB") == [AckRange(1, 2)]


def test_the_readable_form_is_relative_to_the_base() -> None:
    assert describe(300, [AckRange(301, 302), AckRange(309, 311)]) == "1-2,9-11"
    assert describe(300, []) == ""


@given(
    st.integers(0, 2**40),
    st.lists(st.tuples(st.integers(1, 2**20), st.integers(1, 2**20)), max_size=20),
)
def test_encoded_acks_decode_to_themselves(base: int, steps: list[tuple[int, int]]) -> None:
    ranges, at = [], base
    for gap, count in steps:
        ranges.append(AckRange(at + gap, at + gap + count))
        at += gap + count
    assert decode(base, encode(base, ranges)) == ranges


@given(st.integers(0, 2**40), st.text("ABCgh/+9@", max_size=30))
def test_any_text_is_decoded_or_rejected(base: int, metadata: str) -> None:
    try:
        ranges = decode(base, metadata)
    except InvalidOffset:
        return
    assert all(begin < end for begin, end in ranges)
