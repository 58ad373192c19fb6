"""Offsets whose acks do not count, because the offers that they are about have been voided.

Setting a group's offsets voids what its clients hold: they ack records on the way to a position that was left. Deleting a topic voids
all its offsets, for the partitions of another topic that is given its name. Either ends for each record with its next offer. Pure.
"""

from collections import OrderedDict
from collections.abc import Set
from dataclasses import dataclass

from pixy.backend import TopicPartition

__all__ = ["NOTHING_VOIDED", "VoidedByPartition", "VoidedOffsets"]

_VOIDED_MAX = 1 << 18


@dataclass(frozen=True, slots=True)
class VoidedOffsets:
    """Offsets of one partition whose acks count only when their records have been offered again.

    Attributes:
        offers: of offers that were out when the group's offsets were set.
        replaced: of a topic that was deleted, and whose name came to mean another one.
    """

    offers: frozenset[int] = frozenset()
    replaced: range = range(0)

    def __bool__(self) -> bool:
        return bool(self.offers or self.replaced)

    def __contains__(self, offset: int) -> bool:
        return offset in self.offers or offset in self.replaced

    def after(self, offered: Set[int], position: int) -> "VoidedOffsets":
        """What is left when these offers were made again, and everything below `position` was offered."""
        replaced = range(max(self.replaced.start, position), self.replaced.stop)
        return VoidedOffsets(self.offers - offered, replaced)


NOTHING_VOIDED = VoidedOffsets()


class VoidedByPartition:
    """The voided offsets of partitions that are not live, by consumer group: acks may come when a subscription is over.

    Args:
        limit: how many are remembered; beyond it those of the partition that was changed first go.
    """

    __slots__ = ("_by_partition", "_count", "_limit")

    def __init__(self, limit: int = _VOIDED_MAX) -> None:
        self._limit = limit
        # Invariant: nothing in it is empty; `_count` is what it holds, a range counts as one.
        self._by_partition: OrderedDict[tuple[str, TopicPartition], VoidedOffsets] = OrderedDict()
        self._count = 0

    def of(self, group: str, partition: TopicPartition) -> VoidedOffsets:
        """The voided offsets of a consumer group in a partition."""
        return self._by_partition.get((group, partition), NOTHING_VOIDED)

    def put(self, group: str, partition: TopicPartition, voided: VoidedOffsets) -> None:
        """Replace the voided offsets of a consumer group in a partition."""
        before = self._by_partition.pop((group, partition), None)
        if before is not None:
            self._count -= _size(before)
        if voided:
            self._by_partition[group, partition] = voided
            self._count += _size(voided)
        while self._count > self._limit:
            self._count -= _size(self._by_partition.popitem(last=False)[1])


def _size(voided: VoidedOffsets) -> int:
    return len(voided.offers) + 1
