"""Connections to a node, opened by a program that may be anything."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import replace
from operator import length_hint

import pytest
from google.protobuf.message import DecodeError
from structlog.testing import capture_logs

from pixy.errors import Unavailable
from pixy.peers import FrameDamage, Hello, NextSlice, PeerOptions
from pixy.peers.frames import (
    ACCEPTED,
    ALIVE,
    ANSWER,
    CALL,
    CLOSING,
    FAILURE,
    HANDSHAKE_BYTES_MAX,
    HEAD_BYTES,
    HELLO,
    MESSAGE,
    NOT_YET,
    PING,
    PROOF,
    REFUSED,
    PeerFrame,
    PeerFrameReader,
    frame_head,
)
from pixy.peers.hello import Greeting, LinkPurpose, Opening
from pixy.peers.stranger_log import LINES_MAX
from tests.fakes.waiting import until
from tests.peers.support import LOOPBACK, PeerNode, hello_of, peer_nodes

MESSAGE_BYTES_MAX = PeerOptions().main_bytes_max


class RawPeer:
    """A connection whose frames are written and read one by one."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self.writer = writer
        self._frames = PeerFrameReader(64 << 20)

    def send(self, kind: int, payload: bytes = b"", *, method: int = 0, number: int = 0) -> None:
        self.writer.write(frame_head(kind, method, 1000, number, [payload], len(payload)) + payload)

    async def read(self) -> PeerFrame:
        """The next frame that is no keep-alive.

        Raises:
            IncompleteReadError: the connection has ended.
        """
        while True:
            head = await self._reader.readexactly(HEAD_BYTES)
            body = await self._reader.readexactly(int.from_bytes(head[:4], "big"))
            buffer = self._frames.buffer()
            buffer[: len(head) + len(body)] = head + body
            ((kind, method, milliseconds, number, payload),) = self._frames.received(len(head) + len(body))
            if kind != ALIVE:
                return kind, method, milliseconds, number, bytes(payload)

    async def open(self, purpose: LinkPurpose = LinkPurpose.MAIN, hello: Hello | None = None) -> None:
        """The handshake of node 9."""
        await self.begin(purpose)
        await self.finish(purpose, hello)

    async def finish(self, purpose: LinkPurpose = LinkPurpose.MAIN, hello: Hello | None = None) -> None:
        """The handshake from the own greeting on."""
        self.greet(purpose, hello)
        assert (await self.read())[0] == ACCEPTED

    def greet(self, purpose: LinkPurpose = LinkPurpose.MAIN, hello: Hello | None = None) -> None:
        """Send the own greeting, with nothing to prove."""
        greeting = Greeting(hello or hello_of(9), purpose, bytes(32), False)
        self.send(HELLO, greeting.encode(with_secret=False))
        self.send(PROOF)

    async def begin(self, purpose: LinkPurpose = LinkPurpose.MAIN, cluster: str = "default") -> None:
        """The handshake up to the greeting of the other side."""
        self.send(HELLO, Opening(cluster, purpose, bytes(32), False).encode())
        assert (await self.read())[0] == HELLO
        self.send(PROOF)
        assert (await self.read())[0] == HELLO
        assert (await self.read())[0] == PROOF

    async def reason(self) -> str:
        """Text of the last frame, behind which the connection ends."""
        kind, *_, payload = await self.read()
        assert kind in (CLOSING, REFUSED, NOT_YET)
        with pytest.raises(asyncio.IncompleteReadError):
            await self.read()
        return bytes(payload).decode()


@asynccontextmanager
async def raw_peer(node: PeerNode) -> AsyncIterator[RawPeer]:
    reader, writer = await asyncio.open_connection(*node.address)
    try:
        yield RawPeer(reader, writer)
    finally:
        writer.close()
        await asyncio.wait([asyncio.ensure_future(_closed(writer))])


async def _closed(writer: asyncio.StreamWriter) -> None:
    try:
        await writer.wait_closed()
    except ConnectionError:
        return


@asynccontextmanager
async def one_node(options: PeerOptions | None = None) -> AsyncIterator[PeerNode]:
    async with peer_nodes(1, options) as (node,):
        yield node


async def test_a_message_comes_as_it_was_sent() -> None:
    async with one_node() as node, raw_peer(node) as peer:
        await peer.open()
        peer.send(MESSAGE, b"raft", method=200)
        await until(lambda: node.messages == [(9, 200, b"raft")])


async def test_a_ping_is_answered() -> None:
    async with (
        one_node(PeerOptions(address=LOOPBACK, mutual_tls=True, alive_s=1000.0)) as node,
        raw_peer(node) as peer,
    ):
        await peer.open()
        peer.send(PING)
        assert (await peer._reader.readexactly(HEAD_BYTES))[8] == ALIVE


async def test_a_call_that_is_too_large_for_its_answer_fails() -> None:
    async def answer(_: Hello, __: int, ___: bytes) -> bytes:
        return bytes(MESSAGE_BYTES_MAX + 1)

    async with one_node() as node, raw_peer(node) as peer:
        node.on_call = answer
        await peer.open()
        peer.send(CALL, number=3)
        kind, _, _, number, payload = await peer.read()
        assert (kind, number) == (FAILURE, 3)
        assert b"at most 16777216 are allowed" in bytes(payload)


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", "a frame has 1195725856 bytes"),
        (bytes(100), "the length of a frame, 0 bytes, is damaged"),
        (frame_head(HELLO, 0, 0, 0, [], HANDSHAKE_BYTES_MAX + 1), "a frame has 65537 bytes, at most 65536"),
        (frame_head(MESSAGE, 0, 0, 0, [], 0), "frame 8 in a handshake that awaits opening"),
        (frame_head(77, 0, 0, 0, [], 0), "frame 77 in a handshake"),
        (frame_head(HELLO, 0, 0, 0, [b"\xff"], 1) + b"\xff", "a greeting cannot be parsed"),
    ],
    ids=["HTTP", "zeros", "too long", "too early", "unknown", "no greeting"],
)
async def test_damage_in_the_handshake_ends_the_connection(damage: bytes, reason: str) -> None:
    async with one_node() as node, raw_peer(node) as peer:
        with capture_logs() as logs:
            peer.writer.write(damage)
            assert reason in await peer.reason()
        assert next(entry["log_level"] for entry in logs if reason in entry["reason"]) == "warning"


@pytest.mark.parametrize(
    ("purpose", "damage", "reason"),
    [
        (LinkPurpose.MAIN, frame_head(MESSAGE, 1, 0, 0, [], 4) + b"raft", "a frame of 4 bytes has CRC"),
        (LinkPurpose.MAIN, frame_head(MESSAGE, 1, 0, 0, [], MESSAGE_BYTES_MAX + 1), "at most 16777216"),
        (LinkPurpose.BULK, frame_head(CALL, 1, 0, 0, [], (64 << 20) + 1), "at most 67108864"),
        (LinkPurpose.PASSING, frame_head(CALL, 1, 0, 0, [], (256 << 10) + 1), "at most 262144"),
        (LinkPurpose.BULK, frame_head(MESSAGE, 1, 0, 0, [], 0), "message 1 on a connection for calls"),
        (LinkPurpose.PASSING, frame_head(MESSAGE, 1, 0, 0, [], 0), "message 1 on a connection for calls"),
        (
            LinkPurpose.MAIN,
            frame_head(ANSWER, 0, 0, 1, [], 0),
            "frame 10 on a connection that takes messages",
        ),
        (LinkPurpose.MAIN, frame_head(HELLO, 0, 0, 0, [], 0), "frame 1 on a connection that takes messages"),
    ],
)
async def test_damage_of_an_open_connection_ends_it(purpose: LinkPurpose, damage: bytes, reason: str) -> None:
    async with one_node() as node, raw_peer(node) as peer:
        await peer.open(purpose)
        peer.writer.write(damage)
        assert reason in await peer.reason()
        assert node.messages == []


async def test_frames_before_the_damage_count() -> None:
    async with one_node() as node, raw_peer(node) as peer:
        await peer.open()
        peer.send(MESSAGE, b"good")
        await until(lambda: node.messages)
        peer.writer.write(bytes(50))
        await peer.reason()
        assert node.messages == [(9, 0, b"good")]


async def test_a_connection_that_says_nothing_is_cut_off() -> None:
    async with (
        one_node(PeerOptions(address=LOOPBACK, mutual_tls=True, handshake_s=0.05)) as node,
        raw_peer(node) as peer,
    ):
        with pytest.raises((asyncio.IncompleteReadError, ConnectionResetError)):
            await peer.read()


async def cut_off(peer: RawPeer) -> None:
    """Wait for the end of a connection."""
    with pytest.raises((asyncio.IncompleteReadError, ConnectionResetError)):
        await peer.read()


async def test_connections_that_say_nothing_keep_nobody_out() -> None:
    options = PeerOptions(address=LOOPBACK, mutual_tls=True, handshakes_max=4, handshake_s=60.0)
    async with one_node(options) as node, AsyncExitStack() as stack:
        silent = [await stack.enter_async_context(raw_peer(node)) for _ in range(6)]
        for peer in silent[:4]:
            await cut_off(peer)
        for node_id in (7, 8):
            honest = await stack.enter_async_context(raw_peer(node))
            await honest.begin()
            more = [await stack.enter_async_context(raw_peer(node)) for _ in range(6)]
            await cut_off(more[0])
            await honest.finish(hello=hello_of(node_id))


async def test_handshakes_that_do_not_go_on_give_way_to_new_ones() -> None:
    options = PeerOptions(address=LOOPBACK, mutual_tls=True, handshakes_max=4, handshake_s=60.0)
    async with one_node(options) as node, AsyncExitStack() as stack:
        begun = []
        for _ in range(4):
            begun.append(await stack.enter_async_context(raw_peer(node)))
            await begun[-1].begin()
        await cut_off(begun[0])
        await (await stack.enter_async_context(raw_peer(node))).open()


@pytest.mark.slow
@pytest.mark.parametrize("kind", [REFUSED, NOT_YET, CLOSING, 77])
async def test_what_a_stranger_says_is_a_bounded_number_of_short_lines(kind: int) -> None:
    async with one_node() as node:
        with capture_logs() as logs:
            for number in range(2 * LINES_MAX):
                async with raw_peer(node) as peer:
                    peer.send(kind, b"%d\x1b]0;title\x07\x1b[2J\r\n" % number + b"A" * 2000)
                    await peer.writer.drain()
                await until(lambda: not node.peers._environment.links)
        assert len(logs) == LINES_MAX
        assert all(len(str(value)) <= 200 for entry in logs for value in entry.values())
        assert all(str(value).isprintable() for entry in logs for value in entry.values())


@pytest.mark.parametrize("greeted", [False, True])
@pytest.mark.parametrize("frames", [(PING,), (ALIVE,), (CLOSING, CLOSING), (CLOSING, PING)])
async def test_nothing_that_keeps_a_connection_alive_is_taken_in_its_handshake(
    frames: tuple[int, ...], greeted: bool
) -> None:
    with capture_logs() as logs:
        async with one_node() as node, raw_peer(node) as peer:
            if greeted:
                await peer.begin()
            for kind in frames * 1000:
                peer.send(kind)
            await until(lambda: not node.peers._environment.links)
    reasons = {entry.get("reason") for entry in logs}
    assert reasons & {f"frame {frames[-1]} in a handshake", "a frame behind the last one"}


async def test_few_frames_of_a_stranger_are_parsed_at_once() -> None:
    async with one_node() as node, raw_peer(node) as peer:
        await until(lambda: node.peers._environment.links)
        (link,) = node.peers._environment.links
        assert len(link.get_buffer(1 << 20)) <= 4096
        await peer.open()
        assert len(link.get_buffer(1 << 20)) > 4096


async def test_a_stranger_learns_nothing_of_a_node_with_a_secret() -> None:
    secret = b"0123456789abcdef" * 4
    options = PeerOptions(address=LOOPBACK, secrets=lambda: (secret,))
    async with one_node(options) as node:
        hello, heard = node.hello, list[bytes]()
        greeting = Greeting(hello_of(9), LinkPurpose.MAIN, bytes(32), True)
        openings = [
            Opening("default", purpose, bytes(32), proves).encode()
            for purpose in LinkPurpose
            for proves in (False, True)
        ]
        for first in (*openings, greeting.encode(with_secret=True), b"", b"x"):
            async with raw_peer(node) as peer:
                peer.send(HELLO, first)
                peer.send(PROOF, bytes(32))
                with suppress(asyncio.IncompleteReadError, ConnectionResetError):
                    while True:
                        heard.append(bytes((await peer.read())[4]))
        for known in (hello.cluster_id, hello.secret, hello.process, b"node1", b"1.0"):
            assert not any(known in each for each in heard)
        for each in heard:
            assert len(each) != 32, "no HMAC"


async def test_a_node_that_stops_accepts_nobody() -> None:
    async with one_node() as node, raw_peer(node) as peer:
        node.admit = lambda _: "asked after its end"
        await peer.begin()
        await node.channel.stop()
        peer.greet()
        assert await peer.reason() == "the node is stopping"


async def test_a_connection_of_the_same_process_replaces_the_old_one() -> None:
    async with one_node() as node, raw_peer(node) as old, raw_peer(node) as new, raw_peer(node) as bulk:
        await old.open()
        await bulk.open(LinkPurpose.BULK)
        await new.open()
        assert await old.reason() == "a newer connection replaces this one"
        new.send(MESSAGE, b"new")
        await until(lambda: node.messages == [(9, 0, b"new")])
        bulk.send(CALL, b"x", number=1)
        assert (await bulk.read())[0] == ANSWER


async def test_a_connection_of_another_process_with_the_id_is_refused() -> None:
    async with one_node() as node, raw_peer(node) as one, raw_peer(node) as copy:
        await one.open()
        await copy.begin()
        copy.greet(hello=replace(hello_of(9), process=b"the copy"))
        assert "has the id of node 9" in await copy.reason()
        one.send(MESSAGE, b"still here")
        await until(lambda: node.messages)


async def test_an_exception_of_the_layer_above_ends_the_connection_alone() -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("a bug")

    async with one_node() as node, raw_peer(node) as peer:
        await peer.open()
        node.on_message = fail
        peer.send(MESSAGE, b"x")
        assert "an internal error" in await peer.reason()
        assert [str(fault) for fault in node.faults] == ["a bug"]
        node.faults.clear()
        node.on_message = None
        async with raw_peer(node) as again:
            await again.open()
            again.send(MESSAGE, b"x")
            await until(lambda: node.messages)


@pytest.mark.parametrize("error", [FrameDamage("it is none"), DecodeError("it is none")])
async def test_what_is_malformed_to_the_layer_above_ends_the_connection_with_a_line_a_minute(
    error: Exception,
) -> None:
    def refuse(*_: object) -> None:
        raise error

    async def refuse_call(*_: object) -> bytes:
        raise error

    async with one_node() as node:
        node.on_message, node.on_call = refuse, refuse_call
        with capture_logs() as logs:
            for number in range(4):
                async with raw_peer(node) as peer:
                    await peer.open()
                    if number % 2:
                        peer.send(CALL, b"x", number=1)
                    else:
                        peer.send(MESSAGE, b"x")
                    assert "it is none" in await peer.reason()
        assert node.faults == []
        [line] = [each for each in logs if each["event"].startswith("a connection has ended")]
        assert (line["peer"], line["reason"]) == ("node 9", "it is none")


class SlowMessages:
    """Messages that take a slice for each of their bytes; `iterations` counts those of the loop."""

    def __init__(self, node: PeerNode) -> None:
        node.on_message = self.take
        self.slices: list[int] = []
        self.iterations = 0
        self._loop = asyncio.get_running_loop()
        self._loop.call_soon(self._count)

    def _count(self) -> None:
        self.iterations += 1
        self._loop.call_soon(self._count)

    def take(self, _: int, kind: int, payload: bytes | memoryview) -> NextSlice | None:
        rest = iter(bytes(payload))

        def next_slice() -> bool:
            if next(rest) == 255:
                raise FrameDamage("byte 255 of a message")
            self.slices.append(kind)
            return length_hint(rest) == 0

        return None if next_slice() else next_slice


async def test_a_message_with_much_work_is_worked_off_in_slices_and_those_behind_it_wait() -> None:
    async with one_node() as node, raw_peer(node) as peer:
        await peer.open()
        messages = SlowMessages(node)
        for kind in (1, 2, 3):
            peer.send(MESSAGE, bytes(50), method=kind)
        await peer.writer.drain()
        begin = messages.iterations
        await until(lambda: len(messages.slices) == 150)
        assert messages.iterations - begin >= 100
        assert messages.slices == [1] * 50 + [2] * 50 + [3] * 50
        peer.send(CALL, b"x", number=1)
        assert (await peer.read())[0] == ANSWER


@pytest.mark.slow
async def test_nothing_is_read_of_a_peer_while_its_messages_are_worked_off() -> None:
    async with (
        one_node(PeerOptions(LOOPBACK, mutual_tls=True, silence_s=0.4, alive_s=0.1)) as node,
        raw_peer(node) as peer,
    ):
        await peer.open()
        free = asyncio.Event()

        def take(_: int, kind: int, payload: bytes | memoryview) -> NextSlice:
            node.messages.append((9, kind, bytes(payload)))
            return free.is_set

        node.on_message = take
        peer.send(MESSAGE, b"first", method=1)
        sent = 0
        with suppress(TimeoutError):
            async with asyncio.timeout(0.6):  # longer than silence
                while True:
                    peer.send(MESSAGE, bytes(1 << 20), method=2)
                    sent += 1
                    await peer.writer.drain()
        assert len(node.messages) == 1
        free.set()
        await until(lambda: len(node.messages) == 1 + sent)
        assert sent < 60, "what is sent fills the queue of the sender"
        assert [kind for _, kind, _ in node.messages] == [1] + [2] * sent


async def test_many_short_messages_do_not_make_one_long_slice() -> None:
    async with one_node() as node, raw_peer(node) as peer:
        await peer.open()
        messages = SlowMessages(node)
        begin = messages.iterations
        peer.writer.write(b"".join([frame_head(MESSAGE, 1, 0, 0, [b"x"], 1) + b"x"] * 2000))
        await until(lambda: len(messages.slices) == 2000)
        assert messages.iterations - begin > 2000 / 33


async def test_damage_in_a_later_slice_ends_the_connection_with_the_reason() -> None:
    async with one_node() as node, raw_peer(node) as peer:
        await peer.open()
        messages = SlowMessages(node)
        peer.send(MESSAGE, b"\x00\x00\xff\x00")
        peer.send(MESSAGE, b"\x00")
        assert await peer.reason() == "byte 255 of a message"
        assert len(messages.slices) == 2
        assert node.faults == []


async def test_an_exception_in_a_call_is_internal_for_its_caller() -> None:
    async def fail(_: Hello, method: int, __: bytes) -> bytes:
        raise RuntimeError("a bug")

    def fail_at_once(_: Hello, __: int, ___: bytes) -> "asyncio.Future[bytes]":
        raise RuntimeError("a bug")

    async with one_node() as node, raw_peer(node) as peer:
        await peer.open()
        for number, on_call in enumerate((fail, fail_at_once), 1):
            node.on_call = on_call
            peer.send(CALL, number=number)
            kind, _, _, answered, payload = await peer.read()
            assert (kind, answered) == (FAILURE, number)
            assert b"Internal" in bytes(payload)
            assert b"internal error, id" in bytes(payload)
        assert len(node.faults) == 2
        node.faults.clear()


async def test_a_call_may_be_answered_by_a_future() -> None:
    async with one_node() as node, raw_peer(node) as peer:
        answer: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        node.on_call = lambda *_: answer
        await peer.open()
        peer.send(CALL, number=1)
        answer.set_result(b"here")
        assert (await peer.read())[4] == b"here"


async def test_the_number_of_a_running_call_is_refused() -> None:
    async with one_node() as node, raw_peer(node) as peer:
        answer: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        node.on_call = lambda *_: answer
        await peer.open()
        peer.send(CALL, number=1)
        peer.send(CALL, number=1)
        kind, *_, payload = await peer.read()
        assert kind == FAILURE
        assert b"call 1 of node 9 at node9:1 is running already" in bytes(payload)
        answer.set_result(b"here")
        assert (await peer.read())[0] == ANSWER


async def test_a_peer_learns_why_a_node_has_ended_the_connection() -> None:
    async with peer_nodes(2) as (one, two):
        call = asyncio.ensure_future(one.channel.call(2, 1, b"", 60.0))
        await call
        await two.stop()
        await until(lambda: one.downs)
        with pytest.raises(Unavailable, match="no connection to node 2"):
            await one.channel.call(2, 1, b"", 60.0)


async def test_a_link_whose_transport_has_failed_takes_nothing_and_can_be_closed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The transports of uvloop raise RuntimeError for writes until they have told of their end."""
    async with peer_nodes(2) as (one, _):
        await until(lambda: one.channel.send(2, 1, [b"first"]))
        link = one.channel._ways[2]
        transport = link._transport

        def refuses(*_: object) -> None:
            raise RuntimeError("the handler is closed")

        monkeypatch.setattr(transport, "is_closing", lambda: True)
        monkeypatch.setattr(link, "_write", refuses)
        monkeypatch.setattr(transport, "writelines", refuses)
        await asyncio.sleep(0)
        assert not one.channel.send(2, 1, [b"second"])
        link.close("the node stops")
        monkeypatch.undo()
