"""The storage of one node under crashes: a seeded workload on a simulated disk, against a model.

A run is one data directory and several lives of a process on it. A life starts the node, compares what it shows with the model, does
random things, and ends: cleanly, killed, or by a loss of power, at a random operation of the disk, also in the middle of a start.
In some lives the disk is full for a while, or one call fails. In between a copy of the disk gets one bit flipped, and is started too.
In the last life nothing fails: everything must be there, and everything that is asked must be answered.

    python -m tests.sim.storage_simulation --seeds 1..1000
"""

import argparse
import asyncio
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Any

from structlog.testing import capture_logs

from pixy.backend import EmbeddedBackend
from pixy.cluster import Node, NodeOptions
from pixy.config import JournalConfig, StorageConfig
from pixy.errors import CorruptData, PixyError, StorageFault, Unavailable
from pixy.records import NewRecord, OffsetCommit, TopicPartition, build_batch, read_records
from tests.fakes.clock import FakeClock
from tests.sim.disk import SimulatedDisk
from tests.sim.loop import VirtualLoop
from tests.sim.model import Found, Model, Sent
from tests.sim.worker import SimulatedWorker

__all__ = ["Simulation", "SimulationFailure", "run_seed"]

DIRECTORY = Path("/var/pixy/node")

_TOPICS_MAX = 4
_GROUPS = ("g", "h")
_PATIENCE_S = 30.0
"""Virtual time after which everything that a healthy node was asked must be answered."""


class SimulationFailure(AssertionError):
    """The storage broke a promise. The message has the seed."""


class Simulation:
    """One run.

    Args:
        seed: everything follows from it.
        lives: how many processes follow each other, the last healthy one not counted.
        ignored: the places whose syncs do nothing, as the disk names them.

    Attributes:
        disk: what everything happens on.
        counts: how often which kind of thing has happened.
    """

    def __init__(self, seed: int, *, lives: int = 5, ignored: Iterable[str] = ()) -> None:
        self.seed = seed
        self.rng = Random(seed)
        self.disk = SimulatedDisk(Random(self.rng.getrandbits(64)))
        self.disk.ignored = frozenset(ignored)
        self.clock = FakeClock()
        self.model = Model()
        self.counts: Counter[str] = Counter()
        self._lives = lives

    def run(self) -> None:
        """Raise `SimulationFailure` if anything is not as it must be."""
        life = 0
        try:
            with capture_logs():
                while life < self._lives:
                    life += 1
                    self._run_life(Life(self, healthy=False))
                    if self.rng.random() < 0.3:
                        self._probe_flipped_bit()
                life += 1
                self._run_life(Life(self, healthy=True))
        except Exception as error:
            raise SimulationFailure(
                f"seed {self.seed}, life {life}: {type(error).__name__}: {error}"
            ) from error

    def _run_life(self, life: "Life") -> None:
        self.disk.restart()
        life.plan()
        self._in_loop(life.live)
        life.check_end()
        self.disk.end()
        if life.loses_power:
            self.counts["losses of power"] += 1
            self.disk.lose_power()

    def _in_loop(self, live: Callable[[], Any]) -> None:
        unhandled: list[dict[str, Any]] = []
        with asyncio.Runner(loop_factory=VirtualLoop, debug=False) as runner:
            runner.get_loop().set_exception_handler(lambda _, context: unhandled.append(context))
            runner.run(live())
        if unhandled and not self.disk.ended:
            raise AssertionError(f"unhandled: {unhandled[0]}") from unhandled[0].get("exception")

    def _probe_flipped_bit(self) -> None:
        """Start a copy with one flipped bit: it is harmless, or refused with its place, or answered so when it is read."""
        disk = self.disk.copy()
        files = [path for path, size in disk.files().items() if size and path.name != "lock"]
        if not files:
            return
        path = self.rng.choice(files)
        last_flush = path.suffix == ".journal" and path == max(
            file for file in files if file.suffix == ".journal"
        )
        end = disk.last_durable_write(path) if last_flush else disk.files()[path]
        if not end:
            return
        disk.flip(path, self.rng.randrange(end), self.rng.randrange(8))
        probe = Probe(self, disk, path)
        self._in_loop(probe.live)
        self.counts[f"flipped bits {probe.outcome}"] += 1


class Life:
    """One process, from its start to its end."""

    def __init__(self, simulation: Simulation, *, healthy: bool) -> None:
        self._simulation = simulation
        self._rng = simulation.rng
        self._disk = simulation.disk
        self._model = simulation.model
        self._clock = simulation.clock
        self._healthy = healthy
        self._faults: list[BaseException] = []
        self._started = False
        self._refused_at_start = False
        self._tasks: set[asyncio.Task[None]] = set()
        self._backend: EmbeddedBackend
        self._node: Node
        self.loses_power = False

    def plan(self) -> None:
        """Decide how this life ends."""
        rng, disk = self._rng, self._disk
        self.loses_power = rng.random() < 0.6
        if self._healthy:
            return
        at = rng.randint(1, 14) if rng.random() < 0.4 else rng.randint(1, 120)
        match rng.randrange(10):
            case 0:
                pass
            case 1 | 2:
                disk.fail_at = at
            case 3 if rng.random() < 0.3:
                disk.fail_read_at = at
            case _:
                disk.die_at, disk.die_phase = at, rng.choice(("before", "middle", "after"))
        if rng.random() < 0.03:
            disk.full = True

    async def live(self) -> None:
        task = asyncio.get_running_loop().create_task(self._live())
        self._disk.on_ended = task.cancel
        try:
            await task
        except asyncio.CancelledError:
            if not self._disk.ended:
                raise
            self._simulation.counts["ends at an operation"] += 1
            if not self._started:
                self._simulation.counts["ends during a start"] += 1
        finally:
            self._disk.on_ended = lambda: None

    def check_end(self) -> None:
        """What must be true of a life behind it."""
        failed = self._disk.failed
        for fault in self._faults:
            assert isinstance(fault, OSError), f"a fault that is a bug: {fault!r}"
            assert failed is not None, f"a fault without a reason: {fault!r}"
        if failed is not None:
            self._simulation.counts["failed calls"] += 1

    # --- the way of a life --------------------------------------------------------------------------------------

    async def _live(self) -> None:
        self._make()
        if self._disk.full:
            asyncio.get_running_loop().call_later(3, self._make_room)
        try:
            async with asyncio.timeout(_PATIENCE_S):
                await self._backend.start()
        except (PixyError, OSError) as error:
            if not (self._disk.failed or self._disk.full or self._read_failed):
                raise AssertionError(f"a start was refused: {error}") from error
            self._simulation.counts["refused starts"] += 1
            return
        self._started = True
        self._model.adopt(await self._check())
        for _ in range(self._rng.randint(3, 40)):
            if self._faults:
                break
            await self._step()
        await self._finish()

    def _make(self) -> None:
        rng, disk = self._rng, self._disk
        order = None if rng.random() < 0.5 else Random(rng.getrandbits(64))
        options = NodeOptions(
            DIRECTORY,
            JournalConfig(
                file_bytes=rng.choice((3000, 9000, 20_000)),
                max_unapplied_bytes=rng.choice((2000, 8000, 1 << 20)),
            ),
            StorageConfig(
                segment_bytes=rng.choice((3000, 10_000, 50_000)),
                tail_cache_bytes=rng.choice((0, 1000, 1 << 20)),
                checkpoint_entries=rng.choice((3, 8, 1000)),
            ),
            rng.randbytes,
            lambda _: SimulatedWorker(disk, order),
        )
        self._node = Node(disk, self._clock, options, self._faults.append)
        self._backend = EmbeddedBackend(self._node, self._clock)

    async def _finish(self) -> None:
        """End of a life that nothing has ended before."""
        gives_up = self._disk.full
        if self._disk.full:
            self._make_room()
        if self._faults or self._disk.failed:
            await asyncio.sleep(_PATIENCE_S)
            self._check_fault()
        elif self._healthy or self._rng.random() < 0.5:
            if self._healthy:
                for partition in self._model.partitions:
                    self._append(partition)
            await self._settle()
        if self._rng.random() < 0.6 or self._healthy:
            self._disk.die_at = 0 if self._healthy else self._disk.die_at
            blocked = self._node.blocked
            await self._backend.stop()
            await asyncio.sleep(0.1)  # whoever got an answer takes note of it
            # What waits for room when a stop comes is given up.
            if not self._faults and blocked is None and not gives_up:
                assert not self._model.outstanding, f"not answered by a clean stop: {self._model.outstanding}"
                self._simulation.counts["clean stops"] += 1
        if not self._disk.ended:
            for task in self._tasks:
                task.cancel()

    async def _settle(self) -> None:
        """Everything that was asked is answered, and the node says that all is well."""
        for _ in range(10):
            await asyncio.sleep(_PATIENCE_S / 10)
            if self._faults or not self._model.outstanding:
                break
        if self._faults or self._disk.failed:
            return
        assert not self._model.outstanding, f"never answered: {self._model.outstanding}"
        assert self._node.blocked is None, f"still blocked: {self._node.blocked}"
        await self._check()

    async def _check(self) -> Found:
        promised = self._model.promised()
        try:
            found = await read_everything(self._backend)
        except StorageFault:
            assert self._read_failed, "a read has failed without a reason"
            self._simulation.counts["failed reads"] += 1
            found = await read_everything(self._backend)
        self._model.check(found, promised)
        return found

    @property
    def _read_failed(self) -> bool:
        return self._disk.reads >= self._disk.fail_read_at > 0

    def _check_fault(self) -> None:
        """A call on what everything rests on has failed: the node has said so."""
        failed = self._disk.failed
        if failed is None:
            return
        critical = failed.path.suffix in (".journal", ".log") or failed.path.name == "journal"
        if critical:
            assert self._faults, f"{failed} has failed, and nobody was told"

    # --- steps --------------------------------------------------------------------------------------------------

    async def _step(self) -> None:
        rng = self._rng
        choice = rng.randrange(100)
        if choice < 8 or not self._model.partitions:
            self._create_topic()
            await asyncio.sleep(0.1)
        elif choice < 24:
            self._commit()
        elif choice < 42:
            await self._pass_time()
        elif choice < 45:
            self._disk.full = not self._disk.full
            if not self._disk.full:
                self._simulation.counts["full disks"] += 1
                await self._settle()
        elif choice < 49:
            await self._check()
        else:
            for _ in range(rng.choice((1, 1, 1, 6))):
                self._append(rng.choice(list(self._model.partitions)))

    async def _pass_time(self) -> None:
        seconds = self._rng.choice((0.0, 0.0, 0.0, 0.001, 0.03, 0.03, 6.0))
        self._clock.advance(seconds)
        await asyncio.sleep(seconds)

    def _make_room(self) -> None:
        self._disk.full = False

    def _append(self, partition: TopicPartition) -> None:
        rng, model = self._rng, self._model
        batch = [self._record() for _ in range(rng.choice((1, 1, 2, 5)))]
        number, offset = model.send(partition, batch)
        answered = False

        def done(at: int, error: BaseException | None) -> None:
            nonlocal answered
            assert not answered, "one append is answered twice"
            answered = True
            if error is not None:
                assert isinstance(error, Unavailable), repr(error)
                model.take_back(partition)
                return
            assert not self._faults, "an answer after a fault"
            assert at == offset, f"{partition}: appended at {at}, expected {offset}"
            model.acknowledge(partition, number)
            self._simulation.counts["batches"] += 1

        records = [NewRecord(key, value, (), timestamp_ms) for key, value, timestamp_ms in batch]
        self._backend.append(partition, build_batch(records), len(records), done)

    def _record(self) -> Sent:
        rng = self._rng
        key = rng.choice((None, b"key"))
        value = rng.randbytes(8) + bytes(rng.choice((0, 40, 300, 300, 1500, 9000)))
        if rng.random() < 0.02:
            return Sent(key, None, self._clock.wall_ms())
        return Sent(key, value, self._clock.wall_ms())

    def _commit(self) -> None:
        group = self._rng.choice(_GROUPS)
        partition = self._rng.choice(list(self._model.partitions))
        commit = OffsetCommit(self._rng.randrange(1000), f"{self._rng.getrandbits(32):x}")
        self._begin(self._send_commit(group, partition, commit))

    async def _send_commit(self, group: str, partition: TopicPartition, commit: OffsetCommit) -> None:
        self._model.send_commit(group, partition, commit)
        try:
            await self._backend.commit_offsets(group, {partition: commit})
        except Unavailable:
            self._model.take_back_commit(group, partition, commit)
        else:
            assert not self._faults, "an answer after a fault"
            self._model.commit_acknowledged(group, partition, commit)
            self._simulation.counts["commits"] += 1

    def _create_topic(self) -> None:
        number = len(self._model.topics) + len(self._model.asked)
        if number < _TOPICS_MAX:
            self._begin(self._send_topic(f"topic{number}", self._rng.randint(1, 3)))

    async def _send_topic(self, name: str, partitions: int) -> None:
        self._model.send_topic(name, partitions)
        try:
            topic = await self._backend.create_topic(name, partitions)
        except Unavailable:
            del self._model.asked[name]
        else:
            assert not self._faults, "an answer after a fault"
            self._model.topic_created(name, topic.topic_id, partitions)
            self._simulation.counts["topics"] += 1

    def _begin(self, coroutine: Any) -> None:
        task = asyncio.get_running_loop().create_task(coroutine)
        self._tasks.add(task)


class Probe:
    """A process on a copy of the disk with one flipped bit."""

    def __init__(self, simulation: Simulation, disk: SimulatedDisk, path: Path) -> None:
        self._simulation = simulation
        self._disk = disk
        self._path = path
        self.outcome = "harmless"

    async def live(self) -> None:
        life = Life(self._simulation, healthy=True)
        life._disk = self._disk
        life._make()
        backend = life._backend
        try:
            await backend.start()
        except PixyError as error:
            self.outcome = "refused at start"
            self._check_says_where(error)
            return
        found = await read_everything(backend, self._check_says_where)
        if found.damaged:
            self.outcome = "answered when read"
        self._simulation.model.check(found, self._simulation.model.promised())
        self._disk.end()

    def _check_says_where(self, error: PixyError) -> None:
        text = str(error)
        assert str(self._path) in text or str(self._path.parent) in text, (
            f"{self._path} is damaged, said: {text}"
        )
        if self._path.suffix in (".journal", ".log"):
            assert any(word in text for word in ("byte", "version", "header", "begins")), (
                f"{self._path} is damaged, said: {text}"
            )


async def read_everything(
    backend: EmbeddedBackend, on_damage: Callable[[PixyError], None] | None = None
) -> Found:
    """All that a backend shows; proves that offsets have no holes.

    Args:
        on_damage: gets the error of a partition that cannot be read; without it the error is raised.
    """
    topics: dict[str, tuple[bytes, int]] = {}
    records: dict[TopicPartition, list[Sent]] = {}
    committed: dict[tuple[str, TopicPartition], OffsetCommit] = {}
    damaged: set[TopicPartition] = set()
    for topic in await backend.list_topics():
        for number, offsets in (await backend.offset_ranges(topic.name)).items():
            partition = TopicPartition(topic.name, number)
            found = records[partition] = []
            assert offsets.begin == 0, f"{partition} begins at {offsets.begin}"
            try:
                await _read_partition(backend, partition, offsets.end, found)
            except CorruptData as error:
                if on_damage is None:
                    raise
                on_damage(error)
                damaged.add(partition)
    # All at one moment: nothing of this suspends.
    for topic in await backend.list_topics():
        topics[topic.name] = (topic.topic_id, len(topic.partitions))
        for group in _GROUPS:
            for number, commit in (await backend.committed_offsets(group, topic.name)).items():
                committed[group, TopicPartition(topic.name, number)] = commit
    return Found(topics, records, committed, frozenset(damaged))


async def _read_partition(
    backend: EmbeddedBackend, partition: TopicPartition, end: int, found: list[Sent]
) -> None:
    while len(found) < end:
        result = await backend.fetch(partition, len(found), max_bytes=4000, max_wait=0)
        for batch in result.batches:
            for record in read_records(batch):
                if record.offset < len(found):
                    continue
                assert record.offset == len(found), f"{partition}: offset {record.offset} at {len(found)}"
                found.append(Sent(record.key, record.value, record.timestamp))
    del found[end:]


def run_seed(seed: int, *, lives: int = 5, ignored: Iterable[str] = ()) -> Simulation:
    """Run one seed.

    Raises:
        SimulationFailure: the storage broke a promise.
    """
    simulation = Simulation(seed, lives=lives, ignored=ignored)
    simulation.run()
    return simulation


def main() -> None:
    """Run a range of seeds, stop at the first failure."""
    parser = argparse.ArgumentParser(description="Crash the storage on a simulated disk.")
    parser.add_argument("--seeds", default="1..500", help="first..last, or one seed")
    parser.add_argument("--ignore", action="append", default=[], help="a place whose syncs do nothing")
    arguments = parser.parse_args()
    first, _, last = arguments.seeds.partition("..")
    counts: Counter[str] = Counter()
    began = time.monotonic()
    for seed in range(int(first), int(last or first) + 1):
        try:
            counts += run_seed(seed, ignored=arguments.ignore).counts
        except SimulationFailure:
            print(
                f"failed; again with: python -m tests.sim.storage_simulation --seeds {seed}", file=sys.stderr
            )
            raise
        if seed % 100 == 0:
            print(f"seed {seed}: {time.monotonic() - began:.1f} s", flush=True)
    for what, count in sorted(counts.items()):
        print(f"{count:9} {what}")


if __name__ == "__main__":
    with suppress(KeyboardInterrupt):
        main()
