"""Protobuf messages whose bytes decide something that lasts."""

from typing import TypeVar

from google.protobuf.message import DecodeError, Message

_PARSED_FACTOR = 128
"""Bytes of memory for a byte of a message, at most: that of an empty message in it has two."""
_PROBE_BYTES_MIN, _PROBE_BYTES_MAX = 1 << 20, 1 << 30

M = TypeVar("M", bound=Message)


def parsed(kind: type[M], payload: bytes) -> M:
    """The message with these bytes.

    Protobuf raises `DecodeError` if it gets no memory, too. Whoever takes that for wrong bytes
    drops what others keep, so this tries once more, when memory was there a moment before.

    Raises:
        DecodeError: the bytes are no such message.
        MemoryError: there may not be enough memory to tell.
    """
    try:
        return kind.FromString(payload)
    except DecodeError:
        bytearray(min(_PROBE_BYTES_MIN + _PARSED_FACTOR * len(payload), _PROBE_BYTES_MAX))
        return kind.FromString(payload)
