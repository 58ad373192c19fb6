"""A machine with a replica that is copied, on a disk that loses what was not synced."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from random import Random

from pixy.copies import OwnRecords, StagedCopy, roll_forward, staged_copy, swap_directories
from pixy.proto.state_pb2 import AppliedPosition
from pixy.records import offsets_of
from pixy.storage import COPY_MANIFEST, AgedSegments, KnownPartitions, LogOptions, PartitionLog, TopicLogs
from pixy.storage.disk.removal import remove_files
from tests.copies.sources import log_of
from tests.sim.disk import Ended, SimulatedDisk
from tests.storage.logs import CLUSTER_ID, LONG_MS, exhaust, identity, sort_directories

TOPICS = Path("/node/topics")
NAME = "topic-0"
GROUP = 1000
LOG = log_of(40, Random(3))
OWN = 15
"""Batches that the replica has at first."""
_SYNC_BYTES = 700


def end_of(count: int) -> int:
    """Offset behind so many batches."""
    return offsets_of(LOG[count - 1])[1] if count else 0


@dataclass
class Copied:
    """A machine.

    Attributes:
        own: batches that its replica has.
        keeps: it keeps them.
        applied: the applied position in its journal.
        disk: its disk.
    """

    disk: SimulatedDisk
    own: int = OWN
    keeps: bool = True
    applied: AppliedPosition | None = None

    def __post_init__(self) -> None:
        self.disk.make_directory(TOPICS)
        if self.own:
            log = self._log()
            log.open(None, exists=False)
            log.write(LOG[: self.own], AgedSegments())
            _, base, size = log.sync()
            self.applied = AppliedPosition(
                raft_group=GROUP,
                index=self.own,
                term=9,
                end_offset=end_of(self.own),
                segment_base_offset=base,
                segment_bytes=size,
            )

    def _log(self) -> PartitionLog:
        return PartitionLog(self.disk, TOPICS / NAME, identity(), self._topic())

    def _topic(self) -> TopicLogs:
        return TopicLogs(LogOptions(800, LONG_MS))

    def start(self) -> PartitionLog:
        """As a start does; returns the log."""
        roll_forward(self.disk, TOPICS, {GROUP: NAME}, lambda _: self.applied)
        known = KnownPartitions({NAME: identity()}, CLUSTER_ID, 2000)
        found = sort_directories(self.disk, TOPICS, known)
        assert set(found.values()) <= {None}
        log = self._log()
        exhaust(remove_files(self.disk, log.open(self.applied, exists=bool(found), replayed=False)))
        return log

    def copy(self, log: PartitionLog, *, installs: bool = True) -> None:
        """Copy what the replica lacks, and install it."""
        end, begin = end_of(len(LOG)), end_of(self.own) if self.keeps else 0
        staged = StagedCopy(self.disk, TOPICS, identity(), self._topic())
        staged.open(begin if self.keeps else 0, begin, end)
        assert begin <= staged.end_offset <= end
        for each in LOG:
            base, behind = offsets_of(each)
            if base >= staged.end_offset:
                staged.write([memoryview(each)], behind)
        state = AppliedPosition(raft_group=GROUP, index=100, term=9, end_offset=end)
        own = OwnRecords(log, log.begin_offset, log.end_offset) if self.keeps else None
        position = staged.seal(state, own, b"")
        if installs:
            self.applied = position  # durable in the journal
            log.close()
            swap_directories(self.disk, TOPICS, NAME, GROUP)

    def check(self) -> None:
        """After a start the log has all that the journal says, in the bytes of the others."""
        log = self.start()
        assert self.applied is None or log.end_offset == self.applied.end_offset
        found, at = b"", log.begin_offset
        while at < log.end_offset:
            chunk = log.read(at, 1000)
            found, at = found + b"".join(chunk.batches), chunk.next_offset
        count = 0
        while end_of(count) < log.end_offset:
            count += 1
        assert found == b"".join(LOG[:count])
        names = self.disk.names(TOPICS / NAME)
        assert COPY_MANIFEST not in names
        assert not [each for each in self.disk.names(TOPICS) if each.endswith("-replaced")]


def crashes(work: Callable[[Copied], None], own: int, *, keeps: bool, power: bool, seed: int) -> None:
    """Have a machine end at each operation of some work, in turn; it goes on afterwards."""
    before, staged_copy.SYNC_BYTES = staged_copy.SYNC_BYTES, _SYNC_BYTES
    try:
        at = 0
        while True:
            at += 1
            machine = Copied(SimulatedDisk(Random(seed + at)), own, keeps)
            machine.disk.restart()
            machine.disk.die_at = at
            machine.disk.die_phase = ("before", "middle", "after")[(seed + at) % 3]
            try:
                work(machine)
            except Ended:
                if power:
                    machine.disk.lose_power()
                machine.disk.restart()
                machine.check()
                # What was copied and synced is used again, and the rest comes.
                if machine.applied is None or machine.applied.index < 100:
                    machine.copy(machine.start())
                machine.check()
                assert machine.applied is not None
                assert machine.applied.index == 100
                assert f"{GROUP}-copy" not in machine.disk.names(TOPICS)
            else:
                assert at > 20
                return
    finally:
        staged_copy.SYNC_BYTES = before
