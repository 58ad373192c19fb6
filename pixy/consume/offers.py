"""The records of one partition on their way to one consumer group.

Owns, for one (consumer group, topic, partition): what was fetched and not yet offered, the offers that are out, those that
came back, and the offset tracker. Pure: time comes in as `now`, nothing is called back; the shell looks at `ready`, `notable`
and what the methods return. Never reorders: new records go out in offset order, each at most once until it comes back.

A record is in exactly one of these places; from `sending` and `out` an ack takes it to the tracker:

    queue  -> head -> sending -> out
                      |  ^        |
                      v  |        v
                      again <-----      expired (offset order), and before those the undelivered ones

- The ack timeout begins when the answer is delivered. Until then an offer is in `sending`, without a deadline: a client that reads
  slowly costs its records no retry. All delivered offers live equally long, so `out`, a dict in order of delivery, is also in order
  of deadline: no heap, no timer per offer. The shell arms one timer at `next_deadline()`.
- `sending`, `out` and `again` together are what is pending. New records are held back at `pending_max`, or when they would exceed
  `pending_bytes_max` with something else pending; what comes back may always go out again. So memory is bounded even if an
  offer is never acked while others flow past it.
- Batches are checked when they are fed and decoded record by record when they are offered. One record, the head, is decoded
  ahead: only so is it known that there is something to offer. Records acked earlier are passed, and offsets that hold no
  record count as acked.
- A compressed batch that unpacks to more than `_UNPACKED_AT_ONCE_BYTES` becomes `packed`, and nothing behind it is looked at until the
  shell, which has threads, hands its records to `unpacked`. So the order stays, and one batch of a partition is unpacked at a time.
- An offer belongs to a generation. `reset` and `close` begin a new one, and whatever happens to older offers then has no effect.
- A reset voids the offers that were with clients: their acks are about the position that was left. Their offsets are `voided` until
  their records are offered again, beyond the life of this object: it is given them, and leaves them behind. A topic that is deleted
  voids all its offsets, for the partitions of another topic of its name.

Acks (design 4.7):

    offset                                                   effect
    below the tracker's base, or acked already               none
    outstanding, in time or expired                          acked
    not outstanding, `only_if_offered` or voided             none
    not outstanding, below the end                           acked: another process may have offered it
    at or beyond the end                                     AckBeyondEnd
"""

from collections import deque
from collections.abc import Iterator
from dataclasses import replace
from heapq import heappop, heappush

from pixy.backend import Batch, FetchResult
from pixy.consume.offer import Offer, OfferLimits, OfferOwner
from pixy.consume.offset_tracker import OffsetTracker
from pixy.consume.voided import NOTHING_VOIDED, VoidedOffsets
from pixy.errors import AckBeyondEnd, CorruptData, UnpackedTooLarge
from pixy.records import Record, read_header, read_records

__all__ = ["PartitionOffers"]

_UNDELIVERED = 0
_EXPIRED = 1
_UNKNOWN = -1
_UNPACKED_AT_ONCE_BYTES = 256 << 10
"""What a compressed batch may unpack to here, which takes 1 ms at most. What has more is unpacked by somebody who has the time."""


def _header_bytes(record: Record) -> int:
    return sum(len(name) + len(content or b"") for name, content in record.headers)


class PartitionOffers:
    """Offers of one partition to one consumer group.

    Args:
        owner: what the offers name as their partition, and report to.
        limits: the bounds.
        tracker: what the group has acked; fetching begins at its first unacked offset.
        end: the partition's end as known so far, exclusive.
        voided: offsets whose acks count only when their records have been offered again.
    """

    __slots__ = (
        "_again",
        "_again_order",
        "_batch",
        "_batch_end",
        "_buffered_bytes",
        "_head",
        "_head_bytes",
        "_head_offset",
        "_limits",
        "_out",
        "_owner",
        "_pending_bytes",
        "_position",
        "_queue",
        "_records",
        "_sending",
        "_unoffered",
        "acked",
        "behind_commit",
        "changed",
        "dropped",
        "end",
        "expired",
        "fault",
        "fetch_offset",
        "generation",
        "notable",
        "offered",
        "packed",
        "ready",
        "tracker",
        "voided",
    )

    def __init__(
        self,
        owner: OfferOwner,
        limits: OfferLimits,
        tracker: OffsetTracker,
        end: int,
        *,
        voided: VoidedOffsets = NOTHING_VOIDED,
    ) -> None:
        self._owner = owner
        self._limits = limits
        # Offers made in this generation count. Invariant: grows with every reset and with close.
        self.generation = 0
        self.offered = self.acked = self.expired = self.dropped = 0
        # Offsets whose acks do not count as long as nothing is offered. Invariant: changes only between generations.
        self.voided = voided
        self._begin(tracker, end)

    def _begin(self, tracker: OffsetTracker, end: int) -> None:
        self.tracker = tracker
        # Voided offsets that this generation does not offer, because they are acked from the beginning.
        self._unoffered = {offset for offset in self.voided.offers if tracker.is_acked(offset)}
        # What is committed is ahead of the tracker, until there are records in between.
        self.behind_commit = False
        # One past the last record that exists, as far as known. Invariant: grows within a generation.
        self.end = end
        # Where the next fetch begins. Invariant: everything below is acked, pending, head, or in the queue.
        self.fetch_offset = tracker.base
        # The next offset to look at. Invariant: everything below is acked, pending or the head.
        self._position = tracker.base
        # The batches to decode: records, the batch, and for the last of a fetch where the next fetch begins.
        self._queue: deque[tuple[Iterator[Record], Batch, int]] = deque()
        # Bytes in the queue.
        self._buffered_bytes = 0
        # The batch that is being decoded: the fields of its entry. Without `_batch` its records are unpacked.
        self._records: Iterator[Record] = iter(())
        self._batch: Batch | None = None
        self._batch_end = _UNKNOWN
        # The batch to decode next, if it has to be unpacked elsewhere. Invariant: then there is no head.
        self.packed: Batch | None = None
        # The next new record. Invariant: not acked.
        self._head: Record | None = None
        self._head_offset = _UNKNOWN
        self._head_bytes = 0
        # Offers whose answers are not with the transport yet, by offset.
        self._sending: dict[int, Offer] = {}
        # Delivered offers in time, by offset, in order of delivery. Invariant: deadlines ascend.
        self._out: dict[int, Offer] = {}
        # Offers that came back, by offset, and the order in which they go out. Invariant: every key of the dict is in
        # the heap; the heap is empty if the dict is.
        self._again: dict[int, Offer] = {}
        self._again_order: list[tuple[int, int]] = []
        # Bytes of sending, out and again.
        self._pending_bytes = 0
        # `take` would hand something out.
        self.ready = False
        # What was fed cannot be read from `fetch_offset` on.
        self.fault: CorruptData | None = None
        # The tracker moved without an ack: a gap was passed, or a record was dropped.
        self.changed = False
        # The shell should look at `wants_more`, `changed` and `fault`.
        self.notable = True

    @property
    def outstanding(self) -> int:
        """How many offers are out and in time."""
        return len(self._sending) + len(self._out)

    @property
    def pending(self) -> int:
        """How many records are held because they are not acked: out, expired or undelivered."""
        return self.outstanding + len(self._again)

    @property
    def wants_more(self) -> bool:
        """Whether to fetch: less than half of what may be buffered is waiting to be decoded."""
        return self.fault is None and self._buffered_bytes * 2 < self._limits.buffer_bytes_max

    @property
    def fetch_bytes(self) -> int:
        """How much to fetch."""
        return self._limits.buffer_bytes_max - self._buffered_bytes

    def next_deadline(self) -> float | None:
        """When the oldest offer expires, None if none has been delivered."""
        for offer in self._out.values():
            return offer.deadline
        return None

    # --- records in -----------------------------------------------------------------------------------------------

    def feed(self, result: FetchResult) -> None:
        """Take over what was fetched at `fetch_offset`. A batch that is damaged sets `fault` and ends what is taken."""
        queue = self._queue
        next_offset = result.next_offset
        for batch in result.batches:
            try:
                queue.append((read_records(batch, _UNPACKED_AT_ONCE_BYTES), batch, _UNKNOWN))
            except CorruptData as error:
                self._set_fault(error)
                next_offset = self.fetch_offset
                break
            self._buffered_bytes += len(batch)
            self.fetch_offset = read_header(batch).next_offset
            if self.behind_commit:
                self.behind_commit, self.changed = False, True
        self.fetch_offset = next_offset
        self.end = max(self.end, result.high_watermark, next_offset)
        queue.append((iter(()), b"", next_offset))
        if self._head is None and self.packed is None:
            self._advance()
            self._refresh()
        self.notable = True

    def unpacked(self, batch: Batch, records: Iterator[Record] | CorruptData) -> None:
        """The records of what was `packed`, or why there are none. No effect if it is not wanted any more."""
        if self.packed is not batch:
            return
        self.packed = None
        if isinstance(records, CorruptData):
            self._drop_fetched(self._position)
            self._set_fault(records)
            return
        self._records = records
        self._advance()
        self._refresh()

    def begin_at(self, begin: int) -> int:
        """The log begins at `begin`: give up what is below, and go on from there.

        Returns how many pending records were dropped.
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
        """The log ends at `end`, below what was asked for: void everything out and start over with what still exists."""
        tracker = OffsetTracker(min(self.tracker.base, end))
        for acked in self.tracker.ranges:
            tracker.skip(acked.begin, min(acked.end, end))
        self._end_generation(void=False)
        self._begin(tracker, end)
        self.changed = True

    def _drop_fetched(self, offset: int) -> None:
        """Drop all that was fetched and not offered, to go on at `offset`."""
        self._queue.clear()
        self._buffered_bytes = 0
        self._records = iter(())
        self._batch = self.packed = None
        self._batch_end = _UNKNOWN
        self._head = None
        self._position = self.fetch_offset = offset
        self.notable = True

    def _set_fault(self, error: CorruptData) -> None:
        self.fault = error
        self.notable = True

    def _advance(self) -> None:
        """Find the next head: decode on, pass gaps and what is acked, open the next batch when one is used up."""
        tracker = self.tracker
        position = self._position
        while True:
            try:
                for record in self._records:
                    offset = record.offset
                    if offset != position:
                        if offset < position:
                            continue
                        self._pass_gap(position, offset)
                    position = offset + 1
                    if offset < tracker.base or (tracker.begins and tracker.is_acked(offset)):
                        continue
                    self._position = position
                    self._head, self._head_offset = record, offset
                    key, value = record.key, record.value
                    self._head_bytes = (len(value) if value else 0) + (len(key) if key else 0)
                    if record.headers:
                        self._head_bytes += _header_bytes(record)
                    return
            except CorruptData as error:
                if isinstance(error, UnpackedTooLarge) and self._batch is not None:
                    self._wait_unpacked(position)
                else:
                    self._drop_fetched(position)
                    self._set_fault(error)
                return
            if self._batch_end > position:
                self._pass_gap(position, self._batch_end)
                position = self._batch_end
            if not self._queue:
                break
            self._records, self._batch, self._batch_end = self._queue.popleft()
            self._buffered_bytes -= len(self._batch)
            self.notable = True
        self._batch = None
        self._batch_end = _UNKNOWN
        self._position = position
        self._head = None

    def _wait_unpacked(self, position: int) -> None:
        """The batch that is being decoded has to be unpacked elsewhere."""
        self._position = position
        self._head = None
        self.packed, self._batch = self._batch, None
        self._records = iter(())
        self.notable = True

    def _pass_gap(self, begin: int, end: int) -> None:
        if self.tracker.skip(begin, end):
            self.changed = True
            self.notable = True

    # --- records out ----------------------------------------------------------------------------------------------

    def take(self) -> Offer | None:
        """The next record as an offer, None if there is none to hand out."""
        if self._again:
            return self._take_again()
        record = self._head
        if record is None or not self.ready:
            return None
        limits = self._limits
        sending = self._sending
        size = self._head_bytes
        offer = Offer(self._owner, record, size, self.generation, 0)
        sending[self._head_offset] = offer
        pending_bytes = self._pending_bytes = self._pending_bytes + size
        self.offered += 1
        self._advance()
        self.ready = (
            self._head is not None
            and len(sending) + len(self._out) < limits.pending_max
            and pending_bytes + self._head_bytes <= limits.pending_bytes_max
        )
        return offer

    def _take_again(self) -> Offer:
        while True:
            offset = heappop(self._again_order)[1]
            back = self._again.pop(offset, None)
            if back is not None:
                break
        if not self._again:
            self._again_order.clear()
        offer = Offer(self._owner, back.record, back.size, self.generation, back.retries)
        self._sending[offset] = offer
        self.offered += 1
        self._refresh()
        return offer

    def delivered(self, offer: Offer, now: float) -> None:
        """The answer is with the transport: the ack timeout begins. No effect if the offer is void, or acked already."""
        offset = offer.record.offset
        if self._sending.get(offset) is offer:
            del self._sending[offset]
            offer.deadline = now + self._limits.ack_timeout
            self._out[offset] = offer

    def put_back(self, offer: Offer) -> bool:
        """The offer was not delivered: its record is the next to go out. False if the offer is void, or acked already."""
        offset = offer.record.offset
        if self._sending.get(offset) is not offer:
            return False
        del self._sending[offset]
        self._again[offset] = offer
        heappush(self._again_order, (_UNDELIVERED, offset))
        self.ready = True
        return True

    def expire(self, now: float) -> list[int]:
        """Take back the offers whose deadline has come. Returns the offsets that were given up after too many retries."""
        late = []
        for offer in self._out.values():
            if offer.deadline > now:
                break
            late.append(offer)
        dropped = []
        retries_max = self._limits.retries_max
        for offer in late:
            offset = offer.record.offset
            if 0 <= retries_max <= offer.retries:
                self._forget(offset)
                self.tracker.ack(offset)
                dropped.append(offset)
                continue
            del self._out[offset]
            offer.retries += 1
            self._again[offset] = offer
            heappush(self._again_order, (_EXPIRED, offset))
        self.expired += len(late)
        if dropped:
            self.dropped += len(dropped)
            self.changed = self.notable = True
        self._refresh()
        return dropped

    # --- acks -----------------------------------------------------------------------------------------------------

    def ack(self, offset: int, only_if_offered: bool = False) -> bool:
        """Ack one record; False if that changed nothing.

        Raises:
            AckBeyondEnd: as far as known there is no such record yet. Ask for the actual end before refusing.
        """
        offer = self._sending.pop(offset, None) or self._out.pop(offset, None)
        if offer is None:
            return self._ack_not_out(offset, only_if_offered)
        self._pending_bytes -= offer.size
        self.tracker.ack(offset)
        self.acked += 1
        if not self.ready:
            self._refresh()
        return True

    def _ack_not_out(self, offset: int, only_if_offered: bool) -> bool:
        offer = self._again.get(offset)
        # A record that came back undelivered was never with a client.
        offered = offer is not None and offer.retries > 0
        if not offered and (only_if_offered or offset in self.voided):
            return False
        if offset >= self.end:
            raise AckBeyondEnd(
                f"invalid ack: bad offset: {offset}: {self._owner.topic}/{self._owner.partition} ends at {self.end}, "
                f"only offsets below can be acked"
            )
        if not self.tracker.ack(offset):
            return False
        self.acked += 1
        if offer is not None:
            self._forget(offset)
        elif offset == self._head_offset and self._head is not None:
            self._advance()
        self._refresh()
        return True

    def _forget(self, offset: int) -> None:
        """Drop a pending record."""
        offer = self._sending.pop(offset, None) or self._out.pop(offset, None) or self._again.pop(offset)
        self._pending_bytes -= offer.size
        if not self._again:
            self._again_order.clear()

    # --- the whole ------------------------------------------------------------------------------------------------

    def reset(self, tracker: OffsetTracker, end: int, *, behind_commit: bool = False) -> None:
        """Start over from `tracker`; the offers so far are void.

        Args:
            tracker: where the group is.
            end: the partition's end.
            behind_commit: what is committed lies beyond the end.
        """
        self._end_generation(void=True)
        self._begin(tracker, max(end, tracker.top))
        self.behind_commit = behind_commit

    def close(self, *, replaced: bool = False) -> None:
        """End everything. The tracker stays as it is, for a last commit.

        Args:
            replaced: the topic is gone, and the name may come to mean another one.
        """
        self._end_generation(void=False)
        if replaced:
            self.voided = VoidedOffsets(replaced=range(max(self.end, self.voided.replaced.stop)))
        self._begin(self.tracker, self.end)

    def _end_generation(self, *, void: bool) -> None:
        """Keep those of the voided offsets that were not offered again, and `void` the offers that are with clients."""
        self.generation += 1
        if not self.voided and not void:
            return
        again = self._again.items()
        pending = {*self._sending, *self._out, *(offset for offset, offer in again if offer.retries > 0)}
        is_acked = self.tracker.is_acked
        acked = {
            offset for offset in self.voided.offers if is_acked(offset) and offset not in self._unoffered
        }
        position = self._position if self._head is None else self._head_offset
        left = self.voided.after(pending | acked, position)
        self.voided = replace(left, offers=left.offers | pending) if void else left

    def _refresh(self) -> None:
        outstanding = self.outstanding
        self.ready = bool(self._again) or (
            self._head is not None
            and outstanding < self._limits.pending_max
            and (not outstanding or self._pending_bytes + self._head_bytes <= self._limits.pending_bytes_max)
        )

    def check_invariants(self) -> None:
        """Prove what the fields promise."""
        self.tracker.check_invariants()
        pending = {**self._sending, **self._out, **self._again}
        assert len(pending) == self.pending
        assert self._pending_bytes == sum(offer.size for offer in pending.values())
        assert not any(self.tracker.is_acked(offset) for offset in pending)
        deadlines = [offer.deadline for offer in self._out.values()]
        assert deadlines == sorted(deadlines)
        assert set(self._again) <= {offset for _, offset in self._again_order}
        assert self._again or not self._again_order
        assert self._buffered_bytes == sum(len(batch) for _, batch, _ in self._queue)
        assert self.packed is None or self._head is None
        if self._head is not None:
            assert not self.tracker.is_acked(self._head_offset)
            assert self._head_offset not in pending
        assert self.outstanding <= max(self._limits.pending_max, 1)
