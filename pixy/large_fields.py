"""Large fields of messages, such as record batches, that bypass protobuf.

Protobuf copies a field when it parses a message, and once more when the field is read. It still
parses small messages, and any encoding that clients do not usually write, so no rule is decided in
two ways.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

Message = Any
"""A protobuf message."""
Serialized = list[bytes | bytearray | memoryview]
"""The bytes of a message, in pieces that follow each other."""

_VARINT, _I64, _LENGTH_DELIMITED, _I32 = 0, 1, 2, 5
"""Wire types (protobuf.dev, Encoding)."""
_LENGTH_BYTES_MAX, _VARINT_BYTES_MAX = 5, 10
_PIECE_BYTES = 16_384
"""A smaller buffer is cheaper to copy than to send on its own, because it fills no frame."""
_PARTED_BYTES_MIN = 65_536
"""Protobuf alone parses smaller messages faster."""
_FIELDS_PER_MESSAGE, _MORE_FIELDS = 4, 100
"""Protobuf alone parses requests with more fields faster: of each repeated message, and besides."""


class Parted(NamedTuple):
    """A message without one of its fields.

    Attributes:
        message: its other fields. The field may be set, too, and must be ignored.
        fields: the field of each repeated message, in order; views that keep the request in memory.
    """

    message: Message
    fields: Sequence[bytes | memoryview]


class _UnusualError(Exception):
    """An encoding that is left to protobuf."""


def parse_with(
    message_class: Any, repeated: str, field: str, bytes_min: int = _PARTED_BYTES_MIN
) -> Callable[[bytes | bytearray], Parted]:
    """A parser that leaves out the bytes `field` of each message in the field `repeated`.

    Messages below `bytes_min` are left to protobuf. The parser raises `DecodeError` as the class
    does.
    """
    outer = message_class.DESCRIPTOR.fields_by_name[repeated]
    outer_tag, inner_tag = (
        of.number << 3 | _LENGTH_DELIMITED for of in (outer, outer.message_type.fields_by_name[field])
    )

    def parse(body: bytes | bytearray) -> Parted:
        if len(body) >= bytes_min:
            try:
                rest, fields = _part(memoryview(body), outer_tag, inner_tag)
                return Parted(message_class.FromString(rest), fields)
            except _UnusualError:
                pass
        message = message_class.FromString(body)
        return Parted(message, [getattr(each, field) for each in getattr(message, repeated)])

    return parse


def parse_apart(
    message_class: Any, field: str, bytes_min: int = _PARTED_BYTES_MIN
) -> Callable[[bytes | memoryview], tuple[Message, bytes | memoryview]]:
    """A parser of a message and, apart from it, its bytes `field`: a view of a large message.

    Messages below `bytes_min` are left to protobuf. The field of the message may be set, too, and
    must be ignored. The parser raises `DecodeError` as the class does.
    """
    tag = message_class.DESCRIPTOR.fields_by_name[field].number << 3 | _LENGTH_DELIMITED

    def parse(body: bytes | memoryview) -> tuple[Message, bytes | memoryview]:
        if len(body) >= bytes_min:
            try:
                rest, found = _without(memoryview(body), tag)
                return message_class.FromString(rest), found
            except _UnusualError:
                pass
        message = message_class.FromString(body)
        return message, getattr(message, field)

    return parse


def _without(body: memoryview, tag: int) -> tuple[bytes, memoryview]:
    """A message without a field, and that field, which is empty if it is missing."""
    rest, found = bytearray(), body[:0]
    left = _MORE_FIELDS
    for each, begin, value, end in _fields(body, 0, len(body)):
        left -= 1
        if left < 0 or (each == tag and found):
            raise _UnusualError
        if each == tag:
            found = body[value:end]
        else:
            rest += body[begin:end]
    return bytes(rest), found


def _part(body: memoryview, outer_tag: int, inner_tag: int) -> tuple[bytes, list[memoryview]]:
    """Part a message into all but a field of its repeated messages, and that field of each."""
    rest = bytearray()
    fields: list[memoryview] = []
    left = _MORE_FIELDS
    for tag, begin, value, end in _fields(body, 0, len(body)):
        left += _FIELDS_PER_MESSAGE if tag == outer_tag else -1
        if left < 0:
            raise _UnusualError
        if tag != outer_tag:
            rest += body[begin:end]
            continue
        others = bytearray()
        found: list[memoryview] = []
        for inner, inner_begin, inner_value, inner_end in _fields(body, value, end):
            left -= 1
            if left < 0:
                raise _UnusualError
            if inner == inner_tag:
                found.append(body[inner_value:inner_end])
            else:
                others += body[inner_begin:inner_end]
        if len(found) > 1:
            raise _UnusualError
        fields.append(found[0] if found else body[:0])
        rest.append(tag)
        rest += varint(len(others))
        rest += others
    return bytes(rest), fields


def _fields(body: memoryview, at: int, end: int) -> Iterator[tuple[int, int, int, int]]:
    """Fields of a message: the tag, the begin of the field and of its value, and the end.

    Raises:
        _UnusualError: the encoding is malformed or unusual.
    """
    while at < end:
        begin, tag = at, body[at]
        wire_type = tag & 7
        if tag >= 0x80:
            raise _UnusualError
        at += 1
        if wire_type == _LENGTH_DELIMITED:
            length, at = _read_varint(body, at, end, _LENGTH_BYTES_MAX)
            value, at = at, at + length
        elif wire_type == _VARINT:
            value, at = at, _read_varint(body, at, end, _VARINT_BYTES_MAX)[1]
        elif wire_type in (_I64, _I32):
            value, at = at, at + (8 if wire_type == _I64 else 4)
        else:
            raise _UnusualError
        if at > end:
            raise _UnusualError
        yield tag, begin, value, at


def _read_varint(body: memoryview, at: int, end: int, bytes_max: int) -> tuple[int, int]:
    """A number, and the position after it."""
    number = 0
    for shift, place in enumerate(range(at, min(at + bytes_max, end))):
        byte = body[place]
        number |= (byte & 0x7F) << 7 * shift
        if byte < 0x80:
            return number, place + 1
    raise _UnusualError


def serialize_with(message: Any, field: str, buffers: Sequence[bytes | bytearray | memoryview]) -> Serialized:
    """Serialize a message with `buffers` back to back in an empty field; large ones are not copied.

    Fields may come in any order (protobuf.dev, Encoding), so this one is the last.
    """
    size = sum(map(len, buffers))
    head: bytes = message.SerializeToString()
    if not size:
        return [head]
    number = message.DESCRIPTOR.fields_by_name[field].number
    pieces: Serialized = [head + varint(number << 3 | _LENGTH_DELIMITED) + varint(size)]
    small: list[bytes | bytearray | memoryview] = []
    for buffer in buffers:
        if len(buffer) < _PIECE_BYTES:
            small.append(buffer)
            continue
        if small:
            pieces.append(b"".join(small))
            small = []
        pieces.append(buffer)
    if small:
        pieces.append(b"".join(small))
    return pieces


def varint(number: int) -> bytes:
    """A number as protobuf encodes it: seven bits a byte, the lowest first."""
    encoded = bytearray()
    while number > 0x7F:
        encoded.append(number & 0x7F | 0x80)
        number >>= 7
    encoded.append(number)
    return bytes(encoded)
