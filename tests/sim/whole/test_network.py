"""Simulated connections: what arrives, what waits, and how they end."""

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from typing import Any, NamedTuple

import pytest

from pixy.errors import StartError
from tests.sim.kit.lives import Life, LivesLoop
from tests.sim.kit.scene import Scene
from tests.sim.whole.network import CALM, SimulatedNetwork, Weather


class Address(NamedTuple):
    host: str
    port: int


A, B = "127.0.0.1", "127.0.0.2"
SERVER = Address(B, 19094)


class Ears(asyncio.Protocol):
    """Remembers what it hears."""

    def __init__(self) -> None:
        self.transport: asyncio.Transport
        self.heard = b""
        self.pieces = 0
        self.ended: Exception | str | None = ""
        self.writable = True

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.heard += data
        self.pieces += 1

    def connection_lost(self, exc: Exception | None) -> None:
        self.ended = exc

    def pause_writing(self) -> None:
        self.writable = False

    def resume_writing(self) -> None:
        self.writable = True


class Buffered(asyncio.BufferedProtocol):
    """The same, with a small buffer of its own."""

    def __init__(self) -> None:
        self.buffer = bytearray(5)
        self.heard = b""

    def get_buffer(self, sizehint: int) -> memoryview:
        return memoryview(self.buffer)

    def buffer_updated(self, nbytes: int) -> None:
        self.heard += self.buffer[:nbytes]


class Pair:
    """Two processes on two hosts, and a connection between them."""

    def __init__(self, loop: LivesLoop, weather: Weather) -> None:
        self.scene = Scene(1, loop)
        self.network = SimulatedNetwork(self.scene, weather)
        self.client_life, self.server_life = Life(loop, 1), Life(loop, 2)
        self.servers: list[Any] = []
        self.client: Any = Ears()
        self.error: BaseException | None = None
        self.protocol: Callable[[], Any] = Ears
        for host in (A, B):
            self.network.turn_on(host)

    @property
    def server(self) -> Any:
        return self.servers[-1]

    def listen(self) -> None:
        def accept() -> Any:
            self.servers.append(self.protocol())
            return self.servers[-1]

        self.server_life.run(self._begin, self.network.of(B, self.server_life).listen(accept, SERVER))

    def connect(self) -> None:
        self.client_life.run(self._begin, self._connect())

    def _begin(self, coroutine: Coroutine[Any, Any, Any]) -> None:
        asyncio.get_running_loop().create_task(coroutine)

    async def _connect(self) -> None:
        try:
            await self.network.of(A, self.client_life).connect(lambda: self.client, SERVER)
        except OSError as error:
            self.error = error

    def write(self, data: bytes) -> None:
        self.client_life.run(self.client.transport.write, data)

    async def open(self) -> None:
        self.listen()
        self.connect()
        await asyncio.sleep(1)


Story = Callable[[Pair], Coroutine[Any, Any, None]]


@pytest.fixture
def play() -> Iterator[Callable[..., Pair]]:
    loop = LivesLoop()

    def play(story: Story, weather: Weather = CALM) -> Pair:
        async def run() -> Pair:
            pair = Pair(loop, weather)
            await story(pair)
            assert pair.scene.failure is None
            return pair

        return loop.run_until_complete(run())

    yield play
    loop.close()


Play = Callable[..., Pair]


def test_bytes_arrive_in_order(play: Play) -> None:
    async def story(pair: Pair) -> None:
        await pair.open()
        for number in range(100):
            pair.write(b"%d " % number)
        await asyncio.sleep(5)
        assert pair.server.heard == b"".join(b"%d " % number for number in range(100))
        assert pair.server.transport.get_extra_info("peername")[0] == A
        pair.server_life.run(pair.server.transport.writelines, [b"a", b"b"])
        await asyncio.sleep(1)
        assert pair.client.heard == b"ab"

    play(story, Weather((0.001, 0.05), lost=0.2))


def test_a_buffered_protocol_is_given_its_buffer(play: Play) -> None:
    async def story(pair: Pair) -> None:
        pair.protocol = Buffered
        await pair.open()
        pair.write(b"more than its buffer")
        await asyncio.sleep(1)
        assert pair.server.heard == b"more than its buffer"

    play(story)


def test_nobody_listens_or_nobody_is_there(play: Play) -> None:
    async def story(pair: Pair) -> None:
        pair.connect()
        await asyncio.sleep(1)
        assert isinstance(pair.error, ConnectionRefusedError)
        pair.error = None
        pair.network.ended(B, pair.server_life, power=True)
        pair.connect()
        await asyncio.sleep(30)
        assert isinstance(pair.error, TimeoutError)

    play(story)


def test_an_address_is_taken_once(play: Play) -> None:
    async def story(pair: Pair) -> None:
        network = pair.network.of(B, pair.server_life)
        listening = await network.listen(Ears, SERVER)
        with pytest.raises(StartError, match="in use"):
            await network.listen(Ears, SERVER)
        with pytest.raises(StartError, match="not an address of this host"):
            await network.listen(Ears, Address(A, 1))
        await listening.close()
        await network.listen(Ears, SERVER)
        assert (await network.listen(Ears, Address(B, 0))).address.port > 0

    play(story)


def test_what_is_sent_on_a_cut_way_arrives_later(play: Play) -> None:
    async def story(pair: Pair) -> None:
        await pair.open()
        pair.network.cut([(A, B)], 10)
        pair.write(b"late")
        pair.server_life.run(pair.server.transport.write, b"soon")
        await asyncio.sleep(9)
        assert (pair.server.heard, pair.client.heard) == (b"", b"soon")
        await asyncio.sleep(4)
        assert pair.server.heard == b"late"

    play(story)


def test_a_connection_is_made_once_both_ways_are_open(play: Play) -> None:
    async def story(pair: Pair) -> None:
        pair.listen()
        pair.network.cut([(B, A)], 5)
        pair.connect()
        await asyncio.sleep(4)
        assert not pair.servers
        await asyncio.sleep(4)
        assert pair.server.transport

    play(story)


def test_a_process_that_does_not_read_stops_its_sender(play: Play) -> None:
    async def story(pair: Pair) -> None:
        await pair.open()
        pair.server_life.pause()
        for _ in range(200):
            pair.write(bytes(1000))
        await asyncio.sleep(1)
        assert not pair.client.writable
        assert pair.client.transport.get_write_buffer_size() == 200_000 - 10_000
        assert pair.server.heard == b""
        pair.server_life.resume()
        await asyncio.sleep(5)
        assert pair.client.writable
        assert len(pair.server.heard) == 200_000

    play(story, Weather((0.001, 0.002), window_bytes=10_000))


@pytest.mark.slow
def test_pieces_do_not_become_ever_smaller(play: Play) -> None:
    async def story(pair: Pair) -> None:
        await pair.open()
        pair.write(bytes(1_000_000))
        await asyncio.sleep(60)
        assert len(pair.server.heard) == 1_000_000
        assert pair.server.pieces < 3000

    play(story, Weather((0.001, 0.002), window_bytes=4000))


def test_reading_may_be_paused(play: Play) -> None:
    async def story(pair: Pair) -> None:
        await pair.open()
        pair.server_life.run(pair.server.transport.pause_reading)
        pair.write(b"data")
        await asyncio.sleep(1)
        assert pair.server.heard == b""
        pair.server_life.run(pair.server.transport.resume_reading)
        await asyncio.sleep(1)
        assert pair.server.heard == b"data"

    play(story)


def test_a_close_follows_what_was_written(play: Play) -> None:
    async def story(pair: Pair) -> None:
        await pair.open()
        pair.write(bytes(50_000))
        pair.client_life.run(pair.client.transport.close)
        assert pair.client.transport.is_closing()
        await asyncio.sleep(5)
        assert len(pair.server.heard) == 50_000
        assert (pair.client.ended, pair.server.ended) == (None, None)
        assert pair.network.transports == []

    play(story, Weather((0.001, 0.002), window_bytes=1000))


def test_an_abort_is_a_reset(play: Play) -> None:
    async def story(pair: Pair) -> None:
        await pair.open()
        pair.client_life.run(pair.client.transport.abort)
        await asyncio.sleep(1)
        assert pair.client.ended is None
        assert isinstance(pair.server.ended, ConnectionResetError)

    play(story)


def test_the_end_of_a_process_ends_its_connections(play: Play) -> None:
    async def story(pair: Pair) -> None:
        await pair.open()
        pair.server_life.end()
        pair.network.ended(B, pair.server_life, power=False)
        await asyncio.sleep(1)
        assert pair.client.ended != ""
        assert pair.server.ended == ""
        pair.connect()
        await asyncio.sleep(1)
        assert isinstance(pair.error, ConnectionRefusedError)

    play(story)


def test_a_host_without_power_says_nothing_until_it_is_back(play: Play) -> None:
    async def story(pair: Pair) -> None:
        await pair.open()
        pair.server_life.end()
        pair.network.ended(B, pair.server_life, power=True)
        pair.write(b"hello?")
        await asyncio.sleep(60)
        assert pair.client.ended == ""
        pair.network.turn_on(B)
        await asyncio.sleep(5)
        assert isinstance(pair.client.ended, ConnectionResetError)

    play(story)


def test_connections_may_be_reset_from_outside(play: Play) -> None:
    async def story(pair: Pair) -> None:
        await pair.open()
        pair.network.reset_connections(B, A)
        await asyncio.sleep(1)
        assert isinstance(pair.client.ended, ConnectionResetError)
        assert isinstance(pair.server.ended, ConnectionResetError)

    play(story)


def test_a_byte_may_be_changed(play: Play) -> None:
    async def story(pair: Pair) -> None:
        await pair.open()
        pair.write(bytes(100))
        await asyncio.sleep(1)
        assert len(pair.server.heard) == 100
        assert pair.server.heard != bytes(100)

    play(story, Weather((0.001, 0.002), damaged=1.0))


def test_a_slow_link_takes_its_time(play: Play) -> None:
    async def story(pair: Pair) -> None:
        await pair.open()
        pair.network.slow_down([(A, B)], 20, Weather((0.001, 0.002), bytes_per_s=10_000))
        pair.write(bytes(50_000))
        await asyncio.sleep(3)
        assert 10_000 < len(pair.server.heard) < 40_000
        await asyncio.sleep(3)
        assert len(pair.server.heard) == 50_000

    play(story)


def test_healing_opens_every_way(play: Play) -> None:
    async def story(pair: Pair) -> None:
        await pair.open()
        pair.network.cut([(A, B), (B, A)], 1000)
        assert pair.network.is_cut((A, B))
        pair.write(b"data")
        await asyncio.sleep(10)
        pair.network.heal()
        await asyncio.sleep(3)
        assert pair.server.heard == b"data"

    play(story)


def test_a_paused_process_runs_what_was_ready_then_what_has_come_then_its_timers() -> None:
    order: list[str] = []

    async def story() -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, LivesLoop)
        life = Life(loop, 1)
        life.run(loop.call_later, 1, order.append, "timer")
        cancelled: list[asyncio.TimerHandle] = []
        life.run(lambda: cancelled.append(loop.call_later(2, order.append, "cancelled")))
        life.run(loop.call_later, 9, order.append, "later")
        life.run(loop.call_soon, order.append, "ready")
        life.pause()
        await asyncio.sleep(3)
        life.run(order.append, "arrived")
        life.run(cancelled[0].cancel)
        assert order == []
        life.resume()
        await asyncio.sleep(1)
        assert order == ["ready", "arrived", "timer"]
        await asyncio.sleep(9)
        assert order[3:] == ["later"]

    loop = LivesLoop()
    loop.run_until_complete(story())
    loop.close()
