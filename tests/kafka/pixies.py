"""pixies in front of the Kafka clusters of the tests: each is the inside of one daemon, below its
server, in this process.

Several share a group as several daemons do: each has its own connections and member. Those of
`open_neighbours` know each other, as with `peers` in their configuration.
"""

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any

from pixy.backend import OffsetCommit
from pixy.backend.kafka import KafkaBackend, KafkaOptions, NeighbourOptions, Neighbours
from pixy.clock import SystemClock
from pixy.config import ConsumerConfig, KafkaConfig, ProducerConfig, ProxyConfig
from pixy.consume import ConsumeRequest, Offer
from pixy.errors import LongPollTimeout, PixyError
from pixy.peers import Address, PeerOptions, Peers, TcpNetwork
from pixy.proxy import Proxy
from tests.fakes.waiting import until
from tests.kafka.backends import staging_place
from tests.kafka.cluster import KafkaCluster, free_ports

Answer = asyncio.Future[tuple[int, int]]

PATIENCE = 60.0
"""Timeout of waits for required events, in seconds."""

_CONSUMER = ConsumerConfig(
    long_polling_timeout=1.0,
    offsets_commit_interval=0.05,
    rebalance_delay=0.0,
    rebalance_timeout=3.0,
    session_timeout=3.0,
    retry_backoff=0.1,
)


class Pixy:
    """One pixy. `faults` has the bugs reported."""

    def __init__(
        self,
        cluster: KafkaCluster,
        client_id: str,
        options: Mapping[str, Any],
        neighbours: Neighbours | None = None,
        **proxy: Any,
    ) -> None:
        proxy.setdefault("kafka", KafkaConfig(seed_peers=tuple(cluster.addresses), metadata_max_age=1.0))
        # Records without a key should reach every partition.
        proxy.setdefault("producer", ProducerConfig(partitioner="random"))
        self.config = ProxyConfig(kind="kafka", consumer=replace(_CONSUMER, **options), **proxy)
        self.client_id = client_id
        self.faults: list[BaseException] = []
        self._folder = TemporaryDirectory(prefix="pixy-stages-")
        self.backend = KafkaBackend(
            KafkaOptions.from_config(self.config, client_id),
            staging_place(Path(self._folder.name) / "kafka"),
            self.faults.append,
            neighbours=neighbours,
        )
        self.proxy = Proxy(
            "kafka",
            self.config,
            self.backend,
            client_id=client_id,
            clock=SystemClock(),
            rng=Random(1),
            on_fault=self.faults.append,
        )

    async def stop(self) -> None:
        """Stop it, and remove its files."""
        await self.proxy.stop()
        self._folder.cleanup()

    async def produce(self, topic: str, *values: bytes) -> list[tuple[int, int]]:
        """Produce messages without a key; returns partition and offset of each."""
        loop = asyncio.get_running_loop()
        answers: list[Answer] = [loop.create_future() for _ in values]

        def done(waiting: Sequence[Answer], partition: int, offset: int, error: PixyError | None) -> None:
            for at, answer in enumerate(waiting):
                if error is None:
                    answer.set_result((partition, offset + at))
                else:
                    answer.set_exception(error)

        for value, answer in zip(values, answers, strict=True):
            self.proxy.produce(topic, None, value, (), done, answer)
        async with asyncio.timeout(PATIENCE):
            return list(await asyncio.gather(*answers))

    async def consume(self, group: str, topic: str, **options: Any) -> Offer | None:
        """The next record, delivered; None after a long poll without a record.

        Raises:
            PixyError: any other answer.
        """
        answer: asyncio.Future[Offer] = asyncio.get_running_loop().create_future()

        def done(offer: Offer | None, error: PixyError | None) -> None:
            if offer is not None:
                answer.set_result(offer)
            else:
                assert error is not None
                answer.set_exception(error)

        self.proxy.consume(ConsumeRequest(group, topic, **options), done)
        try:
            async with asyncio.timeout(PATIENCE):
                offer = await answer
        except LongPollTimeout:
            return None
        offer.delivered()
        return offer

    async def consume_some(self, group: str, topic: str, **options: Any) -> Offer:
        """The next record, over as many long polls as necessary."""
        async with asyncio.timeout(PATIENCE):
            while True:
                offer = await self.consume(group, topic, **options)
                if offer is not None:
                    return offer

    async def ack(self, group: str, topic: str, partition: int, offset: int) -> None:
        """Ack a record.

        Raises:
            PixyError: the ack does not count.
        """
        answer: asyncio.Future[PixyError | None] = asyncio.get_running_loop().create_future()
        self.proxy.ack(group, topic, partition, offset, answer.set_result)
        async with asyncio.timeout(PATIENCE):
            error = await answer
        if error is not None:
            raise error

    async def ack_offer(self, group: str, offer: Offer) -> None:
        await self.ack(group, offer.topic, offer.partition, offer.record.offset)

    async def committed(self, group: str, topic: str) -> dict[int, OffsetCommit]:
        return dict(await self.backend.committed_offsets(group, topic))

    async def wait_committed(self, group: str, topic: str, expected: Mapping[int, tuple[int, str]]) -> None:
        """Wait until the group has committed exactly these offsets."""
        found: Mapping[int, OffsetCommit] = {}

        async def is_there() -> bool:
            nonlocal found
            found = await self.committed(group, topic)
            return found == expected

        try:
            await until(is_there)
        except TimeoutError:
            raise AssertionError(f"committed is {found}, not {expected}") from None


@asynccontextmanager
async def open_pixy(
    cluster: KafkaCluster, client_id: str = "pixy-a", options: Mapping[str, Any] | None = None, **proxy: Any
) -> AsyncIterator[Pixy]:
    """A running pixy, drained and stopped at the end.

    Args:
        options: consumer options that override the short timeouts of the tests.
        proxy: options of the cluster, and `neighbours`.
    """
    pixy = Pixy(cluster, client_id, options or {}, **proxy)
    await pixy.proxy.start()
    try:
        yield pixy
    finally:
        await pixy.proxy.drain(0)
        await pixy.stop()
        assert pixy.faults == []


@asynccontextmanager
async def open_neighbours(
    cluster: KafkaCluster, count: int, options: Mapping[str, Any] | None = None
) -> AsyncIterator[list[Pixy]]:
    """Running pixies that know each other."""
    addresses = tuple(Address("127.0.0.1", port) for port in free_ports(count))
    async with AsyncExitStack() as stack:
        pixies, every = (
            [],
            [Peers(TcpNetwork(), PeerOptions(address, mutual_tls=True)) for address in addresses],
        )
        for peers in every:
            await peers.start()
            stack.push_async_callback(peers.stop)
        for number, (address, peers) in enumerate(zip(addresses, every, strict=True)):
            client_id = f"pixy-{number}"
            own = NeighbourOptions("kafka", addresses, address, client_id, 1, bytes([number]) * 8, "1.0")
            neighbours = Neighbours(own, peers.channel)
            pixies.append(
                await stack.enter_async_context(open_pixy(cluster, client_id, options, neighbours=neighbours))
            )
        yield pixies
