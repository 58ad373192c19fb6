"""Parts of messages that the generated code shares: varints, tagged fields, the base of classes.

unsigned varint    7 bits a byte, lowest first, the high bit set in all but the last
compact length     unsigned varint of length + 1; 0 stands for null
tagged fields      unsigned varint of count; for each, ascending: tag, size, content
"""

from typing import Any

_VARINT_BITS_MAX = 28
"""The shift of the last of the five bytes that a varint may have."""

COMPACT = tuple(bytes((number,)) for number in range(128))
"""Varints of one byte."""


ELEMENTS_MAX = 50_000
"""Elements of all arrays of a request together: each is an object, and some work. A cluster has no
more partitions.
"""


class MalformedKafkaMessage(ValueError):
    """Bytes that are no message of their API and version."""


class KafkaMessage:
    """Base of all messages and of their parts: fields in the order of the schema."""

    __slots__: tuple[str, ...] = ()

    def __eq__(self, other: object) -> bool:
        """Equal fields."""
        return isinstance(other, type(self)) and self._values() == other._values()

    __hash__ = None  # type: ignore[assignment]  # they can be changed

    def __repr__(self) -> str:
        """Fields by name."""
        fields = zip(self.__slots__, self._values(), strict=True)
        return f"{type(self).__name__}({', '.join(f'{name}={value!r}' for name, value in fields)})"

    def _values(self) -> list[Any]:
        return [getattr(self, name) for name in self.__slots__]


def read_varint(b: bytes, p: int) -> tuple[int, int]:
    """An unsigned varint at a position, and the position behind it.

    Raises:
        MalformedKafkaMessage: it has more than five bytes, or more than 32 bits.
        IndexError: it is cut.
    """
    value = 0
    for shift in range(0, _VARINT_BITS_MAX + 1, 7):
        byte = b[p]
        p += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            if value >> 32:
                break
            return value, p
    raise MalformedKafkaMessage("a varint has more than 32 bits")


def varint(value: int) -> bytes:
    """The bytes of an unsigned varint."""
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


def skip_tags(b: bytes, p: int) -> int:
    """The position behind tagged fields that nobody knows.

    Raises:
        MalformedKafkaMessage: tags do not ascend, or a field ends behind the message.
        IndexError: they are cut.
    """
    count, p = read_varint(b, p)
    last = -1
    for _ in range(count):
        last, size, p = read_tag(b, p, last)
        p += size
    return p


def read_tag(b: bytes, p: int, last: int) -> tuple[int, int, int]:
    """Tag and size of a tagged field behind tag `last`, and the position of its content.

    Raises:
        MalformedKafkaMessage, IndexError: as `skip_tags`.
    """
    tag, p = read_varint(b, p)
    size, p = read_varint(b, p)
    if tag <= last or size > len(b) - p:
        raise MalformedKafkaMessage(f"tag {tag} of {size} bytes at byte {p} of {len(b)}, behind tag {last}")
    return tag, size, p


def cut(size: int, p: int, e: int) -> MalformedKafkaMessage:
    """The error of a length or a count that is more than what is left."""
    return MalformedKafkaMessage(f"a length of {size} at byte {p} of {e}")


def too_many(p: int) -> MalformedKafkaMessage:
    """The error of a request with too many elements."""
    return MalformedKafkaMessage(f"more than {ELEMENTS_MAX} elements, at byte {p}")
