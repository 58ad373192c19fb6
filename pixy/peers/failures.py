"""Answers of calls, and errors as answers: the class by its name, and its text.

A class that this release does not know becomes INTERNAL: a newer node raises errors for newer
requests only.
"""

from collections.abc import Callable
from typing import Any, TypeVar

from google.protobuf.message import DecodeError, Message

from pixy import errors
from pixy.errors import Internal, OffsetOutOfRange, PixyError, ServiceDisabled, ShuttingDown, Unavailable
from pixy.peers.frames import Payload
from pixy.proto import peers_pb2 as pb

M = TypeVar("M", bound=Message)
R = TypeVar("R")

_CLASSES: dict[str, type[PixyError]] = {
    name: found for name in errors.__all__ if issubclass(found := getattr(errors, name), PixyError)
}
_WITHOUT_TEXT: dict[str, type[ShuttingDown | ServiceDisabled]] = {
    each.__name__: each for each in (ShuttingDown, ServiceDisabled)
}
_TEXT_MAX = 4000
_LIMIT_MAX = 100
_ANSWER_BYTES_MAX = 64 << 10
"""Of an answer that has no list."""


def decode_answer(kind: type[M], answer: bytes | memoryview, bytes_max: int = _ANSWER_BYTES_MAX) -> M:
    """The answer of a call as a message.

    Args:
        bytes_max: most bytes that what was asked for can have: a message takes much more memory,
            and time.

    Raises:
        Unavailable: it is none; another node may give one.
    """
    parse: Callable[[Any], M] = kind.FromString  # takes views, too
    return decode_apart(kind, parse, answer, bytes_max)


def decode_apart(
    kind: type[Message], parse: Callable[[bytes | memoryview], R], answer: bytes | memoryview, bytes_max: int
) -> R:
    """As `decode_answer`, by a parser of one's own, such as that of `large_fields.parse_apart`."""
    if len(answer) > bytes_max:
        raise Unavailable(
            f"a node answers with a {kind.DESCRIPTOR.name} of {len(answer)} bytes, at most {bytes_max} are possible"
        )
    try:
        return parse(answer)
    except DecodeError as error:
        raise Unavailable(f"a node answers with what is no {kind.DESCRIPTOR.name}") from error


def encode_failure(error: PixyError) -> bytes:
    """Payload of a FAILURE frame."""
    failure = pb.Failure(error=type(error).__name__, message=str(error)[:_TEXT_MAX], limit=error.limit)
    if isinstance(error, OffsetOutOfRange):
        failure.begin, failure.end = error.begin, error.end
    return failure.SerializeToString()


def decode_failure(payload: Payload) -> PixyError:
    """The error of a FAILURE frame."""
    try:
        failure = pb.Failure.FromString(bytes(payload))
    except DecodeError:
        return Internal("the failure of a call cannot be parsed")
    name = failure.error
    if name == OffsetOutOfRange.__name__:
        return OffsetOutOfRange(failure.message, failure.begin, failure.end)
    if name in _WITHOUT_TEXT:
        return _WITHOUT_TEXT[name]()
    found = _CLASSES.get(name)
    if found is None:
        return Internal(f"{name}: {failure.message}")
    return found(failure.message).at_limit(failure.limit[:_LIMIT_MAX])
