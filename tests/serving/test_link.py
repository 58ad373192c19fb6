"""pixy/serving/link.py: when a connection is read, served and written, its bounds, and its end."""

import asyncio
import gc
import gzip
import select
import socket
from collections.abc import Iterator
from contextlib import AsyncExitStack, closing
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
from hpack import Encoder

from pixy.http2 import ErrorCode, Options
from pixy.http2.frames import FrameType, frame, goaway, unpack_head, window_update
from pixy.rpc import GrpcOptions, JoinedMessage, Status
from pixy.rpc.connection import GrpcConnection
from pixy.serving import Link, ServerOptions
from pixy.serving.fair_scheduler import CREDIT_S, QUANTUM_S
from pixy.serving.workload import Workload
from tests.fakes.clock import FakeClock
from tests.fakes.echo import EchoServer, open_echo, value
from tests.fakes.grpc_client import RawClient, messages_in, open_client, prefixed
from tests.fakes.waiting import until
from tests.serving.support import GREETING, NotedReceipt, connected

UNARY, REPEAT, COLLECT, CHAT = (
    "/test.Echo/Unary",
    "/test.Echo/Repeat",
    "/test.Echo/Collect",
    "/test.Echo/Chat",
)
DISCARDED_BYTES = 1_048_576
PRIORITY = frame(FrameType.PRIORITY, 0, 1, bytes(5))


class SlowClock(FakeClock):
    """A clock on which most of a quantum passes at each call."""

    def monotonic(self) -> float:
        """See `Clock`."""
        self.advance(0.6 * QUANTUM_S)
        return super().monotonic()


def frames(written: bytes | bytearray) -> Iterator[int]:
    """Types of the frames."""
    at = 0
    while at < len(written):
        head = unpack_head(bytes(written), at)[0]
        yield head & 0xFF
        at += 9 + (head >> 8)


# --- input ----------------------------------------------------------------------------------------


async def test_input_beyond_a_slice_is_served_in_later_slices_and_in_order() -> None:
    async with open_echo(limits=ServerOptions(turn_bytes=100)) as echo, open_client(echo.address) as client:
        await client.call(UNARY, value(b"first"))
        streams = [client.request(UNARY, value(b"%d" % number)) for number in range(50)]
        answers = [await client.answer(stream_id) for stream_id in streams]
        assert [answer.body[7:] for answer in answers] == [b"%d" % number for number in range(50)]
        assert echo.server.counters.calls == 51
        assert echo.server.counters.waits > 0


async def test_a_connection_is_not_read_from_until_its_input_is_served() -> None:
    async with open_echo(clock=SlowClock()) as echo:
        connection, transport = connected(echo)
        connection.workload.received(PRIORITY * 2000)
        pending = []
        while connection.core.pending:
            await asyncio.sleep(0)
            pending.append(connection.core.pending)
        assert len(pending) > 1
        assert transport.said == ["pause", "resume"]
        connection.link.connection_lost(None)


async def test_a_read_is_large_only_for_the_rest_of_a_data_frame() -> None:
    async with open_echo() as echo:
        connection, transport = connected(echo)
        body = prefixed(value(bytes(90_000)))
        assert len(connection.link.get_buffer(-1)) == 32_768
        fields = [(":method", "POST"), (":scheme", "http"), (":path", UNARY), (":authority", "x")]
        block = Encoder().encode([*fields, ("content-type", "application/grpc"), ("te", "trailers")])
        head = frame(FrameType.HEADERS, 4, 1, block) + frame(FrameType.DATA, 0, 1, body[:49_152])[:9]
        await bring(connection, head)
        assert len(connection.link.get_buffer(-1)) == 49_152
        await bring(connection, body[:1])
        assert len(connection.link.get_buffer(-1)) == 49_151
        await bring(connection, body[1:16_383])
        assert len(connection.link.get_buffer(-1)) == 32_769
        for at in range(16_383, 49_152, 4096):
            await bring(connection, body[at : min(at + 4096, 49_152)])
            assert len(connection.link.get_buffer(-1)) == 32_768
        await bring(connection, frame(FrameType.DATA, 1, 1, body[49_152:])[:32_768])
        await bring(connection, frame(FrameType.DATA, 1, 1, body[49_152:])[32_768:])
        connection.link.flush()
        # The client's window lets out no more of the answer.
        assert len(transport.written) > 65_535
        connection.link.connection_lost(None)


async def bring(connection: Any, data: bytes) -> None:
    """Bring bytes as a transport does."""
    connection.link.get_buffer(-1)[: len(data)] = data
    connection.link.buffer_updated(len(data))
    await asyncio.sleep(0)
    await until(lambda: not (connection.workload._queued or connection.core.pending))


def read(connection: Any, data: bytes) -> None:
    """Read bytes as a transport does, in the middle of an iteration of the loop."""
    connection.link.get_buffer(-1)[: len(data)] = data
    connection.link.buffer_updated(len(data))


async def test_all_that_an_iteration_of_the_loop_reads_is_read_before_it_is_served_and_answered() -> None:
    async with open_echo(clock=FakeClock()) as echo:
        sides = [connected(echo) for _ in range(3)]
        for connection, _ in sides:
            connection.link.flush()
        said: list[int] = []
        for number, (connection, transport) in enumerate(sides):
            transport.full = partial(said.append, number)
            read(connection, frame(FrameType.PING, 0, 0, b"the ping"))
        assert [connection.workload.bytes_in for connection, _ in sides] == [len(GREETING)] * 3
        # One that is gone by then has nothing to say.
        sides[1][0].link.connection_lost(None)
        await asyncio.sleep(0)
        assert said == [0, 2]
        assert all(sides[number][1].written.endswith(b"the ping") for number in said)
        sides[0][0].link.connection_lost(None)
        sides[2][0].link.connection_lost(None)


async def test_a_large_read_is_served_at_once_behind_all_that_was_read_before() -> None:
    async with open_echo(clock=SlowClock()) as echo:
        (small, _), (large, transport) = connected(echo), connected(echo)
        await until(lambda: not (small.workload._queued or large.workload._queued))
        before = small.workload.bytes_in, large.workload.bytes_in
        read(small, PRIORITY)
        read(large, PRIORITY)
        read(large, PRIORITY * 2000)
        assert small.workload.bytes_in == before[0] + len(PRIORITY)
        assert large.workload.bytes_in == before[1] + 2001 * len(PRIORITY)
        await until(lambda: not (large.workload._queued or large.core.pending))
        # It is paused before the next read.
        assert transport.said == ["pause", "resume"]
        small.link.connection_lost(None)
        large.link.connection_lost(None)


async def test_answers_of_an_iteration_of_the_loop_leave_in_one_write() -> None:
    async with open_echo(clock=FakeClock()) as echo:
        connection, transport = connected(echo)
        connection.link.flush()
        written: list[int] = []
        transport.full = lambda: written.append(len(transport.written))
        for ping in (b"the ping", b"the next"):
            connection.workload.received(frame(FrameType.PING, 0, 0, ping))
        assert not written
        await until(lambda: transport.written.endswith(b"the next"))
        assert len(written) == 1
        connection.link.connection_lost(None)


async def test_input_from_a_paused_transport_is_served_after_the_rest() -> None:
    async with open_echo(clock=FakeClock()) as echo:
        connection, transport = connected(echo)
        connection.workload.received(PRIORITY * 2000)
        assert connection.core.pending
        connection.workload.received(frame(FrameType.PING, 0, 0, b"the last"))
        await until(lambda: transport.written.endswith(b"the last"))
        connection.link.connection_lost(None)


async def test_a_connection_without_credit_queues_and_one_with_credit_is_served_at_once() -> None:
    clock = FakeClock()
    async with open_echo(clock=clock) as echo:
        busy, _ = connected(echo)
        calm, transport = connected(echo)
        busy.workload._credit_s, calm.workload._credit_s = -CREDIT_S, CREDIT_S
        ping = frame(FrameType.PING, 0, 0, b"12345678")
        busy.workload.received(ping)
        assert busy.workload.waits == 0, "the scheduler has time"
        busy.environment.shared.scheduler.charge(QUANTUM_S)
        busy.workload.received(ping)
        assert busy.workload.waits == 1
        calm.workload.received(ping)
        calm.link.flush()
        assert transport.written.endswith(b"12345678")
        assert calm.workload.waits == 0
        await until(lambda: not busy.workload._queued)
        clock.advance(10 * CREDIT_S)
        busy.workload._credit_s = -CREDIT_S / 2
        busy.workload.received(ping)
        assert busy.workload.waits == 1
        for connection in (busy, calm):
            connection.link.connection_lost(None)


async def test_a_client_that_opens_one_connection_after_another_queues_with_each() -> None:
    async with open_echo(clock=FakeClock()) as echo:
        opened = []
        for waits in (0, 1, 1):
            connection, _ = connected(echo)
            opened.append(connection)
            assert connection.workload.waits == waits
            connection.environment.shared.scheduler.charge(QUANTUM_S)
            connection.workload.received(PRIORITY)
            assert connection.workload.waits == 1
        for connection in opened:
            connection.link.connection_lost(None)


async def test_work_is_charged_and_debt_is_bounded() -> None:
    clock = SlowClock()
    async with open_echo(clock=clock) as echo:
        connection, _ = connected(echo)
        before = connection.workload._credit_s = CREDIT_S
        connection.workload.received(PRIORITY * 1000)
        assert connection.workload._credit_s < before
        clock.advance(100)
        connection.workload._spend()
        assert connection.workload._credit_s == -CREDIT_S
        connection.link.connection_lost(None)


async def test_nothing_is_served_while_the_transport_is_full_and_everything_afterwards() -> None:
    async with open_echo(clock=FakeClock()) as echo:
        connection, transport = connected(echo)
        connection.link.pause_writing()
        connection.workload.received(frame(FrameType.PING, 0, 0, b"12345678"))
        await asyncio.sleep(0)
        assert not transport.written.endswith(b"12345678")
        connection.link.resume_writing()
        await until(lambda: transport.written.endswith(b"12345678"))
        assert transport.said[-1] == "resume"
        connection.link.connection_lost(None)


# --- decompression --------------------------------------------------------------------------------


@pytest.mark.slow
async def test_large_messages_are_decompressed_in_several_slices_while_others_are_served() -> None:
    async with open_echo() as echo, open_client(echo.address) as other, AsyncExitStack() as stack:
        await other.call(UNARY, value(b"x"))
        # So many that they take several turns on a fast machine as well.
        clients = [await stack.enter_async_context(open_client(echo.address)) for _ in range(8)]
        for client in clients:
            await client.call(UNARY, value(b"x"))
        message = value(bytes(3_000_000))
        compressed, streams = gzip.compress(message), list[int]()
        for client in clients:
            streams.append(client.begin(UNARY, [("grpc-encoding", "gzip")]))
            client.data(streams[-1], prefixed(compressed, flag=1), end=True)
        waits, served = echo.server.counters.waits, 0
        await until(lambda: any(each.workload._jobs for each in echo.links))
        while any(each.workload._jobs for each in echo.links):
            assert (await other.call(UNARY, value(b"y"))).status == Status.OK
            served += 1
        assert served > 2
        assert echo.server.counters.waits > waits
        for client, stream_id in zip(clients, streams, strict=True):
            client.open_window(0, 2**30)
            client.open_window(stream_id, 2**30)
            assert messages_in((await client.answer(stream_id)).body)[0][1] == message


@pytest.mark.slow
async def test_a_bomb_is_refused_and_the_calls_after_it_are_served() -> None:
    options = replace(GrpcOptions(), message_bytes_max=1_000_000)
    async with open_echo(options) as echo, open_client(echo.address) as client:
        bombs = []
        for _ in range(3):
            bombs.append(client.begin(UNARY, [("grpc-encoding", "gzip")]))
            client.data(bombs[-1], prefixed(gzip.compress(bytes(5_000_000)), flag=1), end=True)
        behind = client.request(UNARY, value(b"behind"))
        assert [(await client.answer(bomb)).status for bomb in bombs] == [Status.RESOURCE_EXHAUSTED] * 3
        assert (await client.answer(behind)).status == Status.OK


async def test_a_streaming_call_gets_its_compressed_messages_one_by_one_and_bombs_are_refused() -> None:
    options = replace(GrpcOptions(), message_bytes_max=1_000_000)
    async with open_echo(options) as echo, open_client(echo.address) as client:
        stream_id = client.begin(COLLECT, [("grpc-encoding", "gzip")])
        for text in (b"a" * 300_000, b"b", b""):
            await client.upload(stream_id, prefixed(gzip.compress(value(text)), flag=1), end=False)
        client.data(stream_id, b"", end=True)
        client.open_window(stream_id, 2**20)
        client.open_window(0, 2**20)
        answer = await client.answer(stream_id)
        assert messages_in(answer.body) == [(0, value(b"a" * 300_000 + b",b,"))]
        stream_id = client.begin(CHAT, [("grpc-encoding", "gzip")])
        client.data(stream_id, prefixed(gzip.compress(bytes(2_000_000)), flag=1), end=True)
        assert (await client.answer(stream_id)).status == Status.RESOURCE_EXHAUSTED


async def test_the_decompression_of_a_message_stops_with_its_call() -> None:
    async with open_echo() as echo, open_client(echo.address) as client:
        stream_id = client.begin(UNARY, [("grpc-encoding", "gzip")])
        client.h2.send_data(
            stream_id, prefixed(gzip.compress(value(bytes(3_000_000))), flag=1), end_stream=True
        )
        client.h2.reset_stream(stream_id, 8)
        client.send()
        assert (await client.call(UNARY, value(b"x"))).status == Status.OK
        assert not any(each.workload._jobs for each in echo.links)
        counters = echo.server.counters
        assert (counters.calls, counters.gone, counters.resets_received) == (2, 1, 1)


# --- memory ---------------------------------------------------------------------------------------


async def test_unread_answers_are_bounded_wherever_they_wait() -> None:
    options = GrpcOptions(http2=Options(output_bytes=1_000_000))
    async with open_echo(options, clock=FakeClock()) as echo:
        connection, transport = connected(echo)
        connection.workload.received(window_update(0, 2**30))
        del transport.written[:]
        client = RawClient(asyncio.StreamReader(), RecordingWriter(), 2**31 - 1, "localhost")  # type: ignore[arg-type]
        client.h2.data_to_send()
        for _ in range(3):
            client.request(UNARY, value(b"hold"))
        connection.workload.received(client.writer.sent)  # type: ignore[attr-defined]
        calls = [call for call, _ in echo.echo.held]
        receipts = [NotedReceipt() for _ in calls]
        connection.workload.received(frame(FrameType.SETTINGS, 0, 0, b"\x00\x04\x7f\xff\xff\xff"))
        calls[0].answer(big(600_000), receipts[0])
        transport.full = connection.link.pause_writing
        connection.link.flush()
        assert len(transport.written) > 600_000
        calls[1].answer(big(300_000), receipts[1])
        calls[2].answer(big(300_000), receipts[2])
        assert receipts[2].said == ["undelivered"], "what the transport holds counts"
        del transport.written[:]
        transport.full = lambda: None
        connection.link.resume_writing()
        connection.link.flush()
        assert [receipt.said for receipt in receipts] == [["delivered"], ["delivered"], ["undelivered"]]
        connection.link.connection_lost(None)


def held_calls(echo: EchoServer, connection: Any, count: int) -> list[Any]:
    """Calls of a client with the widest possible windows."""
    connection.workload.received(window_update(0, 2**30))
    connection.workload.received(frame(FrameType.SETTINGS, 0, 0, b"\x00\x04\x7f\xff\xff\xff"))
    client = RawClient(asyncio.StreamReader(), RecordingWriter(), 2**31 - 1, "localhost")  # type: ignore[arg-type]
    client.h2.data_to_send()
    for _ in range(count):
        client.request(UNARY, value(b"hold"))
    connection.workload.received(client.writer.sent)  # type: ignore[attr-defined]
    return [call for call, _ in echo.echo.held]


@pytest.mark.parametrize("additions", [False, True])
async def test_answers_of_one_iteration_are_accepted_while_the_transport_takes_more(additions: bool) -> None:
    options = GrpcOptions(http2=Options(output_bytes=1_000_000))
    async with open_echo(options, clock=FakeClock()) as echo:
        connection, transport = connected(echo)
        calls = held_calls(echo, connection, 13)
        receipts = [NotedReceipt() for _ in calls]
        for call, receipt in zip(calls[:12], receipts, strict=False):
            if additions:
                call.add_trailing_metadata("a", "b")
            call.answer(big(300_000), receipt)
        assert not any(receipt.said for receipt in receipts), "before the end of the turn"
        # What is written now is more than the transport likes.
        del transport.written[:]
        transport.full = connection.link.pause_writing
        calls[12].answer(big(300_000), receipts[12])
        assert receipts[12].said == ["undelivered"]
        transport.full = lambda: None
        connection.link.resume_writing()
        connection.link.flush()
        assert [receipt.said for receipt in receipts] == [["delivered"]] * 12 + [["undelivered"]]
        connection.link.connection_lost(None)


async def test_a_large_answer_is_written_in_several_iterations_and_delivered_in_the_last() -> None:
    options = GrpcOptions(http2=Options(output_bytes=8_000_000))
    async with open_echo(options, clock=FakeClock()) as echo:
        connection, transport = connected(echo)
        (call,) = held_calls(echo, connection, 1)
        answer, receipt, written = big(5_000_000).SerializeToString(), NotedReceipt(), list[int]()

        def note() -> None:
            assert not receipt.said
            written.append(len(transport.written))
            del transport.written[:]

        note()
        transport.full = note
        message = JoinedMessage(answer[at : at + 100_000] for at in range(0, len(answer), 100_000))
        call.answer(message, receipt)
        await until(lambda: receipt.said)
        assert receipt.said == ["delivered"]
        assert sum(written) > 5_000_000
        assert len(written) > 5
        assert max(written) < 1_200_000
        connection.link.connection_lost(None)


@pytest.mark.parametrize("closes", ["before the write", "with the answer"])
async def test_a_client_that_closes_has_got_what_was_written_before(closes: str) -> None:
    """A client on another core may read its answer and close before the write returns."""
    server, client = socket.socketpair()
    async with open_echo(clock=FakeClock()) as echo:
        connection, transport = connected(echo)
        transport.below = server
        (call,) = held_calls(echo, connection, 1)
        if closes == "before the write":
            client.close()
        else:
            transport.full = client.close
        receipt = NotedReceipt()
        call.answer(big(1), receipt)
        connection.link.flush()
        connection.link.connection_lost(None)
        await until(lambda: receipt.said)
        assert receipt.said == ["undelivered" if closes == "before the write" else "delivered"]
    server.close()


async def test_answers_that_wait_for_the_clients_windows_are_refused_beyond_the_limit() -> None:
    options = GrpcOptions(http2=Options(output_bytes=1_000_000))
    async with open_echo(options) as echo, open_client(echo.address) as client:
        streams = [client.request(UNARY, value(b"hold")) for _ in range(12)]
        await until(lambda: len(echo.echo.held) == 12)
        for call, _ in echo.echo.held:
            call.answer(big(300_000))
        resets = [(await client.answer(stream_id)).reset for stream_id in streams[3:]]
        assert resets == [ErrorCode.ENHANCE_YOUR_CALM] * 9
        client.open_window(0, 2_000_000)
        for stream_id in streams[:3]:
            client.open_window(stream_id, 1_000_000)
        assert [(await client.answer(stream_id)).status for stream_id in streams[:3]] == [0] * 3


class RecordingWriter:
    """A writer that keeps its output."""

    def __init__(self) -> None:
        self.sent = b""

    def write(self, data: bytes) -> None:
        self.sent += data


def big(size: int) -> Any:
    from google.protobuf.wrappers_pb2 import BytesValue

    return BytesValue(value=bytes(size))


# --- the end --------------------------------------------------------------------------------------


async def read_to_the_end(sock: socket.socket) -> bytes:
    """All output of a server that never reads what it was sent."""
    loop, received = asyncio.get_running_loop(), b""
    async with asyncio.timeout(10):
        while chunk := await loop.sock_recv(sock, 65_536):
            received += chunk
    return received


async def test_goaway_arrives_although_the_client_still_sends() -> None:
    async with open_echo() as echo:
        host, port = echo.address.rsplit(":", 1)
        for _ in range(10):
            with closing(socket.create_connection((host, int(port)))) as sock:
                sock.setblocking(False)
                loop = asyncio.get_running_loop()
                await loop.sock_sendall(sock, GREETING + frame(FrameType.DATA, 0, 0, b"x") + bytes(500_000))
                await loop.sock_sendall(sock, bytes(500_000))
                received = await read_to_the_end(sock)
                assert list(frames(received))[-1] == FrameType.GOAWAY
        await until(lambda: not echo.server.connections)


@pytest.mark.slow
async def test_goaway_arrives_although_the_client_sends_more_than_is_read() -> None:
    async with open_echo(limits=ServerOptions(linger_s=1)) as echo:
        host, port = echo.address.rsplit(":", 1)
        with closing(socket.create_connection((host, int(port)))) as sock:
            sock.setblocking(False)
            sock.send(GREETING + frame(FrameType.DATA, 0, 0, b"x"))
            await until(lambda: echo.server.counters.faulty)
            (connection,) = echo.connections
            sent = 0
            # Until the system takes no more: no error tells the client that its connection was cut
            # off.
            while not connection_is_full(sock):
                sent += sock.send(bytes(100_000))
                await asyncio.sleep(0)
            assert sent > 2 * DISCARDED_BYTES
            assert connection.link._discarded_bytes <= DISCARDED_BYTES + 32_768
            received = await read_to_the_end(sock)
            assert list(frames(received))[-1] == FrameType.GOAWAY
        await until(lambda: not echo.server.connections)


def connection_is_full(sock: socket.socket) -> bool:
    return not select.select([], [sock], [], 0.05)[1]


async def test_discarded_input_after_the_end_is_bounded_per_second_and_in_time() -> None:
    async with open_echo(limits=ServerOptions(linger_s=2.5), clock=FakeClock()) as echo:
        connection, transport = connected(echo)
        connection.workload.received(goaway(0, 0) + frame(FrameType.DATA, 0, 0, b"x"))
        connection.link.flush()
        assert transport.said == ["eof", "resume"]
        began, reads = connection.environment.shared.monotonic(), DISCARDED_BYTES // 32_768
        for second in range(3):
            del transport.said[:]
            for _ in range(reads - 1):
                connection.link.buffer_updated(32_768)
            assert transport.said == []
            connection.link.buffer_updated(32_768)
            assert transport.said == ["pause"]
            connection.link.tick(began + second + 1)
            assert transport.said == ["pause", "resume" if second < 2 else "abort"]
        connection.link.connection_lost(None)


async def test_a_connection_that_is_gone_leaves_nothing_for_the_collector() -> None:
    def connections() -> int:
        return sum(isinstance(each, GrpcConnection | Link | Workload) for each in gc.get_objects())

    gc.collect()
    async with open_echo() as echo:
        before = connections()
        gc.disable()
        try:
            async with open_client(echo.address) as client:
                await client.call(UNARY, value(b"x"))
                client.request(REPEAT, value(b"hold"))
                await echo.echo.arrived.wait()
                assert connections() == before + 3
            await until(lambda: not echo.server.connections)
            await until(lambda: connections() == before)
        finally:
            gc.enable()


# --- counters -------------------------------------------------------------------------------------


@pytest.mark.slow
async def test_a_connection_that_is_gone_keeps_its_counts_for_who_is_looking_at_all() -> None:
    async with open_echo(limits=ServerOptions(linger_s=1)) as echo:
        async with open_client(echo.address) as client:
            await client.call(UNARY, value(b"x"))
            (connection,) = echo.server._connections
        await until(lambda: not echo.server.connections)
        assert connection.counters.calls == 1
        counted = await echo.server.counters_in_steps()
        assert (counted.calls, counted.open) == (1, 0)


@pytest.mark.slow
async def test_a_connection_counts_and_the_server_has_the_totals() -> None:
    async with open_echo(limits=ServerOptions(linger_s=1)) as echo, open_client(echo.address) as client:
        await client.call(UNARY, value(b"x"))
        held = client.request(UNARY, value(b"hold"))
        half = client.begin(UNARY)
        client.data(half, prefixed(value(bytes(100)))[:50])
        await client.call(UNARY, value(b"x"))
        (one,) = echo.server.connection_counters
        assert (one.calls, one.running, one.resets_received, one.resets_sent) == (4, 2, 0, 0)
        assert (one.request_bytes, one.queued_bytes) == (50, 0)
        assert one.bytes_in > 100
        assert one.bytes_out > 100
        assert one.age_s > 0
        assert one.peer.startswith("127.0.0.1:")
        client.reset(held)
        client.reset(half)
        await until(lambda: echo.server.counters.resets_received == 2)
        client.writer.write(window_update(99, 0))
        await client.until_closed()
        await until(lambda: not echo.server.connections)
        all_ = echo.server.counters
        assert (all_.calls, all_.resets_received, all_.faulty, all_.open, all_.accepted) == (4, 2, 1, 0, 1)
        with pytest.raises(AttributeError):
            all_.calls = 0  # type: ignore[misc]  # a snapshot is frozen


async def test_streams_that_the_server_resets_are_counted() -> None:
    async with open_echo() as echo, open_client(echo.address) as client:
        stream_id = client.begin(UNARY)
        client.writer.write(window_update(stream_id, 0))
        await client.answer(stream_id)
        (one,) = echo.server.connection_counters
        assert (one.resets_sent, one.resets_received) == (1, 0)
