"""Parsing and formatting of single values: durations, sizes, numbers, words.

Pure functions. Invalid input raises ValueError with a text that continues the option's name.
"""

import json
import re
from dataclasses import dataclass
from decimal import Decimal

from pixy.config.options import Option, ValueType
from pixy.config.tree import Scalar
from pixy.escaping import escape

_NANOSECONDS = {
    "ns": 1,
    "us": 1_000,
    "µs": 1_000,  # U+00B5, micro sign
    "\u03bcs": 1_000,  # Greek mu
    "ms": 1_000_000,
    "s": 1_000_000_000,
    "m": 60_000_000_000,
    "h": 3_600_000_000_000,
}
_DURATION_PART = re.compile(r"(\d+\.?\d*|\.\d+)(ns|us|µs|\u03bcs|ms|s|m|h)", re.ASCII)
_BARE_NUMBER = re.compile(r"[-+]?(\d+\.?\d*|\.\d+)", re.ASCII)
_INTEGER = re.compile(r"[-+]?\d[\d_]*", re.ASCII)
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([kmgt]?i?b)", re.ASCII | re.IGNORECASE)
_SIZE_UNITS = {
    "b": 1,
    **{f"{letter}b": 1000 ** (power + 1) for power, letter in enumerate("kmgt")},
    **{f"{letter}ib": 1024 ** (power + 1) for power, letter in enumerate("kmgt")},
}


_UNUSABLE = re.compile("[\x00\ud800-\udfff]")
_CHARACTERS_MAX = 100
_SHORT = frozenset(ValueType) - {ValueType.TEXT, ValueType.TEXTS}
"""Types whose values are short, and are matched by expressions that take long for long texts."""


@dataclass(frozen=True, slots=True)
class _Bound:
    """One bound of a value."""

    sign: str
    limit: float
    passed: bool


def parse_duration(text: str) -> float:
    """Seconds of a duration in Go's notation: `5m`, `500ms`, `1h30m`, `1.5s`, `0`.

    Raises:
        ValueError: no unit, or not a duration; the text says what is expected.
    """
    if _BARE_NUMBER.fullmatch(text):
        if float(text) == 0:
            return 0.0
        raise ValueError(f"is {text}; a duration needs a unit: {text}s, {text}ms or {text}m")
    unsigned = text[1:] if text[:1] in {"-", "+"} else text
    parts = list(_DURATION_PART.finditer(unsigned))
    if not parts or "".join(part.group() for part in parts) != unsigned:
        raise ValueError(f"is {json.dumps(text)}; expected {ValueType.SECONDS.value}")
    nanoseconds = sum(Decimal(part[1]) * _NANOSECONDS[part[2]] for part in parts)
    seconds = float(nanoseconds / 1_000_000_000)
    return -seconds if text.startswith("-") else seconds


def format_duration(seconds: float) -> str:
    """A duration in Go's notation, exact to the nanosecond, with as few digits as possible."""
    nanoseconds = round(abs(seconds) * 1_000_000_000)
    sign = "-" if seconds < 0 else ""
    if nanoseconds == 0:
        return "0s"
    if nanoseconds % _NANOSECONDS["s"]:
        unit = next(unit for unit in ("ms", "us", "ns") if nanoseconds % _NANOSECONDS[unit] == 0)
        return f"{sign}{nanoseconds // _NANOSECONDS[unit]}{unit}"
    text = ""
    for unit in ("h", "m", "s"):
        count, nanoseconds = divmod(nanoseconds, _NANOSECONDS[unit])
        text += f"{count}{unit}" if count else ""
    return sign + text


def parse_bytes(text: str) -> int:
    """Bytes of a size: `1048576`, `64MiB` (1024s), `1GB` (1000s).

    Raises:
        ValueError: not a size, or not a whole number of bytes.
    """
    if _INTEGER.fullmatch(text):
        return int(text)
    match = _SIZE.fullmatch(text)
    if match is None:
        raise ValueError(f"is {json.dumps(text)}; expected {ValueType.BYTES.value}")
    size = Decimal(match[1]) * _SIZE_UNITS[match[2].lower()]
    if size != int(size):
        raise ValueError(f"is {text}, which is not a whole number of bytes")
    return int(size)


def parse_value(option: Option, scalar: Scalar) -> bool | int | float | str | tuple[str, ...]:
    """Parses a scalar as the value of an option.

    Raises:
        ValueError: wrong type or out of bounds; the text says what is allowed.
    """
    text = scalar.text.strip()
    if option.type in _SHORT and len(text) > _CHARACTERS_MAX:
        raise ValueError(f"has {len(text)} characters; expected {option.type.value}")
    match option.type:
        case ValueType.TEXT:
            check_characters(scalar.text)
            return scalar.text
        case ValueType.TEXTS:
            check_characters(scalar.text)
            return tuple(part.strip() for part in text.split(",") if part.strip())
        case ValueType.BOOLEAN:
            return _parse_boolean(scalar)
        case ValueType.CHOICE:
            if text not in option.choices:
                raise ValueError(f"is {json.dumps(text)}; allowed: {', '.join(option.choices)}")
            return text
        case ValueType.SECONDS:
            seconds = parse_duration(text)
            _check_bounds(option, seconds, format_duration(seconds))
            return seconds
        case ValueType.BYTES | ValueType.INTEGER:
            number = parse_bytes(text) if option.type is ValueType.BYTES else _parse_integer(text)
            _check_bounds(option, number, str(number))
            return number


def format_value(option: Option, value: object) -> bool | int | str | list[str]:
    """An option's value as written in a file; a set secret is masked."""
    if option.secret and value:
        return "********"
    if option.type is ValueType.SECONDS:
        assert isinstance(value, int | float)
        return format_duration(value)
    if isinstance(value, tuple):
        return [str(item) for item in value]
    assert isinstance(value, bool | int | str)
    return value


def check_characters(text: str) -> None:
    """Check a text that may become a path, or part of a message. It may be a secret: no error shows
    it.

    Raises:
        ValueError: it has a NUL, or a surrogate, as invalid UTF-8 of the environment is read.
    """
    found = _UNUSABLE.search(text)
    if found is not None:
        raise ValueError(
            f"has the character {escape(found[0])} at position {found.start()}; expected a text in UTF-8 without NUL"
        )


def _parse_boolean(scalar: Scalar) -> bool:
    if scalar.type != "boolean":
        raise ValueError(f"is {json.dumps(scalar.text)}; expected {ValueType.BOOLEAN.value}")
    return scalar.text.lower() in {"true", "yes", "on"}


def _parse_integer(text: str) -> int:
    if not _INTEGER.fullmatch(text):
        raise ValueError(f"is {json.dumps(text)}; expected {ValueType.INTEGER.value}")
    return int(text)


def _check_bounds(option: Option, value: float, written: str) -> None:
    bounds = []
    if option.above is not None:
        bounds.append(_Bound(">", option.above, value > option.above))
    if option.minimum is not None:
        bounds.append(_Bound(">=", option.minimum, value >= option.minimum))
    if option.maximum is not None:
        bounds.append(_Bound("<=", option.maximum, value <= option.maximum))
    for bound in bounds:
        if not bound.passed:
            is_duration = option.type is ValueType.SECONDS and bound.limit
            limit = format_duration(bound.limit) if is_duration else bound.limit
            raise ValueError(f"must be {bound.sign} {limit}, is {written}")
