"""The dependencies of all consumer groups of one proxy: cluster, options, time, tasks."""

from collections.abc import Callable
from dataclasses import dataclass, field

from pixy.aio.steps import LaterSteps, LoopShare
from pixy.aio.tasks import Tasks
from pixy.backend import Backend
from pixy.config import ConsumerConfig
from pixy.consume.core import (
    HandedOut,
    JoinTurns,
    OfferLimits,
    PartitionLimit,
    PassingTurns,
    Timers,
    VoidedByPartition,
    WaitingAckLimit,
)
from pixy.consume.memory import BoundedMemory, Pins, Unpacking
from pixy.consume.partition.end_questions import EndQuestions
from pixy.consume.partition.partition_offers import PartitionOffers
from pixy.errors import PixyError
from pixy.metrics import LONG_BOUNDS, Histogram

_ENDED_MAX = 10_000

OnMissing = Callable[[str, Callable[[PixyError], None]], None]
"""Called with a topic that was deleted while requests wait for its records, and a callback for the
case that it stays missing.
"""


@dataclass(slots=True)
class ConsumeCounters:
    """Numbers of records offered, offered again after the ack timeout, acked, expired at it, and
    dropped after the last retry.
    """

    offered: int = 0
    redelivered: int = 0
    acked: int = 0
    expired: int = 0
    dropped: int = 0

    def add(self, offers: "PartitionOffers | ConsumeCounters") -> None:
        """Add those of a partition, or of several."""
        self.offered += offers.offered
        self.redelivered += offers.redelivered
        self.acked += offers.acked
        self.expired += offers.expired
        self.dropped += offers.dropped


class EndedCounters:
    """Counts of partitions that are not consumed here any more, by group and topic.

    Attributes:
        by_topic: the last `_ENDED_MAX` pairs of a group and a topic.
        beyond: those of earlier ones, together.
    """

    def __init__(self) -> None:
        self.by_topic: dict[tuple[str, str], ConsumeCounters] = {}
        self.beyond = ConsumeCounters()

    def add(self, group: str, topic: str, offers: PartitionOffers) -> None:
        """Add those of a partition."""
        counters = self.by_topic.get((group, topic))
        if counters is None:
            if len(self.by_topic) >= _ENDED_MAX:
                self.beyond.add(self.by_topic.pop(next(iter(self.by_topic))))
            counters = self.by_topic[group, topic] = ConsumeCounters()
        counters.add(offers)


@dataclass(frozen=True, slots=True)
class ConsumeEnvironment:
    """The dependencies of the parts of one `Consumers`."""

    backend: Backend
    options: ConsumerConfig
    client_id: str
    timers: Timers
    tasks: Tasks
    limits: OfferLimits
    on_missing: OnMissing
    unpacking: Unpacking
    fetched: BoundedMemory
    pins: Pins
    partition_limit: PartitionLimit
    join_turns: JoinTurns
    passing: PassingTurns
    ack_limit: WaitingAckLimit
    ends: EndQuestions
    feeding: LoopShare = field(default_factory=LoopShare)
    # Work on acks that have waited, and their looks, of all partitions.
    acking: LoopShare = field(default_factory=LoopShare)
    waking: LaterSteps = field(default_factory=LaterSteps)
    # Ends of subscriptions and partitions, of which there may be thousands at once.
    ending: LaterSteps = field(default_factory=LaterSteps)
    voided: VoidedByPartition = field(default_factory=VoidedByPartition)
    handed_out: HandedOut = field(default_factory=HandedOut)
    ended: EndedCounters = field(default_factory=EndedCounters)
    # Time from the delivery of a record to its ack.
    ack_latency: Histogram = field(default_factory=lambda: Histogram(LONG_BOUNDS))

    @property
    def owner_patience_s(self) -> float:
        """Time for which acks and SetOffsets wait while ownership of their partition moves: longer
        than a move with its drain, and than the expulsion of a node that is lost.
        """
        return max(self.options.rebalance_timeout, self.options.long_polling_timeout)

    def is_there(self, topic: str, topic_id: bytes) -> bool:
        """True if the topic still has this id."""
        description = self.backend.topic(topic)
        return description is not None and description.topic_id == topic_id
