"""Model of one partition: the records sent to it, from a log begin offset on."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import NamedTuple, Protocol

from pixy.storage import LogOptions

_ROUNDING_MS = 2


class Sent(NamedTuple):
    """One record."""

    key: bytes | None
    value: bytes | None
    timestamp_ms: int


class Allowed(NamedTuple):
    """Options that apply to a partition, or applied until a time."""

    options: LogOptions
    until_ms: int | None = None


class _Batch(NamedTuple):
    """`end` is its exclusive end offset, `sent_ms` the true time at which it was sent.

    `tag` identifies its group of batches; a `joined` one exists only together with the next one.
    """

    end: int
    size: int
    timestamp_ms: int
    sent_ms: int
    tag: object = None
    joined: bool = False


class _Batches(Protocol):
    """A batch sent together with others."""

    @property
    def records(self) -> Sequence[Sent]: ...

    @property
    def size(self) -> int: ...


@dataclass(slots=True)
class PartitionModel:
    """All batches sent to one partition.

    Attributes:
        records: by offset.
        answered: number of batches answered, with an offset or because the topic was deleted.
        promised: all records from `begin` up to this offset were acknowledged or shown.
        begin: the highest log begin offset shown.
    """

    records: list[Sent] = field(default_factory=list)
    answered: int = 0
    promised: int = 0
    begin: int = 0
    _batches: list[_Batch] = field(default_factory=list)

    @property
    def end(self) -> int:
        return len(self.records)

    @property
    def outstanding(self) -> bool:
        return self.answered < len(self._batches)

    # --- requests ---------------------------------------------------------------------------------

    def send(self, batch: Sequence[Sent], size: int, now_ms: int) -> tuple[int, int]:
        """Record a batch; returns its number and its expected offset."""
        offset = self.end
        self.records += batch
        latest_ms = max(record.timestamp_ms for record in batch)
        self._batches.append(_Batch(self.end, size, latest_ms, now_ms))
        return len(self._batches) - 1, offset

    def send_together(self, batches: Sequence[_Batches], now_ms: int, tag: object) -> list[int]:
        """Record batches that must exist together or not at all; returns their numbers."""
        numbers: list[int] = []
        for batch in batches:
            number, _ = self.send(batch.records, batch.size, now_ms)
            joined = len(numbers) + 1 < len(batches)
            self._batches[number] = self._batches[number]._replace(tag=tag, joined=joined)
            numbers.append(number)
        return numbers

    def tagged(self, tag: object, *, promised: bool = False) -> int:
        """Number of batches with a tag; with `promised`, only promised ones."""
        end = self.promised if promised else self.end
        return sum(batch.tag is tag for batch in self._batches if batch.end <= end)

    def take_back(self) -> None:
        """Remove the newest batch, which was rejected and must not appear."""
        self._batches.pop()
        del self.records[self._end_of(len(self._batches)) :]

    def answer(self, number: int) -> None:
        """Record the answer of a batch whose topic was deleted."""
        assert self.answered == number, f"batch {number} is answered, {self.answered} is due"
        self.answered += 1

    def acknowledge(self, number: int) -> None:
        """Record the answer of a batch with its offset."""
        self.answer(number)
        self.promised = max(self.promised, self._end_of(self.answered))

    # --- checks -----------------------------------------------------------------------------------

    def check(self, begin: int, records: Sequence[Sent], promised: int) -> None:
        """Raise AssertionError unless these are the records from `begin` up to at least the
        promised offset.
        """
        self.check_some(begin, records)
        end = begin + len(records)
        assert end >= promised, f"{promised} records were promised, they end at {end}"
        assert end in self._ends(), f"the records end at {end}: no whole batches of those sent"
        self.promised = max(self.promised, end)

    def check_some(self, begin: int, records: Sequence[Sent]) -> None:
        """Raise AssertionError unless each record is the one sent with that offset."""
        for at, (record, sent) in enumerate(
            zip_longest(records, self.records[begin : begin + len(records)]), begin
        ):
            assert record == sent, f"the first wrong record is {at}"

    def check_begin(self, begin: int, allowed: Iterable[Allowed], latest_ms: Callable[[int], int]) -> None:
        """Raise AssertionError if the log begins before a shown begin, or after records that must
        be kept.

        Args:
            allowed: all options that have ever applied.
            latest_ms: the latest time that a node may have assumed since a true time.
        """
        assert begin >= self.begin, f"the log began at {self.begin}, now at {begin}"
        if begin > self.begin:
            assert begin in {batch.end for batch in self._batches}, (
                f"the log begins at {begin}, within a batch"
            )
            last = self._may_begin(list(allowed), latest_ms)
            assert begin <= last, (
                f"the log may begin up to {last}, it does at {begin}; before it did at {self.begin}"
            )
            self.begin = begin

    def adopt_end(self, end: int) -> None:
        """Record the end of the log; raise AssertionError if it is impossible."""
        assert end >= self.promised, f"{self.promised} records were promised, they end at {end}"
        assert end in self._ends(), f"the records end at {end}: no whole batches of those sent"
        self.adopt(end)

    def adopt(self, end: int) -> None:
        """Adopt the state after a start: it counts as acknowledged, and nothing else as sent."""
        self._batches = [batch for batch in self._batches if batch.end <= end]
        del self.records[end:]
        self.answered = len(self._batches)
        self.promised = end

    def bytes_from(self, begin: int) -> int:
        """Size of the batches from an offset on."""
        return sum(batch.size for batch in self._batches if batch.end > begin)

    @property
    def largest_batch(self) -> int:
        """Size of the largest batch so far, in bytes."""
        return max((batch.size for batch in self._batches), default=0)

    def latest_timestamp(self, begin: int, end: int) -> int:
        """Largest timestamp of the records between two offsets; negative if there are none."""
        return max((record.timestamp_ms for record in self.records[begin:end]), default=-1)

    def _ends(self) -> set[int]:
        """Possible ends of the records."""
        return {0, *(batch.end for batch in self._batches if not batch.joined)}

    def _end_of(self, batches: int) -> int:
        return self._batches[batches - 1].end if batches else 0

    def _may_begin(self, allowed: Sequence[Allowed], latest_ms: Callable[[int], int]) -> int:
        """The last offset at which the log may begin; several options may have allowed deletions
        one after the other.
        """
        begin = self.begin
        for batch in self._batches:
            if batch.end > begin:
                if not any(self._may_go(batch, each, latest_ms) for each in allowed):
                    break
                begin = batch.end
        return begin

    def _may_go(self, batch: _Batch, allowed: Allowed, latest_ms: Callable[[int], int]) -> bool:
        """True if a batch may be deleted once all before it are."""
        options, until_ms = allowed
        left = self.bytes_from(batch.end)
        # Retention by size keeps the active segment.
        if left and options.retention_bytes is not None and left >= options.retention_bytes:
            return True
        if options.retention_ms is None:
            return False
        now_ms = latest_ms(batch.sent_ms)
        if until_ms is not None:
            now_ms = min(now_ms, until_ms)
        return batch.timestamp_ms <= now_ms - options.retention_ms + _ROUNDING_MS
