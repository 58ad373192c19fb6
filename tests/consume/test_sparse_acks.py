import pytest
from hypothesis import given
from hypothesis import strategies as st

from pixy.consume import decode, describe, fitting
from pixy.consume.core import METADATA_BYTES_MAX, AckRange, encode
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


def test_the_readable_form_of_many_ranges_is_cut() -> None:
    ranges = decode(0, "BB" * 2048)
    text = describe(0, ranges)
    assert len(text) <= 4096 + 3
    assert text.endswith(",...")
    assert text.startswith("1-2,3-4,")
    assert describe(0, ranges[:100]).endswith(",199-200")


@pytest.mark.parametrize("step", [2, 40, 10**5])
def test_a_commit_has_the_first_ranges_that_fit(step: int) -> None:
    ranges = [AckRange(at, at + 1) for at in range(1, 5000 * step, step)]
    encoded = encode(0, ranges)
    assert METADATA_BYTES_MAX - 26 < len(encoded) <= METADATA_BYTES_MAX
    fit = decode(0, encoded)
    assert fit == ranges[: len(fit)]


@given(st.text("ABgz", max_size=3 * METADATA_BYTES_MAX))
def test_what_fits_of_longer_metadata_is_a_part_of_its_ranges(metadata: str) -> None:
    fit = fitting(metadata)
    assert metadata.startswith(fit)
    assert len(fit) <= METADATA_BYTES_MAX
    try:
        ranges = decode(1, metadata)
    except InvalidOffset:
        return
    assert decode(1, fit) == ranges[: len(decode(1, fit))]


def test_metadata_of_megabytes_is_cut_to_the_ranges_that_fit() -> None:
    assert fitting("BB" * 2_000_000) == "BB" * 2048
    assert fitting("gB" * 2_000_000) == "gB" * 2048
    assert fitting("ggB" * 1_000_000) == "ggB" * 1364
    assert fitting("text of another program" * 1000) == ("text of another program" * 1000)[:4096]
    assert fitting("BB") == "BB"
