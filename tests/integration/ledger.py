"""Records the answers of a repeatedly killed daemon, and checks that later answers are consistent
with them.

Pure: no daemon, no clock. A life is the time between two starts of the daemon. Every contradiction
raises an AssertionError that names its position. Checks:

    records     an answered produce stays at its partition and offset, with its bytes; so does a
                record read by any client
                the log has no holes, and has a value at most as often as it was sent
    offsets     a commit shown by GetOffsets stays committed, and only acked records are committed
                SetOffsets is all or nothing: after a crash the last answered change holds, or one
                that was in flight
                after a clean exit, every answered ack is committed
    offers      in one life a group is offered exactly the records uncommitted at its start, each
                once
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from pixy.consume import decode
from pixy.proto.kafkapixy_pb2 import PartitionOffset
from pixy.records import OffsetRange, TopicPartition


class Position(NamedTuple):
    """A position in the log."""

    topic: str
    partition: int
    offset: int


class Committed(NamedTuple):
    """A group's committed position in a partition, as shown by GetOffsets; offset 0 without a
    commit.
    """

    offset: int = 0
    sparse: frozenset[int] = frozenset()

    @classmethod
    def shown(cls, entry: PartitionOffset) -> "Committed":
        ranges = decode(entry.offset, entry.metadata)
        sparse = frozenset(offset for acked in ranges for offset in range(acked.begin, acked.end))
        return cls(max(entry.offset, 0), sparse)

    def covers(self, offset: int) -> bool:
        return offset < self.offset or offset in self.sparse

    def covered(self) -> Iterable[int]:
        yield from range(self.offset)
        yield from self.sparse


class Ledger:
    """Ledger of the records."""

    def __init__(self) -> None:
        # Number of times each value was sent.
        self.sent: Counter[bytes] = Counter()
        # Answered produces.
        self.acknowledged: dict[Position, bytes] = {}
        # Records read by clients.
        self.read: dict[Position, bytes] = {}
        # End offset of the known records, by partition.
        self.ends: dict[TopicPartition, int] = {}

    def acknowledge(self, position: Position, value: bytes) -> None:
        """Record an answered produce."""
        self._agree(position, value)
        assert position not in self.acknowledged, f"{position} was given to two records: {value[:40]!r}"
        self.acknowledged[position] = value

    def see(self, position: Position, value: bytes) -> None:
        """Record a record read by a client."""
        assert value in self.sent, f"{position} holds {value[:40]!r}, which nobody sent"
        self._agree(position, value)
        self.read[position] = value

    def _agree(self, position: Position, value: bytes) -> None:
        for known in (self.acknowledged, self.read):
            before = known.get(position, value)
            assert before == value, f"{position} was {before[:40]!r} and is {value[:40]!r}"
        key = TopicPartition(position.topic, position.partition)
        self.ends[key] = max(self.ends.get(key, 0), position.offset + 1)

    def check_log(
        self, key: TopicPartition, served: OffsetRange, records: Sequence[tuple[int, bytes]]
    ) -> None:
        """Check `records`, which a fresh group read from a partition, against `served`, its range
        from GetOffsets.
        """
        known = self.ends.get(key, 0)
        assert served.begin == 0, f"{key} begins at {served.begin}"
        assert served.end >= known, f"{key} ends at {served.end}, but {known - 1} was answered or read before"
        offsets = sorted(offset for offset, _ in records)
        assert offsets == list(range(served.end)), (
            f"{key} has holes or doubles: {_difference(offsets, served.end)}"
        )
        for offset, value in records:
            self.see(Position(*key, offset), value)
        values = dict(records)
        for position, value in self.acknowledged.items():
            if position[:2] == key:
                assert values.get(position.offset) == value, f"the answered record at {position} is lost"

    def check_copies(self) -> None:
        """Check that no value occurs more often than it was sent. Call it when everything has been
        read.
        """
        for value, count in Counter(self.read.values()).items():
            assert count <= self.sent[value], (
                f"{value[:40]!r} was sent {self.sent[value]} times and is there {count} times"
            )

    def check_present(self, values: Iterable[bytes]) -> None:
        """Check that these values exist. Call it when everything has been read."""
        missing = set(values) - set(self.read.values())
        assert not missing, f"{len(missing)} messages are lost, among them {min(missing)[:40]!r}"


def _difference(offsets: list[int], end: int) -> str:
    missing = sorted(set(range(end)) - set(offsets))
    doubled = sorted(offset for offset, count in Counter(offsets).items() if count > 1)
    beyond = [offset for offset in offsets if offset >= end]
    return (
        f"missing {len(missing)} of {end}: {missing[:5]} to {missing[-1:]}, doubled {doubled[:5]}, "
        f"beyond the end {beyond[:5]}"
    )


@dataclass
class GroupLedger:
    """Ledger of one consumer group.

    Args:
        name: its name.
        workers: maximum number of its requests in flight.
        auto_ack: the daemon acks, so an acked record whose answer was lost is not an error.
    """

    name: str
    workers: int
    auto_ack: bool = False
    # Last commits shown.
    committed: dict[TopicPartition, Committed] = field(default_factory=dict)
    # Records whose ack was sent, or, with auto ack, received records.
    acked: set[Position] = field(default_factory=set)
    # Records whose ack was answered in this life.
    confirmed: set[Position] = field(default_factory=set)
    # With auto ack: records committed and never received, because a crash lost the answer.
    given_up: set[Position] = field(default_factory=set)
    # Records committed in this life without a known ack. Only with auto ack, while the answer is in
    # flight.
    _unexplained: set[Position] = field(default_factory=set)
    # Commits at the start of this life.
    begun: dict[TopicPartition, Committed] = field(default_factory=dict)
    # Offsets offered in this life.
    offered: dict[TopicPartition, set[int]] = field(default_factory=dict)

    def begin_life(self, shown: Mapping[TopicPartition, Committed], *, after_crash: bool = True) -> None:
        """Begin a life; `shown` has the commits of all partitions before anything is consumed."""
        if not after_crash:
            lost = [
                p for p in self.confirmed if not shown[TopicPartition(p.topic, p.partition)].covers(p.offset)
            ]
            assert not lost, (
                f"{self.name}: acked and not committed though the daemon ended well: {sorted(lost)[:5]}"
            )
        self.confirmed.clear()
        for key, committed in shown.items():
            self.show(key, committed)
        if self.auto_ack:
            self.given_up |= self._unexplained
        self._unexplained.clear()
        self.begun = dict(self.committed)
        self.offered = {key: set() for key in self.committed}

    def show(self, key: TopicPartition, committed: Committed) -> None:
        """Record and check a commit shown by GetOffsets."""
        before = self.committed.get(key, Committed())
        assert committed.offset >= before.offset, (
            f"{self.name}: committed offset of {key} went back from {before.offset} to {committed.offset}"
        )
        gone = [offset for offset in before.sparse if not committed.covers(offset)]
        assert not gone, f"{self.name}: {key} had committed acks of {sorted(gone)[:5]}, and has them no more"
        self.committed[key] = committed
        new = {Position(*key, offset) for offset in committed.covered() if not before.covers(offset)}
        self._unexplained = (self._unexplained | new) - self.acked
        allowed = self.workers if self.auto_ack else 0
        assert len(self._unexplained) <= allowed, (
            f"{self.name}: committed without an ack: {sorted(self._unexplained)[:5]}"
        )

    def offer(self, position: Position) -> None:
        """Record and check a received record."""
        key = TopicPartition(position.topic, position.partition)
        begun = self.begun.get(key, Committed())
        assert not begun.covers(position.offset), (
            f"{self.name}: {position} was committed and is offered again"
        )
        offered = self.offered.setdefault(key, set())
        assert position.offset not in offered, f"{self.name}: {position} is offered twice in one life"
        offered.add(position.offset)

    def end_life(self, ends: Mapping[TopicPartition, int] | None = None) -> None:
        """End a life: the daemon is gone, or, with `ends`, everything up to there was requested and
        nothing is in flight.

        All records below an offered one were offered before, except for answers lost in the crash.
        """
        missing: list[Position] = []
        for key, offered in self.offered.items():
            end = max(offered, default=-1) + 1 if ends is None else ends[key]
            begun = self.begun.get(key, Committed())
            missing += [
                Position(*key, offset)
                for offset in range(begun.offset, end)
                if offset not in offered and not begun.covers(offset)
            ]
        lost = self.workers if ends is None else 0
        assert len(missing) <= lost, f"{self.name}: not acked and not offered again: {missing[:5]}"


class MovedLedger:
    """Ledger of a group moved only by SetOffsets: one topic, all partitions in one call."""

    def __init__(self) -> None:
        self.answered: dict[str, tuple[int, ...]] = {}
        self.under_way: dict[str, tuple[int, ...]] = {}

    def begin(self, topic: str, offsets: tuple[int, ...]) -> None:
        """Record a call of SetOffsets."""
        self.under_way[topic] = offsets

    def answer(self, topic: str) -> None:
        """Record its OK answer."""
        self.answered[topic] = self.under_way.pop(topic)

    def begin_life(self, topic: str, shown: tuple[int, ...]) -> None:
        """Check the offsets shown by GetOffsets after a start. -1: never set."""
        nothing = tuple(-1 for _ in shown)
        allowed = {
            self.answered.get(topic, nothing),
            self.under_way.get(topic, self.answered.get(topic, nothing)),
        }
        assert shown in allowed, f"offsets of {topic} are {shown}, expected one of {sorted(allowed)}"
        if shown != nothing:
            self.answered[topic] = shown
        self.under_way.pop(topic, None)
