"""Ten thousand concurrent clients that wait for messages."""

import asyncio
import time
from collections import Counter

import grpc
import pytest

from pixy.proto import kafkapixy_pb2 as pb
from tests.integration.conftest import MakeDaemon
from tests.integration.daemon import proxy_config

pytestmark = [pytest.mark.process, pytest.mark.no_debug]

CLIENTS = 10_000
CHANNELS = 50
MESSAGES = 100
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
