"""JSON as Go writes it with `json.MarshalIndent(value, "", "  ")`: clients of kafka-pixy get the
same bytes.

Two spaces of indent and no newline at the end; empty maps and lists on one line; `<`, `>`, `&` and
the two separators of JavaScript's lines escaped; any other character as UTF-8, and one that UTF-8
has no bytes for as `\\ufffd`. Maps are sorted by their keys' bytes; the fields of a Go structure
keep their order, so an object here is a list of pairs.

Answers may have thousands of elements. So there is no general encoder, which would take half a
millisecond for a hundred: callers join texts, which C makes.
"""

import re
from collections.abc import Iterable, Sequence
from json.encoder import encode_basestring

_ESCAPED = re.compile("\\\\.|[<>&\u2028\u2029\ud800-\udfff]")
_SHORT = {"\\b": "\\u0008", "\\f": "\\u000c"}
_INDENT = "  "


def quote(text: str) -> str:
    """A text as JSON."""
    return _ESCAPED.sub(_escape, encode_basestring(text))


def _escape(match: re.Match[str]) -> str:
    found = match[0]
    if found.startswith("\\"):
        return _SHORT.get(found, found)
    return "\\ufffd" if "\ud800" <= found <= "\udfff" else f"\\u{ord(found):04x}"


def go_object(pairs: Iterable[tuple[str, str]], level: int = 0) -> str:
    """An object of members that are JSON.

    Args:
        level: of indent at which it begins.
    """
    indent = _INDENT * level
    members = f",\n{indent}{_INDENT}".join(f"{quote(name)}: {value}" for name, value in pairs)
    return f"{{\n{indent}{_INDENT}{members}\n{indent}}}" if members else "{}"


def array(elements: Iterable[str], level: int = 0) -> str:
    """A list of elements that are JSON."""
    indent = _INDENT * level
    joined = f",\n{indent}{_INDENT}".join(elements)
    return f"[\n{indent}{_INDENT}{joined}\n{indent}]" if joined else "[]"


def numbers(values: Sequence[int], level: int) -> str:
    """A list of whole numbers, one a line."""
    return array(map(str, values), level)


def error_body(text: str) -> bytes:
    """The body of an error."""
    return go_object([("error", quote(text))]).encode()
