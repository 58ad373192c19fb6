"""Fields of a record, read in Python with the rules of the codec: numbers of up to ten bytes, and a
negative length of a key or a value is a null.
"""

from pixy.records.batch import Buffer

_VARINT_BITS_MAX = 63
_SIGNED_64 = 1 << 63
_CONTINUATION = 0x80


class Malformed(Exception):
    """Bytes that are not the fields of a record."""


def read_varint(buffer: Buffer, at: int, end: int) -> tuple[int, int]:
    """The number at a position, and the position behind it.

    Raises:
        Malformed: it is not there, or longer than ten bytes.
    """
    value = shift = 0
    while at < end:
        octet = buffer[at]
        at += 1
        value |= (octet & 0x7F) << shift
        if octet < _CONTINUATION:
            value %= 2 * _SIGNED_64
            return (value >> 1) ^ -(value & 1), at
        shift += 7
        if shift > _VARINT_BITS_MAX:
            raise Malformed("a number of more than ten bytes")
    raise Malformed("it ends in a number")


def skip_bytes(buffer: Buffer, at: int, end: int) -> tuple[int, int]:
    """Begin and end of the bytes whose length is at a position; the begin is -1 for a null.

    Raises:
        Malformed: they are not there.
    """
    length, at = read_varint(buffer, at, end)
    if length < 0:
        return -1, at
    if length > end - at:
        raise Malformed(f"a length of {length} bytes with {end - at} left")
    return at, at + length


def read_bytes(buffer: Buffer, at: int, end: int) -> tuple[bytes | None, int]:
    """The bytes whose length is at a position, None for a null, and the position behind them.

    Raises:
        Malformed: they are not there.
    """
    begin, behind = skip_bytes(buffer, at, end)
    return None if begin < 0 else bytes(buffer[begin:behind]), behind
