"""Crashes at random moments: everything acknowledged survives, and otherwise only a prefix of what
was in progress.

Each round sends random requests, stops the world between the write of a flush and its answer,
copies the data directory, tears data that was not synced yet, and starts a node on the rest.
Everything follows from a seed, which the test's name gives.
"""

import asyncio
import shutil
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random

import pytest

from pixy.records import TopicPartition
from tests.cluster.nodes import Cluster, Sizes, copy_of

FILE_BYTES = 3000
SECTOR_BYTES = 512
FEW_ROUNDS, ROUNDS = 12, 34
TOPICS_MAX = 6


@dataclass
class Model:
    """Required and possible contents."""

    topics: dict[str, int] = field(default_factory=dict)
    acknowledged: dict[TopicPartition, list[bytes]] = field(default_factory=dict)
    sent: dict[TopicPartition, list[bytes]] = field(default_factory=dict)
    committed: dict[tuple[str, str], list[int]] = field(default_factory=dict)
    """The last acknowledged offset, and those sent after it."""

    def check(self, cluster: Cluster) -> None:
        """Compare, then treat all that survived as acknowledged: a start makes it durable."""
        topics = cluster.node.metadata.topics
        assert {name: len(topic.raft_groups) for name, topic in topics.items()} == self.topics
        for partition, sent in self.sent.items():
            found = cluster.values(*partition)
            acknowledged = self.acknowledged[partition]
            assert found[: len(acknowledged)] == acknowledged, partition
            assert found == sent[: len(found)], partition
            self.acknowledged[partition], self.sent[partition] = found, list(found)
        for (group, topic), offsets in self.committed.items():
            value = cluster.committed(group, topic).get(0, -1)
            assert value in offsets, (group, topic)
            self.committed[group, topic] = [value]


class Scenario:
    def __init__(self, rng: Random, model: Model, cluster: Cluster) -> None:
        self.rng = rng
        self.model = model
        self.cluster = cluster
        self._number = 0
        self._commits: set[asyncio.Task[None]] = set()

    async def run(self, steps: int) -> None:
        for _ in range(steps):
            match self.rng.randrange(20):
                case 0 if len(self.model.topics) < TOPICS_MAX:
                    await self._create_topic()
                case 1:
                    await self.cluster.sync()
                case 2 | 3 | 4:
                    self._send_commit()
                case 5 | 6:
                    for _ in range(self.rng.randrange(4)):
                        await asyncio.sleep(0)
                case _:
                    self._send()
        await self.cluster.settle()

    async def _create_topic(self) -> None:
        name, partitions = f"topic{len(self.model.topics)}", self.rng.randint(1, 3)
        await self.cluster.create_topic(name, partitions)
        self.model.topics[name] = partitions
        for number in range(partitions):
            self.model.acknowledged[TopicPartition(name, number)] = []
            self.model.sent[TopicPartition(name, number)] = []

    def send_anything(self) -> None:
        """Send a small request that is in progress when the world ends."""
        for _ in range(self.rng.randint(0, 4)):
            self._send() if self.rng.random() < 0.7 else self._send_commit()

    def _send(self) -> None:
        if not self.model.sent:
            return
        partition = self.rng.choice(list(self.model.sent))
        self._number += 1
        value = b"%s/%d/%d" % (partition.topic.encode(), partition.partition, self.rng.getrandbits(40))
        value += b"." * self.rng.choice([0, 50, 400, 4000])
        self.model.sent[partition].append(value)
        answer = self.cluster.append_nowait(value, *partition)
        at = len(self.model.sent[partition]) - 1

        def answered(future: asyncio.Future[int]) -> None:
            if not future.cancelled():
                assert future.result() == at
                assert len(self.model.acknowledged[partition]) == at
                self.model.acknowledged[partition].append(value)

        answer.add_done_callback(answered)

    def _send_commit(self) -> None:
        if not self.model.topics:
            return
        group, topic = self.rng.choice("gh"), self.rng.choice(list(self.model.topics))
        offset = self.rng.randrange(1000)
        offsets = self.model.committed.setdefault((group, topic), [-1])
        offsets.append(offset)
        task = asyncio.create_task(self.cluster.commit(offset, group, topic))

        def answered(task: asyncio.Task[None]) -> None:
            if not task.cancelled():
                task.result()
                offsets[:] = offsets[offsets.index(offset) :]

        task.add_done_callback(answered)
        self._commits.add(task)

    async def finish(self) -> None:
        """Wait for the requests in progress."""
        await asyncio.gather(*self._commits)


def tear(rng: Random, cluster: Cluster, copy: Path) -> None:
    """Remove from a copy what a power failure may remove: bytes of the flush in progress, and
    unsynced bytes of segments.
    """
    if cluster.node._log.journal._flushing:
        # Written but not acknowledged: perhaps only some of its sectors are on the disk.
        flush = cluster.disk.did("write", ".journal")[-1]
        path = copy / "journal" / flush.name
        data = bytearray(path.read_bytes())
        sectors = range(flush.at // SECTOR_BYTES, -(-len(data) // SECTOR_BYTES))
        first, end = sorted(rng.randint(sectors.start, sectors.stop) for _ in range(2))
        missing = rng.choice(
            (
                range(first, sectors.stop),
                range(first, end),
                [each for each in sectors if rng.random() < 0.5],
                [],
            )
        )
        for sector in missing:
            begin, behind = max(flush.at, sector * SECTOR_BYTES), min(len(data), (sector + 1) * SECTOR_BYTES)
            data[begin:behind] = bytes(behind - begin)
        path.write_bytes(data)
    for replica in cluster.node.partitions:
        synced = None if replica.group is None else replica.group.position
        for path in sorted(
            (copy / "topics" / f"{replica.partition.topic}-{replica.partition.partition}").glob("*.log")
        ):
            base = int(path.stem)
            if synced is None or base > synced.segment_base_offset:
                path.write_bytes(path.read_bytes()[: rng.randint(0, path.stat().st_size)])
            elif base == synced.segment_base_offset:
                path.write_bytes(path.read_bytes()[: rng.randint(synced.segment_bytes, path.stat().st_size)])


@pytest.mark.no_debug
@pytest.mark.slow
@pytest.mark.parametrize(
    ("seed", "rounds"),
    [(1, FEW_ROUNDS), *(pytest.param(seed, ROUNDS, marks=pytest.mark.long) for seed in (2, 3, 4))],
)
async def test_acknowledged_data_survives_every_crash(
    tmp_path: Path, seed: int, rounds: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng, model = Random(seed), Model()
    directory = tmp_path / "data"
    for number in range(rounds):
        monkeypatch.setattr(Cluster, "pace", replace(Cluster.pace, gather_s=rng.choice([0, 0.002])))
        cluster = Cluster(
            directory,
            Sizes(
                file_bytes=FILE_BYTES,
                segment_bytes=rng.choice([3000, 20_000]),
                checkpoint_entries=rng.choice([3, 20, 1000]),
                tail_cache_bytes=rng.choice([0, 1000, 1 << 20]),
                max_unapplied_bytes=rng.choice([2000, 1 << 20]),
            ),
            seed=seed,
        )
        async with cluster.running():
            model.check(cluster)
            scenario = Scenario(rng, model, cluster)
            await scenario.run(rng.randint(5, 60))
            scenario.send_anything()
            # The turn in which commits propose, the one that begins a flush, and perhaps the one
            # that answers it.
            for _ in range(rng.randint(0, 2)):
                await asyncio.sleep(0)
            copy = copy_of(directory, f"crashed-{number}")
            tear(rng, cluster, copy)
            frozen = Model(
                dict(model.topics),
                {partition: list(values) for partition, values in model.acknowledged.items()},
                {partition: list(values) for partition, values in model.sent.items()},
                {key: list(values) for key, values in model.committed.items()},
            )
            await scenario.finish()
        shutil.rmtree(directory)
        model, directory = frozen, copy
    assert sum(map(len, model.acknowledged.values())) > 200
