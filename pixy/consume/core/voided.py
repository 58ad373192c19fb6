"""Voided offsets: acks for them do not count until their records are offered again. Pure.

Setting a group's offsets voids its outstanding offers, because their acks concern a position that
was abandoned. Deleting a topic voids all its offsets, for another topic that is created under its
name.
"""

from collections import OrderedDict
from collections.abc import Set
from dataclasses import dataclass

from pixy.backend import TopicPartition

_VOIDED_MAX = 1 << 18


@dataclass(frozen=True, slots=True)
class VoidedOffsets:
    """Offsets of one partition whose acks count only when their records have been offered again.

    Attributes:
        offers: offsets of the offers that were outstanding when the group's offsets were set.
        replaced: offsets of a deleted topic whose name another topic may have got.
    """

    offers: frozenset[int] = frozenset()
    replaced: range = range(0)

    def __bool__(self) -> bool:
        return bool(self.offers or self.replaced)

    def __contains__(self, offset: int) -> bool:
        return offset in self.offers or offset in self.replaced

    def after(self, offered: Set[int], position: int) -> "VoidedOffsets":
        """The offsets still voided after these were offered again, and everything below `position`
        was offered.
        """
        replaced = range(max(self.replaced.start, position), self.replaced.stop)
        return VoidedOffsets(self.offers - offered, replaced)


NOTHING_VOIDED = VoidedOffsets()


class VoidedByPartition:
    """Voided offsets by consumer group and partition; they outlive the subscription, because acks
    may come later.

    Args:
        limit: offsets to remember; beyond it the partition that changed first is forgotten.
    """

    __slots__ = ("_by_partition", "_count", "_limit")

    def __init__(self, limit: int = _VOIDED_MAX) -> None:
        self._limit = limit
        # Invariant: no entry is empty; `_count` is the sum of the sizes, a range counts as one.
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
