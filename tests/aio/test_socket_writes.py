"""pixy/aio/socket_writes.py: what is written arrives whole and in order, and never elsewhere."""

import asyncio
import contextlib
import os
import socket
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import uvloop

from pixy.aio.socket_writes import write_of

LOOPS = [asyncio.new_event_loop, uvloop.new_event_loop]
_DEADLINE_S = 20.0


class Told(asyncio.Protocol):
    """Hears of the end of its transport."""

    def __init__(self) -> None:
        self.ended = asyncio.Event()

    def connection_lost(self, exc: Exception | None) -> None:
        """See `asyncio.BaseProtocol`."""
        self.ended.set()


def run(new_loop: Callable[[], Any], test: Callable[[Any, socket.socket], Awaitable[None]]) -> None:
    """Run a test with the transport of one socket of a pair, and the other socket."""

    async def main() -> None:
        ours, theirs = socket.socketpair()
        theirs.setblocking(False)
        with theirs:
            loop = asyncio.get_running_loop()
            transport, _ = await loop.create_connection(Told, sock=ours)
            try:
                await asyncio.wait_for(test(transport, theirs), _DEADLINE_S)
            finally:
                transport.abort()

    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(main())


async def read(reader: socket.socket, size: int) -> bytes:
    """Exactly so many bytes."""
    data = b""
    while len(data) < size:
        data += await asyncio.get_running_loop().sock_recv(reader, size - len(data))
    return data


class Spied:
    """A transport that notes what it is asked to write."""

    def __init__(self, transport: Any) -> None:
        self._transport = transport
        self.written = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def write(self, data: bytes) -> None:
        """Write, and note it."""
        self.written += len(data)
        self._transport.write(data)


@pytest.mark.parametrize("new_loop", LOOPS)
def test_the_transport_gets_only_what_the_socket_does_not_take(new_loop: Callable[[], Any]) -> None:
    async def test(transport: Any, reader: socket.socket) -> None:
        spied = Spied(transport)
        write = write_of(spied)  # type: ignore[arg-type]
        write(b"small")
        assert spied.written == 0
        assert await read(reader, 5) == b"small"
        parts = [bytes([number]) * 300_000 for number in range(20)]
        data = b""
        for part in parts:
            write(part)
            with contextlib.suppress(BlockingIOError):
                data += reader.recv(1 << 20)  # there is room again, and something before the next part
        size = sum(map(len, parts))
        assert 0 < spied.written < size
        assert data + await read(reader, size - len(data)) == b"".join(parts)

    run(new_loop, test)


@pytest.mark.parametrize("new_loop", LOOPS)
def test_a_closed_transport_writes_nothing_to_whoever_has_its_descriptor_now(
    new_loop: Callable[[], Any],
) -> None:
    async def test(transport: Any, reader: socket.socket) -> None:
        write = write_of(transport)
        descriptor = transport.get_extra_info("socket").fileno()
        transport.abort()
        assert await asyncio.get_running_loop().sock_recv(reader, 1) == b""
        other, another = socket.socketpair()
        with other, another:
            if descriptor not in (other.fileno(), another.fileno()):
                os.dup2(other.fileno(), descriptor)
            with contextlib.suppress(RuntimeError):  # of uvloop
                write(b"for the former one")
            for each in (other, another):
                each.setblocking(False)
                with pytest.raises(BlockingIOError):
                    each.recv(1)

    run(new_loop, test)


@pytest.mark.parametrize("new_loop", LOOPS)
def test_a_write_to_a_socket_whose_peer_is_gone_ends_the_transport(new_loop: Callable[[], Any]) -> None:
    async def test(transport: Any, reader: socket.socket) -> None:
        transport.pause_reading()
        write = write_of(transport)
        reader.close()
        write(b"for nobody")
        await transport.get_protocol().ended.wait()

    run(new_loop, test)


def test_a_transport_without_a_socket_and_one_of_tls_write_by_themselves() -> None:
    class Bare(asyncio.WriteTransport):
        def write(self, data: Any) -> None:
            """Never called."""

    bare, tls = Bare(), Bare({"socket": socket.socket(), "sslcontext": object()})
    with tls.get_extra_info("socket"):
        assert write_of(bare) == bare.write
        assert write_of(tls) == tls.write
