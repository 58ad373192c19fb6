"""Pixies in front of one Kafka cluster tell each other what they own, on a simulated network."""

import asyncio
from collections.abc import Awaitable, Callable
from random import Random

import pytest

from pixy.backend.kafka import NeighbourOptions, Neighbours
from pixy.backend.protocol import Owner
from pixy.errors import Unavailable
from pixy.peers import Address, PeerOptions, Peers
from pixy.records import TopicPartition
from tests.fakes.network import SimulatedNetwork, SimulatedProcess
from tests.fakes.waiting import until
from tests.sim.loop import VirtualLoop

ADDRESSES = tuple(Address(f"127.0.0.{number}", 19094) for number in (1, 2, 3))


class Pixy:
    """One process: what knows its neighbours."""

    def __init__(self, network: SimulatedNetwork, number: int, started_ms: int = 1) -> None:
        self.number = number
        self.faults: list[BaseException] = []
        self.process: SimulatedProcess = network.process(ADDRESSES[number - 1].host)
        options = PeerOptions(ADDRESSES[number - 1], mutual_tls=True)
        self.peers = Peers(self.process, options, Random(number), self.faults.append)
        own = NeighbourOptions(
            "kafka",
            # In another order at each: the place in the sorted list counts.
            ADDRESSES[number:] + ADDRESSES[:number],
            ADDRESSES[number - 1],
            f"pixy-{number}",
            started_ms,
            bytes([number, started_ms, *range(6)]),
            "1.0",
        )
        self.neighbours = Neighbours(own, self.peers.channel)

    async def start(self) -> None:
        self.neighbours.serve(self._answer)
        await self.peers.start()
        self.neighbours.start()

    async def stop(self) -> None:
        await self.neighbours.stop()
        await self.peers.stop()

    async def _answer(self, node_id: int, request: bytes) -> bytes:
        return b"%d to %d: " % (self.number, node_id) + request

    def owners(self, group: str = "group", topic: str = "topic") -> list[int]:
        return sorted(self.neighbours.owners(group, topic))


class Pixies(list[Pixy]):
    """The pixies of a test, and their network."""

    def __init__(self) -> None:
        self.network = SimulatedNetwork(Random(1), (0.001, 0.01))
        super().__init__(Pixy(self.network, number) for number in (1, 2, 3))


def run(scenario: Callable[[Pixies], Awaitable[None]]) -> None:
    async def all_of_it() -> None:
        pixies = Pixies()
        for pixy in pixies:
            await pixy.start()
        await scenario(pixies)
        await asyncio.gather(*(pixy.stop() for pixy in pixies))
        assert [fault for pixy in pixies for fault in pixy.faults] == []

    loop = VirtualLoop()
    try:
        loop.run_until_complete(all_of_it())
    finally:
        loop.close()


def test_owners_are_known_to_the_others_whether_assigned_before_or_after_they_connect() -> None:
    async def scenario(pixies: Pixies) -> None:
        one, two, three = pixies
        one.neighbours.assigned("group", {"topic": [0, 1]})
        await until(lambda: two.owners() == three.owners() == [1])
        two.neighbours.assigned("group", {"topic": [2], "other": [0]})
        await until(lambda: one.owners() == [2] and three.owners() == [1, 2])
        assert three.neighbours.owner("group", TopicPartition("topic", 1)) == Owner("pixy-1", 1)
        assert three.neighbours.owner("group", TopicPartition("topic", 2)) == Owner("pixy-2", 2)
        assert three.neighbours.owner("group", TopicPartition("topic", 3)) is None
        assert three.neighbours.owner("another", TopicPartition("topic", 1)) is None
        assert three.owners(topic="other") == [2]
        assert one.neighbours.may_be_neighbour("pixy-2")
        await until(lambda: not one.neighbours.may_be_neighbour("a Kafka consumer"))

    run(scenario)


def test_partitions_that_go_are_not_owned_any_more() -> None:
    async def scenario(pixies: Pixies) -> None:
        one, two, _ = pixies
        one.neighbours.assigned("group", {"topic": [0, 1]})
        one.neighbours.assigned("stays", {"topic": [0]})
        await until(lambda: two.owners("stays") == [1])
        one.neighbours.assigned("group", {"topic": [1]})
        await until(lambda: two.neighbours.owner("group", TopicPartition("topic", 0)) is None)
        assert two.owners() == [1]
        one.neighbours.assigned("group", {})
        await until(lambda: two.owners() == [])
        assert two.owners("stays") == [1]

    run(scenario)


def test_a_pixy_that_starts_again_owns_only_what_it_says() -> None:
    async def scenario(pixies: Pixies) -> None:
        one, two, _ = pixies
        one.neighbours.assigned("group", {"topic": [0]})
        one.neighbours.assigned("second", {"topic": [0]})
        await until(lambda: two.owners("second") == [1])
        one.process.kill()
        await until(lambda: two.owners() == [])
        assert two.neighbours.may_be_neighbour("pixy-1")
        with pytest.raises(Unavailable):
            await two.neighbours.ask(1, b"hello", 1.0)
        again = pixies[0] = Pixy(pixies.network, 1, started_ms=2)
        again.neighbours.assigned("second", {"topic": [0]})
        await again.start()
        await until(lambda: two.owners() == [] and two.owners("second") == [1])
        await one.stop()

    run(scenario)


def test_a_pixy_that_cannot_be_reached_owns_nothing_until_it_can() -> None:
    async def scenario(pixies: Pixies) -> None:
        one, two, _ = pixies
        one.neighbours.assigned("group", {"topic": [0]})
        await until(lambda: two.owners() == [1])
        pixies.network.cut(two.process.host, one.process.host)
        pixies.network.cut(one.process.host, two.process.host)
        await until(lambda: two.owners() == [])
        one.neighbours.assigned("group", {"topic": [0, 1]})
        pixies.network.heal()
        await until(lambda: two.neighbours.owner("group", TopicPartition("topic", 1)) is not None)

    run(scenario)


def test_any_member_may_be_a_pixy_that_has_said_nothing_yet() -> None:
    async def scenario(pixies: Pixies) -> None:
        one = pixies[0]
        assert one.neighbours.may_be_neighbour("pixy-3")
        await until(lambda: not one.neighbours.may_be_neighbour("a Kafka consumer"))
        assert one.neighbours.may_be_neighbour("pixy-3")

    run(scenario)


def test_a_pixy_asks_another_one() -> None:
    async def scenario(pixies: Pixies) -> None:
        one = pixies[0]

        async def answered() -> bool:
            try:
                return await one.neighbours.ask(3, b"hello", 1.0) == b"3 to 1: hello"
            except Unavailable:
                return False

        await until(answered)

    run(scenario)
