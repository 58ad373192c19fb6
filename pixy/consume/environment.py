"""What all consumer groups of one proxy share: the cluster, the options, time, tasks, and which earlier offers are void."""

from collections import OrderedDict
from collections.abc import Callable, Set
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

_VOIDED_MAX = 1 << 18


class VoidedOffers:
    """Offsets whose acks count only when their records have been offered again, by consumer group and partition.

    Kept here while the partition is not live, because acks may come when its subscription is over.

    Args:
        limit: how many offsets are remembered; beyond it those of the partition that was changed first go.
    """

    __slots__ = ("_count", "_limit", "_offsets")

    def __init__(self, limit: int = _VOIDED_MAX) -> None:
        self._limit = limit
        # Invariant: no set is empty; `_count` is the sum of their sizes.
        self._offsets: OrderedDict[tuple[str, TopicPartition], Set[int]] = OrderedDict()
        self._count = 0

    def of(self, group: str, partition: TopicPartition) -> Set[int]:
        """The voided offsets of a consumer group in a partition."""
        return self._offsets.get((group, partition), frozenset())

    def put(self, group: str, partition: TopicPartition, offsets: Set[int]) -> None:
        """Replace the voided offsets of a consumer group in a partition."""
        self._count += len(offsets) - len(self._offsets.pop((group, partition), ()))
        if offsets:
            self._offsets[group, partition] = offsets
        while self._count > self._limit:
            self._count -= len(self._offsets.popitem(last=False)[1])


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
