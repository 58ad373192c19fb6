"""One connection to a peer, whoever has dialled it: frames, bounded output, and its end.

The transport's buffer is the send queue. While it is above its high-water mark the link counts what
it adds, and takes no more than `queue_bytes` and `queue_frames`: so sending never blocks, and a
peer that does not read costs a bounded amount of memory. A frame that does not fit passes while at
most half of the queue is used: else a large one could be dropped at every attempt, because of a
small one before it.

The first frame of an iteration of the loop is written at once, those that follow in the same
iteration with one system call at its end. Small frames are written as one piece, large ones as
their parts, uncopied.

A frame that asks for much is worked off in slices, one per iteration of the loop, and so are many
frames that were received together. Until all of it is done the link reads nothing more: frames keep
their order, and what comes meanwhile fills the sender's queue.

The owner of a link acts on its frames. It changes once: from the handshake to what the connection
is for. An exception of the owner is a bug that ends this connection alone; none reaches the
transport.
"""

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any, Protocol

import structlog
from google.protobuf.message import DecodeError

from pixy.aio.futures import resolve
from pixy.aio.socket_writes import write_of
from pixy.peers.activity import Activity, CheckResult
from pixy.peers.environment import PeerEnvironment
from pixy.peers.frames import (
    ALIVE,
    CLOSING,
    HANDSHAKE_BYTES_MAX,
    HEAD_BYTES,
    PING,
    FrameDamage,
    Payload,
    PeerFrame,
    PeerFrameReader,
    frame_head,
)
from pixy.peers.options import NextSlice
from pixy.peers.texts import STRANGER_CHARACTERS_MAX, shown

log = structlog.get_logger(__name__)

_JOINED_BYTES_MAX = 16 << 10
"""Frames up to this size are written as one piece: copying them costs less than another part."""
_REASON_CHARACTERS_MAX = 500
_KEEP_ALIVE = frozenset((ALIVE, PING))
_HANDSHAKE_READ_BYTES = 4096
"""Bytes that are parsed at once of a peer that has proven nothing: at most 170 frames."""
_FRAMES_PER_SLICE = 32
"""Frames that are acted on in one iteration of the loop."""


class LinkOwner(Protocol):
    """Acts on the frames of a link."""

    def made(self) -> None:
        """The transport is there."""

    def received(
        self, kind: int, method: int, milliseconds: int, number: int, payload: bytes | memoryview
    ) -> NextSlice | None:
        """A frame has come.

        Returns:
            the rest of the work that it asks for; None: it is done.

        Raises:
            FrameDamage, DecodeError: the peer does not follow the protocol.
        """

    def lost(self, reason: str, *, silent: bool) -> None:
        """The link has ended; called once.

        Args:
            silent: nothing was heard of the peer. Else it has closed the connection, or this node
                has.
        """


class PeerLink(asyncio.BufferedProtocol):
    """A connection.

    Args:
        owner: acts on its frames.
        environment: of all links.

    Attributes:
        owner: may be replaced.
        activity: silence of the connection, once its handshake is over.
        bytes_max: largest payload of a frame, in either direction.
        is_open: frames can be sent.
        peer: address of the other side, for logs.
        traffic: counts what is sent and received.
        name: what the peer is, once its handshake is over.
    """

    __slots__ = (
        "_closing_since",
        "_environment",
        "_frames",
        "_gathered",
        "_gathered_bytes",
        "_gathering",
        "_gone",
        "_grows",
        "_loop",
        "_noted_too_large",
        "_on_fault",
        "_options",
        "_paused",
        "_queued_frames",
        "_reader",
        "_reason",
        "_silent",
        "_transport",
        "_work",
        "_write",
        "activity",
        "bytes_max",
        "is_open",
        "name",
        "owner",
        "peer",
        "traffic",
    )

    def __init__(self, owner: LinkOwner, environment: PeerEnvironment) -> None:
        self.owner = owner
        self._environment = environment
        self._options = environment.options
        self._on_fault = environment.on_fault
        # Its buffer comes with the connection: most attempts to dial a node that is down make none.
        self._reader: PeerFrameReader
        self.bytes_max = HANDSHAKE_BYTES_MAX
        self._grows = False
        self._transport: Any = None
        self._loop = asyncio.get_running_loop()
        self._write: Callable[[bytes], object] = _never
        # A frame was written in this iteration of the loop, and the frames behind it.
        self._gathering = False
        self._gathered: list[Payload] = []
        self._gathered_bytes = 0
        # The transport is above its high-water mark, and frames that were gathered or written
        # since.
        self._paused = False
        self._queued_frames = 0
        # The log has an entry about this.
        self._noted_too_large = False
        # Completed when the transport is gone; None: nobody waits for it.
        self._gone: asyncio.Future[None] | None = None
        # Why the link ends, by this side or, if empty, by the other.
        self._reason = ""
        self._silent = False
        # Frames that wait for the next slice, and the work before them, if there is any. None: none
        # waits. Invariant: nothing is read while some wait.
        self._frames: Iterator[PeerFrame] | None = None
        self._work: NextSlice | None = None
        # Since when the transport sends the rest, None: it is not closing.
        self._closing_since: float | None = None
        self.activity: Activity | None = None
        self.is_open = False
        self.peer = ""
        self.name = ""
        self.traffic = environment.uncounted

    # --- sending ----------------------------------------------------------------------------------

    def send(
        self, kind: int, method: int, milliseconds: int, number: int, payload: Sequence[Payload]
    ) -> bool:
        """Send a frame.

        Args:
            payload: in parts, which must not change afterwards.

        Returns:
            False: the queue is full, or the link has ended, or the payload is too large.
        """
        size = 0
        for part in payload:
            size += len(part)
        if size > self.bytes_max:
            return self._too_large(size)
        # A transport that has failed tells so later, and cannot be written to until then.
        if not self.is_open or self._transport.is_closing():
            return False
        if (self._gathering or self._paused) and not self._has_room(size):
            return False
        head = frame_head(kind, method, milliseconds, number, payload, size)
        if self._gathering:
            self._gathered += (head, *payload)
            self._gathered_bytes += HEAD_BYTES + size
        else:
            self._gathering = True
            self._loop.call_soon(self._write_gathered)
            if size <= _JOINED_BYTES_MAX:
                self._write(b"".join((head, *payload)))
            else:
                self._transport.writelines((head, *payload))
        if self.activity is not None:
            self.activity.sent = True
        traffic = self.traffic
        traffic.sent_frames += 1
        traffic.sent_bytes += HEAD_BYTES + size
        return True

    def _has_room(self, size: int) -> bool:
        queued: int = self._transport.get_write_buffer_size() + self._gathered_bytes
        options = self._options
        if queued > options.queue_bytes // 2 and queued + HEAD_BYTES + size > options.queue_bytes:
            return False
        if self._queued_frames >= options.queue_frames:
            return False
        self._queued_frames += 1
        return True

    def _too_large(self, size: int) -> bool:
        """The peer would end the connection; another attempt would fare no better."""
        if not self._noted_too_large:
            self._noted_too_large = True
            log.error(
                "what is too large for peers is dropped",
                peer=self.peer,
                bytes=size,
                allowed=self.bytes_max,
            )
        return False

    def _write_gathered(self) -> None:
        """Write the frames of this iteration of the loop."""
        self._gathering = False
        if self._gathered:
            gathered, self._gathered, self._gathered_bytes = self._gathered, [], 0
            if not self._transport.is_closing():
                self._transport.writelines(gathered)
            if not self._paused:
                self._queued_frames = 0

    @property
    def host(self) -> str:
        """Address of the other side, without its port."""
        return self.peer.rpartition(":")[0].strip("[]")

    @property
    def certificate(self) -> Mapping[str, Any]:
        """Verified certificate of the other side, empty without TLS."""
        return self._transport.get_extra_info("peercert") or {}

    def ping(self) -> None:
        """Have the peer answer at once."""
        self.send(PING, 0, 0, 0, ())

    @property
    def heard(self) -> int:
        """Grows with everything that is received."""
        return 0 if self.activity is None else self.activity.heard

    # --- life -------------------------------------------------------------------------------------

    def established(self, bytes_max: int, name: str, *, grows: bool = True) -> None:
        """The handshake is over: allow larger frames, and watch for silence.

        Args:
            grows: `take_frames` applies to it.
        """
        self.name = name
        self._grows = grows
        self.bytes_max = self._reader.limit = bytes_max
        self.activity = Activity(self._options.alive_s, self._options.silence_s)

    def take_frames(self, bytes_max: int) -> None:
        """Allow frames up to this payload, at least, once the handshake between nodes is over."""
        if self._grows and bytes_max > self.bytes_max:
            self.bytes_max = self._reader.limit = bytes_max

    def check(self, elapsed: float, now: float) -> None:
        """Act on the time; see `Activity`."""
        if self._closing_since is not None:
            if now - self._closing_since >= self._options.linger_s:
                self.discard()
        elif self.activity is not None:
            due = self.activity.check(elapsed)
            if due is CheckResult.SILENT:
                self._silent = True
                self.abort(f"nothing was heard for {self._options.silence_s:.3g} s")
            elif due is CheckResult.ALIVE:
                self.send(ALIVE, 0, 0, 0, ())
                self.activity.sent = False

    def close(self, reason: str, *, tell: bool = True) -> None:
        """Send what was written, and end.

        Args:
            tell: the peer is sent the reason.
        """
        if not self.is_open:
            return
        if tell:
            self.send(CLOSING, 0, 0, 0, (reason[:_REASON_CHARACTERS_MAX].encode(),))
        self._end(reason)
        self._closing_since = self._loop.time()
        self._write_gathered()
        self._transport.close()

    def abort(self, reason: str) -> None:
        """End at once, and discard what is not sent."""
        if self.is_open:
            self._end(reason)
            self.discard()

    def discard(self) -> None:
        """Discard what is not sent of a link that has ended."""
        self._gathered.clear()
        self._transport.abort()

    def wait_gone(self) -> "asyncio.Future[None]":
        """Completed when the transport of a link that has ended is gone."""
        if self._gone is None:
            self._gone = self._loop.create_future()
        return self._gone

    def _end(self, reason: str) -> None:
        self.is_open = False
        self._reason = self._reason or reason
        try:
            self.owner.lost(self._reason, silent=self._silent)
        except Exception as bug:
            self._on_fault(bug)

    # --- asyncio.BufferedProtocol -----------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See `asyncio.BaseProtocol`."""
        self._transport = transport
        self._reader = PeerFrameReader(self.bytes_max)
        self._write = write_of(self._transport)
        self.peer = _address(transport.get_extra_info("peername"))
        self.is_open = True
        self._environment.links[self] = None
        try:
            self.owner.made()
        except Exception as bug:
            self._broken(bug)

    def get_buffer(self, sizehint: int) -> memoryview:
        """See `asyncio.BufferedProtocol`."""
        space = self._reader.buffer()
        return space if self.activity is not None else space[:_HANDSHAKE_READ_BYTES]

    def buffer_updated(self, nbytes: int) -> None:
        """See `asyncio.BufferedProtocol`."""
        if self.activity is not None:
            self.activity.heard += 1
        self.traffic.received_bytes += nbytes
        try:
            frames = iter(self._reader.received(nbytes))
            if self._frames is None:
                self._take(frames)
            else:  # TLS has had them already
                self._frames = chain(self._frames, frames)
        except Exception as error:
            self._failed(error)

    def _take(self, frames: Iterator[PeerFrame]) -> None:
        """Act on a slice of frames, or as far as one that asks for more work."""
        left = _FRAMES_PER_SLICE
        for kind, method, milliseconds, number, payload in frames:
            if not self.is_open:
                return
            self.traffic.received_frames += 1
            if kind in _KEEP_ALIVE:
                if self.activity is None:
                    raise FrameDamage(f"frame {kind} in a handshake")
                if kind == PING:
                    self.send(ALIVE, 0, 0, 0, ())
            elif kind == CLOSING:
                self._closed_by_peer(payload)
            else:
                self._work = self.owner.received(kind, method, milliseconds, number, payload)
            left -= 1
            if self._work is not None or not left:
                self._take_later(frames)
                return
        if self._frames is not None:
            self._frames = None
            if not self._transport.is_closing():
                self._transport.resume_reading()

    def _take_later(self, frames: Iterator[PeerFrame]) -> None:
        if self._frames is None and not self._transport.is_closing():
            self._transport.pause_reading()
        self._frames = frames
        self._loop.call_soon(self._take_on)

    def _take_on(self) -> None:
        """Do the next slice."""
        frames = self._frames
        if frames is None or not self.is_open:
            return
        if self.activity is not None:
            self.activity.heard += 1  # it has not been silent
        try:
            if self._work is not None and not self._work():
                self._take_later(frames)
            else:
                self._work = None
                self._take(frames)
        except Exception as error:
            self._failed(error)

    def _failed(self, error: Exception) -> None:
        if isinstance(error, (FrameDamage, DecodeError)):
            self.damaged(str(error))
        else:
            self._broken(error)

    def _closed_by_peer(self, payload: Payload) -> None:
        if self._reason:
            raise FrameDamage("a frame behind the last one")
        longest = STRANGER_CHARACTERS_MAX if self.activity is None else _REASON_CHARACTERS_MAX
        self._reason = shown(memoryview(payload), longest) or "the peer has closed the connection"

    def damaged(self, reason: str) -> None:
        """End the connection because of what the peer has sent."""
        refusals, now = self._environment.refusals, self._loop.time()
        reason = shown(reason, _REASON_CHARACTERS_MAX)
        if self.activity is None:
            event = "a connection to a peer has ended: it was sent what is no frame"
            refusals.strangers.write("warning", event, now, peer=self.peer, reason=reason)
        elif self.is_open:
            refusals.damaged(self.name, self.peer, reason, now)
        self.close(reason)

    def pause_writing(self) -> None:
        """See `asyncio.BaseProtocol`."""
        self._paused = True

    def resume_writing(self) -> None:
        """See `asyncio.BaseProtocol`."""
        self._paused = False
        self._queued_frames = 0

    def eof_received(self) -> None:
        """See `asyncio.BufferedProtocol`. The transport closes."""

    def connection_lost(self, exc: Exception | None) -> None:
        """See `asyncio.BaseProtocol`."""
        self._gathered.clear()
        self._frames = self._work = None
        if self.is_open:
            self._end(str(exc) if exc else "the peer has closed the connection")
        self._environment.links.pop(self, None)
        if self._gone is not None:
            resolve(self._gone, None)

    def _broken(self, bug: Exception) -> None:
        self._on_fault(bug)
        self.close("an internal error; the log of the node has the details")


def _never(_: bytes) -> None:
    raise AssertionError("written before the transport is there")


def _address(peername: object) -> str:
    if isinstance(peername, tuple):
        host, port = peername[:2]
        return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    return str(peername or "")
