"""Values at `/metrics`: a daemon does things with known numbers, and its scrapes count them."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from tests.fakes.certificates import make_certificate
from tests.fakes.waiting import until
from tests.fakes.web import WebClient, open_client
from tests.management.test_management_server import Found, running, scrape

pytestmark = pytest.mark.slow

TEXT = "Content-Type: text/plain"
GROUP = {"cluster": "default", "group": "g", "topic": "t"}
QUICK: dict[str, Any] = {
    "proxy.consumer.ack_timeout": "200ms",
    "proxy.consumer.max_retries": 1,
    "proxy.consumer.initial_offset": "oldest",
    "proxy.consumer.long_polling_timeout": "60s",
}
PATIENT = {**QUICK, "proxy.consumer.ack_timeout": "60s"}


def total(found: Found, name: str, **labels: str) -> float:
    """Sum of the samples of a name with these labels among their own."""
    chosen = labels.items()
    return sum(
        number for (each, own), number in found.items() if each == name and chosen <= dict(own).items()
    )


@asynccontextmanager
async def served(folder: Path, **flags: Any) -> AsyncIterator[tuple[WebClient, WebClient, str]]:
    """Clients of the API and of the management listener, and the address of the API."""
    async with (
        running(folder, **({"tcp_addr": "127.0.0.1:0"} | flags)) as (_, addresses),
        open_client(addresses["http"]) as http,
        open_client(addresses["management"]) as client,
    ):
        yield http, client, addresses["http"]


async def produce(http: WebClient, value: bytes) -> None:
    assert (await http.call("POST", "/topics/t/messages?sync&key=1", value, TEXT)).status == 200


async def test_offers_that_expire_come_again_and_are_dead_after_the_last_retry(tmp_path: Path) -> None:
    async with served(tmp_path, **QUICK) as (http, client, _):
        await produce(http, b"x")
        for _ in range(2):
            # The second is offered when the first has expired.
            assert (await http.call("GET", "/topics/t/messages?group=g&noAck")).status == 200
        found: Found = {}

        async def is_dead() -> bool:
            found.update(await scrape(client))
            return total(found, "pixy_acks_total", outcome="dead", **GROUP) > 0

        await until(is_dead)
    assert total(found, "pixy_offered_records_total", **GROUP) == 2
    assert total(found, "pixy_redelivered_records_total", **GROUP) == 1
    outcomes = {name: total(found, "pixy_acks_total", outcome=name) for name in ("ack", "expired", "dead")}
    assert outcomes == {"ack": 0, "expired": 1, "dead": 1}
    assert total(found, "pixy_unacked_records", **GROUP) == 0


async def test_acks_are_timed_from_the_delivery_and_batches_have_the_size_of_their_records(
    tmp_path: Path,
) -> None:
    async with served(tmp_path, **PATIENT) as (http, client, _):
        for _ in range(3):
            await produce(http, b"x" * 1000)
        asked = time.monotonic()
        assert (await http.call("GET", "/topics/t/messages?group=g&noAck")).status == 200
        delivered = time.monotonic()
        # The latency is at least this long.
        await until(lambda: time.monotonic() > delivered + 0.05)
        assert (await http.call("POST", "/topics/t/acks?group=g&partition=0&offset=0", b"")).status == 200
        acked = time.monotonic()
        found = await scrape(client)
    assert total(found, "pixy_ack_latency_seconds_count") == 1
    assert 0.05 <= total(found, "pixy_ack_latency_seconds_sum") <= acked - asked
    assert total(found, "pixy_batch_bytes_count") == 3
    assert 3 * 1000 < total(found, "pixy_batch_bytes_sum") < 3 * 1200


async def test_polls_that_wait_are_consumers_and_open_calls(tmp_path: Path) -> None:
    async with served(tmp_path, **PATIENT) as (http, client, address):
        await produce(http, b"x")
        assert (await http.call("GET", "/topics/t/messages?group=g")).status == 200
        numbers = ("pixy_waiting_consumers", "pixy_rpc_open_calls")
        found = await scrape(client)
        assert [total(found, name) for name in numbers] == [0, 0]
        async with open_client(address) as other:
            for each in (http, other):
                each.request("GET", "/topics/t/messages?group=g")

            async def wait() -> bool:
                found = await scrape(client)
                return [total(found, name) for name in numbers] == [2, 2]

            await until(wait)


async def test_bytes_and_connections_are_counted(tmp_path: Path) -> None:
    flags = {"grpc.max_connections": 2, "client_share_percent": 100}
    async with served(tmp_path, **flags) as (http, client, address):
        await http.call("GET", "/_ping")
        before = await scrape(client)
        async with open_client(address) as other, open_client(address) as refused:
            other.send(request := b"GET /_ping HTTP/1.1\r\nHost: h\r\n\r\n")
            answer = await other.reader.readuntil(b"pong")
            assert await refused.closed() == b""
            after = await scrape(client)
        assert total(after, "pixy_connections") == 2

        async def is_gone() -> bool:
            return total(await scrape(client), "pixy_connections") == 1

        await until(is_gone)
    grown = {
        name: total(after, f"pixy_{name}_total") - total(before, f"pixy_{name}_total")
        for name in ("received_bytes", "sent_bytes", "connections_accepted", "connections_refused")
    }
    assert grown == {
        "received_bytes": len(request),
        "sent_bytes": len(answer),
        "connections_accepted": 1,
        "connections_refused": 1,
    }


async def test_handshakes_that_fail_are_counted(tmp_path: Path) -> None:
    make_certificate(tmp_path, "one")
    tls = {"tls.certificate_path": str(tmp_path / "one.pem"), "tls.key_path": str(tmp_path / "one.key")}
    async with (
        running(tmp_path / "data", **tls) as (_, addresses),
        open_client(addresses["management"]) as client,
    ):
        assert total(await scrape(client), "pixy_handshakes_failed_total") == 0
        async with open_client(addresses["grpc"]) as plain:
            plain.send(b"GET /_ping HTTP/1.1\r\nHost: h\r\n\r\n")
            with suppress(ConnectionError):
                await plain.closed()

        async def is_counted() -> bool:
            return total(await scrape(client), "pixy_handshakes_failed_total") == 1

        await until(is_counted)


def hold_the_loop() -> None:
    """Block for a second: a timer that is set twice a second is late by half of one at least."""
    time.sleep(1.0)


async def test_tasks_and_the_lag_of_the_loop_are_those_of_the_process(tmp_path: Path) -> None:
    async with served(tmp_path) as (_, client, _):
        before = await scrape(client)
        hold_the_loop()
        waiting = [asyncio.create_task(asyncio.Event().wait()) for _ in range(1000)]
        after = await scrape(client)
        for task in waiting:
            task.cancel()
        await asyncio.wait(waiting)
    assert 900 < total(after, "pixy_tasks") - total(before, "pixy_tasks") < 1100
    lag = "pixy_loop_lag_seconds_sum"
    assert total(after, lag) - total(before, lag) >= 0.4


def cut_a_byte(folder: Path) -> None:
    """Cut the last byte off the one segment that there is."""
    (segment,) = folder.rglob("topics/**/*.log")
    segment.write_bytes(segment.read_bytes()[:-1])


async def test_a_damaged_partition_is_a_problem_and_has_no_replica_in_sync(tmp_path: Path) -> None:
    partition = {"cluster": "default", "topic": "t", "partition": "0"}

    async def numbers(client: WebClient) -> list[float]:
        found = await scrape(client)
        of_partition = ("replicas", "in_sync_replica", "under_replicated_partition")
        return [
            total(found, "pixy_problems"),
            *(total(found, f"kafka_topic_partition_{name}", **partition) for name in of_partition),
        ]

    async with served(tmp_path) as (http, client, _):
        await produce(http, b"x" * 1000)
        assert await numbers(client) == [0, 1, 1, 0]
    cut_a_byte(tmp_path)
    async with served(tmp_path) as (_, client, _):
        assert await numbers(client) == [1, 1, 0, 1]
