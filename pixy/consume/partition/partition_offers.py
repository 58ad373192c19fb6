"""The offers of one partition to one consumer group.

Owns, for one (consumer group, topic, partition): fetched records that are not offered yet,
outstanding offers and records to be offered again (`redelivery`), and the offset tracker. Pure:
time comes in as `now`, nothing is called back; the shell reads `ready`, `notable` and the results
of the methods. New records are offered in offset order, each at most once until it comes back.

A record is in exactly one of these places; from `sending` and `out` an ack moves it to the tracker:

    queue  -> head -> sending -> out
                      |  ^        |
                      v  |        v
                      again <-----      undelivered records first, then expired ones in offset order

- `sending`, `out` and `again` together are pending. New records are held back at `pending_max`, or
  if they would exceed `pending_bytes_max` while others are pending; records in `again` may always
  be offered. So memory is bounded even if an offer is never acked while others pass it.
- Batches are validated when they are fed, and decoded record by record when they are offered. One
  record, the head, is decoded ahead, to know whether there is a record to offer. Records acked
  earlier are skipped, and offsets without a record count as acked. The position behind a batch is
  the one that its header gives, which is not beyond the high watermark.
- A record that cannot be decoded is a `fault` at first: the shell fetches again. Each time is a
  retry of it, and after the last one it is `passed`, up to where decoding goes on.
- A large compressed batch (`_UNPACKED_AT_ONCE_BYTES`), and one whose next record has many headers,
  becomes `packed`, and decoding stops there until the shell, which has threads and counts memory,
  passes its records to `unpacked`. So the order stays, and one batch of a partition is decompressed
  at a time. It is `holding` that batch until its last record is offered, or until the shell wants
  the memory (`give_back`): then it is packed again. Offered records have bytes of their own.
- All that is fetched and not offered is dropped when the shell wants that memory (`drop_fetched`),
  and is to be fetched again from the position on. So nothing is lost or offered twice by it.
- An offer that is in none of these places is void: `reset` and `close` begin a new generation.
- A reset voids the offers that are with clients, because their acks concern the position before it.
  Their offsets are `voided` until their records are offered again, beyond the life of this object:
  it takes them over and leaves them behind. Deleting a topic voids all its offsets, for another
  topic that gets its name.

Acks (design 4.7):

    offset                                                   effect
    below the tracker's base, or acked already               none
    a range more than a commit can have                      ResourceExhausted; the record stays
                                                             where it is
    with a client, in time or expired                        acked
    on its way to a client, for the first time               acked at its delivery, if not before
    not outstanding, `only_if_offered` or voided             none
    not outstanding, handed out to the group earlier         acked
    not outstanding, never handed out to the group           none
    at or beyond the end                                     AckBeyondEnd

- An ack may overtake the news of the delivery, where the record was lent to another node. Until
  then it is kept: it concerns nothing that a client has if the record comes back undelivered. It
  counts before if the node says nothing (`lending`), because it is answered.
- What was handed out earlier is below the mark that this object begins with (`handed_out`), or was
  handed out by it before a reset. A record that was offered and could not be delivered was never
  handed out; one that was lent to another node, which is silent since, may have been.
"""

from collections import deque
from collections.abc import Iterator
from dataclasses import replace

from pixy.backend import Batch, FetchResult
from pixy.consume.core import (
    CROWDED_RANGES,
    NOTHING_VOIDED,
    Offer,
    OfferLimits,
    OfferOwner,
    OffsetTracker,
    VoidedOffsets,
)
from pixy.consume.partition.redelivery import Redelivery
from pixy.errors import AckBeyondEnd, CorruptData, Unavailable, Undecodable, UnpackedTooLarge
from pixy.records import OffsetRange, Record, read_header, read_records

_UNKNOWN = -1
_SKIPPED_AT_ONCE = 500
"""Records below the position, or acked, with their headers, that are decoded on the event loop at
once: a batch has up to a hundred thousand records, and a record ten thousand headers. The rest is
left to the shell.
"""
_PER_BATCH = 10
"""A batch that is opened counts as so many of them."""
_UNPACKED_AT_ONCE_BYTES = 16 << 10
"""Limit of decompression on the event loop, which is not counted as memory.

Larger batches are decompressed by the shell.
"""
_PACKED_AT_ONCE_BYTES = 4 << 10
"""Largest compressed batch of it: snappy blocks of one byte, and empty blocks of gzip, take 0.2 us
for each of their bytes.
"""
_HEADERS_AT_ONCE_BYTES = 16 << 10
"""Headers of the head that are not counted as memory. A batch with more is left to the shell too.
"""
LITTLE_BYTES = 64 << 10
"""First fetch of a generation: a consumer group begins in thousands of partitions for one request.
So is one that was told to `fetch_little`.
"""
_NOTHING_QUEUED: deque[tuple[Iterator[Record], Batch, int, int]] = deque(maxlen=0)
"""Queue of all partitions that were fed nothing yet; never changed."""


_HEADER_BYTES = 64
"""A header, without its name and value."""
_WIDE_BYTES = 4
"""A character of a text that has others than ASCII, at most."""


def _header_bytes(record: Record) -> int:
    return sum(
        _HEADER_BYTES + len(name) * (1 if name.isascii() else _WIDE_BYTES) + len(content or b"")
        for name, content in record.headers
    )


class PartitionOffers(Redelivery):
    """Offers of one partition to one consumer group.

    Args:
        owner: the partition of the offers, which they report to.
        limits: the limits.
        tracker: the group's acks; fetching begins at the first unacked offset.
        end: the known end of the partition, exclusive.
        handed_out: nothing from there on was ever handed out to the group.
        voided: offsets whose acks count only once their records are offered again.
    """

    __slots__ = (
        "_batch",
        "_batch_end",
        "_before",
        "_buffered_bytes",
        "_fetches_little",
        "_head",
        "_head_bytes",
        "_head_offset",
        "_position",
        "_queue",
        "_records",
        "_undecodable",
        "_unoffered",
        "_untaken",
        "acked",
        "acked_deadline",
        "behind_commit",
        "closed",
        "end",
        "fault",
        "fetch_offset",
        "fetched_bytes",
        "generation",
        "holding",
        "packed",
        "passed",
        "voided",
    )

    def __init__(
        self,
        owner: OfferOwner,
        limits: OfferLimits,
        tracker: OffsetTracker,
        end: int,
        *,
        handed_out: int = 0,
        voided: VoidedOffsets = NOTHING_VOIDED,
    ) -> None:
        super().__init__(owner, limits)
        # Invariant: increases with every reset and with close.
        self.generation = 0
        self.acked = 0
        # Expiry that the last acked record would have had; None unless it was out.
        self.acked_deadline: float | None = None
        # Offsets whose acks do not count until they are offered. Invariant: changes only between
        # generations.
        self.voided = voided
        # Nothing from there on was handed out before this generation. Invariant: never decreases,
        # unless the log is shorter than expected.
        self._before = handed_out
        self._begin(tracker, end)

    def _begin(self, tracker: OffsetTracker, end: int) -> None:
        self.tracker = tracker
        # Voided offsets that this generation never offers, because they were acked at its
        # beginning.
        self._unoffered = self.voided.offers and frozenset(
            offset for offset in self.voided.offers if tracker.is_acked(offset)
        )
        # The committed offset is beyond the tracker, until there are records in between.
        self.behind_commit = False
        # The known end of the partition, exclusive. Invariant: never decreases within a generation.
        self.end = end
        # The offset of the next fetch. Invariant: all offsets below are acked, pending, head, or in
        # the queue.
        self.fetch_offset = tracker.base
        # The next offset to decode. Invariant: all offsets below are acked, pending or the head.
        self._position = tracker.base
        # Batches to decode: records, the batch, the offset behind it, and memory that is free then.
        # Behind the last one of a fetch an empty one with the next offset of the fetch.
        # A partition at rest has none: a deque takes more memory than all the rest.
        self._queue: deque[tuple[Iterator[Record], Batch, int, int]] = _NOTHING_QUEUED
        # Bytes in the queue.
        self._buffered_bytes = 0
        # Memory of fetches that are not decoded to their end, as the shell counts it.
        self.fetched_bytes = 0
        # No new record was offered in this generation.
        self._untaken = True
        # Nothing was fed since the begin of this generation, or since `fetch_little`.
        self._fetches_little = True
        # The queue entry that is being decoded. Without `_batch` its records were decompressed
        # elsewhere.
        self._records: Iterator[Record] = iter(())
        self._batch: Batch | None = None
        self._batch_end = _UNKNOWN
        # The next batch, if it has to be decompressed elsewhere. Invariant: then there is no head.
        self.packed: Batch | None = None
        # The batch that is being decoded, if it was decompressed elsewhere. Invariant: then there
        # is a head.
        self.holding: Batch | None = None
        # The next new record. Invariant: not acked.
        self._head: Record | None = None
        self._head_offset = _UNKNOWN
        self._head_bytes = 0
        self._begin_pending()
        # The damage of the fetched data at `fetch_offset`.
        self.fault: CorruptData | Unavailable | None = None
        # The offset at which decoding failed last, and its retries.
        self._undecodable = (_UNKNOWN, 0)
        # What was passed after the last retry, for the shell to report.
        self.passed: list[tuple[OffsetRange, Undecodable]] = []
        # Nothing is wanted or offered any more.
        self.closed = False

    @property
    def wants_more(self) -> bool:
        """True if less than half of the buffer waits to be decoded, so that a fetch is worth it.

        Before the first record of a generation is taken, one to offer is enough.
        """
        if self.closed or (self._untaken and (self._head is not None or self.packed is not None)):
            return False
        return self.fault is None and self._buffered_bytes * 2 < self._limits.buffer_bytes_max

    @property
    def fetch_bytes(self) -> int:
        """Size of the next fetch; the first of a generation is small."""
        size = self._limits.buffer_bytes_max - self._buffered_bytes
        return min(size, LITTLE_BYTES) if self._fetches_little else size

    @property
    def handed_out(self) -> int:
        """Nothing from this offset on was ever handed out to the group."""
        position = self.position
        inside = {**self._sending, **self._again}
        if not all(offer.was_out for offer in inside.values()):
            # The last ones may be with no client yet.
            was_out = max((offset for offset, offer in inside.items() if offer.was_out), default=-1)
            position = max(was_out + 1, max(self._out, default=-1) + 1, self.tracker.top)
        return max(position, self._before)

    # --- records in -------------------------------------------------------------------------------

    def feed(self, result: FetchResult, memory: int = 0, *, more: bool = False) -> None:
        """Take over the result of a fetch at `fetch_offset`.

        A damaged batch sets `fault`; what follows it is ignored.

        Args:
            result: the result, or a part of it.
            memory: bytes that the fetch takes, as `fetched_bytes` counts them.
            more: other parts follow.
        """
        queue = self._queue
        if queue is _NOTHING_QUEUED:
            queue = self._queue = deque()
        self._fetches_little = False
        next_offset = result.next_offset
        for batch in result.batches:
            try:
                records = self._open(batch, result.high_watermark)
            except (CorruptData, Unavailable) as error:
                self._set_fault(error)
                next_offset = self.fetch_offset
                break
            self.fetch_offset = read_header(batch).next_offset
            queue.append((records, batch, self.fetch_offset, 0))
            self._buffered_bytes += len(batch)
            if self.behind_commit:
                self.behind_commit, self.changed = False, True
        self.fetch_offset = next_offset
        self.end = max(self.end, result.high_watermark, next_offset)
        ended = 0 if more and self.fault is None else memory
        self.fetched_bytes += ended
        queue.append((iter(()), b"", next_offset, ended))
        if self._head is None and self.packed is None:
            self._advance()
            self._refresh()
        self.notable = True

    def _open(self, batch: Batch, high_watermark: int) -> Iterator[Record]:
        """Check a batch; returns its records, which are decoded later."""
        unpacked_bytes_max = _UNPACKED_AT_ONCE_BYTES if len(batch) <= _PACKED_AT_ONCE_BYTES else 0
        records = read_records(batch, unpacked_bytes_max, first_offset=self._position)
        header = read_header(batch)
        if not self.fetch_offset < header.next_offset <= high_watermark:
            raise CorruptData(
                f"record batch at offset {header.base_offset} ends at {header.next_offset}, expected an end above "
                f"{self.fetch_offset} and not above the high watermark {high_watermark}"
            )
        return records

    @property
    def position(self) -> int:
        """The next offset to offer, as far as is known: nothing between is new."""
        return self._position if self._head is None else self._head_offset

    def unpacked(self, batch: Batch, records: Iterator[Record] | CorruptData | Unavailable) -> None:
        """Take over the records of the `packed` batch, or its damage, or lack of
        memory.

        No effect if the batch is no longer needed.
        """
        if self.packed is not batch:
            return
        self.packed = None
        if isinstance(records, (CorruptData, Unavailable)):
            self._cannot_decode(self._position, records)
            return
        self._records, self.holding = records, batch
        self._advance()
        self._refresh()

    def give_back(self) -> None:
        """Drop the decompressed records, if there are some: their batch is packed again."""
        if self.holding is None:
            return
        self._position = self._head_offset
        self._head = None
        self._records = iter(())
        self.packed, self.holding = self.holding, None
        self._refresh()

    def fetch_little(self) -> None:
        """Let the next fetch be small."""
        self._fetches_little = True

    def drop_fetched(self) -> None:
        """Drop all fetched records that are not offered: they are to be fetched again."""
        self._drop_fetched(self.position)
        self._refresh()

    def begin_at(self, begin: int) -> int:
        """Drop everything below `begin`, the new log begin offset.

        Returns:
            The number of pending records that were dropped.
        """
        gone = [offset for offset in (*self._sending, *self._out, *self._again) if offset < begin]
        for offset in gone:
            self._forget(offset)
        self.changed |= self.tracker.adjust(begin)
        self.end = max(self.end, begin)
        if self.fetch_offset < begin:
            self._drop_fetched(self.tracker.next_unacked(begin))
        elif self._head is not None and self._head_offset < begin:
            self._advance()
        self._refresh()
        return len(gone)

    def end_at(self, end: int) -> None:
        """Start over at `end`, the end of a log that is shorter than expected.

        Outstanding offers are void.
        """
        tracker = OffsetTracker(min(self.tracker.base, end))
        for acked in self.tracker.ranges:
            tracker.skip(acked.begin, min(acked.end, end))
        self._end_generation(void=False)
        self._before = min(self._before, end)
        self._begin(tracker, end)
        self.changed = True

    def _drop_fetched(self, offset: int) -> None:
        """Drop all fetched records that are not offered, and continue at `offset`."""
        self._queue = _NOTHING_QUEUED
        self._buffered_bytes = self.fetched_bytes = 0
        self._records = iter(())
        self._batch = self.packed = self.holding = None
        self._batch_end = _UNKNOWN
        self._head = None
        self._position = self.fetch_offset = offset
        self.notable = True

    def _set_fault(self, error: CorruptData | Unavailable) -> None:
        self.fault = error
        self.notable = True

    def _advance(self) -> None:
        """Find the next head: decode, skip gaps and acked records, open the next batch when one is
        used up.
        """
        tracker = self.tracker
        position = self._position
        skipped = 0
        while True:
            try:
                for record in self._records:
                    offset = record.offset
                    if offset >= position:
                        if offset != position:
                            self._pass_gap(position, offset)
                        position = offset + 1
                        if offset >= tracker.base and not (tracker.begins and tracker.is_acked(offset)):
                            self._position = position
                            self._head, self._head_offset = record, offset
                            key, value = record.key, record.value
                            self._head_bytes = (len(value) if value else 0) + (len(key) if key else 0)
                            if record.headers:
                                size = _header_bytes(record)
                                self._head_bytes += size
                                if size > _HEADERS_AT_ONCE_BYTES and self.holding is None:
                                    self._wait_unpacked(offset)
                            return
                    skipped += 1 + len(record.headers)
                    if skipped > _SKIPPED_AT_ONCE:
                        self._wait_unpacked(tracker.next_unacked(position))
                        return
            except (CorruptData, Unavailable) as error:
                if isinstance(error, UnpackedTooLarge) and self._batch is not None:
                    self._wait_unpacked(position)
                    return
                if position < self._batch_end:
                    self._cannot_decode(position, error)
                    return
                # All offsets of the batch have their records.
            position = self._end_batch(position)
            if not self._queue:
                break
            self._records, self._batch, self._batch_end, ended = self._queue.popleft()
            self._buffered_bytes -= len(self._batch)
            self.fetched_bytes -= ended
            self.notable = True
            skipped += _PER_BATCH
        self._batch = None
        self._batch_end = _UNKNOWN
        self._position = position
        self._head = None

    def _end_batch(self, position: int) -> int:
        """All records of the batch are decoded; returns the position behind it."""
        if self.holding is not None:
            self.holding = None
            self.notable = True
        if self._batch_end > position:
            self._pass_gap(position, self._batch_end)
            position = self._batch_end
        return position

    def _cannot_decode(self, position: int, error: CorruptData | Unavailable) -> None:
        """Stop at a record that cannot be decoded, or pass it after its last retry."""
        # Their frames have the decompressed bytes.
        error.__traceback__ = error.__cause__ = error.__context__ = None
        failed_at, retries = self._undecodable
        if isinstance(error, CorruptData):
            retries = retries + 1 if position == failed_at else 0
            self._undecodable = (position, retries)
        if isinstance(error, Undecodable) and 0 <= self._limits.retries_max <= retries:
            passed = OffsetRange(position, max(position + 1, error.next_offset))
            self.passed.append((passed, error))
            self.dropped += passed.end - passed.begin
            self._pass_gap(*passed)
            self._drop_fetched(passed.end)
        else:
            self._drop_fetched(position)
            self._set_fault(error)

    def _wait_unpacked(self, position: int) -> None:
        """Stop at the current batch: it has to be decompressed, or decoded up to the position,
        elsewhere.
        """
        self._position = position
        self._head, self._head_bytes = None, 0
        self.packed = self.holding if self._batch is None else self._batch
        self._batch = self.holding = None
        self._records = iter(())
        self.notable = True

    def _pass_gap(self, begin: int, end: int) -> None:
        if self.tracker.skip(begin, end):
            self.changed = True
            self.notable = True

    # --- records out ------------------------------------------------------------------------------

    def take(self) -> Offer | None:
        """Offer the next record, None if there is none."""
        if self._again:
            return self._take_again()
        record = self._head
        if record is None or not self.ready:
            return None
        limits = self._limits
        sending = self._sending
        size = self._head_bytes
        offer = Offer(self._owner, record, size, 0)
        sending[self._head_offset] = offer
        pending_bytes = self._pending_bytes = self._pending_bytes + size
        self.offered += 1
        if self._untaken:
            self._untaken, self.notable = False, True
        self._advance()
        self.ready = (
            self._head is not None
            and len(sending) + len(self._out) < limits.pending_max
            and pending_bytes + self._head_bytes <= limits.pending_bytes_max
        )
        return offer

    # --- acks -------------------------------------------------------------------------------------

    def ack(self, offset: int, only_if_offered: bool = False) -> bool:
        """Ack one record; False if that had no effect.

        Raises:
            AckBeyondEnd: the offset is beyond the known end. Ask the cluster for its end before
                refusing the ack.
            ResourceExhausted: the ack does not fit into a commit.
        """
        if len(self.tracker.begins) >= CROWDED_RANGES and (offset in self._out or offset in self._sending):
            self._check_fits(offset)
        offer = self._out.pop(offset, None)
        if offer is not None:
            self.acked_deadline = offer.deadline
        else:
            self.acked_deadline = None
            offer = self._sending.get(offset)
            if offer is None:
                return self._ack_not_out(offset, only_if_offered)
            if not (offer.was_out or (offset < self._before and offset not in self.voided)):
                offer.auto_ack = True
                return False
            del self._sending[offset]
        self._pending_bytes -= offer.size
        self.tracker.ack(offset)
        self.acked += 1
        if not self.ready:
            self._refresh()
        return True

    def is_kept(self, offset: int) -> bool:
        """True if the ack of a record waits for its delivery."""
        offer = self._sending.get(offset)
        return offer is not None and offer.auto_ack

    def ack_delivered(self, offer: Offer) -> bool:
        """Ack a record at its delivery; False if that had no effect."""
        offset = offer.record.offset
        if self._sending.get(offset) is not offer:
            return self._out.get(offset) is offer and self.ack(offset)
        del self._sending[offset]
        self._pending_bytes -= offer.size
        self.tracker.ack(offset)
        self.acked += 1
        if not self.ready:
            self._refresh()
        return True

    def _ack_not_out(self, offset: int, only_if_offered: bool) -> bool:
        offer = self._again.get(offset)
        # An undelivered record was never with a client.
        offered = offer is not None and offer.was_out
        if not offered and (only_if_offered or offset in self.voided):
            return False
        if offset >= self.end:
            raise AckBeyondEnd.of(self._owner.topic, self._owner.partition, offset, self.end)
        if not offered and offset >= self._before:
            return False
        self._check_fits(offset)
        if not self.tracker.ack(offset):
            return False
        self.acked += 1
        if offer is not None:
            self._forget(offset)
        elif offset == self._head_offset and self._head is not None:
            self._advance()
        self._refresh()
        return True

    # --- generations ------------------------------------------------------------------------------

    def reset(self, tracker: OffsetTracker, end: int, *, behind_commit: bool = False) -> None:
        """Start over from `tracker`; all earlier offers are void.

        Args:
            tracker: the new position of the group.
            end: the end of the partition.
            behind_commit: the committed offset is beyond the end.
        """
        self._end_generation(void=True)
        self._begin(tracker, max(end, tracker.top))
        self.behind_commit = behind_commit

    def close(self, *, replaced: bool = False, reset: bool = False) -> None:
        """Void all offers. The tracker stays, for a last commit.

        Args:
            replaced: the topic was deleted, and another one may get its name.
            reset: the group's offsets were set: acks of the offers concern the position before.
        """
        self._end_generation(void=reset)
        if replaced:
            self.voided = VoidedOffsets(replaced=range(max(self.end, self.voided.replaced.stop)))
        self._begin(self.tracker, self.end)
        self.closed = True

    def _end_generation(self, *, void: bool) -> None:
        """Keep the voided offsets that were not offered again; with `void`, add the offers that are
        with clients.
        """
        self.generation += 1
        self._before = self.handed_out
        if not self.voided and not void:
            return
        again = self._again.items()
        pending = {*self._sending, *self._out, *(offset for offset, offer in again if offer.was_out)}
        is_acked = self.tracker.is_acked
        acked = {
            offset for offset in self.voided.offers if is_acked(offset) and offset not in self._unoffered
        }
        left = self.voided.after(pending | acked, self.position)
        self.voided = replace(left, offers=left.offers | pending) if void else left

    @property
    def may_offer(self) -> bool:
        """True if the limits allow another new record, as far as the size of the next is known."""
        outstanding = self.outstanding
        return outstanding < self._limits.pending_max and (
            not outstanding or self._pending_bytes + self._head_bytes <= self._limits.pending_bytes_max
        )

    def _refresh(self) -> None:
        self.ready = bool(self._again) or (self._head is not None and self.may_offer)

    def check_invariants(self) -> None:
        """Check the invariants of the fields."""
        self.tracker.check_invariants()
        pending = {**self._sending, **self._out, **self._again}
        assert len(pending) == self.pending
        assert self._pending_bytes == sum(offer.size for offer in pending.values())
        assert not any(self.tracker.is_acked(offset) for offset in pending)
        deadlines = [offer.deadline for offer in self._out.values()]
        assert deadlines == sorted(deadlines)
        assert set(self._again) <= {offset for _, offset in self._again_order}
        assert self._again or not self._again_order
        assert self._buffered_bytes == sum(len(batch) for _, batch, _, _ in self._queue)
        assert self.fetched_bytes == sum(ended for *_, ended in self._queue)
        assert self.packed is None or self._head is None
        assert self.holding is None or self._head is not None
        if self._head is not None:
            assert not self.tracker.is_acked(self._head_offset)
            assert self._head_offset not in pending
        assert self.outstanding <= max(self._limits.pending_max, 1)
