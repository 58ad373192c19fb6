"""What all consumer groups of one proxy share: the cluster, the options, time, tasks, and voided offsets."""

from collections.abc import Callable
from dataclasses import dataclass, field

from pixy.backend import Backend
from pixy.config import ConsumerConfig
from pixy.consume.offer import OfferLimits
from pixy.consume.timers import Timers
from pixy.consume.unpacking import Unpack
from pixy.consume.voided import VoidedByPartition
from pixy.errors import PixyError
from pixy.tasks import Tasks

__all__ = ["ConsumeCounters", "ConsumeEnvironment", "OnMissing"]

OnMissing = Callable[[str, Callable[[PixyError], None]], None]
"""Called with a topic that was deleted while somebody waits for a record of it, and with what to call if it stays missing."""


@dataclass(slots=True)
class ConsumeCounters:
    """How many records were offered, acked, taken back after the ack timeout, and given up after too many retries."""

    offered: int = 0
    acked: int = 0
    expired: int = 0
    dropped: int = 0


@dataclass(frozen=True, slots=True)
class ConsumeEnvironment:
    """Shared by the parts of one `Consumers`."""

    backend: Backend
    options: ConsumerConfig
    client_id: str
    timers: Timers
    tasks: Tasks
    limits: OfferLimits
    on_missing: OnMissing
    unpack: Unpack
    voided: VoidedByPartition = field(default_factory=VoidedByPartition)
    counters: ConsumeCounters = field(default_factory=ConsumeCounters)
