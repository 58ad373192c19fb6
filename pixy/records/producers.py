"""Idempotent producers of one partition: what they have written last, and so which of their batches
are new. Pure.

A producer has an id and an epoch, and numbers its records. It sends a batch again until it has an
answer. The table has the last five batches of each producer, so a leader tells for each batch,
before it proposes it, whether it is the next one:

    the producer is                the batch                          then
    -----------------------------  ---------------------------------  ------------------------------
    unknown, and never forgotten   begins with sequence 0             new
    here                           begins with any other one          OutOfOrderSequence
    unknown, perhaps forgotten     any                                new
    known with a higher epoch      any                                InvalidProducerEpoch
    known with a lower epoch       begins with sequence 0             new: the epoch is taken over
                                   begins with any other one          OutOfOrderSequence
    known with the same epoch      is one of the last five            repeated: the offset of that
                                   begins behind the last sequence    new
                                   ends before the last five, of a    DuplicateSequence
                                   producer known from sequence 0 on
                                   any other                          OutOfOrderSequence

Sequences go from 0 to 2^31 - 1 and then on with 0, also within a batch. `forgotten` is the highest
id that was ever forgotten: ids ascend, so a producer above it that is unknown is a new one, whose
first batch is missing if it does not begin with 0. Kafka takes any sequence of an unknown producer,
unless the log has never had a record (KAFKA-15591).

The table belongs to the applied entries. A leader lays those over it that are proposed and not
applied. Batches are applied without a check, as in Kafka, and one that is there changes nothing: a
table may be ahead of the entries that are applied to it, with committed batches.

Road not taken: unlike Kafka a batch has no timestamp here: nobody asks for it, since batches keep
their own.

An entry is packed: as objects, five batches take ten times the memory. All numbers are big-endian.

    byte  size  field
    0     2     epoch
    2     1     1 if all sequences of the epoch from 0 on are known to be written, else 0
    3     8     time of the last batch, in milliseconds since 1970, -1 if it is not known
    11    16    each batch, oldest first: base offset (8), first sequence (4), records less 1 (4)

The table as bytes, in the file `producers` of a partition:

    byte  size  field
    0     8     offset behind the last batch that is included
    8     8     `forgotten`
    16    4     number of producers
    20          each producer, the one that has written last at the end: id (8), length of its entry
                (1), entry
"""

import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from pixy.errors import (
    BatchesDivided,
    CorruptData,
    DuplicateSequence,
    InvalidProducerEpoch,
    OutOfOrderSequence,
    PixyError,
    TooManyProducers,
    Unavailable,
)
from pixy.records.batch import Buffer

PRODUCER_AT = 43
"""First byte of the producer id in a batch."""
NO_PRODUCER_BYTE = 0xFF
"""That byte in a batch without a producer, whose id is -1."""
PRODUCERS_MAX = 10_000
"""Producers that a partition knows: 2 MB. A new one beyond them is refused."""
KEPT_BATCHES = 5
"""Batches of a producer that are known: clients have at most five requests in flight."""
ANY_FORGOTTEN = 2**63 - 1
"""`forgotten` of a table that was lost."""

_SEQUENCES = 1 << 31
_FIELDS = struct.Struct(">q15xi16xqhi")
_START = struct.Struct(">hBq")
_BATCH = struct.Struct(">qii")
_TIME = struct.Struct(">q")
_TIME_AT = 3
_ENTRY_BYTES_MAX = _START.size + KEPT_BATCHES * _BATCH.size
_TABLE = struct.Struct(">qqI")
_KEY = struct.Struct(">qB")
_NO_TIME = -1


class ProducerBatch(NamedTuple):
    """A batch of a producer: its base offset, and what its header says of its sequences."""

    base_offset: int
    last_delta: int
    producer_id: int
    epoch: int
    first_sequence: int

    @property
    def last_sequence(self) -> int:
        """Sequence of its last record."""
        return (self.first_sequence + self.last_delta) % _SEQUENCES


def producer_batch(batch: Buffer) -> ProducerBatch:
    """Producer, epoch and sequences in the header of a whole batch."""
    return ProducerBatch._make(_FIELDS.unpack_from(batch))


def has_producer(batch: Buffer) -> bool:
    """True if a whole batch has a producer id."""
    return batch[PRODUCER_AT] != NO_PRODUCER_BYTE


class KeptProducers(NamedTuple):
    """A table as of an offset, to be encoded on any thread."""

    entries: Mapping[int, bytes]
    forgotten: int
    end_offset: int

    def encoded(self) -> bytes:
        """The table as bytes."""
        parts = [_TABLE.pack(self.end_offset, self.forgotten, len(self.entries))]
        for producer_id, entry in self.entries.items():
            parts += _KEY.pack(producer_id, len(entry)), entry
        return b"".join(parts)


class ProducerTable:
    """The producers of one partition.

    Attributes:
        forgotten: see the module; -1 if none was.
        end_offset: as of which it was kept, of a table that was read.
        is_known: False if it was lost with the files of its partition: batches of producers are
            refused until the partition has a copy of other files.
    """

    __slots__ = ("_entries", "_has_untimed", "_proposed", "end_offset", "forgotten", "is_known")

    def __init__(self, forgotten: int = -1, *, is_known: bool = True) -> None:
        # Invariant: in the order of their last batches.
        self._entries: dict[int, bytes] = {}
        # Producers with batches that are proposed and not applied. Meaningful at the leader.
        self._proposed: dict[int, bytes] = {}
        # Some entries may have no time.
        self._has_untimed = False
        self.forgotten = forgotten
        self.end_offset = 0
        self.is_known = is_known

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def is_blank(self) -> bool:
        """True if no batch was ever applied."""
        return not self._entries and self.forgotten < 0

    # --- at the leader ----------------------------------------------------------------------------

    def lead(self) -> None:
        """Nothing is proposed that is not applied."""
        self._proposed.clear()

    def judge(self, batches: Sequence[ProducerBatch], *, shared: bool = False) -> int | PixyError | None:
        """Judge the batches of the next entry, with the base offsets that they get.

        Args:
            shared: the entry has several batches, perhaps others than these.

        Returns:
            None if all are new, and are counted as proposed; else nothing has changed: the offset
            of the one batch that is repeated, or its error; if it is shared `BatchesDivided`.
        """
        if not self.is_known:
            return Unavailable("producers are not known here: the partition waits for files of another node")
        proposed: dict[int, bytes] = {}
        for batch in batches:
            found = self._judge(batch, proposed)
            if found is not None:
                return BatchesDivided(f"a batch of the entry: {found}") if shared else found
        self._proposed.update(proposed)
        return None

    def _judge(self, batch: ProducerBatch, proposed: dict[int, bytes]) -> int | PixyError | None:
        producer_id = batch.producer_id
        entry = proposed.get(producer_id) or self._proposed.get(producer_id) or self._entries.get(producer_id)
        found = self._judge_unknown(batch, len(proposed)) if entry is None else _judge_known(entry, batch)
        if found is None:
            proposed[producer_id] = with_batch(entry, batch, _NO_TIME)
        return found

    def _judge_unknown(self, batch: ProducerBatch, more: int) -> PixyError | None:
        if batch.first_sequence and batch.producer_id > self.forgotten:
            return _out_of_order(batch, 0)
        if len(self._entries) + len(self._proposed) + more < PRODUCERS_MAX:
            return None
        known = len(self._entries.keys() | self._proposed.keys()) + more
        if known < PRODUCERS_MAX:
            return None
        return TooManyProducers(
            f"the partition knows {known} producers, {PRODUCERS_MAX} are allowed: some are forgotten soon, if they write "
            "nothing"
        ).at_limit("producers of a partition")

    def follow(self, batch: ProducerBatch) -> None:
        """Count a batch that is proposed and not applied."""
        producer_id = batch.producer_id
        entry = self._proposed.get(producer_id) or self._entries.get(producer_id)
        self._proposed[producer_id] = with_batch(entry, batch, _NO_TIME)

    # --- at every replica -------------------------------------------------------------------------

    def apply(self, batch: ProducerBatch, now_ms: int) -> None:
        """Count a batch that is committed, at a time, -1 if that is not known."""
        producer_id = batch.producer_id
        # The last one is the newest.
        entry = self._entries[producer_id] = with_batch(self._entries.pop(producer_id, None), batch, now_ms)
        self._has_untimed |= now_ms < 0
        proposed = self._proposed.get(producer_id)
        if proposed is not None and last_offset(proposed) <= last_offset(entry):
            del self._proposed[producer_id]

    def forget(self, producer_ids: Iterable[int], offsets: Iterable[int]) -> None:
        """Forget producers whose newest batches have these offsets."""
        for producer_id, offset in zip(producer_ids, offsets, strict=False):
            entry = self._entries.get(producer_id)
            if entry is not None and last_offset(entry) == offset:
                del self._entries[producer_id]
                self.forgotten = max(self.forgotten, producer_id)

    def idle(self, now_ms: int, before_ms: int, most: int) -> list[tuple[int, int]]:
        """Producers whose last batches came before a time, and offsets of these: the oldest, `most`
        of them. Those of which the time is not known are taken to have written now.
        """
        if self._has_untimed:
            self._has_untimed = False
            for producer_id, entry in self._entries.items():
                if _TIME.unpack_from(entry, _TIME_AT)[0] < 0:
                    self._entries[producer_id] = entry[:_TIME_AT] + _TIME.pack(now_ms) + entry[_START.size :]
        found: list[tuple[int, int]] = []
        for producer_id, entry in self._entries.items():
            if _TIME.unpack_from(entry, _TIME_AT)[0] >= before_ms or len(found) == most:
                break
            found.append((producer_id, last_offset(entry)))
        return found

    def kept(self, end_offset: int) -> KeptProducers:
        """The table as it is, with the batches below an offset."""
        return KeptProducers(self._entries.copy(), self.forgotten, end_offset)

    @classmethod
    def decoded(cls, content: bytes) -> "ProducerTable":
        """A table from its bytes.

        Raises:
            CorruptData: they are none.
        """
        try:
            end_offset, forgotten, count = _TABLE.unpack_from(content)
            table = cls(forgotten)
            table.end_offset = end_offset
            at = _TABLE.size
            for _ in range(count):
                producer_id, size = _KEY.unpack_from(content, at)
                at += _KEY.size
                entry = content[at : at + size]
                _check_entry(producer_id, entry, size)
                table._entries[producer_id] = entry
                table._has_untimed |= _TIME.unpack_from(entry, _TIME_AT)[0] < 0
                at += size
        except struct.error as error:
            raise CorruptData(f"producers in {len(content)} bytes: {error}") from None
        if at != len(content) or len(table) != count or end_offset < 0 or forgotten < -1:
            raise CorruptData(f"{count} producers in {len(content)} bytes end at byte {at}")
        return table


def with_batch(entry: bytes | None, batch: ProducerBatch, now_ms: int) -> bytes:
    """The entry of a producer with a further batch, unless it has that one, or a higher epoch."""
    new = _BATCH.pack(batch.base_offset, batch.first_sequence, batch.last_delta)
    if entry is None:
        return _START.pack(batch.epoch, not batch.first_sequence, now_ms) + new
    epoch, from_first, _ = _START.unpack_from(entry)
    if batch.base_offset <= last_offset(entry) or batch.epoch < epoch:
        return entry
    if batch.epoch > epoch:
        return _START.pack(batch.epoch, not batch.first_sequence, now_ms) + new
    from_first = from_first and batch.first_sequence == _expected(entry)
    batches = entry[_START.size :]
    if len(batches) == KEPT_BATCHES * _BATCH.size:
        batches = batches[_BATCH.size :]
    return _START.pack(epoch, from_first, now_ms) + batches + new


def last_offset(entry: bytes) -> int:
    """Base offset of the newest batch of an entry."""
    offset: int = _BATCH.unpack_from(entry, len(entry) - _BATCH.size)[0]
    return offset


def _batches(entry: bytes) -> Iterator[tuple[int, int, int]]:
    return _BATCH.iter_unpack(entry[_START.size :])


def _expected(entry: bytes) -> int:
    """The sequence behind the newest batch of an entry."""
    _, first, delta = _BATCH.unpack_from(entry, len(entry) - _BATCH.size)
    expected: int = (first + delta + 1) % _SEQUENCES
    return expected


def _judge_known(entry: bytes, batch: ProducerBatch) -> int | PixyError | None:
    epoch, from_first, _ = _START.unpack_from(entry)
    if batch.epoch < epoch:
        return InvalidProducerEpoch(
            f"producer {batch.producer_id} has epoch {epoch} by now, a batch of epoch {batch.epoch} comes too late"
        )
    if batch.epoch > epoch:
        return _out_of_order(batch, 0) if batch.first_sequence else None
    expected = _expected(entry)
    if batch.first_sequence == expected:
        return None
    for offset, first, delta in _batches(entry):
        if (first, delta) == (batch.first_sequence, batch.last_delta):
            return offset
    oldest = _BATCH.unpack_from(entry, _START.size)[1]
    if from_first and batch.first_sequence <= batch.last_sequence < oldest:
        return DuplicateSequence(
            f"producer {batch.producer_id} has written sequences {batch.first_sequence} to {batch.last_sequence} before; "
            f"offsets are known from sequence {oldest} on"
        )
    return _out_of_order(batch, expected)


def _out_of_order(batch: ProducerBatch, expected: int) -> OutOfOrderSequence:
    return OutOfOrderSequence(
        f"producer {batch.producer_id}, epoch {batch.epoch}: a batch has sequences {batch.first_sequence} to "
        f"{batch.last_sequence}, expected is {expected} as the first one"
    )


def _check_entry(producer_id: int, entry: bytes, size: int) -> None:
    whole = _START.size < size <= _ENTRY_BYTES_MAX and not (size - _START.size) % _BATCH.size
    if producer_id < 0 or not whole or len(entry) != size:
        raise CorruptData(f"producer {producer_id} has an entry of {size} bytes")
