"""What one partition must hold: the records that were sent to it, from a log begin offset on."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import NamedTuple, Protocol

from pixy.storage import LogOptions

__all__ = ["Allowed", "PartitionModel", "Sent"]

_ROUNDING_MS = 2


class Sent(NamedTuple):
    """One record."""

    key: bytes | None
    value: bytes | None
    timestamp_ms: int


class Allowed(NamedTuple):
    """Options that count for a partition, or counted until a time."""

    options: LogOptions
    until_ms: int | None = None


class _Batch(NamedTuple):
    """`end` is the offset behind it, `sent_ms` the true time at which it was sent.

    `tag` says what it is part of; one that is `joined` is there only with the next one.
    """

    end: int
    size: int
    timestamp_ms: int
    sent_ms: int
    tag: object = None
    joined: bool = False


class _Batches(Protocol):
    """A batch that is sent together with others."""

    @property
    def records(self) -> Sequence[Sent]: ...

    @property
    def size(self) -> int: ...


@dataclass(slots=True)
class PartitionModel:
    """Everything that was sent to one partition.

    Attributes:
        records: by offset.
        answered: how many batches were answered, with an offset or because the topic was deleted.
        promised: everything below this offset, from `begin` on, was acknowledged or shown.
        begin: the highest log begin offset that was shown.
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

    # --- what was sent ------------------------------------------------------------------------------------------

    def send(self, batch: Sequence[Sent], size: int, now_ms: int) -> tuple[int, int]:
        """Note a batch; returns its number and the offset that it must get."""
        offset = self.end
        self.records += batch
        latest_ms = max(record.timestamp_ms for record in batch)
        self._batches.append(_Batch(self.end, size, latest_ms, now_ms))
        return len(self._batches) - 1, offset

    def send_together(self, batches: Sequence[_Batches], now_ms: int, tag: object) -> list[int]:
        """Note batches of which all must be there or none; returns their numbers."""
        numbers: list[int] = []
        for batch in batches:
            number, _ = self.send(batch.records, batch.size, now_ms)
            joined = len(numbers) + 1 < len(batches)
            self._batches[number] = self._batches[number]._replace(tag=tag, joined=joined)
            numbers.append(number)
        return numbers

    def tagged(self, tag: object, *, promised: bool = False) -> int:
        """How many batches have a tag; of those that are promised, if only they count."""
        end = self.promised if promised else self.end
        return sum(batch.tag is tag for batch in self._batches if batch.end <= end)

    def take_back(self) -> None:
        """The newest batch was refused: it must not appear."""
        self._batches.pop()
        del self.records[self._end_of(len(self._batches)) :]

    def answer(self, number: int) -> None:
        """A batch is answered because the topic was deleted."""
        assert self.answered == number, f"batch {number} is answered, {self.answered} is due"
        self.answered += 1

    def acknowledge(self, number: int) -> None:
        """A batch is answered with its offset."""
        self.answer(number)
        self.promised = max(self.promised, self._end_of(self.answered))

    # --- what is found ------------------------------------------------------------------------------------------

    def check(self, begin: int, records: Sequence[Sent], promised: int) -> None:
        """Raise AssertionError unless these are the records from `begin` on, up to the promised offset at least."""
        self.check_some(begin, records)
        end = begin + len(records)
        assert end >= promised, f"{promised} records were promised, they end at {end}"
        assert end in self._ends(), f"the records end at {end}: no whole batches of those sent"
        self.promised = max(self.promised, end)

    def check_some(self, begin: int, records: Sequence[Sent]) -> None:
        """Raise AssertionError unless each record is the one that was sent with that offset."""
        for at, (record, sent) in enumerate(
            zip_longest(records, self.records[begin : begin + len(records)]), begin
        ):
            assert record == sent, f"the first wrong record is {at}"

    def check_begin(self, begin: int, allowed: Iterable[Allowed], latest_ms: Callable[[int], int]) -> None:
        """Raise AssertionError if the log begins before what was shown, or behind what may go.

        Args:
            allowed: the options that have ever counted.
            latest_ms: the latest time that a node may have taken it for, since a true time.
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
        """Raise AssertionError if a log cannot end there; from here on it does."""
        assert end >= self.promised, f"{self.promised} records were promised, they end at {end}"
        assert end in self._ends(), f"the records end at {end}: no whole batches of those sent"
        self.adopt(end)

    def adopt(self, end: int) -> None:
        """From here on, what is there was acknowledged, and nothing else was sent."""
        self._batches = [batch for batch in self._batches if batch.end <= end]
        del self.records[end:]
        self.answered = len(self._batches)
        self.promised = end

    def bytes_from(self, begin: int) -> int:
        """Size of the batches behind an offset."""
        return sum(batch.size for batch in self._batches if batch.end > begin)

    @property
    def largest_batch(self) -> int:
        """Size of the largest batch ever, in bytes."""
        return max((batch.size for batch in self._batches), default=0)

    def latest_timestamp(self, begin: int, end: int) -> int:
        """Largest timestamp of the records between two offsets, negative if they have none."""
        return max((record.timestamp_ms for record in self.records[begin:end]), default=-1)

    def _ends(self) -> set[int]:
        """Where the records may end."""
        return {0, *(batch.end for batch in self._batches if not batch.joined)}

    def _end_of(self, batches: int) -> int:
        return self._batches[batches - 1].end if batches else 0

    def _may_begin(self, allowed: Sequence[Allowed], latest_ms: Callable[[int], int]) -> int:
        """The last offset at which the log may begin; one option may have let some records go, and another one those behind."""
        begin = self.begin
        for batch in self._batches:
            if batch.end > begin:
                if not any(self._may_go(batch, each, latest_ms) for each in allowed):
                    break
                begin = batch.end
        return begin

    def _may_go(self, batch: _Batch, allowed: Allowed, latest_ms: Callable[[int], int]) -> bool:
        """Whether a batch may go, if all before it do."""
        options, until_ms = allowed
        left = self.bytes_from(batch.end)
        # By size the active segment stays.
        if left and options.retention_bytes is not None and left >= options.retention_bytes:
            return True
        if options.retention_ms is None:
            return False
        now_ms = latest_ms(batch.sent_ms)
        if until_ms is not None:
            now_ms = min(now_ms, until_ms)
        return batch.timestamp_ms <= now_ms - options.retention_ms + _ROUNDING_MS
