"""A partition log on a simulated disk, with repeated crashes at any call and losses of power.

Crashes happen during startup, too. The journal is a list here: every appended batch is durable in
it, and so is every reported applied position. Each process does random operations until it crashes.
The next one must find everything up to the position, replay the rest, and serve all of it.
"""

from dataclasses import dataclass, field
from pathlib import Path
from random import Random

import pytest

from pixy.proto.state_pb2 import AppliedPosition
from pixy.records import read_header
from pixy.storage import KnownPartitions, LogOptions, PartitionLog, TopicLogs
from pixy.storage.disk.removal import remove_files
from pixy.storage.partition.log_segments import AgedSegments
from tests.sim.disk import Ended, SimulatedDisk
from tests.storage.batches import batch
from tests.storage.logs import (
    CLUSTER_ID,
    LONG_MS,
    append,
    applied_position,
    exhaust,
    identity,
    sort_directories,
    unstamped,
)

TOPICS = Path("/node/topics")
DIRECTORY = TOPICS / "topic-0"
LIVES = 7


@dataclass
class Journal:
    """Entries, each a batch or a new log begin offset, and the newest applied position."""

    entries: list[bytes | int] = field(default_factory=list)
    position: AppliedPosition | None = None


class Life:
    """One process."""

    def __init__(self, rng: Random, disk: SimulatedDisk, journal: Journal) -> None:
        self.rng = rng
        self.disk = disk
        self.journal = journal
        self.log = PartitionLog(disk, DIRECTORY, identity(), TopicLogs(self._options()))
        self.applied = 0

    def _options(self) -> LogOptions:
        return LogOptions(self.rng.choice([1, 200, 400, 2000]), self.rng.choice([3, LONG_MS]))

    def start(self) -> None:
        found = sort_directories(
            self.disk, TOPICS, KnownPartitions({"topic-0": identity()}, CLUSTER_ID, 2000)
        )
        assert set(found.values()) <= {None}
        position, entries = self.journal.position, self.journal.entries
        self.applied = 0 if position is None else position.index
        exists, replayed = bool(found), len(entries) > self.applied
        exhaust(remove_files(self.disk, self.log.open(position, exists=exists, replayed=replayed)))
        self.check()
        for entry in entries[self.applied :]:
            self.apply(entry)

    def apply(self, entry: bytes | int) -> None:
        if isinstance(entry, int):
            self.log.move_begin(entry)
        else:
            append(self.log, bytearray(entry))
        self.applied += 1

    def propose(self, entry: bytes | int) -> None:
        self.journal.entries.append(entry)
        self.apply(entry)

    def check(self) -> None:
        """Assert that every offset is found, in segments or in memory, with the journal's batch."""
        log = self.log
        offset, begin = 0, log.begin_offset
        for entry in self.journal.entries:
            if isinstance(entry, int):
                continue
            end = offset + read_header(entry).last_offset_delta + 1
            if begin < end <= log.end_offset:
                chunk = log.read_memory(max(offset, begin), 1) or log.read(max(offset, begin), 1)
                assert (read_header(chunk.batches[0]).base_offset, chunk.next_offset) == (offset, end)
                assert bytes(chunk.batches[0][21:]) == entry[21:]
            offset = end

    def do_something(self) -> None:
        log = self.log
        match self.rng.randrange(10):
            case 0 | 1 | 2 | 3:
                timestamp = self.rng.choice([5, log.end_offset, 10**12])
                new = batch(self.rng.randint(1, 3), self.rng.choice([1, 50, 300]), timestamp)
                self.propose(bytes(new if self.rng.random() < 0.9 else unstamped(new)))
            case 4 | 5:
                self.write()
            case 6:
                self.write()
                index = self.applied
                position = applied_position(log)
                position.index = index
                self.journal.position = position
                exhaust(remove_files(self.disk, log.drop_segments(position.log_begin_offset)))
            case 7:
                self.propose(self.rng.randint(log.begin_offset, max(log.begin_offset, log.written_offset)))
            case 8:
                for _ in range(self.rng.randint(0, 3)):
                    log.evict()
            case 9:
                log.topic.options = self._options()

    def write(self) -> None:
        unwritten = self.log.unwritten()
        self.log.write(unwritten.batches, AgedSegments())
        self.log.wrote(unwritten)


@pytest.mark.parametrize(
    "seeds",
    [
        pytest.param(0, marks=pytest.mark.slow),
        *(pytest.param(seeds, marks=pytest.mark.long) for seeds in range(1, 5)),
    ],
)
def test_no_crash_loses_records(seeds: int) -> None:
    ended = 0
    for seed in range(seeds * 100, seeds * 100 + 100):
        rng, journal = Random(seed), Journal()
        disk = SimulatedDisk(Random(seed))
        disk.make_directory(TOPICS)
        for _ in range(LIVES):
            disk.restart()
            disk.die_at, disk.die_phase = rng.randint(1, 60), rng.choice(["before", "middle", "after"])
            try:
                life = Life(rng, disk, journal)
                life.start()
                for _ in range(rng.randint(1, 40)):
                    life.do_something()
                    life.check()
                disk.end()
            except Ended:
                ended += 1
            except BaseException as error:
                error.add_note(f"seed {seed}")
                raise
            if rng.random() < 0.6:
                disk.lose_power()
        disk.restart()
        life = Life(rng, disk, journal)
        life.start()
        life.check()
    assert ended > 100
