"""A response in parts, for answers with thousands of elements.

To fill in and serialize such a message at once is one long step of the event loop. The encodings of
its parts back to back are the encoding of the whole: repeated fields and maps are joined
(protobuf.dev, Encoding: "Last One Wins"). Small parts are joined to pieces, and these are sent as
they are: megabytes are never copied in one step.
"""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from pixy.aio.steps import in_steps
from pixy.large_fields import Serialized
from pixy.rpc.status import GrpcError, Status

if TYPE_CHECKING:
    from pixy.rpc.call import UnaryCall

_PIECE_BYTES = 64 << 10


class JoinedMessage:
    """A response whose parts are serialized already.

    Args:
        parts: their encodings.
    """

    __slots__ = ("_pieces", "_small", "_small_bytes")

    def __init__(self, parts: Iterable[bytes] = ()) -> None:
        self._pieces: Serialized = []
        # Parts behind the pieces, not joined yet.
        self._small: list[bytes] = []
        self._small_bytes = 0
        for part in parts:
            self.append(part)

    def append(self, part: bytes) -> None:
        """Append a part."""
        self._small.append(part)
        self._small_bytes += len(part)
        if self._small_bytes >= _PIECE_BYTES:
            self._join_small()

    @property
    def is_large(self) -> bool:
        """True if it has at least `_PIECE_BYTES`."""
        return bool(self._pieces)

    def pieces(self) -> Serialized:
        """The message in pieces."""
        if self._small or not self._pieces:
            self._join_small()
        return self._pieces

    def SerializeToString(self) -> bytes:
        """The whole message."""
        return b"".join(self.pieces())

    def _join_small(self) -> None:
        self._pieces.append(b"".join(self._small))
        self._small, self._small_bytes = [], 0


class AnswerParts:
    """Parts of the answer to a call, within what its connection takes.

    Args:
        call: gets the answer.

    Attributes:
        message: the answer so far.
    """

    __slots__ = ("_bytes_max", "_left", "message")

    def __init__(self, call: "UnaryCall") -> None:
        self._bytes_max = self._left = call.answer_bytes_max
        self.message = JoinedMessage()

    def add(self, part: bytes) -> None:
        """Append a part.

        Raises:
            GrpcError: RESOURCE_EXHAUSTED, the answer is too large.
        """
        self._left -= len(part)
        if self._left < 0:
            reason = f"the answer has more than grpc.output_buffer_bytes, {self._bytes_max} bytes"
            raise GrpcError(Status.RESOURCE_EXHAUSTED, reason, limit="grpc.output_buffer_bytes")
        self.message.append(part)


async def join_in_steps(call: "UnaryCall", parts: Iterable[Any]) -> JoinedMessage:
    """Make and serialize parts of an answer in steps.

    Args:
        call: gets the answer.
        parts: of the class of the response, each with some of its elements; made one by one.

    Raises:
        GrpcError: as `AnswerParts.add`.
    """
    answer = AnswerParts(call)
    async for part in in_steps(parts):
        answer.add(part.SerializeToString())
    return answer.message
