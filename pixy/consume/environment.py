"""What all consumer groups of one proxy share: the cluster, the options, time, tasks, and which offsets were set by hand."""

from collections import OrderedDict
from dataclasses import dataclass, field

from pixy.backend import Backend, TopicPartition
from pixy.config import ConsumerConfig
from pixy.consume.offers import OfferLimits
from pixy.consume.tasks import Tasks
from pixy.consume.timers import Timers

__all__ = ["Counters", "Environment", "VoidedOffers"]

_VOIDED_MAX = 65_536


class VoidedOffers:
    """Partitions of consumer groups whose offsets were set: what was offered before that cannot be acked any more.

    Outlives the subscription, because acks may come when it is over. At most 65 536 are remembered, then the oldest goes.
    """

    __slots__ = ("_keys",)

    def __init__(self) -> None:
        self._keys: OrderedDict[tuple[str, TopicPartition], None] = OrderedDict()

    def add(self, group: str, partition: TopicPartition) -> None:
        self._keys[group, partition] = None
        self._keys.move_to_end((group, partition))
        if len(self._keys) > _VOIDED_MAX:
            self._keys.popitem(last=False)

    def __contains__(self, key: tuple[str, TopicPartition]) -> bool:
        return key in self._keys


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
    voided: VoidedOffers = field(default_factory=VoidedOffers)
    counters: Counters = field(default_factory=Counters)
