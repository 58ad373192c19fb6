"""Addresses: where tasks begin, and for how long one that did not answer is avoided."""

import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing
from itertools import count
from types import SimpleNamespace

import grpc
import pytest
from pyspark import TaskContext
from pyspark.sql import SparkSession

from pixy.errors import Unavailable
from pixy.spark import addresses
from pixy.spark.addresses import AVOIDED_SECONDS, answered, avoid, first_of_task, next_place
from pixy.spark.client import LogClient
from pixy.spark.connection import ConnectionOptions
from tests.fakes.clock import FakeClock
from tests.spark.service import FakeService, serving
from tests.spark.test_attempts import failing

THREE = ("a:1", "b:1", "c:1")

_processes = count(-1, -1)
"""Process ids that no process has."""


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> FakeClock:
    """Time of a process that avoids nothing yet."""
    clock = FakeClock()
    become_another_process(monkeypatch)
    monkeypatch.setattr(addresses, "time", clock)
    return clock


def become_another_process(monkeypatch: pytest.MonkeyPatch) -> None:
    process = next(_processes)
    monkeypatch.setattr(addresses, "os", SimpleNamespace(getpid=lambda: process))


@pytest.fixture
def hung() -> Iterator[str]:
    """A server that accepts connections and does nothing else."""
    with closing(socket.create_server(("127.0.0.1", 0))) as listening:
        yield f"127.0.0.1:{listening.getsockname()[1]}"


def test_places_are_taken_in_turn() -> None:
    assert [next_place(THREE, place) for place in range(5)] == [0, 1, 2, 0, 1]


def test_an_address_that_did_not_answer_is_avoided_for_a_while(clock: FakeClock) -> None:
    avoid("b:1")
    assert [next_place(THREE, place) for place in range(4)] == [0, 2, 2, 0]
    clock.advance(AVOIDED_SECONDS - 1)
    assert next_place(THREE, 1) == 2
    clock.advance(1)
    assert next_place(THREE, 1) == 1


def test_an_answer_ends_the_avoidance() -> None:
    avoid("b:1")
    answered("b:1")
    answered("c:1")
    assert next_place(THREE, 1) == 1


def test_if_all_are_avoided_none_is() -> None:
    for address in THREE:
        avoid(address)
    assert [next_place(THREE, place) for place in range(4)] == [0, 1, 2, 0]
    assert next_place(("b:1",), 7) == 0


def test_a_forked_process_tries_every_address_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    avoid("b:1")
    become_another_process(monkeypatch)
    assert next_place(THREE, 1) == 1


def test_the_driver_begins_at_the_first_address() -> None:
    assert TaskContext.get() is None
    assert first_of_task() == 0


@pytest.mark.slow
def test_all_clients_of_a_process_avoid_a_dead_address(clock: FakeClock) -> None:
    dead, alive = FakeService(), FakeService()
    with serving(dead) as first, serving(alive) as second:
        connection = ConnectionOptions((first, second), timeout_seconds=60)
        LogClient(connection).keep_alive("s")
        assert alive.requests == {}
        dead.answers["Discard"] = [failing(grpc.StatusCode.UNAVAILABLE)] * 2
        for _ in range(3):
            LogClient(connection).keep_alive("s")
        assert [len(each.requests["Discard"]) for each in (dead, alive)] == [2, 3]
        clock.advance(AVOIDED_SECONDS)
        LogClient(connection).keep_alive("s")
        assert [len(each.requests["Discard"]) for each in (dead, alive)] == [3, 4]


@pytest.mark.slow
def test_a_server_that_hangs_costs_a_part_of_the_deadline_once(hung: str) -> None:
    with serving(FakeService()) as alive:
        connection = ConnectionOptions((hung, alive), timeout_seconds=3)
        started = time.monotonic()
        LogClient(connection).keep_alive("s")
        assert 0.9 < time.monotonic() - started < 2.9, "a third of the deadline"
        started = time.monotonic()
        for _ in range(5):
            LogClient(connection).keep_alive("s")
        assert time.monotonic() - started < 0.9


def test_a_client_begins_where_its_task_does(hung: str) -> None:
    service = FakeService()
    with serving(service) as alive:
        LogClient(ConnectionOptions((hung, hung + "1", alive), timeout_seconds=3), 5).keep_alive("s")
    assert len(service.requests["Discard"]) == 1


@pytest.mark.slow
def test_every_address_is_tried_also_if_all_are_avoided() -> None:
    for address in ("127.0.0.1:1", "127.0.0.1:2"):
        avoid(address)
    client = LogClient(ConnectionOptions(("127.0.0.1:1", "127.0.0.1:2"), timeout_seconds=0.3), 1)
    with pytest.raises(Unavailable, match=r"127.0.0.1:1: .*; 127.0.0.1:2: "):
        client.describe()


@pytest.mark.process
def test_tasks_spread_over_all_addresses(spark: SparkSession) -> None:
    services = [FakeService() for _ in range(3)]
    with ExitStack() as stack:
        given = ",".join(stack.enter_context(serving(service)) for service in services)
        rows = spark.range(0, 600, 1, 6).selectExpr("cast(id as string) as value")
        rows.write.format("pixy").options(**{"pixy.address": given, "topic": "t"}).mode("append").save()
    assert [len(service.requests["Stage"]) for service in services] == [2, 2, 2]
    assert [len(service.requests.get("Publish", ())) for service in services] == [1, 0, 0]
