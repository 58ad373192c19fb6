"""Parameters of a request as kafka-pixy's handlers read them: of a form, then of the query.

A flag counts by its presence: `sync=false` is sync. Texts are those of Go's `strconv`.
"""

import re

from pixy.api.http.go_json import quote
from pixy.web import Exchange, Form, HttpError, parse_form

FORM = b"application/x-www-form-urlencoded"
_NUMBER = re.compile(rb"[+-]?[0-9]+")
_Ack = tuple[int, int]


def parameters_of(exchange: Exchange) -> Form:
    """All parameters of a request; those of a form come first."""
    content_type = (exchange.head.get(b"content-type") or b"").partition(b";")[0]
    if exchange.head.method != "POST" or content_type.strip().lower() != FORM:
        return exchange.query
    form = parse_form(exchange.body)
    form.extend(exchange.query)
    return form


def group_of(parameters: Form, *, optional: bool = False) -> str:
    """The consumer group of a request, "" if it may be missing and is.

    Raises:
        HttpError: there are more or fewer.
    """
    groups = parameters.get("group", [])
    if len(groups) > 1 or (not groups and not optional):
        raise HttpError(400, f"one consumer group is expected, but {len(groups)} provided")
    return text_of("group", groups[0]) if groups else ""


def text_of(name: str, value: bytes) -> str:
    """A parameter as text.

    Raises:
        HttpError: it is not UTF-8.
    """
    try:
        return value.decode()
    except UnicodeDecodeError:
        raise HttpError(400, f"bad {name}: it is not UTF-8") from None


def ack_of(parameters: Form, partition_name: str, offset_name: str) -> tuple[bool, _Ack | None]:
    """The acknowledgement in a request: `auto_ack`, and partition and offset if they are named.

    `noAck` wins. A negative number means it, too, as in kafka-pixy.

    Raises:
        HttpError: a number is malformed, or one of the two is missing.
    """
    if "noAck" in parameters:
        return False, None
    numbers = []
    for name, bits in (partition_name, 31), (offset_name, 63):
        values = parameters.get(name)
        if values is not None:
            number = _number(name, values, bits)
            if number < 0:
                return False, None
            numbers.append(number)
    if len(numbers) == 1:
        raise HttpError(400, f"{partition_name} and {offset_name} either both should be provided or neither")
    return not numbers, (numbers[0], numbers[1]) if numbers else None


def _number(name: str, values: list[bytes], bits: int) -> int:
    text = values[0].decode("utf-8", "replace")
    if not _NUMBER.fullmatch(values[0]):
        raise _bad(name, values, text, "invalid syntax")
    digits = values[0].lstrip(b"+-").lstrip(b"0")
    # Python refuses to parse thousands of digits.
    number = int(digits or b"0") if len(digits) < 20 else 1 << 64
    number = -number if values[0].startswith(b"-") else number
    if not -(1 << bits) <= number < 1 << bits:
        raise _bad(name, values, text, "value out of range")
    return number


def _bad(name: str, values: list[bytes], text: str, why: str) -> HttpError:
    given = b" ".join(values).decode("utf-8", "replace")
    return HttpError(400, f"bad {name}: [{given}]: strconv.ParseInt: parsing {quote(text)}: {why}")
