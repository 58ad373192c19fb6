"""Ways between the hosts of a simulated network, and the connections on them; see `network`."""

import asyncio
from collections import deque
from random import Random
from typing import TYPE_CHECKING, Any

from pixy.aio.futures import resolve
from pixy.peers import Address

if TYPE_CHECKING:
    from tests.fakes.network import SimulatedProcess

_WINDOW_BYTES = 256 << 10
"""Bytes of a connection that are on their way or not read yet."""
_HIGH_WATER_BYTES = 64 << 10
_SPLIT = 0.2
"""Probability that what has arrived is read in two pieces."""


class Way:
    """The way from one host to another.

    Attributes:
        delays_s: shortest and longest delay of a packet.
        cut: packets are lost.
        stalled: the receiver does not read.
        streams: what is sent on it.
        segments: number of packets with bytes that were sent on it.
    """

    def __init__(self, delays_s: tuple[float, float]) -> None:
        self.delays_s = delays_s
        self.cut = False
        self.stalled = False
        self.segments = 0
        self.streams: dict[_Stream, None] = {}  # ordered, so that a run repeats
        # Connections that are being made.
        self._waiting: list[asyncio.Future[None]] = []

    def changed(self) -> None:
        """Have everything that was held move on, if it may."""
        for stream in list(self.streams):
            stream.move()
        if not self.cut:
            waiting, self._waiting = self._waiting, []
            for each in waiting:
                resolve(each, None)

    async def cross(self, random: Random) -> None:
        """Return when a packet has arrived, sent again as often as it takes."""
        await asyncio.sleep(random.uniform(*self.delays_s))
        while self.cut:
            joined: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.append(joined)
            await joined


_Segment = bytes | None
"""Bytes, or the end of the stream."""


class _Stream:
    """One direction of a connection: segments on their way.

    Attributes:
        receiver: transport at its end.
        held_bytes: sent and not read.
    """

    def __init__(self, way: Way, sender: "SimulatedTransport", receiver: "SimulatedTransport") -> None:
        self._way = way
        self._sender = sender
        self.receiver = receiver
        self._loop = asyncio.get_running_loop()
        self._random = sender.process.network.random
        # Segments and the times of their arrival, which never decrease.
        self._segments: deque[tuple[float, _Segment]] = deque()
        self._timer: asyncio.TimerHandle | None = None
        self._arrived_at = 0.0
        self.held_bytes = 0
        way.streams[self] = None

    def push(self, segment: _Segment) -> None:
        """Send a segment."""
        self._way.streams[self] = None
        self._arrived_at = max(
            self._arrived_at, self._loop.time() + self._random.uniform(*self._way.delays_s)
        )
        self._segments.append((self._arrived_at, segment))
        self.held_bytes += len(segment or b"")
        self._way.segments += 1
        if len(self._segments) == 1:
            self.move()

    def end(self) -> None:
        """Forget everything."""
        self._way.streams.pop(self, None)
        self._segments.clear()
        if self._timer is not None:
            self._timer.cancel()

    def move(self) -> None:
        """Deliver what has arrived, at once or when it does."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._segments and not self._way.cut:
            self._timer = self._loop.call_at(self._segments[0][0], self._deliver)

    def _deliver(self) -> None:
        self._timer = None
        if self._way.cut or not self._segments:
            return
        if self.receiver.gone:
            if self.receiver.process.network.is_up(self.receiver.process.host):
                self._segments.clear()
                self.receiver.process.network.send_reset(self.receiver, self._sender)
            return
        if self._way.stalled or not self.receiver.reads:
            return
        now, arrived = self._loop.time(), bytearray()
        while self._segments and self._segments[0][0] <= now and self._segments[0][1] is not None:
            arrived += self._segments.popleft()[1] or b""
        if arrived:
            self._give(bytes(arrived))
        elif self._segments and self._segments[0][1] is None:
            self.end()
            self.receiver.ended()
        self.move()

    def _give(self, arrived: bytes) -> None:
        """Have the receiver read, in pieces as a system would return them."""
        size = len(arrived)
        if size > 1 and self._random.random() < _SPLIT:
            size = self._random.randrange(1, size)
            self._segments.appendleft((self._loop.time(), arrived[size:]))
        self.held_bytes -= size
        self.receiver.read(arrived[:size])
        self._sender.drain()


class SimulatedTransport(asyncio.Transport):
    """One end of a connection.

    Attributes:
        process: of this end.
        gone: it takes nothing; what arrives is answered by a reset, if the host is up.
        reads: the protocol has not paused reading.
    """

    def __init__(self, process: "SimulatedProcess", protocol: asyncio.BaseProtocol) -> None:
        super().__init__()
        self.process = process
        self._loop = asyncio.get_running_loop()
        self._protocol: Any = protocol
        self._out: _Stream | None = None
        self._in: _Stream | None = None
        self._buffer = bytearray()
        self._high = _HIGH_WATER_BYTES
        self._low = _HIGH_WATER_BYTES // 4
        self._paused_protocol = False
        self._made = False
        self._closing = False
        self.gone = False
        self.reads = True
        process.transports[self] = None

    # --- for the network --------------------------------------------------------------------------

    def pair(self, other: "SimulatedTransport", address: Address, other_address: Address) -> None:
        """Connect two ends."""
        network = self.process.network
        out = network.way(self.process.host, other.process.host)
        back = network.way(other.process.host, self.process.host)
        self._out = other._in = _Stream(out, self, other)
        self._in = other._out = _Stream(back, other, self)
        self._extra = {"peername": (other_address.host, other_address.port)}
        other._extra = {"peername": (address.host, address.port)}

    def begin_later(self, delay: float) -> None:
        """Give the transport to its protocol after a while."""
        self.reads = False
        self._loop.call_later(delay, self.begin)

    def begin(self) -> None:
        """Give the transport to its protocol."""
        if self.gone:
            return
        self._made = self.reads = True
        self._protocol.connection_made(self)
        if self._in is not None:
            self._in.move()

    def read(self, arrived: bytes) -> None:
        """Bytes have arrived."""
        if self._closing or self.gone:
            return
        if not isinstance(self._protocol, asyncio.BufferedProtocol):
            self._protocol.data_received(arrived)
            return
        view = memoryview(arrived)
        while view and not self._closing and not self.gone:
            buffer = memoryview(self._protocol.get_buffer(-1))
            size = min(len(buffer), len(view))
            buffer[:size] = view[:size]
            self._protocol.buffer_updated(size)
            view = view[size:]

    def ended(self) -> None:
        """The other side has closed."""
        if not self._closing and not self.gone and not self._protocol.eof_received():
            self.close()

    def reset(self) -> None:
        """A reset has arrived."""
        self._lose(ConnectionResetError("connection reset by peer"))

    def leave(self, *, reset: bool) -> None:
        """The process of this end is gone, and learns nothing."""
        self.process.transports.pop(self, None)
        self.gone = self._closing = True
        if self._out is None or self._in is None:
            return
        if reset:
            self._out.end()
            self.process.network.send_reset(self, self._out.receiver)
        else:
            self._out.push(None)
        self._in.end()

    def vanish(self) -> None:
        """The host of this end is gone, and sends nothing."""
        self.process.transports.pop(self, None)
        self.gone = self._closing = True
        if self._out is not None:
            self._out.end()

    def drain(self) -> None:
        """Send more of the buffer, if the window allows."""
        if self._out is None:
            return
        room = _WINDOW_BYTES - self._out.held_bytes
        if self._buffer and room > 0 and not self.gone:
            self._out.push(bytes(self._buffer[:room]))
            del self._buffer[:room]
        if self._paused_protocol and len(self._buffer) <= self._low and not self.gone:
            self._paused_protocol = False
            self._protocol.resume_writing()
        if self._closing and not self._buffer:
            self._finish()

    def _finish(self) -> None:
        """Everything was sent behind which the end comes."""
        if not self.gone and self._out is not None:
            self._out.push(None)
            self._lose(None)

    def _lose(self, error: Exception | None) -> None:
        if self.gone:
            return
        self.gone = self._closing = True
        self.process.transports.pop(self, None)
        self._buffer.clear()
        if self._in is not None:
            self._in.end()
        if error is not None and self._out is not None:
            self._out.end()
        if self._made:
            self._loop.call_soon(self._protocol.connection_lost, error)

    # --- asyncio.Transport ------------------------------------------------------------------------

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """See `asyncio.WriteTransport`."""
        if self._closing or not data:
            return
        self._buffer += data
        self.drain()
        if len(self._buffer) > self._high and not self._paused_protocol:
            self._paused_protocol = True
            self._protocol.pause_writing()

    def close(self) -> None:
        """See `asyncio.BaseTransport`."""
        if not self._closing:
            self._closing = True
            if not self._buffer:
                self._finish()

    def abort(self) -> None:
        """See `asyncio.WriteTransport`."""
        if self.gone:
            return
        if self._out is not None:
            self._out.end()
            self.process.network.send_reset(self, self._out.receiver)
        self._lose(None)

    def is_closing(self) -> bool:
        """See `asyncio.BaseTransport`."""
        return self._closing

    def get_write_buffer_size(self) -> int:
        """See `asyncio.WriteTransport`."""
        return len(self._buffer)

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """See `asyncio.WriteTransport`."""
        self._high = _HIGH_WATER_BYTES if high is None else high
        self._low = self._high // 4 if low is None else low

    def can_write_eof(self) -> bool:
        """See `asyncio.WriteTransport`."""
        return False

    def pause_reading(self) -> None:
        """See `asyncio.ReadTransport`."""
        self.reads = False

    def resume_reading(self) -> None:
        """See `asyncio.ReadTransport`."""
        self.reads = True
        if self._in is not None:
            self._in.move()

    def is_reading(self) -> bool:
        """See `asyncio.ReadTransport`."""
        return self.reads

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        """See `asyncio.BaseTransport`."""
        self._protocol = protocol

    def get_protocol(self) -> asyncio.BaseProtocol:
        """See `asyncio.BaseTransport`."""
        protocol: asyncio.BaseProtocol = self._protocol
        return protocol
