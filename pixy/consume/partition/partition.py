"""A live partition: the shell around `PartitionOffers`, with the fetcher and the timer for ack
deadlines.

Passes on the effects of acks and fetches: a position to commit, a record to offer, nothing
outstanding any more. Decides nothing itself.
"""

from typing import Protocol

import structlog

from pixy.backend import OffsetCommit, TopicPartition
from pixy.consume.core import Alarm, Offer, OffsetTracker
from pixy.consume.memory import Demand
from pixy.consume.partition.dispatcher import Dispatcher
from pixy.consume.partition.environment import ConsumeEnvironment
from pixy.consume.partition.fetcher import PartitionFetcher
from pixy.consume.partition.partition_offers import PartitionOffers
from pixy.errors import InvalidAck, PixyError

_log = structlog.get_logger()

_TIMED = 16
"""One ack of so many is timed, and each of the first ones of a partition."""
_REPORT_S = 60.0
"""Time between two reports of records that cannot be delivered."""


class PartitionHost(Protocol):
    """The subscription, as the partition sees it."""

    group_name: str
    topic: str
    dispatcher: Dispatcher
    watching: bool

    def mark_dirty(self, partition: "LivePartition") -> None:
        """The partition has a position to commit."""

    def mark_handed_out(self, partition: "LivePartition") -> None:
        """The partition has handed out records since its last commit."""

    def ack_kept(self, partition: "LivePartition", offset: int) -> None:
        """The partition keeps an ack until its record is delivered."""

    def wake(self, partition: "LivePartition") -> None:
        """The partition has a record to offer."""

    def demand(self, now: float) -> Demand:
        """Demand for records of partitions that may offer some."""

    def check_quiet(self) -> None:
        """Called while `watching`, whenever the number of outstanding offers may have dropped."""


class LivePartition:
    """One partition of one consumer group.

    Args:
        environment: the cluster, time and tasks.
        host: the subscription.
        partition: its number.
        tracker: the position of the group.
        end: the end of the partition.
        topic_id: id of the topic, because another topic may get its name.
        handed_out: nothing from there on was ever handed out to the group.
    """

    __slots__ = (
        "_committed_metadata",
        "_committed_offset",
        "_environment",
        "_expiry",
        "_expiry_set",
        "_fetcher",
        "_host",
        "_monotonic",
        "_quiet_until",
        "closed",
        "dirty",
        "held",
        "key",
        "lost",
        "marked",
        "offers",
        "partition",
        "queued",
        "topic",
        "topic_id",
    )

    def __init__(
        self,
        environment: ConsumeEnvironment,
        host: PartitionHost,
        partition: int,
        tracker: OffsetTracker,
        end: int,
        topic_id: bytes,
        handed_out: int,
    ) -> None:
        self._environment = environment
        self._monotonic = environment.timers.monotonic
        self._host = host
        self.topic = host.topic
        self.topic_id = topic_id
        self.partition = partition
        self.key = TopicPartition(host.topic, partition)
        voided = environment.voided.of(host.group_name, self.key)
        self.offers = PartitionOffers(
            self, environment.limits, tracker, end, handed_out=handed_out, voided=voided
        )
        # Owned by the dispatcher: this partition is in its queue.
        self.queued = False
        # The tracker is ahead of the committed offset. Invariant: then the group has it in its
        # list.
        self.dirty = False
        # The group is going to commit what was handed out, or the backend has no place for it.
        self.marked = False
        self.committed = OffsetCommit(tracker.base)
        # Nothing is offered: the partition may go to another process. Invariant: then not queued.
        self.held = False
        # Revoked or given up; no call has any effect.
        self.closed = False
        # Revoked, perhaps for another process; uncommitted acks are void. Invariant: then closed.
        self.lost = False
        self._fetcher = PartitionFetcher(
            environment, host.group_name, self.key, self.offers, self._fed, self._failing, self._demand
        )
        self._expiry = Alarm(environment.timers, self._expire)
        # No report of records that cannot be delivered before.
        self._quiet_until = float("-inf")
        # The alarm is set. Invariant: always while a delivered offer is outstanding.
        self._expiry_set = False

    def start(self) -> None:
        """Start fetching."""
        self._fetcher.start()

    def commit(self) -> OffsetCommit:
        """The position of the group."""
        tracker = self.offers.tracker
        return OffsetCommit(tracker.base, tracker.metadata())

    def ack(self, offset: int, only_if_offered: bool = False) -> None:
        """Ack one record.

        Raises:
            InvalidAck: the offset is negative.
            AckBeyondEnd: the offset is at or beyond the known end.
            ResourceExhausted: the ack does not fit into a commit.
        """
        if offset < 0:
            raise InvalidAck(f"invalid ack: bad offset: {offset}")
        offers = self.offers
        if not offers.ack(offset, only_if_offered):
            if offers.is_kept(offset):
                self._host.ack_kept(self, offset)
            return
        acked = offers.acked
        if not acked % _TIMED or acked < _TIMED:
            self._note_latency(_TIMED if acked > _TIMED else 1)
        if not (self.dirty and self.queued) or offers.notable or self._host.watching:
            # Else it would do nothing.
            self._acked()

    def _note_latency(self, acks: int) -> None:
        """Note the time from the delivery of the last acked record, which stands for some acks."""
        deadline, environment = self.offers.acked_deadline, self._environment
        if deadline is not None:
            delivered_at = deadline - environment.limits.ack_timeout
            environment.ack_latency.observe(self._monotonic() - delivered_at, acks)

    def delivered(self, offer: Offer) -> None:
        offers = self.offers
        if not offer.auto_ack or (offers.tracker.begins and not offers.fits(offer.record.offset)):
            # An ack that does not fit waits like that of a client, which may ack it after all.
            offers.delivered(offer, self._monotonic())
            if not self.marked:
                self.mark_handed_out()
            if not self._expiry_set:
                self._set_expiry()
        elif offers.ack_delivered(offer) and (
            not (self.dirty and self.queued) or offers.notable or self._host.watching
        ):
            self._acked()

    @property
    def committed(self) -> OffsetCommit:
        """The position of the last commit that has begun, or that a client has set."""
        return OffsetCommit(self._committed_offset, self._committed_metadata.decode())

    @committed.setter
    def committed(self, commit: OffsetCommit) -> None:
        # As UTF-8: with a single wide character, a text takes four bytes for each.
        self._committed_offset, self._committed_metadata = commit.offset, commit.metadata.encode()

    def mark_handed_out(self) -> None:
        """Commit what was handed out, if the backend has a place for it.

        Offers of a closed partition are void: its position is to be committed no more, as a client
        may have set another one.
        """
        if self.closed:
            return
        if self._environment.backend.keeps_handed_out:
            self._host.mark_handed_out(self)
        self.marked = True

    def commit_begins(self, offset: OffsetCommit) -> None:
        """A position is committed; everything from here on is left to the next commit."""
        self.committed = offset
        self.dirty = self.marked = False

    def undelivered(self, offer: Offer) -> None:
        now = self._monotonic()
        if self.offers.maybe_give_up(offer, now):
            self._report_undeliverable(offer, now)
            if not self._expiry_set:
                self._set_expiry()
        elif self.offers.put_back(offer):
            self._wake()
            if self._host.watching:
                self._host.check_quiet()

    def reset(self, tracker: OffsetTracker, end: int, *, behind_commit: bool = False) -> None:
        """Start over from `tracker`: the committed position, or the end if the committed offset is
        beyond it.
        """
        self.offers.reset(tracker, end, behind_commit=behind_commit)
        self._remember()
        self.dirty = self.marked = False
        self._expiry.cancel()
        self._expiry_set = False
        self._fetcher.start()
        self._fetcher.release_dropped()
        if self._host.watching:
            self._host.check_quiet()

    def hold(self) -> None:
        """Offer nothing more until `release`; acks are accepted."""
        self.held = True
        self._host.dispatcher.discard(self)

    def release(self) -> None:
        """Offer records again."""
        self.held = False
        self._wake()

    def stop_fetching(self) -> None:
        """Stop fetching, and give memory back: nothing new is offered any more."""
        self._fetcher.stop()
        self.offers.drop_fetched()
        self._fetcher.release_dropped()

    def void(self, *, replaced: bool = False, reset: bool = False) -> None:
        """Void all offers, as `PartitionOffers.close`; `stop_fetching` is to follow.

        `commit` still returns the position of the group.
        """
        self._failing(None)
        self.closed = True
        self._expiry.cancel()
        self.offers.close(replaced=replaced, reset=reset)
        self._fetcher.release_dropped()
        self._remember()

    def close(self) -> None:
        """Void all offers and stop."""
        self.stop_fetching()
        self.void()

    def _remember(self) -> None:
        group, environment = self._host.group_name, self._environment
        environment.voided.put(group, self.key, self.offers.voided)
        if self.marked or self.dirty or not environment.backend.keeps_handed_out:
            environment.handed_out.put(group, self.key, self.topic_id, self.offers.handed_out)

    def _acked(self) -> None:
        if not self.dirty:
            self.dirty = True
            self._host.mark_dirty(self)
        if not self.queued and self.offers.ready:
            self._wake()
        if self.offers.notable:
            self.look()
        if self._host.watching:
            self._host.check_quiet()

    def _demand(self, now: float) -> Demand:
        return Demand.NONE if self.held or not self.offers.may_offer else self._host.demand(now)

    def _fed(self) -> None:
        if not self.closed:
            self.look()
            self._wake()

    def _failing(self, error: PixyError | None) -> None:
        if self.closed:
            return
        faults = self._host.dispatcher.faults
        if error is None:
            faults.pop(self, None)
        else:
            faults[self] = error

    def _wake(self) -> None:
        if self.offers.ready and not self.held:
            self._host.wake(self)

    def look(self) -> None:
        """React to the state of the offers: commit, fetch, decompress, report."""
        offers = self.offers
        offers.notable = False
        if offers.passed:
            self._report_passed()
        if offers.changed:
            offers.changed = False
            if not self.dirty:
                self.dirty = True
                self._host.mark_dirty(self)
        self._fetcher.release_dropped()
        if offers.fault is not None or offers.packed is not None or offers.wants_more:
            self._fetcher.wake()

    def _report_undeliverable(self, offer: Offer, now: float) -> None:
        if now < self._quiet_until:
            return
        self._quiet_until = now + _REPORT_S
        _log.warning(
            "a record cannot be delivered, perhaps it is larger than clients or grpc.output_buffer_bytes allow",
            group=self._host.group_name,
            topic=self.topic,
            partition=self.partition,
            offset=offer.record.offset,
            bytes=offer.size,
            retries=offer.retries,
        )

    def _report_passed(self) -> None:
        passed, self.offers.passed = self.offers.passed, []
        for (begin, end), error in passed:
            _log.error(
                "records passed, not decodable after the last retry",
                group=self._host.group_name,
                topic=self.topic,
                partition=self.partition,
                first=begin,
                next=end,
                error=str(error),
            )

    def _set_expiry(self) -> None:
        deadline = self.offers.next_deadline()
        self._expiry_set = deadline is not None
        if deadline is not None:
            self._expiry.at(deadline)

    def _expire(self, now: float) -> None:
        dropped = self.offers.expire(now)
        if dropped:
            _log.error(
                "records dropped, not acked after the last retry",
                group=self._host.group_name,
                topic=self.topic,
                partition=self.partition,
                count=len(dropped),
                first=dropped[0],
            )
        self._set_expiry()
        self.look()
        self._wake()
        if self._host.watching:
            self._host.check_quiet()
