"""The relays between nodes delay, hold and reset what they are told to, and nothing else."""

import asyncio
import gc
import os
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, asynccontextmanager, closing, suppress
from typing import NamedTuple

import pytest

from tests.fakes.waiting import until
from tests.integration.links import Links

SECONDS = 30.0
A_WHILE_S = 0.1
"""Nothing that is held may arrive in this time."""


class Side(NamedTuple):
    """One side of a connection."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    async def receives(self, expected: bytes) -> None:
        assert await asyncio.wait_for(self.reader.readexactly(len(expected)), SECONDS) == expected

    async def receives_nothing(self) -> None:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(self.reader.read(1), A_WHILE_S)


@pytest.fixture
def links() -> Iterator[Links]:
    """Links between two nodes. The first one is this process, which also listens for the second."""
    links = Links(2)
    links.joined(1, os.getpid())
    yield links
    links.close()


@pytest.fixture
async def accepted(links: Links) -> AsyncIterator["asyncio.Queue[Side]"]:
    """The second node's sides of the connections to it."""
    sides: asyncio.Queue[Side] = asyncio.Queue()
    writers: list[asyncio.StreamWriter] = []

    def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writers.append(writer)
        sides.put_nowait(Side(reader, writer))

    host, port = links.listening(2).split(":")
    server = await asyncio.start_server(accept, host, int(port))
    yield sides
    server.close()
    for writer in writers:
        writer.transport.abort()


@asynccontextmanager
async def dialled(links: Links) -> AsyncIterator[Side]:
    """A connection of the first node to the second."""
    host, port = links.advertised(2).split(":")
    side = Side(*await asyncio.open_connection(host, int(port)))
    try:
        yield side
    finally:
        side.writer.transport.abort()


async def test_bytes_and_ends_pass(links: Links, accepted: "asyncio.Queue[Side]") -> None:
    async with dialled(links) as one:
        one.writer.write(b"question")
        two = await accepted.get()
        await two.receives(b"question")
        two.writer.write(b"answer")
        await one.receives(b"answer")
        one.writer.write_eof()
        assert await two.reader.read() == b""
        two.writer.write(b"rest")
        two.writer.close()
        assert await one.reader.read() == b"rest"


@pytest.mark.slow
async def test_a_cut_link_holds_one_direction(links: Links, accepted: "asyncio.Queue[Side]") -> None:
    async with dialled(links) as one:
        one.writer.write(b"1")
        two = await accepted.get()
        await two.receives(b"1")
        links.cut(1, 2)
        one.writer.write(b"2")
        two.writer.write(b"3")
        await one.receives(b"3")
        await two.receives_nothing()
        links.heal()
        await two.receives(b"2")


@pytest.mark.slow
@pytest.mark.parametrize("cut", [(1, 2), (2, 1)])
async def test_connections_over_a_cut_link_get_no_answer(
    links: Links, accepted: "asyncio.Queue[Side]", cut: tuple[int, int]
) -> None:
    links.cut(*cut)
    async with dialled(links) as given_up:
        given_up.writer.write(b"1")
    async with dialled(links) as one:
        one.writer.write(b"2")
        await one.receives_nothing()
        assert accepted.empty()
        links.heal()
        two = await accepted.get()
        await two.receives(b"2")
        assert accepted.empty()


@pytest.mark.slow
async def test_a_reset_passes_unless_the_link_is_cut(links: Links, accepted: "asyncio.Queue[Side]") -> None:
    async with dialled(links) as one:
        one.writer.write(b"1")
        two = await accepted.get()
        await two.receives(b"1")
        links.cut(1, 2)
    await two.receives_nothing()
    links.heal()
    await ends(two)


async def test_all_connections_of_two_nodes_can_be_reset(
    links: Links, accepted: "asyncio.Queue[Side]"
) -> None:
    async with dialled(links) as one:
        one.writer.write(b"1")
        two = await accepted.get()
        await two.receives(b"1")
        links.reset(2, 1)
        await ends(one)
        await ends(two)


@pytest.mark.slow
async def test_slow_links_delay_everything_and_lost_segments_longer(
    links: Links, accepted: "asyncio.Queue[Side]"
) -> None:
    loop = asyncio.get_running_loop()
    async with dialled(links) as one:
        one.writer.write(b"1")
        two = await accepted.get()
        await two.receives(b"1")
        for loss, shortest_s in ((0.0, 0.1), (1.0, 0.3)):
            links.slow_down(0.1, loss)
            began = loop.time()
            one.writer.write(b"2")
            await two.receives(b"2")
            assert loop.time() - began >= shortest_s


async def test_a_refused_connection_ends(links: Links) -> None:
    await is_refused(links)


async def test_only_nodes_get_through(links: Links, accepted: "asyncio.Queue[Side]") -> None:
    links.joined(1, 0)
    await is_refused(links)
    assert accepted.empty()


async def is_refused(links: Links) -> None:
    # The reset may come before the dialling side has found out that the connection stands.
    with suppress(ConnectionError):
        async with dialled(links) as side:
            await ends(side)


async def ends(side: Side) -> None:
    async def has_ended() -> bool:
        try:
            return await side.reader.read(1) == b""
        except ConnectionError:
            return True

    await until(has_ended)


@pytest.mark.slow
def test_connections_that_come_with_the_end_are_closed() -> None:
    for _ in range(20):
        dialled: list[socket.socket] = []
        with closing(Links(2)) as links:
            links.joined(1, os.getpid())
            host, port = links.advertised(2).split(":")
            for _ in range(5):
                # Nobody listens behind the relay: its reset may come while this still dials.
                with suppress(ConnectionResetError):
                    dialled.append(socket.create_connection((host, int(port)), SECONDS))
        for each in dialled:
            with each, suppress(ConnectionError):
                assert each.recv(1) == b""
    gc.collect()  # what was not closed warns


@pytest.mark.slow
def test_connections_that_end_with_the_links_are_closed() -> None:
    for _ in range(20):
        with closing(Links(2)) as links, ExitStack() as sockets:
            links.joined(1, os.getpid())
            host, port = links.listening(2).split(":")
            server = sockets.enter_context(socket.create_server((host, int(port))))
            host, port = links.advertised(2).split(":")
            for _ in range(10):
                sockets.enter_context(socket.create_connection((host, int(port)), SECONDS))
                sockets.enter_context(server.accept()[0])
    gc.collect()
