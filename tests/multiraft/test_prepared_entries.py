"""Entries that take long to apply: the work ahead of them is done in steps, those behind wait."""

import asyncio
from collections.abc import Iterator

from pixy.errors import UnknownPartition
from pixy.raft import Entry
from tests.cluster.drivers import DriverNetwork, DriverNode

STEPS = 5


class Preparation:
    """Steps ahead of the entries whose payload begins with "long".

    Attributes:
        log: payloads that were prepared.
        steps: number of steps that were done.
    """

    def __init__(self) -> None:
        self.log: list[bytes] = []
        self.steps = 0
        self._done: set[int] = set()

    def __call__(self, entry: Entry) -> Iterator[None] | None:
        if not entry.data.startswith(b"long") or entry.index in self._done:
            return None
        return self._prepare(entry)

    def _prepare(self, entry: Entry) -> Iterator[None]:
        for _ in range(STEPS):
            self.steps += 1
            yield
        self._done.add(entry.index)
        self.log.append(bytes(entry.data))


async def test_entries_are_applied_in_their_order_behind_one_that_is_prepared(node: DriverNode) -> None:
    preparation = Preparation()
    await node.lead()
    node.group.prepare = preparation
    sent = [b"first", b"long 1", b"second", b"long 2", b"long 3", b"third"]
    for payload in sent:
        node.propose(payload)
    for _ in sent:
        await node.settle()
    assert [each for each in node.application.applied if each in sent] == sent
    assert list(node.results) == sent
    assert (preparation.log, preparation.steps) == ([b"long 1", b"long 2", b"long 3"], 3 * STEPS)
    assert node.group.held is None
    assert node.group.leads
    assert node.driver.unapplied_bytes == 0


async def test_nothing_of_an_entry_counts_before_it_is_prepared(node: DriverNode) -> None:
    await node.lead()
    gate = [True]

    def prepare(entry: Entry) -> Iterator[None] | None:
        return wait() if gate[0] and entry.data == b"long" else None

    def wait() -> Iterator[None]:
        while gate[0]:
            yield

    node.group.prepare = prepare
    before = node.group.applied_index
    node.propose(b"short")
    node.propose(b"long")
    await node.settle()
    assert node.group.applied_index == before + 1
    node.propose(b"behind")
    await node.settle()
    assert (node.group.applied_index, list(node.results)) == (before + 1, [b"short"])
    gate[0] = False
    await node.settle()
    assert list(node.results) == [b"short", b"long", b"behind"]
    assert node.group.applied_index == before + 3


async def test_a_group_that_is_removed_while_an_entry_is_prepared_applies_nothing(node: DriverNode) -> None:
    await node.lead()
    node.group.prepare = Preparation()
    node.propose(b"long")
    for _ in range(50):
        if node.group.held is None:
            node.write()
            await asyncio.sleep(0)
    node.driver.remove(node.group, UnknownPartition("gone"))
    await node.settle()
    assert isinstance(node.results[b"long"], UnknownPartition)
    assert b"long" not in node.application.applied


async def run(network: DriverNetwork) -> None:
    """Run until nothing moves, and no entry is prepared."""
    await network.run()
    while any(network[number].group.held is not None for number in (1, 2, 3)):
        await network.run()
    await network.run()


async def test_followers_and_a_next_leader_prepare_by_themselves(network: DriverNetwork) -> None:
    await network.elect(1)
    made = {number: Preparation() for number in (1, 2, 3)}
    for number, preparation in made.items():
        network[number].group.prepare = preparation
    network[1].propose(b"long 1")
    await run(network)
    await network.elect(2)
    network[2].propose(b"long 2")
    await run(network)
    for number, preparation in made.items():
        assert preparation.log == [b"long 1", b"long 2"]
        assert network[number].application.applied == [b"long 1", b"long 2"]
