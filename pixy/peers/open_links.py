"""Connections whose handshake is over: dialled ones take answers, accepted ones messages and
calls.
"""

import asyncio
from collections.abc import Callable, Sequence
from typing import NamedTuple

from pixy.aio.futures import resolve
from pixy.peers.answers import PeerAnswers
from pixy.peers.calls import PeerCalls
from pixy.peers.environment import PeerEnvironment
from pixy.peers.frames import ANSWER, CALL, CANCEL, FAILURE, MESSAGE, FrameDamage, Payload
from pixy.peers.hello import Hello, LinkPurpose
from pixy.peers.link import PeerLink
from pixy.peers.options import Answer, NextSlice, PeerHooks


class LinkEnd(NamedTuple):
    """End of a connection.

    Attributes:
        reason: for logs.
        silent: nothing was heard of the peer.
    """

    reason: str
    silent: bool


def _name(peer: Hello) -> str:
    return f"node {peer.node_id}" if peer.node_id else "a node that asks or joins"


_PASSING_BYTES_MAX = 256 << 10
"""Payload of a frame of a node that asks or joins, and of its answer: that has all nodes."""


def _bytes_max(environment: PeerEnvironment, purpose: LinkPurpose) -> int:
    options, told = environment.options, environment.frames.bytes_max
    if purpose is LinkPurpose.PASSING:
        return _PASSING_BYTES_MAX
    return max(told, options.bulk_bytes_max if purpose is LinkPurpose.BULK else options.main_bytes_max)


class DialledLink:
    """An open connection that this node has dialled.

    Args:
        link: the connection.
        peer: the node on the other side.

    Attributes:
        link: the connection.
        peer: the node on the other side.
        calls: calls on it.
        end: completed when it has ended.
    """

    def __init__(
        self, environment: PeerEnvironment, link: PeerLink, peer: Hello, purpose: LinkPurpose
    ) -> None:
        self.link = link
        self.peer = peer
        self.calls = PeerCalls(link, environment.options, str(peer))
        self.end: asyncio.Future[LinkEnd] = asyncio.get_running_loop().create_future()
        link.owner = self
        link.established(
            _bytes_max(environment, purpose), _name(peer), grows=purpose is not LinkPurpose.PASSING
        )

    def made(self) -> None:
        """See `LinkOwner`."""
        raise AssertionError("a link is made before its handshake")

    def received(
        self, kind: int, method: int, milliseconds: int, number: int, payload: bytes | memoryview
    ) -> None:
        """See `LinkOwner`."""
        if kind == ANSWER:
            self.calls.answered(number, payload)
        elif kind == FAILURE:
            self.calls.failed(number, payload)
        else:
            raise FrameDamage(f"frame {kind} on a connection that takes answers")

    def lost(self, reason: str, *, silent: bool) -> None:
        """See `LinkOwner`."""
        self.calls.lost(reason)
        resolve(self.end, LinkEnd(reason, silent))


class AcceptedLink:
    """An open connection that a peer has dialled.

    Args:
        link: the connection.
        peer: the node on the other side.
        hooks: take its messages and calls.
        gone: called when it has ended, with the answers that are being cancelled.

    Attributes:
        link: the connection.
        peer: the node on the other side.
        purpose: use of the connection.
        answers: its running calls.
    """

    def __init__(
        self,
        environment: PeerEnvironment,
        link: PeerLink,
        peer: Hello,
        purpose: LinkPurpose,
        hooks: PeerHooks,
        gone: "Callable[[AcceptedLink, Sequence[asyncio.Future[Answer]]], None]",
    ) -> None:
        self.link = link
        self.peer = peer
        self.purpose = purpose
        self.answers = PeerAnswers(environment, link, peer, hooks)
        self._gone = gone
        self._on_message: Callable[[int, int, bytes | memoryview], NextSlice | None] = (
            hooks.on_message if purpose is LinkPurpose.MAIN else _no_message
        )
        self._node_id = peer.node_id
        link.owner = self
        link.established(
            _bytes_max(environment, purpose), _name(peer), grows=purpose is not LinkPurpose.PASSING
        )

    def made(self) -> None:
        """See `LinkOwner`."""
        raise AssertionError("a link is made before its handshake")

    def received(
        self, kind: int, method: int, milliseconds: int, number: int, payload: bytes | memoryview
    ) -> NextSlice | None:
        """See `LinkOwner`."""
        if kind == MESSAGE:
            return self._on_message(self._node_id, method, payload)
        if kind == CALL:
            self.answers.begin(method, milliseconds, number, payload)
        elif kind == CANCEL:
            self.answers.cancel(number)
        else:
            raise FrameDamage(f"frame {kind} on a connection that takes messages and calls")
        return None

    def lost(self, reason: str, *, silent: bool) -> None:
        """See `LinkOwner`."""
        self._gone(self, self.answers.lost())


def _no_message(_: int, kind: int, __: Payload) -> None:
    raise FrameDamage(f"message {kind} on a connection for calls")
