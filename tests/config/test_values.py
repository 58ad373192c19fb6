import pytest

from pixy.config.options import Option, ValueType
from pixy.config.tree import Place, Scalar
from pixy.config.values import format_duration, format_value, parse_bytes, parse_duration, parse_value


def scalar(text: str) -> Scalar:
    return Scalar(text, "text", Place("here"))


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("0", 0.0),
        ("0s", 0.0),
        ("5m", 300.0),
        ("500ms", 0.5),
        ("1h30m", 5400.0),
        ("1.5s", 1.5),
        (".5s", 0.5),
        ("250us", 0.00025),
        ("250µs", 0.00025),
        ("250\u03bcs", 0.00025),
        ("7ns", 7e-9),
        ("-5s", -5.0),
        ("+5s", 5.0),
    ],
)
def test_a_duration_is_read_in_gos_notation(text: str, seconds: float) -> None:
    assert parse_duration(text) == seconds


@pytest.mark.parametrize("text", ["", "s", "5 m", "5m ", "5x", "five", "5m3", "--5s", "5mm", "\u0665s"])
def test_an_invalid_duration_is_rejected_with_an_example(text: str) -> None:
    with pytest.raises(ValueError, match="expected a duration such as 500ms, 5m or 1h30m"):
        parse_duration(text)


def test_a_bare_number_is_no_duration_and_the_error_suggests_a_unit() -> None:
    with pytest.raises(ValueError, match=r"^is 300; a duration needs a unit: 300s, 300ms or 300m$"):
        parse_duration("300")


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.0, "0s"),
        (300.0, "5m"),
        (0.5, "500ms"),
        (5400.0, "1h30m"),
        (3661.0, "1h1m1s"),
        (1.5, "1500ms"),
        (0.00025, "250us"),
        (7e-9, "7ns"),
        (-5.0, "-5s"),
    ],
)
def test_a_formatted_duration_parses_to_itself(seconds: float, text: str) -> None:
    assert format_duration(seconds) == text
    assert parse_duration(text) == seconds


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("1048576", 1 << 20),
        ("1_000", 1000),
        ("64MiB", 64 << 20),
        ("1GB", 10**9),
        ("2 kb", 2000),
        ("1.5KiB", 1536),
        ("3B", 3),
    ],
)
def test_a_size_is_a_number_with_an_optional_unit(text: str, size: int) -> None:
    assert parse_bytes(text) == size


@pytest.mark.parametrize("text", ["", "1X", "MiB", "-1MiB", "1.5", "1.0001KiB"])
def test_an_invalid_size_is_rejected(text: str) -> None:
    with pytest.raises(ValueError, match="bytes"):
        parse_bytes(text)


@pytest.mark.parametrize(
    ("option", "text", "error"),
    [
        (Option(ValueType.SECONDS, "", above=0), "0s", "must be > 0, is 0s"),
        (Option(ValueType.SECONDS, "", minimum=0), "-1s", "must be >= 0, is -1s"),
        (Option(ValueType.SECONDS, "", maximum=90), "2m", "must be <= 1m30s, is 2m"),
        (Option(ValueType.INTEGER, "", minimum=-1), "-2", "must be >= -1, is -2"),
        (Option(ValueType.INTEGER, "", maximum=9), "10", "must be <= 9, is 10"),
        (Option(ValueType.INTEGER, ""), "1.5", 'is "1.5"; expected a whole number'),
        (Option(ValueType.BYTES, "", minimum=1), "0", "must be >= 1, is 0"),
        (Option(ValueType.CHOICE, "", choices=("a", "b")), "c", 'is "c"; allowed: a, b'),
        (Option(ValueType.BOOLEAN, ""), "true", 'is "true"; expected true or false'),
    ],
)
def test_a_value_out_of_bounds_is_rejected_with_the_allowed_range(
    option: Option, text: str, error: str
) -> None:
    with pytest.raises(ValueError) as raised:  # noqa: PT011 - the whole message is compared
        parse_value(option, scalar(text))
    assert str(raised.value) == error


def test_a_secret_is_masked_only_if_it_is_set() -> None:
    secret = Option(ValueType.TEXT, "", secret=True)
    assert format_value(secret, "hunter2") == "********"
    assert format_value(secret, "") == ""


def test_a_list_of_texts_may_be_separated_by_commas() -> None:
    assert parse_value(Option(ValueType.TEXTS, ""), scalar("a:1, b:2,")) == ("a:1", "b:2")


@pytest.mark.parametrize("type_", [each for each in ValueType if "text" not in each.value])
@pytest.mark.parametrize(
    "text", ["1" * 1_000_000, "1." * 500_000, "1s" * 500_000], ids=["digits", "dots", "parts"]
)
def test_a_long_text_is_refused_before_it_is_matched(type_: ValueType, text: str) -> None:
    with pytest.raises(ValueError, match=r"^has 1000000 characters; expected"):
        parse_value(Option(type_, ""), scalar(text))
