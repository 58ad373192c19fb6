"""Marks of what was ever handed out to consumer groups, by partition. Pure.

A mark is an offset: nothing from it on was ever handed out to the group. So an ack from there on
concerns a record that no client has, and has no effect (`partition_offers`). Marks only grow, until
the group begins anew: its offsets were deleted, or have expired.

Each commit carries the mark, where the backend keeps marks: also a commit of a partition that
nothing was acked in. The next owner begins with it, be it another process or this one after a
restart. What this one has handed out since the last commit it remembers itself, and only that: the
group may be deleted and begin anew while other processes own the partition.

    known about a partition that becomes live       its mark
    a mark was committed                            that one
    nothing was committed for the group, or not     the position at which the group begins: it
    any more                                        commits before it gets anything. What this
                                                    process remembers of it is forgotten
    a commit without a mark: of an earlier          `pending_max` behind the last acked offset:
    release, or in front of Kafka, whose commits    more unacked records than that are never out.
    have no place for it                            But 0 if a client has set the first offset of
                                                    the group through this process
    this process remembers one above                that one

A mark is a lower bound, never an upper one. After the death of an owner the records that it handed
out since its last commit are not below it: acks for them have no effect, and they come again.

The road not taken: a mark ahead of what was handed out, committed in steps. After such a death an
ack beyond what was handed out would skip records. Repeats are possible, skips are not.
"""

from collections import OrderedDict
from typing import NamedTuple

from pixy.backend import TopicPartition

_PARTITIONS_MAX = 1 << 16


class _Mark(NamedTuple):
    topic_id: bytes
    offset: int
    # The group had no commit before, so nothing was handed out.
    fresh: bool = False


class HandedOut:
    """Marks by consumer group and partition; they outlive the subscription.

    Args:
        limit: partitions to remember; beyond it the one that changed first is forgotten.
    """

    __slots__ = ("_limit", "_marks")

    def __init__(self, limit: int = _PARTITIONS_MAX) -> None:
        self._limit = limit
        self._marks: OrderedDict[tuple[str, TopicPartition], _Mark] = OrderedDict()

    def of(self, group: str, partition: TopicPartition, topic_id: bytes) -> int:
        """The mark of a group in a partition of the topic with this id; 0 if none is known."""
        mark = self._marks.get((group, partition))
        return mark.offset if mark is not None and mark.topic_id == topic_id else 0

    def is_fresh(self, group: str, partition: TopicPartition, topic_id: bytes) -> bool:
        """True if nothing was handed out before a client set the first offset here."""
        mark = self._marks.get((group, partition))
        return mark is not None and mark.topic_id == topic_id and mark.fresh

    def begin(self, group: str, partition: TopicPartition, topic_id: bytes) -> None:
        """A client sets the first offset of a group, whatever is remembered of an earlier one."""
        self._put(group, partition, _Mark(topic_id, 0, fresh=True))

    def committed(self, group: str, partition: TopicPartition, topic_id: bytes, offset: int) -> None:
        """The backend keeps a mark: a remembered one that is not above it is forgotten."""
        if self.of(group, partition, topic_id) <= offset:
            self.forget(group, partition)

    def forget(self, group: str, partition: TopicPartition) -> None:
        """A group has no committed offset in a partition, so it begins anew there."""
        self._marks.pop((group, partition), None)

    def put(self, group: str, partition: TopicPartition, topic_id: bytes, offset: int) -> None:
        """Remember a mark."""
        offset = max(offset, self.of(group, partition, topic_id))
        self._put(group, partition, _Mark(topic_id, offset))

    def _put(self, group: str, partition: TopicPartition, mark: _Mark) -> None:
        self._marks.pop((group, partition), None)
        self._marks[group, partition] = mark
        if len(self._marks) > self._limit:
            self._marks.popitem(last=False)
