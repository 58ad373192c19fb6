"""The partition of a produced record: by its key, or one of those that can take it at once.

Records without a key go to partitions that this process leads, if it leads some, else to those with
a leader, while there are any. Those that come together go to one partition, if the partitioner
`stays` (KIP-480).
"""

from collections.abc import Sequence

from pixy.backend import TopicDescription
from pixy.records import Partitioner


def partition_choice(partitioner: Partitioner, description: TopicDescription) -> Partitioner:
    """The partitioner of a topic as it is now."""
    partitions = description.partitions
    ready = description.led_here or [each.partition for each in partitions if each.leader >= 0]
    if 0 < len(ready) < len(partitions):
        return _ReadyPartitions(partitioner, ready)
    return partitioner


class _ReadyPartitions:
    """A partitioner that chooses among some partitions for records without a key."""

    def __init__(self, partitioner: Partitioner, ready: Sequence[int]) -> None:
        self._partitioner = partitioner
        self._ready = ready
        self.stays = partitioner.stays

    def __call__(self, key: bytes | None, partitions: int) -> int:
        if key is None:
            return self._ready[self._partitioner(None, len(self._ready))]
        return self._partitioner(key, partitions)
