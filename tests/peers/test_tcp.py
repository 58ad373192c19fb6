"""Real sockets of peers, on both event loops."""

import asyncio
import socket
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import uvloop

from pixy.errors import StartError
from pixy.peers import Address, TcpNetwork
from tests.fakes.waiting import until
from tests.peers.descriptors import Descriptors

LOOPS = [asyncio.new_event_loop, uvloop.new_event_loop]


class Notes(asyncio.Protocol):
    """Notes its transport and its end."""

    def __init__(self) -> None:
        self.made: asyncio.Future[asyncio.BaseTransport] = asyncio.get_running_loop().create_future()
        self.lost = asyncio.Event()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.made.set_result(transport)

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost.set()


def run(new_loop: Callable[[], Any], scenario: Callable[[], Awaitable[None]]) -> None:
    loop = new_loop()
    try:
        loop.run_until_complete(scenario())
        loop.run_until_complete(loop.shutdown_default_executor())
    finally:
        loop.close()


@pytest.mark.parametrize("new_loop", LOOPS)
def test_small_writes_are_not_delayed_on_either_side(new_loop: Any) -> None:
    async def scenario() -> None:
        accepted: list[Notes] = []

        def accept() -> Notes:
            accepted.append(Notes())
            return accepted[-1]

        network = TcpNetwork()
        listening = await network.listen(accept, Address("127.0.0.1", 0))
        assert listening.address.port > 0
        dialled = Notes()
        await network.connect(lambda: dialled, listening.address)
        await until(lambda: accepted)
        for side in (dialled, accepted[0]):
            transport = await side.made
            found = transport.get_extra_info("socket")
            assert found.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
        (await dialled.made).close()
        await accepted[0].lost.wait()
        await dialled.lost.wait()
        await listening.close()
        with pytest.raises(ConnectionRefusedError):
            await network.connect(Notes, listening.address)

    run(new_loop, scenario)


@pytest.mark.parametrize("side", ["dialling", "accepting"])
@pytest.mark.parametrize("new_loop", LOOPS)
def test_a_protocol_that_has_a_transport_hears_of_its_end(new_loop: Any, side: str) -> None:
    """Also if the caller is cancelled between `connection_made` and the return of the transport."""

    async def scenario() -> None:
        network = TcpNetwork()
        notes: dict[str, Notes] = {}
        end: dict[str, Callable[[], object]] = {}

        class Ending(Notes):
            def connection_made(self, transport: asyncio.BaseTransport) -> None:
                super().connection_made(transport)
                end[side]()

        def protocol_of(its_side: str) -> Callable[[], Notes]:
            return lambda: notes.setdefault(its_side, Ending() if its_side == side else Notes())

        listening = await network.listen(protocol_of("accepting"), Address("127.0.0.1", 0))
        dialling = asyncio.ensure_future(network.connect(protocol_of("dialling"), listening.address))
        closing: list[asyncio.Future[None]] = []
        end["dialling"] = dialling.cancel
        end["accepting"] = lambda: closing.append(asyncio.ensure_future(listening.close()))
        await asyncio.wait({dialling})
        await until(lambda: len(notes) == 2)
        for each in notes.values():
            if each.made.done():
                await asyncio.wait_for(each.lost.wait(), 10)
        assert notes[side].made.done()
        await asyncio.gather(*closing)
        await listening.close()

    run(new_loop, scenario)


@pytest.mark.slow
@pytest.mark.parametrize("new_loop", LOOPS)
def test_the_descriptor_of_a_connection_is_closed_once(new_loop: Any, tmp_path: Path) -> None:
    """It may be that of a file by then. A connection that is reset ends before it is made."""

    class Aborting(Notes):
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            transport.abort()  # type: ignore[attr-defined]  # uvloop's are of a type of their own
            super().connection_made(transport)

    async def scenario() -> None:
        network, descriptors = TcpNetwork(), Descriptors(tmp_path)
        listening = await network.listen(Aborting, Address("127.0.0.1", 0))
        for _ in range(3):
            await network.connect(Aborting, listening.address)
            await descriptors.take()
        await listening.close()
        descriptors.check()

    run(new_loop, scenario)


@pytest.mark.parametrize("new_loop", LOOPS)
def test_an_address_that_cannot_be_used_is_named(new_loop: Any) -> None:
    async def scenario() -> None:
        network = TcpNetwork()
        listening = await network.listen(Notes, Address("127.0.0.1", 0))
        with pytest.raises(
            StartError, match=rf"cannot listen on {listening.address} for peers: Address already"
        ):
            await network.listen(Notes, listening.address)
        with pytest.raises(StartError, match=r"cannot listen on no\.such\.host\.invalid:1 for peers"):
            await network.listen(Notes, Address("no.such.host.invalid", 1))
        await listening.close()

    run(new_loop, scenario)


def connections(address: Address, count: int, source: str) -> list[socket.socket]:
    """Connections in the queue of a listening socket."""
    made = [socket.socket() for _ in range(count)]
    for each in made:
        each.bind((source, 0))
        each.connect(address)
    return made


@pytest.mark.parametrize("new_loop", LOOPS)
def test_a_full_queue_of_connections_is_taken_in_few_iterations(new_loop: Any) -> None:
    async def scenario() -> None:
        accepted: list[Notes] = []

        def accept() -> Notes:
            accepted.append(Notes())
            return accepted[-1]

        listening = await TcpNetwork().listen(
            accept, Address("127.0.0.1", 0), lambda host: host == "127.0.0.1"
        )
        refused = connections(listening.address, 300, "127.0.0.9")
        taken = connections(listening.address, 100, "127.0.0.1")
        iterations = 0
        while len(accepted) < len(taken):
            await asyncio.sleep(0)
            iterations += 1
            assert iterations < 50
        for each in refused:
            with suppress(ConnectionResetError):
                assert each.recv(1) == b"", "it is closed"
        assert len(accepted) == len(taken)
        for each in (*refused, *taken):
            each.close()
        await asyncio.gather(*(notes.lost.wait() for notes in accepted))
        await listening.close()

    run(new_loop, scenario)


async def test_the_addresses_of_a_name_are_known_once_it_was_dialled() -> None:
    network = TcpNetwork()
    nobody = socket.socket()
    nobody.bind(("127.0.0.1", 0))
    assert not network.addresses_of("localhost")
    with pytest.raises(ConnectionRefusedError):
        await network.connect(Notes, Address("localhost", nobody.getsockname()[1]))
    nobody.close()
    assert "127.0.0.1" in network.addresses_of("localhost")


async def test_a_socket_is_usable_again_at_once() -> None:
    network = TcpNetwork()
    first = await network.listen(Notes, Address("127.0.0.1", 0))
    await first.close()
    again = await network.listen(Notes, first.address)
    assert again.address == first.address
    await again.close()


async def test_ipv6_is_spoken() -> None:
    network = TcpNetwork()
    try:
        listening = await network.listen(Notes, Address("::1", 0))
    except StartError:
        pytest.skip("this machine has no IPv6")
    notes = Notes()
    await network.connect(lambda: notes, listening.address)
    (await notes.made).close()
    await notes.lost.wait()
    await listening.close()
