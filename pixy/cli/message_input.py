"""Messages as `pixy produce` reads them: lines, lines with a key, JSON objects, a file.

The objects of JSON are those that `pixy consume --json` and `pixy peek --json` print: key and value
(null: none), headers, of which a message is made; topic, partition, offset and timestamp_ms are
ignored. Bytes that are not UTF-8 are `{"base64": "..."}`.
"""

import base64
import binascii
import json
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import IO, NamedTuple

_CHUNK_BYTES = 64 << 10
_IGNORED = frozenset({"topic", "partition", "offset", "timestamp_ms"})
_KNOWN = _IGNORED | {"key", "value", "headers"}

Headers = tuple[tuple[str, bytes | None], ...]


class WrongInputError(Exception):
    """A message of the input cannot be produced; the text continues `line 3: `."""


class InputMessage(NamedTuple):
    """A message of the input; `number` counts from 1."""

    number: int
    key: bytes | None
    value: bytes | None
    headers: Headers


@dataclass(frozen=True, slots=True)
class InputForm:
    """The form of the input, and what all of its messages have.

    Args:
        key, headers: of all messages.
        key_separator: ends the key of each message; None: there are none.
        null_value: True if empty values are null.
        is_json: True for objects of JSON.
    """

    key: bytes | None = None
    headers: Headers = ()
    key_separator: bytes | None = None
    null_value: bool = False
    is_json: bool = False

    def parse(self, number: int, line: bytes) -> InputMessage:
        """One message of the input.

        Raises:
            WrongInputError: it does not have this form.
        """
        if self.is_json:
            key, value, headers = _parse_json(line)
            return InputMessage(number, key, value, self.headers + headers)
        key, value = self.key, line
        if self.key_separator is not None:
            key, separator, value = line.partition(self.key_separator)
            if not separator:
                raise WrongInputError(
                    f"no separator {self.key_separator.decode(errors='replace')!r} after a key"
                )
        return InputMessage(number, key, None if self.null_value and not value else value, self.headers)


def split_messages(read: Callable[[int], bytes], separator: bytes) -> Iterator[list[bytes]]:
    """Messages of an input, as many at a time as have arrived. The separator ends a message; the
    end of the input ends the last one.
    """
    rest: list[bytes] = []
    while chunk := read(_CHUNK_BYTES):
        first, *others = chunk.split(separator)
        rest.append(first)
        if others:
            yield [b"".join(rest), *others[:-1]]
            rest = [others[-1]]
    if last := b"".join(rest):
        yield [last]


def read_function(stream: IO[bytes]) -> Callable[[int], bytes]:
    """A read function that returns the bytes that have arrived."""
    try:
        return partial(os.read, stream.fileno())
    except OSError:  # input without a file, in tests
        return stream.read


def _parse_json(line: bytes) -> tuple[bytes | None, bytes | None, Headers]:
    try:
        found = json.loads(line)
    except ValueError as error:
        raise WrongInputError(f"not JSON: {error}") from None
    if not isinstance(found, dict) or "value" not in found:
        raise WrongInputError('expected an object with "value", as consume --json prints it')
    unknown = sorted(found.keys() - _KNOWN)
    if unknown:
        raise WrongInputError(f"unknown field {unknown[0]!r}; allowed are {', '.join(sorted(_KNOWN))}")
    headers = found.get("headers", [])
    if not isinstance(headers, list):
        raise WrongInputError("headers is not a list")
    return (
        _parse_bytes("key", found.get("key")),
        _parse_bytes("value", found["value"]),
        tuple(map(_parse_header, headers)),
    )


def _parse_header(header: object) -> tuple[str, bytes | None]:
    if (
        not isinstance(header, dict)
        or header.keys() != {"key", "value"}
        or not isinstance(header["key"], str)
    ):
        raise WrongInputError(f'a header is {header!r}, expected {{"key": ..., "value": ...}}')
    return header["key"], _parse_bytes(f"header {header['key']}", header["value"])


def _parse_bytes(name: str, value: object) -> bytes | None:
    if value is None:
        return None
    try:
        if isinstance(value, str):
            return value.encode()
        if isinstance(value, dict) and value.keys() == {"base64"}:
            return base64.b64decode(value["base64"], validate=True)
    except (UnicodeEncodeError, binascii.Error, TypeError, ValueError) as error:
        raise WrongInputError(f"{name} is {value!r}: {error}") from None
    raise WrongInputError(f'{name} is {value!r}, expected a text, null or {{"base64": "..."}}')
