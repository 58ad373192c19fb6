"""A response in parts, for answers with thousands of elements.

To fill in and serialize such a message at once is one long step of the event loop. The encodings of
its parts back to back are the encoding of the whole: repeated fields and maps are joined
(protobuf.dev, Encoding: "Last One Wins").
"""

from collections.abc import Iterable
from typing import Any

from pixy.steps import in_steps

__all__ = ["JoinedMessage", "join_in_steps"]


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


async def join_in_steps(parts: Iterable[Any]) -> JoinedMessage:
    """Make and serialize parts of a message in steps.

    Args:
        parts: of the class of the response, each with some of its elements; made one by one.
    """
    return JoinedMessage([part.SerializeToString() async for part in in_steps(parts)])
