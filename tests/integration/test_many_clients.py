"""Ten thousand concurrent clients that wait for messages."""

import asyncio
import re
import select
import socket
import time
from collections import Counter
from contextlib import ExitStack

import grpc
import pytest

from pixy.proto import kafkapixy_pb2 as pb
from tests.integration.conftest import MakeDaemon
from tests.integration.daemon import proxy_config

pytestmark = [pytest.mark.process, pytest.mark.no_debug]

CLIENTS = 10_000
CHANNELS = 50
MESSAGES = 100
PIPELINED = 50
POLL_SECONDS = 8
CALL_SECONDS = 60.0
BYTES_PER_CLIENT_MAX = 64 << 10


async def test_ten_thousand_clients_wait_while_others_are_served(make_daemon: MakeDaemon) -> None:
    daemon = make_daemon(proxy_config(consumer={"long_polling_timeout": f"{POLL_SECONDS}s"}))
    daemon.start()
    before = daemon.rss_bytes()
    channels = [daemon.aio_channel() for _ in range(CHANNELS)]
    other = daemon.aio_channel()
    try:
        stub = daemon.aio_stub(other)
        stubs = [daemon.aio_stub(channel) for channel in channels]
        answered: Counter[str] = Counter()

        async def poll(number: int) -> None:
            request = pb.ConsNAckRq(topic="empty", group="g", auto_ack=True)
            try:
                await stubs[number % CHANNELS].ConsumeNAck(request, timeout=CALL_SECONDS)
            except grpc.aio.AioRpcError as error:
                answered[error.code().name] += 1
            else:
                answered["OK"] += 1

        polls = [asyncio.create_task(poll(number)) for number in range(CLIENTS)]
        largest, slowest, calls = 0, 0.0, 0
        while (waiting := sum(not task.done() for task in polls)) > 0:
            began = time.monotonic()
            await stub.Produce(pb.ProdRq(topic="other", message=b"x"), timeout=CALL_SECONDS)
            slowest = max(slowest, time.monotonic() - began)
            largest = max(largest, daemon.rss_bytes())
            calls += 1
            if calls <= MESSAGES:
                await stub.Produce(pb.ProdRq(topic="empty", message=b"%d" % calls), timeout=CALL_SECONDS)
        await asyncio.gather(*polls)
    finally:
        for channel in (*channels, other):
            await channel.close()
    print(
        f"{answered}, {calls} other calls, slowest {slowest:.2f} s, {(largest - before) >> 20} MiB more",
        waiting,
    )
    assert answered == {"OK": MESSAGES, "NOT_FOUND": CLIENTS - MESSAGES}
    assert largest - before < CLIENTS * BYTES_PER_CLIENT_MAX
    daemon.stop()


def test_ten_thousand_connections_wait_over_http(make_daemon: MakeDaemon) -> None:
    limits = {"max_connections": CLIENTS + 100, "max_calls": CLIENTS + 100}
    consumer = {"long_polling_timeout": "120s"}
    daemon = make_daemon(
        {
            "tcp_addr": "127.0.0.1:0",
            "client_share_percent": 100,
            "grpc": limits,
            **proxy_config(consumer=consumer),
        }
    )
    daemon.start()
    before = daemon.rss_bytes()
    host, port = daemon.addresses["http"].rsplit(":", 1)
    poll = b"GET /topics/queue/messages?group=g HTTP/1.1\r\nHost: h\r\n\r\n"
    body = b"x" * 10
    produce = b"POST /topics/queue/messages?sync HTTP/1.1\r\nHost: h\r\nContent-Type: text/plain\r\nContent-Length: 10\r\n\r\n"
    with ExitStack() as stack, select.epoll() as poller:
        polls = {}
        for _ in range(CLIENTS):
            each = stack.enter_context(socket.create_connection((host, int(port)), timeout=CALL_SECONDS))
            each.sendall(poll)
            polls[each.fileno()] = each
            poller.register(each.fileno(), select.EPOLLIN)
        other = stack.enter_context(socket.create_connection((host, int(port)), timeout=CALL_SECONDS))
        for _ in range(CLIENTS // PIPELINED):
            other.sendall((produce + body) * PIPELINED)
            answers = b""
            while answers.count(b"HTTP/1.1 200 OK") < PIPELINED or not answers.endswith(b"}"):
                answers += other.recv(1 << 16)
        largest = daemon.rss_bytes()
        found: Counter[tuple[str, ...]] = Counter()
        while len(found) < CLIENTS:
            ready = poller.poll(CALL_SECONDS)
            assert ready, f"{len(found)} of {CLIENTS} polls are answered"
            for descriptor, _ in ready:
                answer = polls[descriptor].recv(1 << 12).decode()
                assert answer.startswith("HTTP/1.1 200 OK"), answer
                found[tuple(re.findall(r'"(?:partition|offset)": (\d+)', answer))] += 1
                poller.unregister(descriptor)
        assert max(found.values()) == 1, "each message has one recipient"
    assert largest - before <= CLIENTS * BYTES_PER_CLIENT_MAX
    daemon.stop()
