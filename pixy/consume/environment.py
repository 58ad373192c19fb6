"""What all consumer groups of one proxy share: the cluster, the options, time, tasks, and which earlier offers are void."""

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field

from pixy.backend import Backend, TopicPartition
from pixy.config import ConsumerConfig
from pixy.consume.offer import OfferLimits
from pixy.consume.tasks import Tasks
from pixy.consume.timers import Timers
from pixy.consume.unpacking import Unpack
from pixy.errors import PixyError

__all__ = ["Counters", "Environment", "OnMissing", "VoidedOffers"]

OnMissing = Callable[[str, Callable[[PixyError], None]], None]
"""Called with a topic that was deleted while somebody waits for a record of it, and with what to call if it stays missing."""

_VOIDED_MAX = 65_536


class VoidedOffers:
    """Partitions of consumer groups whose offsets were set, and topics that were deleted and created again.

    What was offered before that cannot be acked any more. Outlives the subscription, because acks may come when it is over. At most
    65 536 of each are remembered, then the oldest goes.
    """

    __slots__ = ("_keys", "_topics")

    def __init__(self) -> None:
        self._keys: OrderedDict[tuple[str, TopicPartition], None] = OrderedDict()
        # The id of the topic that a group consumed last under a name, and whether it was another one before that.
        self._topics: OrderedDict[tuple[str, str], tuple[bytes, bool]] = OrderedDict()

    def add(self, group: str, partition: TopicPartition) -> None:
        """The group's offsets in a partition were set."""
        self._keys[group, partition] = None
        self._keys.move_to_end((group, partition))
        if len(self._keys) > _VOIDED_MAX:
            self._keys.popitem(last=False)

    def see(self, group: str, topic: str, topic_id: bytes) -> None:
        """The group consumes this topic. If it consumed another one of that name before, what was offered then is void."""
        key = group, topic
        known, replaced = self._topics.get(key, (topic_id, False))
        self._topics[key] = topic_id, replaced or known != topic_id
        self._topics.move_to_end(key)
        if len(self._topics) > _VOIDED_MAX:
            self._topics.popitem(last=False)

    def __contains__(self, key: tuple[str, TopicPartition]) -> bool:
        """Whether the offsets of a group in a partition were set."""
        return key in self._keys

    def is_replaced(self, group: str, topic: str) -> bool:
        """Whether the group consumed another topic of that name before."""
        return self._topics.get((group, topic), (b"", False))[1]


@dataclass(slots=True)
class Counters:
    """How many records were offered, acked, taken back after the ack timeout, and given up after too many retries."""

    offered: int = 0
    acked: int = 0
    expired: int = 0
    dropped: int = 0


@dataclass(frozen=True, slots=True)
class Environment:
    """Shared by the parts of one `Consumers`."""

    backend: Backend
    options: ConsumerConfig
    client_id: str
    timers: Timers
    tasks: Tasks
    limits: OfferLimits
    on_missing: OnMissing
    unpack: Unpack
    voided: VoidedOffers = field(default_factory=VoidedOffers)
    counters: Counters = field(default_factory=Counters)
