"""The body of `POST …/offsets`: a list of objects with `partition`, `offset` and `metadata`.

Read as Go's `encoding/json` reads it into a structure: names in any case, unknown members ignored,
missing ones 0 or empty, null as missing. Errors have Go's texts.
"""

import json
import re
from typing import Any, NoReturn

from pixy.api.http.json_bodies import TEXT, check_json
from pixy.backend import OffsetCommit
from pixy.elements_per_call import ELEMENTS_PER_CALL
from pixy.web import HttpError

_FIELDS = {"partition": ("int32", 31), "offset": ("int64", 63), "metadata": ("string", 0)}
_NAMES = {str: "string", bool: "bool", list: "array", dict: "object"}
_TEXT = re.compile(TEXT, re.DOTALL)
_BRACKET = re.compile(r"[\[\]{}]")
_CONTEXTS = {
    "Expecting value": "looking for beginning of value",
    "Expecting property name enclosed in double quotes": "looking for beginning of object key string",
    "Illegal trailing comma before end of object": "looking for beginning of object key string",
    "Illegal trailing comma before end of array": "looking for beginning of value",
    "Expecting ':' delimiter": "after object key",
    "Extra data": "after top-level value",
    "Invalid control character at": "in string literal",
    "Invalid \\escape": "in string escape code",
    "Invalid \\uXXXX escape": "in \\u hexadecimal character escape",
}


def read_offsets(body: bytes) -> list[tuple[int, OffsetCommit]]:
    """The offsets to set, by partition.

    Raises:
        HttpError: it is not such a list.
    """
    check_json(body)
    try:
        value = json.loads(
            body.decode("utf-8", "replace"),
            parse_constant=_refuse_constant,
            parse_int=_NumberText,
            parse_float=_NumberText,
        )
        return [_offset(each) for each in _list(value)]
    except RecursionError:
        reason = "exceeded max depth"
    except json.JSONDecodeError as error:
        reason = _go_text(error)
    except ValueError as error:
        reason = str(error)
    raise HttpError(400, f"Failed to parse the request: err=({reason})")


class _NumberText(str):
    """A number as it was written: it may have a thousand digits."""

    __slots__ = ()


def _list(value: Any) -> list[Any]:
    if value is None:
        return []
    if type(value) is not list:
        raise ValueError(
            f"json: cannot unmarshal {_name(value)} into Go value of type []httpsrv.partitionInfo"
        )
    if len(value) > ELEMENTS_PER_CALL:
        raise HttpError(400, f"the body has {len(value)} offsets, {ELEMENTS_PER_CALL} are allowed")
    return value


def _offset(element: Any) -> tuple[int, OffsetCommit]:
    if element is None:
        element = {}
    if type(element) is not dict:
        raise ValueError(
            f"json: cannot unmarshal {_name(element)} into Go value of type httpsrv.partitionInfo"
        )
    values: dict[str, Any] = {"partition": 0, "offset": 0, "metadata": ""}
    for name, value in element.items():
        field = name.lower()
        if field in values and value is not None:
            values[field] = _value(field, value)
    return values["partition"], OffsetCommit(values["offset"], values["metadata"])


def _value(field: str, value: Any) -> int | str:
    kind, bits = _FIELDS[field]
    if kind == "string" and type(value) is str:
        # Halves of surrogate pairs become U+FFFD, as in Go.
        return value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    if kind != "string" and type(value) is _NumberText:
        digits = value.removeprefix("-")
        if digits.isdecimal() and len(digits) < 20 and -(1 << bits) <= (number := int(value)) < 1 << bits:
            return number
    raise ValueError(
        f"json: cannot unmarshal {_name(value)} into Go struct field partitionInfo.{field} of type {kind}"
    )


def _name(value: Any) -> str:
    return f"number {value}" if type(value) is _NumberText else _NAMES[type(value)]


def _refuse_constant(name: str) -> NoReturn:
    """Refuse NaN and Infinity, which only Python takes for JSON."""
    raise ValueError(f"invalid character {name[:1]!r} looking for beginning of value")


def _go_text(error: json.JSONDecodeError) -> str:
    """Go's text of a syntax error."""
    text, at = error.doc, error.pos
    while at < len(text) and text[at] in " \t\r\n":
        at += 1
    if at >= len(text) or error.msg == "Unterminated string starting at":
        return "unexpected end of JSON input"
    context = _CONTEXTS.get(error.msg) or f"after {_innermost(text[:at])}"
    character = "'\\''" if text[at] == "'" else f"'{text[at]}'"
    return f"invalid character {character} {context}"


def _innermost(text: str) -> str:
    """The kind of element that the end of a text is behind."""
    stack = []
    for bracket in _BRACKET.findall(_TEXT.sub("", text)):
        if bracket in "[{":
            stack.append(bracket)
        else:
            stack.pop()
    return "array element" if stack[-1:] == ["["] else "object key:value pair"
