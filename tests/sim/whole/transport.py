"""One end of a simulated connection."""

import asyncio
import errno
import os
from collections import deque
from collections.abc import Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from tests.sim.kit.lives import Life

if TYPE_CHECKING:
    from tests.sim.whole.network import SimulatedNetwork

_HIGH_WATER = 64 << 10
_READ_BYTES = 256 << 10
_PACKET_BYTES = 16 << 10

Buffer = bytes | bytearray | memoryview


class Way(NamedTuple):
    """From one host to another."""

    sender: str
    receiver: str


class SimulatedTransport(asyncio.Transport):
    """One end of a connection, in a process.

    Args:
        network: its network.
        life: its process.
        local, remote: its addresses.

    Attributes:
        peer: the other end.
        buffered: bytes that are written and not with the kernel.
        largest: bytes of the largest write.
    """

    def __init__(
        self, network: "SimulatedNetwork", life: Life, local: tuple[str, int], remote: tuple[str, int]
    ) -> None:
        super().__init__({"peername": remote, "sockname": local})
        self._network = network
        self.life = life
        self.local_host = local[0]
        self.remote_host = remote[0]
        self._way = Way(local[0], remote[0])
        self.peer: SimulatedTransport | None = None
        self._protocol: asyncio.BaseProtocol | None = None
        # Bytes in the process that the window has no room for.
        self._buffer: deque[bytes] = deque()
        self.buffered = self.largest = 0
        # Bytes that are under way or unread, as far as their sender knows.
        self._unacknowledged = 0
        # What is under way to the other end, in order, each with the time when it may arrive.
        self._lane: deque[tuple[float, Callable[[], None]]] = deque()
        # Bytes in the kernel that nobody has read; an empty piece is the end.
        self._unread: deque[bytes] = deque()
        self._high, self._low = _HIGH_WATER, _HIGH_WATER // 4
        self._told_to_pause = False
        self._is_made = False
        self._reads = True
        self._closing = False
        self._ended = False

    # --- asyncio.Transport ------------------------------------------------------------------------

    def begin(self, factory: Callable[[], asyncio.BaseProtocol]) -> None:
        """Make the protocol of this end, in its process."""
        protocol = self._protocol = factory()
        asyncio.get_running_loop().call_soon(self._make, protocol)
        asyncio.get_running_loop().call_soon(self._read)

    def _make(self, protocol: asyncio.BaseProtocol) -> None:
        """Tell the protocol of this end, which gets nothing before."""
        protocol.connection_made(self)
        self._is_made = True

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self._protocol = protocol

    def get_protocol(self) -> asyncio.BaseProtocol:
        assert self._protocol is not None
        return self._protocol

    def is_closing(self) -> bool:
        return self._closing

    def is_reading(self) -> bool:
        return self._reads and not self._closing

    def pause_reading(self) -> None:
        self._reads = False

    def resume_reading(self) -> None:
        if not self._reads:
            self._reads = True
            asyncio.get_running_loop().call_soon(self._read)

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._high = (_HIGH_WATER if low is None else 4 * low) if high is None else high
        self._low = self._high // 4 if low is None else low

    def get_write_buffer_limits(self) -> tuple[int, int]:
        return self._low, self._high

    def get_write_buffer_size(self) -> int:
        return self.buffered

    def write(self, data: Buffer) -> None:
        if self._closing or self._ended or not data:
            return
        self._buffer.append(bytes(data))
        self.buffered += len(data)
        self.largest = max(self.largest, len(data))
        self._send()
        if self.buffered > self._high and not self._told_to_pause:
            self._told_to_pause = True
            assert self._protocol is not None
            self._protocol.pause_writing()

    def writelines(self, list_of_data: Iterable[Any]) -> None:
        self.write(b"".join(list_of_data))

    def can_write_eof(self) -> bool:
        return False

    def close(self) -> None:
        if self._closing:
            return
        self._closing = True
        if not self._buffer:
            self._finish(None)

    def abort(self) -> None:
        self._closing = True
        self._buffer.clear()
        self.buffered = 0
        if not self._ended:
            self._say(self._other.reset)
            self._end(None)

    # --- sending ----------------------------------------------------------------------------------

    @property
    def _other(self) -> "SimulatedTransport":
        assert self.peer is not None
        return self.peer

    def _say(self, arrive: Callable[..., None], *args: Any, size: int = 0) -> None:
        """Have something arrive at the other end, behind everything that was sent before."""
        network = self._network
        at = network.scene.now + network.delay(self._way)
        if self._lane:
            at = max(self._lane[-1][0], at)
        speed = network.weather_on(self._way).bytes_per_s
        self._lane.append((at + size / speed if speed else at, partial(arrive, *args)))
        if len(self._lane) == 1:
            self._wait_arrival()

    def _wait_arrival(self) -> None:
        at, _ = self._lane[0]
        self._network.scene.loop.outside(max(0.0, at - self._network.scene.now), self._arrive)

    def _arrive(self) -> None:
        """The first of what is under way arrives, if the way is open."""
        if not self._network.is_open(self._way):
            self._network.wait_open(self._way, self._arrive)
            return
        _, arrive = self._lane[0]
        arrive()
        self._lane.popleft()
        if self._lane:
            self._wait_arrival()

    def _send(self) -> None:
        """Give the kernel what the window has room for; as TCP does, not in ever smaller pieces."""
        window = self._network.weather.window_bytes
        while self._buffer and self._unacknowledged < window:
            size = min(window - self._unacknowledged, _PACKET_BYTES)
            if self._unacknowledged and size < min(window // 4, len(self._buffer[0])):
                return
            data = self._buffer.popleft()
            if len(data) > size:
                self._buffer.appendleft(data[size:])
                data = data[:size]
            self.buffered -= len(data)
            self._unacknowledged += len(data)
            self._say(self._other.receive, self._weathered(data), size=len(data))

    def _weathered(self, data: bytes) -> bytes:
        damaged = self._network.weather_on(self._way).damaged
        rng = self._network.rng
        if damaged and rng.random() < damaged:
            at = rng.randrange(len(data))
            self._network.scene.counts["bytes changed on their way"] += 1
            return data[:at] + bytes((data[at] ^ (1 << rng.randrange(8)),)) + data[at + 1 :]
        return data

    def _acknowledged(self, size: int) -> None:
        self._unacknowledged -= size
        if self._buffer and not self._ended:
            self.life.run(self._writable)

    def _writable(self) -> None:
        if self._ended:
            return
        self._send()
        if self._told_to_pause and self.buffered <= self._low:
            self._told_to_pause = False
            assert self._protocol is not None
            self._protocol.resume_writing()
        if self._closing and not self._buffer:
            self._finish(None)

    # --- receiving --------------------------------------------------------------------------------

    def receive(self, data: bytes) -> None:
        """Bytes have arrived at the host; none: the other end has closed."""
        if self._ended:
            if data:
                self._say(self._other.reset)
            return
        rng = self._network.rng
        if len(data) > 1 and rng.random() < 0.1:
            at = rng.randrange(1, len(data))
            self._unread += (data[:at], data[at:])
            self.life.run(self._read)
        else:
            self._unread.append(data)
        self.life.run(self._read)

    def _read(self) -> None:
        """Read once, as a loop does when a socket is readable."""
        protocol = self._protocol
        if not self._is_made or not self._reads or self._closing or protocol is None or not self._unread:
            return
        pieces: list[bytes] = []
        size = 0
        while self._unread and size < _READ_BYTES:
            piece = self._unread.popleft()
            if not piece:
                if pieces:
                    self._unread.appendleft(piece)
                break
            pieces.append(piece)
            size += len(piece)
            if self._network.rng.random() < 0.5:
                break
        if pieces:
            self._say(self._other._acknowledged, size)
            _give(protocol, b"".join(pieces))
        else:
            assert isinstance(protocol, asyncio.Protocol | asyncio.BufferedProtocol)
            if not protocol.eof_received():
                self.close()
        if self._unread:
            asyncio.get_running_loop().call_soon(self._read)

    def reset(self) -> None:
        """The other end has reset the connection."""
        self.lost(ConnectionResetError(errno.ECONNRESET, os.strerror(errno.ECONNRESET)))

    def lost(self, error: OSError) -> None:
        """The connection is broken."""
        if not self._ended:
            self.life.run(self._break, error)

    def _break(self, error: OSError) -> None:
        if not self._ended:
            self._closing = True
            self._buffer.clear()
            self.buffered = 0
            self._end(error)

    # --- the end ----------------------------------------------------------------------------------

    def _finish(self, error: OSError | None) -> None:
        """Close behind what was written."""
        if not self._ended:
            self._say(self._other.receive, b"")
            self._end(error)

    def _end(self, error: OSError | None) -> None:
        self._ended = True
        self._network.forget(self)
        self._unread.clear()
        protocol = self._protocol
        if protocol is not None:
            asyncio.get_running_loop().call_soon(protocol.connection_lost, error)

    def vanish(self, *, said: bool, reset: bool) -> None:
        """The process has ended.

        Args:
            said: its kernel tells the other end.
            reset: by a reset, and not by an orderly close.
        """
        if self._ended:
            return
        self._ended = self._closing = True
        self._network.forget(self)
        if said and reset:
            self._say(self._other.reset)
        elif said:
            self._say(self._other.receive, b"")


def _give(protocol: asyncio.BaseProtocol, data: bytes) -> None:
    """Give a protocol what was read, as the loop does."""
    if isinstance(protocol, asyncio.BufferedProtocol):
        left = memoryview(data)
        while left:
            buffer = memoryview(protocol.get_buffer(-1))
            size = min(len(buffer), len(left))
            buffer[:size] = left[:size]
            protocol.buffer_updated(size)
            left = left[size:]
    else:
        assert isinstance(protocol, asyncio.Protocol)
        protocol.data_received(data)
