"""A response in parts, for answers with thousands of elements.

To fill in and serialize such a message at once is one long step of the event loop. The encodings of
its parts back to back are the encoding of the whole: repeated fields and maps are joined
(protobuf.dev, Encoding: "Last One Wins").
"""

from collections.abc import Iterable
from typing import Any

from pixy.rpc.call import UnaryCall
from pixy.rpc.status import GrpcError, Status
from pixy.steps import in_steps

__all__ = ["AnswerParts", "JoinedMessage", "join_in_steps"]


class JoinedMessage:
    """A response whose parts are serialized already.

    Args:
        parts: their encodings.
    """

    __slots__ = ("_parts",)

    def __init__(self, parts: list[bytes]) -> None:
        self._parts = parts

    def SerializeToString(self) -> bytes:
        """The whole message."""
        return b"".join(self._parts)


class AnswerParts:
    """Parts of the answer to a call, within what its connection takes.

    Args:
        call: gets the answer.

    Attributes:
        message: the answer so far.
    """

    __slots__ = ("_bytes_max", "_left", "_parts", "message")

    def __init__(self, call: UnaryCall) -> None:
        self._bytes_max = self._left = call.answer_bytes_max
        self._parts: list[bytes] = []
        self.message = JoinedMessage(self._parts)

    def add(self, part: bytes) -> None:
        """Append a part.

        Raises:
            GrpcError: RESOURCE_EXHAUSTED, the answer is too large.
        """
        self._left -= len(part)
        if self._left < 0:
            reason = f"the answer has more than grpc.output_buffer_bytes, {self._bytes_max} bytes"
            raise GrpcError(Status.RESOURCE_EXHAUSTED, reason, limit="grpc.output_buffer_bytes")
        self._parts.append(part)


async def join_in_steps(call: UnaryCall, parts: Iterable[Any]) -> JoinedMessage:
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
