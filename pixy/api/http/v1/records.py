"""Records as JSON.

    {"key": "k", "value": "v", "headers": [{"name": "h", "value": "x"}],
     "partition": 0, "timestamp_ms": 1769860800000}

`key` and `value` are texts or null; bytes that are no UTF-8 are in `key_base64`, `value_base64`
instead, in answers too, and there also by request. A missing key is none, a missing value null.
"""

import base64
import json
from collections.abc import Sequence
from typing import Any, NamedTuple

from pixy.api.http.json_bodies import check_json
from pixy.consume import Offer
from pixy.records import Header, Record
from pixy.web import HttpError

_MEMBERS = {"key", "key_base64", "value", "value_base64", "headers", "partition", "timestamp_ms"}
_PARTITION_MAX = (1 << 31) - 1
_TIMESTAMP_MAX = (1 << 63) - 1


class GivenRecord(NamedTuple):
    """A record to be produced; None for what the request leaves to the server."""

    key: bytes | None
    value: bytes | None
    headers: Sequence[Header]
    partition: int | None = None
    timestamp_ms: int | None = None


def read_list(body: bytes) -> tuple[list[Any], bool]:
    """JSON values of a body, and whether they are a list.

    Raises:
        HttpError: it is no JSON.
    """
    check_json(body)
    value = _parse(body, "the body")
    return (value, True) if type(value) is list else ([value], False)


def read_lines(body: bytes, lines_max: int) -> list[Any]:
    """JSON values of a body with one a line; empty lines are left out.

    Raises:
        HttpError: a line is no JSON, or there are too many.
    """
    count = body.count(b"\n")
    if count > lines_max:
        raise HttpError(400, f"the body has {count} lines, expected 1 to {lines_max}")
    check_json(body)
    lines = enumerate(body.split(b"\n"), 1)
    return [_parse(line, f"line {number}") for number, line in lines if line.strip()]


def read_record(given: Any) -> GivenRecord:
    """A record of its JSON.

    Raises:
        HttpError: a member is missing, unknown or of another type.
    """
    if type(given) is not dict:
        raise HttpError(400, 'a record is an object, such as {"value": "hello"}')
    unknown = given.keys() - _MEMBERS
    if unknown:
        raise HttpError(
            400, f"{sorted(unknown)[0]} is no member of a record; {', '.join(sorted(_MEMBERS))} are"
        )
    return GivenRecord(
        _bytes(given, "key"),
        _bytes(given, "value"),
        _headers(given.get("headers")),
        _number(given, "partition", _PARTITION_MAX),
        _number(given, "timestamp_ms", _TIMESTAMP_MAX),
    )


def record_json(record: Record, partition: int, *, is_base64: bool) -> dict[str, Any]:
    """A record as JSON.

    Args:
        is_base64: key, value and headers are in base64, text or not.
    """
    shown: dict[str, Any] = {
        "partition": partition,
        "offset": record.offset,
        "timestamp_ms": record.timestamp,
    }
    shown |= _shown("key", record.key, is_base64)
    shown |= _shown("value", record.value, is_base64)
    shown["headers"] = [{"name": name, **_shown("value", value, is_base64)} for name, value in record.headers]
    return shown


def offer_json(offer: Offer, *, is_base64: bool) -> bytes:
    """An offered record as a line of JSON, without its end."""
    return encode(record_json(offer.record, offer.partition, is_base64=is_base64))


def encode(value: Any) -> bytes:
    """JSON in one line."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace")


def records_body(lines: Sequence[bytes]) -> bytes:
    """The answer with so many records, each a line of JSON."""
    pieces = [b'{"records":[']
    for line in lines:
        pieces += (b"\n " if len(pieces) == 1 else b",\n ", line)
    pieces.append(b"\n]}\n" if lines else b"]}\n")
    return b"".join(pieces)


def _parse(text: bytes, what: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise HttpError(400, f"{what} is no JSON: {error}") from None


def _shown(name: str, value: bytes | None, is_base64: bool) -> dict[str, str | None]:
    if value is None:
        return {name: None}
    if not is_base64:
        try:
            return {name: value.decode()}
        except UnicodeDecodeError:
            pass
    return {f"{name}_base64": base64.b64encode(value).decode()}


def _bytes(given: dict[str, Any], name: str) -> bytes | None:
    text, encoded = given.get(name), given.get(f"{name}_base64")
    if text is not None and encoded is not None:
        raise HttpError(400, f"{name} and {name}_base64 are both given, expected one of them")
    if text is not None:
        if type(text) is not str:
            raise HttpError(400, f"{name} is no text: bytes go into {name}_base64")
        return _utf8(text, name)
    if encoded is None:
        return None
    try:
        return base64.b64decode(encoded, validate=True)
    except (ValueError, TypeError):
        raise HttpError(400, f"{name}_base64 is no base64") from None


def _headers(given: Any) -> list[Header]:
    if given is None:
        return []
    if type(given) is not list or not all(
        type(each) is dict and type(each.get("name")) is str for each in given
    ):
        raise HttpError(400, "headers is a list of objects with a name and a value")
    for each in given:
        _utf8(each["name"], "the name of a header")
    return [(each["name"], _bytes(each, "value")) for each in given]


def _utf8(text: str, what: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError:
        raise HttpError(400, f"{what} has half of a surrogate pair, which is no text") from None


def _number(given: dict[str, Any], name: str, most: int) -> int | None:
    number = given.get(name)
    if number is not None and (type(number) is not int or not 0 <= number <= most):
        raise HttpError(400, f"{name} is {json.dumps(number)}, expected a whole number from 0 to {most}")
    return number
