"""Proxies on several nodes: clients produce, consume and ack at any of them, and go to another one.

Each test is a row of the table in `docs/consumer-groups.md`.
"""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Any

import pytest

from pixy.backend import OffsetCommit
from pixy.cluster import LEASE_S
from pixy.config import ConsumerConfig, ProxyConfig
from pixy.consume import ConsumeRequest, Offer
from pixy.errors import AckBeyondEnd, LongPollTimeout, PixyError, Unavailable
from pixy.proxy import Proxy
from tests.cluster.node_clusters import ClusterNode, NodeCluster, run_cluster
from tests.fakes.waiting import until

pytestmark = pytest.mark.slow

PARTITIONS = 6
ACK_TIMEOUT_S = 300.0
"""The default: no test takes as long, so a record that waits for it is missed."""
LAST_STOP_S = 8.0
"""Longest stop of a node that reaches no other one, as the last one of a cluster that stops."""
STALLED_S = 8.0
"""Longest time until the partitions of a node with a stalled disk are consumed elsewhere."""


class Client:
    """Clients of one node, with further options of the section `consumer`."""

    def __init__(self, node: ClusterNode, **options: Any) -> None:
        self.node = node
        self.proxy = Proxy(
            "default",
            ProxyConfig(consumer=ConsumerConfig(ack_timeout=ACK_TIMEOUT_S, **options)),
            node.backend,
            client_id=f"node-{node.number}",
            clock=node.clock,
            rng=Random(1),
            on_fault=node.faults.append,
        )

    async def produce(self, *values: bytes, key: bytes | None = None) -> None:
        """Produce messages, one after the other in each partition."""
        answers = [asyncio.get_running_loop().create_future() for _ in values]

        def done(waiters: Sequence[asyncio.Future[None]], _: int, __: int, error: PixyError | None) -> None:
            for waiter in waiters:
                if error is None:
                    waiter.set_result(None)
                else:
                    waiter.set_exception(error)

        for value, answer in zip(values, answers, strict=True):
            self.proxy.produce("topic", key or value, value, (), done, answer)
        await asyncio.gather(*answers)

    async def consume(
        self, *, auto_ack: bool = False, ack: tuple[int, int] | None = None, deliver: bool = True
    ) -> Offer:
        answer: asyncio.Future[Offer] = asyncio.get_running_loop().create_future()

        def done(offer: Offer | None, error: PixyError | None) -> None:
            if offer is not None:
                if deliver:
                    offer.delivered()
                answer.set_result(offer)
            elif error is not None:
                answer.set_exception(error)

        self.proxy.consume(ConsumeRequest("group", "topic", auto_ack, ack), done)
        return await answer

    async def ack(self, offer: Offer) -> None:
        await self.ack_at(offer.partition, offer.record.offset)

    async def ack_at(self, partition: int, offset: int) -> None:
        answer: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def done(error: PixyError | None) -> None:
            if error is None:
                answer.set_result(None)
            else:
                answer.set_exception(error)

        self.proxy.ack("group", "topic", partition, offset, done)
        await answer

    async def owned(self) -> list[int]:
        """Partitions that the node owns, as it says itself."""
        consumers = await self.proxy.list_consumers("topic", "group")
        return list(consumers["group"].get(f"node-{self.node.number}", ()))

    async def offsets(self) -> dict[int, int]:
        """Committed offsets."""
        return {each.partition: each.offset for each in await self.proxy.get_offsets("group", "topic")}


Clients = dict[int, Client]
Scenario = Callable[[NodeCluster, Clients], Awaitable[None]]


def run(scenario: Scenario, directory: Path, count: int = 3, **options: Any) -> None:
    """Run a scenario with clients at each node."""

    async def with_clients(cluster: NodeCluster) -> None:
        await cluster[1].backend.create_topic("topic", PARTITIONS)
        clients = {number: Client(node, **options) for number, node in cluster.nodes.items()}
        await scenario(cluster, clients)
        await asyncio.gather(*(client.proxy.drain(1.0) for client in clients.values()))

    run_cluster(with_clients, directory, count)


def messages(count: int) -> list[bytes]:
    return [b"%d" % number for number in range(count)]


def leads(node: ClusterNode) -> bool:
    """True if a node leads the state group of the consumer group."""
    raft_group = node.node.state_groups.group_of("group").group
    return raft_group is not None and raft_group.leads


async def join(*clients: Client) -> None:
    """Have nodes consume in the group until each owns its share."""
    for client in clients:
        with pytest.raises(LongPollTimeout):
            await client.consume()
    shares = [await client.owned() for client in clients]
    assert sorted(number for share in shares for number in share) == list(range(PARTITIONS))
    assert {len(share) for share in shares} == {PARTITIONS // len(clients)}


async def consume_all(clients: Sequence[Client], count: int, *, seconds: float = 20.0) -> Counter[bytes]:
    """Consume and ack at one node after the other until `count` different messages have come."""
    got: Counter[bytes] = Counter()
    turn = 0
    async with asyncio.timeout(seconds):
        while len(got) < count:
            try:
                offer = await clients[turn % len(clients)].consume()
            except LongPollTimeout:
                continue
            finally:
                turn += 1
            got[offer.record.value or b""] += 1
            await clients[turn % len(clients)].ack(offer)
    return got


def test_a_client_of_one_node_gets_the_messages_of_all(tmp_path: Path) -> None:
    async def scenario(cluster: NodeCluster, clients: Clients) -> None:
        await join(*clients.values())
        await clients[2].produce(*messages(60))
        assert await consume_all([clients[1]], 60) == Counter(messages(60))

    run(scenario, tmp_path)


def test_requests_and_acks_go_to_any_node(tmp_path: Path) -> None:
    async def scenario(cluster: NodeCluster, clients: Clients) -> None:
        await clients[2].produce(*messages(60))
        assert await consume_all(list(clients.values()), 60) == Counter(messages(60))
        await asyncio.sleep(1)
        offsets = await clients[3].offsets()
        assert sum(offsets.values()) == 60
        assert await clients[1].offsets() == await clients[2].offsets() == offsets

    run(scenario, tmp_path)


def test_an_ack_that_rides_on_a_request_goes_to_the_owner(tmp_path: Path) -> None:
    async def scenario(cluster: NodeCluster, clients: Clients) -> None:
        await join(*clients.values())
        await clients[1].produce(*messages(30))
        ack, got = None, Counter[bytes]()
        for turn in range(31):
            client = clients[turn % 3 + 1]
            if turn < 30:
                offer = await client.consume(ack=ack)
                got[offer.record.value or b""] += 1
                ack = offer.partition, offer.record.offset
            else:
                assert ack is not None
                await client.ack_at(*ack)
        assert got == Counter(messages(30))
        await asyncio.sleep(1)
        assert sum((await clients[1].offsets()).values()) == 30

    run(scenario, tmp_path)


def test_an_ack_without_an_offset_reaches_an_owner_that_its_node_has_not_heard_of(tmp_path: Path) -> None:
    async def scenario(cluster: NodeCluster, clients: Clients) -> None:
        await clients[1].produce(*messages(30))
        cluster.split(3)
        while True:
            offer = await clients[1].consume()
            if (offer.partition, offer.record.offset) == (0, 0):
                break
        assert cluster[3].backend.other_owners("group", "topic") == ()
        request = ConsumeRequest("group", "topic", ack=(0, 0), ack_if_offered=True)
        clients[3].proxy.consume(request, lambda *_: None)
        await asyncio.sleep(0.1)
        cluster.network.heal()
        await asyncio.sleep(3)
        assert (await clients[1].offsets())[0] == 1

    run(scenario, tmp_path)


def test_an_ack_is_answered_as_its_owner_answers(tmp_path: Path) -> None:
    async def scenario(cluster: NodeCluster, clients: Clients) -> None:
        await join(*clients.values())
        await clients[1].produce(b"x", key=b"k")
        offer = await clients[1].consume()
        answers = set()
        for client in clients.values():
            with pytest.raises(AckBeyondEnd) as refusal:
                await client.ack_at(offer.partition, 7)
            answers.add(str(refusal.value))
            await client.ack(offer)
        assert len(answers) == 1

    run(scenario, tmp_path)


def test_offsets_are_set_at_any_node(tmp_path: Path) -> None:
    async def scenario(cluster: NodeCluster, clients: Clients) -> None:
        await join(*clients.values())
        await clients[1].produce(*messages(30))
        assert await consume_all(list(clients.values()), 30) == Counter(messages(30))
        for number, client in clients.items():
            everything = [(partition, OffsetCommit(0)) for partition in range(PARTITIONS)]
            await client.proxy.set_offsets("group", "topic", everything)
            others = [other for each, other in clients.items() if each != number]
            assert await consume_all(others, 30) == Counter(messages(30))

    run(scenario, tmp_path)


def test_every_node_says_the_same_of_a_group(tmp_path: Path) -> None:
    async def scenario(cluster: NodeCluster, clients: Clients) -> None:
        await join(clients[1], clients[3])
        said = [await client.proxy.list_consumers("topic", "group") for client in clients.values()]
        assert said[0] == said[1] == said[2]
        assert sorted(said[0]["group"]) == ["node-1", "node-3"]

    run(scenario, tmp_path)


def test_a_node_that_joins_pauses_only_what_it_gets(tmp_path: Path) -> None:
    async def scenario(cluster: NodeCluster, clients: Clients) -> None:
        await clients[1].produce(*messages(60))
        held = await clients[1].consume()
        second = asyncio.ensure_future(clients[2].consume())
        began = asyncio.get_running_loop().time()
        for _ in range(10):
            await clients[1].ack(await clients[1].consume())
        assert asyncio.get_running_loop().time() - began < 0.5
        await clients[3].ack(held)
        await clients[3].ack(await second)
        await asyncio.sleep(0.5)
        assert [len(await clients[number].owned()) for number in (1, 2)] == [3, 3]
        assert len(await consume_all([clients[1], clients[2]], 48)) == 48

    run(scenario, tmp_path)


def test_messages_of_a_killed_node_are_consumed_elsewhere_within_five_seconds(tmp_path: Path) -> None:
    async def scenario(cluster: NodeCluster, clients: Clients) -> None:
        await join(*clients.values())
        await clients[1].produce(*messages(90))
        got = await consume_all(list(clients.values()), 30)
        held = [await clients[3].consume() for _ in range(10)]
        await asyncio.sleep(1)  # two commit intervals
        lost = clients.pop(3)
        killed = asyncio.get_running_loop().time()
        killing = asyncio.create_task(cluster[3].kill())
        again = await consume_all(list(clients.values()), 60)
        assert asyncio.get_running_loop().time() - killed < 5.0
        await killing
        assert not again.keys() & got.keys()
        assert {offer.record.value for offer in held} <= again.keys()
        await lost.proxy.drain(0)

    run(scenario, tmp_path)


def test_an_ack_of_a_message_of_a_killed_node_counts_at_the_next_owner(tmp_path: Path) -> None:
    async def scenario(cluster: NodeCluster, clients: Clients) -> None:
        await join(*clients.values())
        await clients[1].produce(*messages(60))
        gone = await clients[3].owned()
        offers = [await clients[1].consume() for _ in range(60)]
        await asyncio.sleep(1)  # two commit intervals: others know what was handed out
        lost = clients.pop(3)
        killing = asyncio.create_task(cluster[3].kill())
        await asyncio.sleep(0)
        acked = [offer for offer in offers if offer.partition in gone]
        assert len(acked) > 10
        await asyncio.gather(*(clients[1].ack(offer) for offer in acked))
        await killing
        await asyncio.sleep(1)  # two commit intervals
        ends = {number: len([each for each in acked if each.partition == number]) for number in gone}
        assert ends.items() <= (await clients[2].offsets()).items()
        await lost.proxy.drain(0)

    # The time of a consume request may end before another owner is there.
    run(scenario, tmp_path, long_polling_timeout=1.0)


def test_records_lent_to_a_killed_node_come_back_long_before_the_ack_timeout(tmp_path: Path) -> None:
    async def scenario(cluster: NodeCluster, clients: Clients) -> None:
        await join(*clients.values())
        await clients[1].produce(*messages(12))
        own = await clients[3].owned()
        lent = [await clients[3].consume(deliver=False) for _ in range(12)]
        of_others = {offer.record.value for offer in lent if offer.partition not in own}
        assert len({offer.partition for offer in lent}) > PARTITIONS // 3
        lost = clients.pop(3)
        killed = asyncio.get_running_loop().time()
        killing = asyncio.create_task(cluster[3].kill())
        got: Counter[bytes] = Counter()
        while not of_others <= got.keys():
            got += await consume_all(list(clients.values()), 1)
        assert asyncio.get_running_loop().time() - killed < 3.0
        while len(got) < 12:
            got += await consume_all(list(clients.values()), 1)
        assert asyncio.get_running_loop().time() - killed < 5.0
        await killing
        await lost.proxy.drain(0)

    run(scenario, tmp_path)


def test_a_node_that_was_cut_off_hands_out_nothing_and_commits_nothing(tmp_path: Path) -> None:
    async def scenario(cluster: NodeCluster, clients: Clients) -> None:
        await join(*clients.values())
        await clients[1].produce(*messages(60))
        held = [await clients[3].consume() for _ in range(4)]
        own = [offer for offer in held if offer.partition in await clients[3].owned()]
        cluster.split(3)
        for offer in own:
            await clients[3].ack(offer)  # accepted, and not committed
        await asyncio.sleep(2.6)
        with pytest.raises((Unavailable, LongPollTimeout)):
            await clients[3].consume()
        await asyncio.sleep(1)
        rest = await consume_all([clients[1], clients[2]], 60 - len(held) + len(own))
        assert {offer.record.value for offer in own} <= rest.keys()
        before = await clients[1].offsets()
        await asyncio.sleep(60)
        cluster.network.heal()
        await asyncio.sleep(5)
        after = await clients[1].offsets()
        assert all(after[number] >= before[number] for number in before)
        await clients[1].produce(*messages(20))
        assert len(await consume_all([clients[3]], 20)) == 20
        assert await clients[3].owned()

    run(scenario, tmp_path)


def test_a_forgotten_node_that_is_cut_off_answers_no_ack_once_its_partitions_are_elsewhere(
    tmp_path: Path,
) -> None:
    async def scenario(cluster: NodeCluster, clients: Clients) -> None:
        await join(*clients.values())
        await clients[1].produce(*messages(60))
        own = await clients[3].owned()
        offers = [await clients[3].consume() for _ in range(12)]
        held = [offer for offer in offers if offer.partition in own]
        lease = cluster[3].backend._members._leases.of("group")
        await until(lambda: lease.until - cluster[3].clock.monotonic() > LEASE_S - 0.1)
        cluster.split(3)
        await until(lambda: not cluster[1].node._is_reachable(cluster[3].id))
        await cluster[1].backend.forget_node(cluster[3].id)
        assert held
        topic_id = cluster[1].node.metadata.topics["topic"].topic_id

        def is_elsewhere() -> bool:
            membership = cluster[1].node.state_groups.offsets_of("group").membership("group")
            owner = membership.owner(topic_id, held[0].partition)
            return owner is not None and owner.node_id != cluster[3].id

        await until(is_elsewhere)
        with pytest.raises(Unavailable):
            await clients[3].ack(held[0])
        await clients.pop(3).proxy.drain(0.0)

    run(scenario, tmp_path)


def test_messages_of_a_node_with_a_stalled_disk_are_consumed_elsewhere(tmp_path: Path) -> None:
    async def scenario(cluster: NodeCluster, clients: Clients) -> None:
        await join(*clients.values())
        await clients[1].produce(*messages(60))
        assert await clients[3].owned()
        cluster[3].stalling.stall()
        began = asyncio.get_running_loop().time()
        await clients[1].produce(*messages(120)[60:])
        assert await consume_all([clients[1], clients[2]], 120) == Counter(messages(120))
        assert asyncio.get_running_loop().time() - began < STALLED_S
        before = await clients[1].offsets()
        cluster[3].stalling.resume()
        await asyncio.sleep(5)
        after = await clients[1].offsets()
        assert all(after[number] >= before[number] for number in before)
        await clients[1].produce(*messages(20))
        assert len(await consume_all([clients[3]], 20)) == 20
        assert await clients[3].owned()

    run(scenario, tmp_path)


def test_a_node_that_stops_hands_its_partitions_on_at_once(tmp_path: Path) -> None:
    async def scenario(cluster: NodeCluster, clients: Clients) -> None:
        await join(*clients.values())
        await clients[1].produce(*messages(60))
        held = await clients[3].consume()
        stopping = asyncio.ensure_future(clients[3].proxy.drain(10.0))
        await asyncio.sleep(0.2)
        await clients[1].ack(held)
        await stopping
        began = asyncio.get_running_loop().time()
        rest = await consume_all([clients[1], clients[2]], 59)
        assert asyncio.get_running_loop().time() - began < 1.0
        assert rest == Counter({*messages(60)} - {held.record.value or b""})

    run(scenario, tmp_path)


def test_acks_that_a_removed_node_has_answered_count(tmp_path: Path) -> None:
    """Also those that it answers while it is removed, and those that others pass to it."""

    async def scenario(cluster: NodeCluster, clients: Clients) -> None:
        await join(*clients.values())
        await clients[1].produce(*messages(120))
        own = await clients[3].owned()
        offers = [await clients[1 + turn % 3].consume() for turn in range(90)]
        answered: set[bytes | None] = set()

        async def ack(client: Client, some: Sequence[Offer]) -> None:
            for offer in some:
                with suppress(PixyError):
                    await client.ack(offer)
                    answered.add(offer.record.value)
                await asyncio.sleep(0.001)

        mine = [offer for offer in offers if offer.partition in own]
        assert len(mine) > 20
        acking = [asyncio.create_task(ack(clients[at], mine[at - 1 :: 3])) for at in (1, 2, 3)]
        await asyncio.sleep(0.01)
        assert answered
        assert not any((await clients[1].offsets()).values())
        began = asyncio.get_running_loop().time()
        await cluster[1].backend.remove_node(cluster[3].id)
        await asyncio.gather(*acking)
        await ack(clients[1], [offer for offer in offers if offer.partition not in own])
        rest = await consume_all([clients[1], clients[2]], 120 - len(answered))
        assert asyncio.get_running_loop().time() - began < 2.0
        assert rest == Counter({*messages(120)} - answered)

    run(scenario, tmp_path, offsets_commit_interval=600.0)


@pytest.mark.parametrize("pause_s", [0.0, 1.0, 5.0])
def test_a_node_that_reaches_no_other_one_stops_soon(tmp_path: Path, pause_s: float) -> None:
    """Its commit may be under way when it loses them."""

    async def scenario(cluster: NodeCluster, clients: Clients) -> None:
        await join(*clients.values())
        await clients[1].produce(*messages(60))
        own = await clients[3].owned()
        offers = [await clients[3].consume() for _ in range(20)]
        cluster.split(3)
        for offer in [offer for offer in offers if offer.partition in own]:
            await clients[3].ack(offer)
        await asyncio.sleep(pause_s)
        began = asyncio.get_running_loop().time()
        await clients.pop(3).proxy.drain(1.0)
        await cluster[3].stop()
        assert asyncio.get_running_loop().time() - began < LAST_STOP_S

    run(scenario, tmp_path)


def test_consuming_goes_on_while_the_leader_of_the_group_is_killed(tmp_path: Path) -> None:
    async def scenario(cluster: NodeCluster, clients: Clients) -> None:
        await join(*clients.values())
        await clients[1].produce(*messages(60))
        got = await consume_all(list(clients.values()), 20)
        await asyncio.sleep(1)
        (leader,) = [number for number, node in cluster.nodes.items() if leads(node)]
        lost = clients.pop(leader)
        await cluster[leader].kill()
        again = await consume_all(list(clients.values()), 40)
        assert not again.keys() & got.keys()
        await lost.proxy.drain(0)

    run(scenario, tmp_path)
