"""What every layer above sees of a cluster, whichever implementation stands behind it.

Owns no state. The rules that hold for every implementation, proven by `tests/conformance`:

- A partition is a sequence of Kafka v2 record batches. Offsets may have gaps (compacted, control and aborted records of a
  real Kafka): a fetch tells where the next one goes on, and callers pass over what is missing.
- Whatever is answered as written is durable.
- Everything runs on one event loop. `topic` and `append` never suspend; the rest are coroutines that may be cancelled
  at any await without any effect on the cluster's state other than the requested one.
- Only classes of `pixy.errors` are raised. After `stop` everything that would wait or change anything raises `ShuttingDown`,
  and so does what is waiting then.

The road not taken: single records across this line. A record costs a microsecond in plain Python wherever it is touched,
so records are packed above and unpacked above, and only batches pass.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from pixy.cluster import Published
from pixy.errors import PixyError
from pixy.records import OffsetCommit, OffsetRange, TopicPartition

__all__ = [
    "AppendDone",
    "Assignment",
    "Backend",
    "Batch",
    "ConsumerMembership",
    "FetchResult",
    "OffsetCommit",
    "OffsetRange",
    "PartitionDescription",
    "Published",
    "Revocation",
    "StageSeal",
    "StagedBatches",
    "TopicDescription",
    "TopicPartition",
]

Batch = bytes | bytearray | memoryview
"""One whole Kafka v2 record batch."""

AppendDone = Callable[[int, PixyError | None], None]
"""Called once with (offset of the batch's first record, None), or with (-1, error) if it was not written.

May be called before `append` returns.
"""

Assignment = Callable[[Mapping[str, Sequence[int]]], None]
"""Called with the whole set of partitions that a member has from then on: topic -> partitions, ascending.

What is not in it any more may be another member's already: nothing may be committed for it.
"""

Revocation = Callable[[float], Awaitable[None]]
"""Called before partitions of a member may go to another one, with how many seconds there are until then.

From the call on nothing new of the member's partitions is handed out. It returns when what was handed out is acked, or the time is
over, and all acks are committed; from then until the next assignment acks are neither taken nor refused. What the member has
after that assignment as before was nobody else's in between. Cancelled when the member is put out of the group meanwhile.
"""


@dataclass(frozen=True, slots=True)
class PartitionDescription:
    """One partition and where it lives. Node ids; leader -1 while there is none, or while the partition is not ready."""

    partition: int
    leader: int
    replicas: tuple[int, ...]
    isr: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class TopicDescription:
    """One topic.

    Attributes:
        version: grows with every change of partitions or options; what gives records their partitions rests on it.
        partitions: ascending, without holes.
        metadata_version: what kafka-pixy's API calls the version: 1 for a new topic. The same as `version` where the cluster
            counts changes itself, else always 1, as kafka-pixy has it.
    """

    name: str
    topic_id: bytes
    version: int
    config: Mapping[str, str]
    partitions: tuple[PartitionDescription, ...]
    metadata_version: int = 1


class FetchResult(NamedTuple):
    """Consecutive batches of one partition.

    The first batch may begin before the asked offset, because batches are never cut: skip records below it.
    `next_offset` is where the next fetch goes on. It is above the asked offset whenever there was anything to pass,
    even if `batches` is empty because the offsets in between hold no records.
    """

    batches: Sequence[Batch]
    next_offset: int
    log_begin_offset: int
    high_watermark: int


class StagedBatches(NamedTuple):
    """Whole batches back to back for one partition, and how many records they have."""

    partition: TopicPartition
    batches: bytes | memoryview
    records: int


class StageSeal(NamedTuple):
    """How many pieces a stage has, and the CRC-32C over their checksums, 4 bytes each, big-endian, by number."""

    pieces: int
    crc: int


class ConsumerMembership(Protocol):
    """This process as one member of one consumer group."""

    async def subscribe(self, topics: Sequence[str]) -> None:
        """Replace the topics that this member asks for. The assignment callback tells what came of it."""

    async def leave(self) -> None:
        """Give up every partition and leave the group. The assignment callback is not called again."""


class Backend(Protocol):
    """One cluster."""

    async def start(self) -> None:
        """Connect or recover. A remote cluster that is unreachable does not fail the start; see `wait_ready`.

        Raises:
            StartError: it cannot serve; the message is for the operator.
        """

    @property
    def fault(self) -> str:
        """The reason, for the operator, why the cluster is not ready; empty while it is."""

    def watch(self, on_change: Callable[[], None]) -> None:
        """Have `on_change` called each time the cluster becomes ready or unready after the first `wait_ready`."""

    async def wait_ready(self) -> None:
        """Return once the cluster has been ready for the first time. Until then requests raise `Unavailable`."""

    async def stop(self) -> None:
        """Finish what was accepted, make it durable, release everything. Idempotent."""

    # --- topics -------------------------------------------------------------------------------------------------

    def topic(self, name: str) -> TopicDescription | None:
        """A topic as this process knows it at the moment, None if it knows of none.

        The same object as long as nothing of it has changed: callers ask for every record, and compare by identity first.

        Raises:
            Unavailable: the cluster has not been reached yet; says why.
        """

    async def describe_topic(self, name: str) -> TopicDescription:
        """A topic as the cluster knows it. Never creates it.

        Raises:
            UnknownTopic: there is none.
        """

    async def list_topics(self) -> Sequence[TopicDescription]:
        """All topics, sorted by name."""

    async def create_topic(
        self, name: str, partitions: int, config: Mapping[str, str] | None = None
    ) -> TopicDescription:
        """Create a topic with `partitions` >= 1 partitions.

        Args:
            config: options of the topic that differ from the cluster's, by name.

        Raises:
            InvalidTopic: the name breaks Kafka's rule.
            InvalidArgument: the number of partitions is not allowed, or an option is unknown or has a value that is not.
            TopicExists: there is one of that name; also when somebody else was a moment quicker.
        """

    async def alter_topic(
        self,
        name: str,
        *,
        partitions: int | None = None,
        config: Mapping[str, str | None] | None = None,
    ) -> TopicDescription:
        """Give a topic more partitions, or other options, or both as one change; its version grows if anything changed.

        Args:
            partitions: how many it has from then on; None: as many as before. They can only become more.
            config: options to set by name; None as a value: as the cluster's. Options that are not named stay.

        Raises:
            UnknownTopic: there is none.
            InvalidArgument: fewer partitions than there are, too many, or an option as in `create_topic`. Nothing has changed.
        """

    async def delete_topic(self, name: str, *, force: bool = False) -> None:
        """Delete a topic: its records, and what consumer groups have committed in it.

        Args:
            force: also if stages have records of it that are not published yet; these are lost.

        On return nothing of it can be read or written any more, and a topic of the same name may be created; it begins empty and
        has another id. Appends and fetches that are under way end with `UnknownPartition`. Members of consumer groups lose its
        partitions by the assignment callback.

        Raises:
            UnknownTopic: there is none.
            FailedPrecondition: records of it are staged, and `force` is not set; names the sinks.
        """

    # --- records ------------------------------------------------------------------------------------------------

    def append(
        self,
        partition: TopicPartition,
        batch: bytearray,
        records: int,
        done: AppendDone,
        age_s: float = 0.0,
    ) -> None:
        """Append one batch of `records` records. `done` is called when it is durable, or could not be written.

        The backend owns `batch` from here on: it writes base offset and leader epoch into the header in place.
        Batches of one partition are written and answered in the order of the calls.

        Args:
            age_s: for how long its oldest record has waited already. Counts where a write has a time limit.

        Raises:
            UnknownPartition: there is no such partition; `done` is not called then.
        """

    async def fetch(
        self,
        partition: TopicPartition,
        offset: int,
        *,
        max_bytes: int,
        max_wait: float | None = None,
    ) -> FetchResult:
        """Batches from `offset` on: at most `max_bytes`, but always at least one whole batch if there is any.

        Waits until there is something, for `max_wait` seconds at most (None: as long as it takes), and does so
        without polling. An empty result means that the time ran out.

        Raises:
            UnknownPartition: there is no such partition.
            OffsetOutOfRange: `offset` is below the log begin offset or above the high watermark.
            CorruptData: what is stored there cannot be read.
            Unavailable: the partition has had no leader for some seconds, however long the fetch may wait.
        """

    async def offset_ranges(self, topic: str) -> Mapping[int, OffsetRange]:
        """What each partition of a topic serves.

        Raises:
            UnknownTopic: there is none.
        """

    async def offset_for_timestamp(self, partition: TopicPartition, timestamp_ms: int) -> int | None:
        """The first offset whose record's timestamp is at or after `timestamp_ms`, None if there is none.

        Raises:
            UnknownPartition: there is no such partition.
            CorruptData: what is stored where it should be cannot be read.
        """

    # --- staged writes ------------------------------------------------------------------------------------------

    async def stage(
        self,
        sink_id: str,
        stage_id: str,
        piece: int,
        batches: Sequence[StagedBatches],
        seal: StageSeal | None = None,
    ) -> int:
        """Take a piece of a stage, or seal it, or both. The first piece makes the stage.

        A piece is written once, however often it comes. Sealed, the stage is complete and durable; until then it goes with this process.

        Args:
            piece: its number, from 0 on. Pieces may come in any order; a partition's batches are read in the order of the numbers.
            batches: checked, each partition once; none: only `seal`.

        Returns:
            How many bytes the stage has.

        Raises:
            UnknownPartition: there is no such partition.
            InvalidArgument: another piece of this number was taken before.
            FailedPrecondition: the stage is sealed or was published, or `seal` does not fit what is there.
            ResourceExhausted: a bound on what is staged is reached.
            Unavailable: there is no room on the disk.
        """

    async def publish(
        self,
        sink_id: str,
        epoch: int,
        query_id: str,
        stage_ids: Sequence[str],
        *,
        reset: bool = False,
        replaces: str = "",
    ) -> Published:
        """Make sealed stages visible: all or none, whatever breaks, and each once. On return they are.

        Batches of a partition become visible in the order of the stages.

        Args:
            epoch: one that is not above the last one of the sink changes nothing.
            query_id: whose sink this is; empty: it is for this one publication.
            reset: a sink of another query becomes this one's, and its epochs begin anew.
            replaces: the same, if it is this query's; empty: no query's.

        Raises:
            FailedPrecondition: a stage is not there, not sealed or published, a topic of it is deleted, or the sink is another query's.
                Nothing was published.
            CorruptData: a stage or a partition is damaged.
            ResourceExhausted, Unavailable: too many sinks, or too much on its way.
        """

    async def discard(self, sink_id: str, stage_ids: Sequence[str]) -> None:
        """Drop stages; those that were published, and those that are not there, are passed over."""

    # --- consumer groups ----------------------------------------------------------------------------------------

    async def join_consumer_group(
        self,
        group: str,
        client_id: str,
        topics: Sequence[str],
        on_assignment: Assignment,
        on_revocation: Revocation | None = None,
    ) -> ConsumerMembership:
        """Become a member of a consumer group, subscribed to `topics`.

        `on_assignment` is called from the event loop with what this member owns: the first time before or soon after
        this returns, then on every change. `on_revocation` is called before a change in favour of another member, if there can be
        members outside of this process; not when the member was put out of the group without being asked.
        """

    async def commit_offsets(self, group: str, offsets: Mapping[TopicPartition, OffsetCommit]) -> None:
        """Store offsets of a group as one change: all of them or none, durable on return.

        Raises:
            UnknownPartition: there is no such partition; nothing is stored.
            OwnedElsewhere: a member of the group outside of this process has a partition, and is named; nothing is stored.
        """

    async def committed_offsets(self, group: str, topic: str) -> Mapping[int, OffsetCommit]:
        """What a group has committed, by partition. Partitions without a commit are missing."""

    async def list_consumers(self, topic: str) -> Mapping[str, Mapping[str, Sequence[int]]]:
        """Who consumes a topic: group -> client id -> partitions, ascending; also members that have got none."""

    async def partition_owner(self, group: str, partition: TopicPartition) -> str | None:
        """Client id of the member of a consumer group that has a partition; None: nobody.

        Raises:
            OwnerUndecided: the group is being rebalanced.
        """

    async def consumer_group_exists(self, group: str) -> bool:
        """Whether a consumer group has any member."""
