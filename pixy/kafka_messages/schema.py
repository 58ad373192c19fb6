"""Schemas of Kafka's messages, from their notation in `schemas.txt`."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

SCHEMAS = Path(__file__).with_name("schemas.txt")

_API = re.compile(r"(\w+) (\d+) versions (\d+)-(\d+)(?: flexible (\d+)\+)?")
_FIELD = re.compile(
    r"(?P<name>\w+) (?P<open>\[?)(?P<type>\w+)\]?(?:(?P<null>\?)(?P<null_from>\S*))?"
    r"(?: (?P<versions>[\d+-]+))?(?: tag (?P<tag>\d+))?(?: = (?P<default>\S+))?"
)
_INDENT = 2
_NEVER = range(0)


@dataclass(frozen=True, slots=True)
class SchemaField:
    """One field of a struct.

    Attributes:
        type: a primitive type, or the name of a struct.
        is_array: an array of that type.
        versions: that have the field.
        null_versions: in which it may be null.
        tag: of a tagged field, None for others.
        default: its value where a version lacks it, as Python writes it.
        fields: of a struct.
    """

    name: str
    type: str
    is_array: bool
    versions: range
    null_versions: range
    tag: int | None
    default: str
    fields: "tuple[SchemaField, ...]"


@dataclass(frozen=True, slots=True)
class ApiSchema:
    """One API.

    Attributes:
        versions: that are known.
        flexible: first version with tagged fields and compact lengths, None if there is none.
        request, response: their fields.
    """

    name: str
    key: int
    versions: range
    flexible: int | None
    request: tuple[SchemaField, ...]
    response: tuple[SchemaField, ...]


def read_schemas(text: str) -> list[ApiSchema]:
    """The schemas in a text.

    Raises:
        ValueError: a line is none of the notation; the message has it.
    """
    lines = [line for line in text.splitlines() if line.strip() and not line.startswith("#")]
    starts = [at for at, line in enumerate(lines) if not line.startswith(" ")]
    ends = [*starts[1:], len(lines)]
    return [_api(lines[begin:end]) for begin, end in zip(starts, ends, strict=True)]


def _api(lines: Sequence[str]) -> ApiSchema:
    found = _API.fullmatch(lines[0])
    if found is None:
        raise ValueError(f"no API: {lines[0]}")
    name, key, lowest, highest, flexible = found.groups()
    versions = range(int(lowest), int(highest) + 1)
    middle = lines.index("  response")
    return ApiSchema(
        name,
        int(key),
        versions,
        None if flexible is None else int(flexible),
        tuple(_fields(lines[2:middle], versions)),
        tuple(_fields(lines[middle + 1 :], versions)),
    )


def _fields(lines: Sequence[str], versions: range) -> Iterator[SchemaField]:
    """The fields of a struct that has so many versions."""
    if not lines:
        return
    depth = _depth(lines[0])
    starts = [at for at, line in enumerate(lines) if _depth(line) == depth]
    for begin, end in zip(starts, [*starts[1:], len(lines)], strict=True):
        yield _field(lines[begin].strip(), lines[begin + 1 : end], versions)


def _depth(line: str) -> int:
    return (len(line) - len(line.lstrip())) // _INDENT


def _field(line: str, inner: Sequence[str], within: range) -> SchemaField:
    found = _FIELD.fullmatch(line)
    if found is None:
        raise ValueError(f"no field: {line}")
    versions = _range(found["versions"], within)
    null_versions = _range(found["null_from"], versions) if found["null"] else _NEVER
    tag = None if found["tag"] is None else int(found["tag"])
    is_array = bool(found["open"])
    default = found["default"] or _default(found["type"], is_array=is_array, is_null=bool(null_versions))
    fields = tuple(_fields(inner, versions))
    return SchemaField(
        found["name"],
        found["type"],
        is_array,
        versions,
        null_versions,
        tag,
        {"true": "True", "null": "None"}.get(default, default),
        fields,
    )


def _range(text: str | None, within: range) -> range:
    if not text:
        return within
    begin, _, end = text.partition("-")
    last = within[-1] if text.endswith("+") else int(end or begin)
    return range(int(begin.rstrip("+")), last + 1)


def _default(type_name: str, *, is_array: bool, is_null: bool) -> str:
    if is_null or (type_name[0].isupper() and not is_array):
        return "None"
    if is_array:
        return "()"
    return {"bool": "False", "string": '""', "bytes": 'b""', "uuid": "bytes(16)"}.get(type_name, "0")
