"""Field types of Kafka's messages: values to bytes and back. Pure.

    type                 bytes
    INT8 ... INT64       big-endian, two's complement
    UINT16               2 bytes, big-endian
    BOOLEAN              1 byte, 0 or 1
    UUID                 16 bytes
    STRING               INT16 length, UTF-8; length -1: None
    BYTES                INT32 length, content; length -1: None
    COMPACT_STRING       unsigned varint of length + 1, UTF-8; 0: None
    COMPACT_BYTES        unsigned varint of length + 1, content; 0: None
    Array                INT32 count, elements; count -1: None
    CompactArray         unsigned varint of count + 1, elements; 0: None
    TAGGED_FIELDS        unsigned varint of count; for each tag, ascending: tag, size, content

A decoder reads a peer's bytes: every length is checked against the bytes that are left before it is
used, and whatever is malformed raises `ValueError`.
"""

import struct
from collections.abc import Mapping, Sequence
from io import BytesIO
from typing import Any, Protocol

_UUID_BYTES = 16
_VARINT_BITS_MAX = 28
"""The shift of the last of the five bytes that an unsigned varint may have."""


class FieldType(Protocol):
    """The codec of one type."""

    def encode(self, value: Any) -> bytes: ...
    def decode(self, reader: BytesIO) -> Any: ...


class _Number:
    """A number of fixed width."""

    def __init__(self, number_format: str) -> None:
        packer = struct.Struct(number_format)
        self._pack, self._unpack, self._size = packer.pack, packer.unpack, packer.size

    def encode(self, value: int) -> bytes:
        try:
            return self._pack(value)
        except struct.error as error:
            raise ValueError(f"{value!r} cannot be encoded: {error}") from None

    def decode(self, reader: BytesIO) -> Any:
        return self._unpack(_read(reader, self._size))[0]


class _Uuid:
    def encode(self, value: bytes) -> bytes:
        return value

    def decode(self, reader: BytesIO) -> bytes:
        return _read(reader, _UUID_BYTES)


class _UnsignedVarint:
    def encode(self, value: int) -> bytes:
        encoded = bytearray()
        while value > 0x7F:
            encoded.append(value & 0x7F | 0x80)
            value >>= 7
        encoded.append(value)
        return bytes(encoded)

    def decode(self, reader: BytesIO) -> int:
        value = 0
        for shift in range(0, _VARINT_BITS_MAX + 1, 7):
            byte = _read(reader, 1)[0]
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value
        raise ValueError("a varint has more than 5 bytes")


INT8 = _Number(">b")
INT16 = _Number(">h")
INT32 = _Number(">i")
INT64 = _Number(">q")
UINT16 = _Number(">H")
BOOLEAN = _Number(">?")
UUID = _Uuid()
_VARINT = _UnsignedVarint()


class _CompactLength:
    """The length of the compact types: a varint of one more, so that 0 is free for None."""

    def encode(self, value: int) -> bytes:
        return _VARINT.encode(value + 1)

    def decode(self, reader: BytesIO) -> int:
        return _VARINT.decode(reader) - 1


_COMPACT = _CompactLength()


class _Bytes:
    """Bytes behind their length."""

    def __init__(self, length: FieldType) -> None:
        self._length = length

    def encode(self, value: bytes | None) -> bytes:
        if value is None:
            return self._length.encode(-1)
        return self._length.encode(len(value)) + value

    def decode(self, reader: BytesIO) -> bytes | None:
        length = self._length.decode(reader)
        return None if length < 0 else _read(reader, length)


class _String:
    """Text in UTF-8 behind its length in bytes."""

    def __init__(self, length: FieldType) -> None:
        self._bytes = _Bytes(length)

    def encode(self, value: str | None) -> bytes:
        return self._bytes.encode(None if value is None else value.encode())

    def decode(self, reader: BytesIO) -> str | None:
        encoded = self._bytes.decode(reader)
        return None if encoded is None else encoded.decode()


STRING = _String(INT16)
BYTES = _Bytes(INT32)
COMPACT_STRING = _String(_COMPACT)
COMPACT_BYTES = _Bytes(_COMPACT)


class _TaggedFields:
    """Fields that a peer may pass over, by tag."""

    def encode(self, value: Mapping[int, bytes]) -> bytes:
        parts = [_VARINT.encode(len(value))]
        for tag, content in sorted(value.items()):
            parts += [_VARINT.encode(tag), _VARINT.encode(len(content)), content]
        return b"".join(parts)

    def decode(self, reader: BytesIO) -> dict[int, bytes]:
        fields: dict[int, bytes] = {}
        last = -1
        for _ in range(_VARINT.decode(reader)):
            tag = _VARINT.decode(reader)
            if tag <= last:
                raise ValueError(f"tag {tag} follows tag {last}")
            last = tag
            fields[tag] = _read(reader, _VARINT.decode(reader))
        return fields


TAGGED_FIELDS = _TaggedFields()


class Struct:
    """Named fields, one after the other. Values are sequences in the order of the fields."""

    def __init__(self, *fields: tuple[str, FieldType]) -> None:
        self.names = tuple(name for name, _ in fields)
        self._types = tuple(field_type for _, field_type in fields)

    def encode(self, value: Sequence[Any]) -> bytes:
        return b"".join(
            [field_type.encode(each) for field_type, each in zip(self._types, value, strict=True)]
        )

    def decode(self, reader: BytesIO) -> tuple[Any, ...]:
        return tuple([field_type.decode(reader) for field_type in self._types])


class Array:
    """Elements of one type: a type, or the fields of a struct."""

    _length: FieldType = INT32

    def __init__(self, first: "FieldType | tuple[str, FieldType]", *others: tuple[str, FieldType]) -> None:
        self._element: FieldType = Struct(first, *others) if isinstance(first, tuple) else first

    def encode(self, value: Sequence[Any] | None) -> bytes:
        if value is None:
            return self._length.encode(-1)
        encode = self._element.encode
        return b"".join([self._length.encode(len(value)), *map(encode, value)])

    def decode(self, reader: BytesIO) -> list[Any] | None:
        length = self._length.decode(reader)
        if length < 0:
            return None
        if length > _left(reader):  # an element has at least a byte
            raise ValueError(f"an array of {length} elements has {_left(reader)} bytes")
        decode = self._element.decode
        return [decode(reader) for _ in range(length)]


class CompactArray(Array):
    """An `Array` of a flexible version."""

    _length = _COMPACT


def _left(reader: BytesIO) -> int:
    return reader.getbuffer().nbytes - reader.tell()


def _read(reader: BytesIO, size: int) -> bytes:
    found = reader.read(size)
    if len(found) < size:
        raise ValueError(f"{size} bytes are expected, {len(found)} are left")
    return found
