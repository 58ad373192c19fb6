"""Raft messages on their way out: gathered by peer, sent once per iteration of the event loop.

With thousands of groups, a message or a system call for each would cost more than all the rest.
"""

import asyncio
from collections.abc import Callable, Sequence

from pixy.raft import Message

Send = Callable[[int, Sequence[tuple[int, Message]]], None]
"""Sends messages, each with its raft group, to another node. They may be lost."""


class Outbox:
    """Messages to the other nodes.

    Args:
        send: see `Send`.
    """

    def __init__(self, send: Send) -> None:
        self._send = send
        self._loop = asyncio.get_running_loop()
        self._messages: dict[int, list[tuple[int, Message]]] = {}
        self._stopped = False

    def post(self, raft_group: int, messages: Sequence[Message]) -> None:
        """Send messages of a raft group at the end of this iteration of the loop."""
        if messages and not self._messages:
            self._loop.call_soon(self._flush)
        for message in messages:
            self._messages.setdefault(message.to, []).append((raft_group, message))

    def stop(self) -> None:
        """Send nothing more."""
        self._stopped = True

    def _flush(self) -> None:
        messages, self._messages = self._messages, {}
        if not self._stopped:
            for peer, gathered in messages.items():
                self._send(peer, gathered)
