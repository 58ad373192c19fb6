"""The `Backend` protocol: one cluster, as the layers above see it.

Rules for every implementation, proven by `tests/conformance`:

- A partition is a sequence of Kafka v2 record batches. Offsets may have gaps (compacted, control
  and aborted records of a real Kafka): a fetch returns the offset of the next one, and callers skip
  the gaps.
- A write is durable once it is answered.
- Everything runs on one event loop. `topic` and `append` never suspend; the others are coroutines,
  which may be cancelled at any await without any effect on the cluster other than the requested
  one.
- Only classes of `pixy.errors` are raised. After `stop`, calls that would wait or change anything
  raise `ShuttingDown`, and so do those that are waiting.

Road not taken: single records across this interface. Each touch of a record costs a microsecond in
plain Python, so the layers above pack and unpack them, and only batches pass.
"""

from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from math import inf
from types import MappingProxyType
from typing import NamedTuple, Protocol, runtime_checkable

from pixy.backend.classic import ClassicGroups
from pixy.cluster import ClusterStatus, DiskSpace, ExportedState, MoveRequest, MovesPlanned
from pixy.errors import PixyError
from pixy.proto.state_pb2 import MoveReason, PartitionMove
from pixy.records import OffsetCommit, OffsetRange, TopicPartition
from pixy.staging import StagedWrites

Batch = bytes | bytearray | memoryview
"""One whole Kafka v2 record batch."""

BATCH_MEMORY_BYTES = 450
"""Memory of a batch in flight besides its bytes: some objects here and there."""

AppendDone = Callable[[int, PixyError | None], None]
"""Called once with (offset of the batch's first record, None), or with (-1, error) if it was not
written.

May be called before `append` returns.
"""


class DividedPart(NamedTuple):
    """A part of a batch that was divided; see the arguments of `Backend.append`."""

    batch: bytearray
    records: int
    done: "DivisibleDone"


@runtime_checkable
class DivisibleDone(Protocol):
    """An `AppendDone` of a batch whose records have several callers: if some of the records make
    the cluster refuse all of it, the others are written.
    """

    def __call__(self, offset: int, error: PixyError | None, /) -> None:
        """See `AppendDone`."""

    def divide(
        self, batch: Batch, faults: Mapping[int, PixyError], bytes_max: int | None = None
    ) -> Sequence[DividedPart]:
        """Answer the records that are at fault, and return parts with all others, in order, to be
        written in the place of the batch. It is not answered itself then.

        Args:
            batch: the refused batch, of two records at least.
            faults: the error of each record at fault, by its number in the batch; empty if it is
                not known which these are.
            bytes_max: largest batch that is not refused; None: not known. Without either, the
                batch is halved.
        """


class ClientDone(Protocol):
    """An `AppendDone` of batches that a client appends to a partition together: behind one that
    fails, none should be written.

    Attributes:
        client: address of the client. Batches of other clients need not be written in the order of
            the calls.
    """

    client: str

    def __call__(self, offset: int, error: PixyError | None, /) -> None:
        """See `AppendDone`."""


Assignment = Callable[[Mapping[str, Sequence[int]]], None]
"""Called with all partitions that a member owns from then on: topic -> partitions, ascending.

Partitions that are missing may be another member's already: nothing may be committed for them.
"""

Revocation = Callable[[float, Mapping[str, Collection[int]] | None], Awaitable[None]]
"""Called before partitions of a member may go to another one, with the seconds until then and these
partitions by topic; None: all of the member.

From the call on the member offers no record of them. It returns when nothing of them is outstanding
or the time is over, and their acks are committed; from then on, until the next assignment, acks for
them are neither accepted nor refused. After the return no assignment includes them before it is
decided where they are; one that does includes them for good. A partition that the member still owns
after the assignment had no other owner in between. Cancelled if the member is removed from the
group meanwhile.
"""

OffsetsChanged = Callable[[Mapping[str, Collection[int]]], None]
"""Called when another process has set offsets of partitions that a member owns, by topic.

The member resets these partitions to the committed offsets. Called when the change is applied here,
before anything later is: commits that were begun before the call are refused with `OffsetsSet`,
those begun after it are based on the new offsets.
"""


@dataclass(frozen=True, slots=True)
class PartitionDescription:
    """One partition and its replicas, by node id.

    Attributes:
        leader: -1 while there is none or the partition is not ready.
        moves_to: nodes that are to have its replicas; empty unless it moves.
    """

    partition: int
    leader: int
    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    moves_to: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class TopicDescription:
    """One topic.

    Attributes:
        version: increases with every change of partitions or options; partitioners depend on it.
        partitions: ascending, without gaps.
        metadata_version: the version in kafka-pixy's API, 1 for a new topic. Equals `version` if
            the cluster counts changes itself, else it is always 1, as in kafka-pixy.
        led_here: partitions that this process leads, if it leads some and not all: records without
            a key go there, because others cost a hop.
    """

    name: str
    topic_id: bytes
    version: int
    config: Mapping[str, str]
    partitions: tuple[PartitionDescription, ...]
    metadata_version: int = 1
    led_here: tuple[int, ...] = ()


class BrokerNode(NamedTuple):
    """A node that clients reach by Kafka's protocol.

    Attributes:
        address: as "host:port".
        rack: its place, as configured.
    """

    node_id: int
    address: str
    rack: str


class BrokerNodes(NamedTuple):
    """The nodes of a cluster.

    Attributes:
        cluster_id: random, as text.
        own_id: of this process.
        brokers: other nodes, by id, that lead partitions and that such clients reach. This process
            takes requests for what none of these leads.
    """

    cluster_id: str
    own_id: int
    brokers: tuple[BrokerNode, ...] = ()


class LocalLogs(NamedTuple):
    """The partition logs of this process.

    Attributes:
        directory: where they are.
        disk: its file system.
        sizes: bytes of the segments of each partition with a replica here.
    """

    directory: str
    disk: DiskSpace
    sizes: Mapping[TopicPartition, int]


class FetchResult(NamedTuple):
    """Consecutive batches of one partition.

    The first batch may begin before the requested offset, because batches are never cut: skip
    records below it. `next_offset` is the offset of the next fetch. It is above the requested one
    whenever there was something to skip, even if `batches` is empty because the offsets in between
    have no records.

    `is_confirmed`: `high_watermark` is above everything that was answered before the fetch. A
    replica that may be behind its leader says so only of a fetch at its end that does not wait.
    """

    batches: Sequence[Batch]
    next_offset: int
    log_begin_offset: int
    high_watermark: int
    is_confirmed: bool = True


class Lease:
    """The time until which a member may hand out records, because the group has it as a member
    until then.

    Attributes:
        until: on the monotonic clock, moved on by the backend; infinite where no other process can
            be a member, or the members themselves are told in time.
    """

    __slots__ = ("until",)

    def __init__(self, until: float = inf) -> None:
        self.until = until


class KnownRanges(NamedTuple):
    """Ends of partitions, as far as they are known.

    Attributes:
        ranges: begin and end of the logs, by number of the partition.
        unknown: why nothing is known of the others, by number of the partition.
    """

    ranges: Mapping[int, OffsetRange]
    unknown: Mapping[int, PixyError]


class Owner(NamedTuple):
    """The member of a consumer group that owns a partition.

    `node_id`: the node that has the member and answers `Backend.ask_node`; None: it cannot be
    asked.
    """

    client_id: str
    node_id: int | None = None


class ConsumerMembership(Protocol):
    """The membership of this process in one consumer group.

    Attributes:
        lease: ends a while after the backend has last confirmed the membership.
    """

    lease: Lease

    async def subscribe(self, topics: Sequence[str]) -> None:
        """Replace the subscribed topics. The assignment callback gets the result."""

    async def leave(self) -> None:
        """Leave the group. The assignment callback is not called again."""


VisitPosition = Callable[[str, str, Mapping[int, int]], None]
"""Called with a group, a topic, and committed offsets by partition."""

NO_MARKS: Mapping[TopicPartition, int] = MappingProxyType({})


class Backend(StagedWrites, Protocol):
    """One cluster."""

    async def start(self) -> None:
        """Connect or recover. A remote cluster that is unreachable does not fail the start; see
        `wait_ready`.

        Raises:
            StartError: it cannot serve; the message is for the operator.
        """

    @property
    def fault(self) -> str:
        """The reason, for the operator, why the cluster is not ready; empty while it is."""

    @property
    def why_left(self) -> str:
        """The reason, for clients, why this process will not be part of the cluster any more; empty
        while it may be.
        """

    def watch(self, on_change: Callable[[], None]) -> None:
        """Have `on_change` called each time the cluster becomes ready or unready after the first
        `wait_ready`.
        """

    async def wait_ready(self) -> None:
        """Return once the cluster has been ready for the first time.

        Until then requests raise `Unavailable`.
        """

    async def stop(self) -> None:
        """Finish accepted requests, make them durable, release everything. Idempotent."""

    # --- topics -----------------------------------------------------------------------------------

    def topic(self, name: str) -> TopicDescription | None:
        """The topic in this process's metadata, None if there is none.

        The same object as long as nothing of it has changed: callers look it up for every record
        and compare by identity first.

        Raises:
            Unavailable: the cluster has not been reached yet; the message says why.
        """

    async def describe_topic(self, name: str) -> TopicDescription:
        """The topic in the cluster's metadata. Never creates it.

        Raises:
            UnknownTopic: there is none.
        """

    async def list_topics(self, names: Sequence[str] | None = None) -> Sequence[TopicDescription]:
        """All topics, or those of `names` that exist, sorted by name."""

    async def create_topic(
        self, name: str, partitions: int, config: Mapping[str, str] | None = None
    ) -> TopicDescription:
        """Create a topic with `partitions` >= 1 partitions.

        Args:
            config: options that differ from the cluster's, by name.

        Raises:
            InvalidTopic: the name breaks Kafka's rule.
            InvalidArgument: the number of partitions is not allowed, or an option is unknown or
                invalid.
            TopicExists: there is a topic of that name, perhaps created at the same moment.
        """

    async def alter_topic(
        self,
        name: str,
        *,
        partitions: int | None = None,
        config: Mapping[str, str | None] | None = None,
    ) -> TopicDescription:
        """Add partitions, set options, or both in one change; the version increases if anything
        changed.

        Args:
            partitions: the new number of partitions, not below the current one; None: unchanged.
            config: options to set, by name; the value None resets one to the cluster's. Others
                stay.

        Raises:
            UnknownTopic: there is none.
            StaleTopicVersion: another process has altered it at the same time.
            InvalidArgument: the number of partitions is too low or too high, or an option is
                invalid as in `create_topic`. Nothing has changed.
        """

    async def delete_topic(self, name: str, *, force: bool = False) -> None:
        """Delete a topic with its records and the offsets that consumer groups have committed in
        it.

        Args:
            force: delete it even if stages have unpublished records of it, which are lost.

        On return it can be neither read nor written, and a topic of the same name may be created,
        which is empty and has another id. Appends and fetches in progress end with
        `UnknownPartition`. The assignment callback takes its partitions from the members of
        consumer groups.

        Raises:
            UnknownTopic: there is none.
            FailedPrecondition: records of it are staged, and `force` is not set; the message names
                the sinks.
        """

    # --- records ----------------------------------------------------------------------------------

    def batch_bytes_max(self, topic: str) -> int | None:
        """The largest record batch that a topic takes, if that is known: a limit of the cluster
        which batches have exceeded.
        """

    def append(
        self,
        partition: TopicPartition,
        batch: bytearray,
        records: int,
        done: AppendDone,
        age_s: float = 0.0,
    ) -> None:
        """Append one batch of `records` records. `done` is called when it is durable or has failed.

        The backend owns `batch` from here on: it writes base offset and leader epoch into the
        header in place. Batches of one partition are written and answered in the order of the
        calls. One whose `done` is a `DivisibleDone` may overtake others than such ones, and be
        divided if it is refused because of some of its records. Clients may take turns
        (`ClientDone`).

        A batch with a producer id is written once, however often it is appended: a repetition is
        answered with the offset of its original, when that is durable. Its epoch and sequences are
        judged where it is written; `done` gets `OutOfOrderSequence`, `InvalidProducerEpoch`,
        `DuplicateSequence`, or the retriable `TooManyProducers`. It shares no order with other
        batches than those of its producer.

        Args:
            age_s: age of the oldest record that somebody waits for, which counts towards the time
                limit of a write. Negative for a longer limit; batches behind it may be answered
                before it then.

        Raises:
            UnknownPartition: there is no such partition; `done` is not called then. One of several
                nodes asks others first, and `done` is called with it.
        """

    async def new_producer_id(self) -> int:
        """An id for an idempotent producer, which nobody else ever gets: its epoch begins with 0.

        Raises:
            FailedPrecondition: a node of the cluster has an older release; or a Kafka cluster, in
                front of which batches with producer ids are not taken.
            Unavailable, DeadlineExceeded: the cluster gives none in time.
        """

    async def fetch(
        self,
        partition: TopicPartition,
        offset: int,
        *,
        max_bytes: int,
        max_wait: float | None = None,
    ) -> FetchResult:
        """Batches from `offset` on, at most `max_bytes`, but at least one whole batch if there is
        any.

        Waits for a batch without polling, for `max_wait` seconds at most (None: without limit). An
        empty result means that the time ran out.

        Raises:
            UnknownPartition: there is no such partition.
            OffsetOutOfRange: `offset` is below the log begin offset or above the high watermark.
            CorruptData: the stored data is damaged.
            Unavailable: the partition has had no leader for some seconds, regardless of `max_wait`.
        """

    def fetch_nowait(self, partition: TopicPartition, offset: int, max_bytes: int) -> FetchResult | None:
        """As `fetch` without a wait, if the answer is in memory; None: ask `fetch`. Raises
        nothing.
        """

    async def wait_records(self, offsets: Mapping[TopicPartition, int], max_wait: float) -> None:
        """Return when one of some partitions may have a record at or behind its offset, or cannot
        be fetched from, and after `max_wait` seconds in any case. One wait for all of them.
        """

    async def offset_ranges(
        self, topic: str, partitions: Collection[int] | None = None
    ) -> Mapping[int, OffsetRange]:
        """Begin and end of the logs of a topic's partitions: of all, or of some.

        Partitions that the topic does not have are left out.

        Raises:
            UnknownTopic: there is none.
            Unavailable: one of them does not answer in time.
        """

    async def known_ranges(
        self, topic: str, partitions: Collection[int] | None = None, *, patience_s: float = 5.0
    ) -> KnownRanges:
        """As `offset_ranges`, for each partition on its own: one without a leader holds up no
        others.

        Args:
            patience_s: about as long is waited for partitions that may have a leader soon. One that
                is known to have none for long is not waited for.

        Raises:
            UnknownTopic: there is none.
            Unavailable: the cluster does not answer.
        """

    async def offset_for_timestamp(self, partition: TopicPartition, timestamp_ms: int) -> int | None:
        """The first offset whose record's timestamp is at or after `timestamp_ms`, None if there is
        none.

        Raises:
            UnknownPartition: there is no such partition.
            CorruptData: the stored data to be searched is damaged.
        """

    async def delete_records(self, topic: str, offsets: Mapping[int, int]) -> Mapping[int, int]:
        """Remove the records of partitions below an offset each, -1 for the end; durable on return.

        Each partition on its own: after an error some have fewer records.

        Returns:
            The log begin offsets, by partition.

        Raises:
            UnknownTopic, UnknownPartition: there is none.
            OffsetOutOfRange: an offset is above the end.
        """

    # --- consumer groups --------------------------------------------------------------------------

    async def join_consumer_group(
        self,
        group: str,
        client_id: str,
        topics: Sequence[str],
        on_assignment: Assignment,
        on_revocation: Revocation | None = None,
        on_offsets_set: OffsetsChanged | None = None,
    ) -> ConsumerMembership:
        """Join a consumer group, subscribed to `topics`.

        `on_assignment` is called from the event loop with the partitions of this member: first
        before or soon after this returns, then on every change. `on_revocation` is called before
        partitions go to another member, if there can be members outside of this process; not when
        the group has removed the member. `on_offsets_set` is called when another process has set
        offsets of partitions of this member.
        """

    async def commit_offsets(
        self,
        group: str,
        offsets: Mapping[TopicPartition, OffsetCommit],
        *,
        set: bool = False,
        begins: bool = False,
        handed_out: Mapping[TopicPartition, int] = NO_MARKS,
    ) -> None:
        """Commit offsets of a group, all or none; durable on return.

        Args:
            set: a client sets them: taken whoever owns the partitions, unless another process has
                set or removed them since `committed_offsets` was asked here. Otherwise they are the
                position of the member of this process.
            begins: they are the first positions of the group, and so subject to a limit.
            handed_out: marks of the partitions, see `handed_out`.

        Raises:
            UnknownPartition: there is no such partition; nothing is committed.
            OwnedElsewhere: a member outside of this process owns a partition, and the message names
                it; nothing is committed.
            OffsetsSet: offsets of a partition were set meanwhile; nothing is committed.
            ResourceExhausted: with `set` or `begins`, too much is committed already; nothing is
                committed.
        """

    async def committed_offsets(self, group: str, topic: str) -> Mapping[int, OffsetCommit]:
        """The committed offsets of a group by partition; partitions without one are missing."""

    @property
    def joins_at_once(self) -> bool:
        """True if nothing but load delays the join of a consumer group. Kafka's brokers hold the
        first one up for seconds (group.initial.rebalance.delay.ms).
        """

    @property
    def keeps_handed_out(self) -> bool:
        """True if commits keep the marks of `handed_out`."""

    def handed_out(self, group: str, topic: str) -> Mapping[int, int]:
        """Marks of partitions with a committed offset, as of the last `committed_offsets`: no
        offset from the mark on was ever handed out to the group. It never decreases. A partition
        whose mark is not known is missing.
        """

    async def list_groups(self) -> Collection[str]:
        """Names of all consumer groups: those with members, and those that only have committed
        offsets.
        """

    async def delete_group(self, group: str, topic: str = "") -> None:
        """Remove the offsets of a consumer group in a topic, or with an empty name in all of them;
        durable on return.

        Raises:
            UnknownTopic: there is none.
            UnknownGroup: the group has no offsets there.
            FailedPrecondition: it has members, of which one subscribes to the topic if there is
                one.
        """

    async def list_consumers(self, topic: str) -> Mapping[str, Mapping[str, Sequence[int]]]:
        """The consumers of a topic: group -> client id -> partitions, ascending; members without
        partitions included.
        """

    async def partition_owner(self, group: str, partition: TopicPartition) -> Owner | None:
        """The member of a consumer group that owns a partition, None if there is none.

        Raises:
            OwnerUndecided: the group is being rebalanced.
        """

    @property
    def may_have_neighbours(self) -> bool:
        """True if other processes that can be asked may own partitions that this one does not know
        of yet.
        """

    def other_owners(self, group: str, topic: str) -> Sequence[int]:
        """Other nodes that own partitions of a topic for a consumer group, as far as this process
        knows; none if they cannot be asked.
        """

    async def ask_node(self, node_id: int, request: bytes, timeout_s: float) -> bytes:
        """The answer of the consumer groups of another node to a request.

        Raises:
            Unavailable: the node cannot be reached.
            DeadlineExceeded: it has not answered in time.
            PixyError: the answer.
        """

    def serve_nodes(self, handler: Callable[[int, bytes], Awaitable[bytes]]) -> None:
        """Have `handler` answer the requests of other nodes: id of the asking node, request.

        A `PixyError` reaches the asking node as it is. Cancelled when the asking node has given up
        or is lost.
        """

    async def consumer_group_exists(self, group: str) -> bool:
        """True if a consumer group has members."""

    @property
    def classic_groups(self) -> ClassicGroups | None:
        """Groups of Kafka clients; None for a Kafka cluster, which clients ask themselves."""

    # --- monitoring -------------------------------------------------------------------------------

    async def log_ranges(self, topic: str) -> Mapping[int, OffsetRange]:
        """As `offset_ranges` of all partitions, but as far as replicas know without asking their
        leaders.
        """

    async def visit_positions(self, visit: VisitPosition) -> None:
        """Call `visit` for each consumer group and each topic in which it has committed offsets,
        as far as this process knows. It must not suspend.
        """

    # --- nodes ------------------------------------------------------------------------------------

    @property
    def broker_nodes(self) -> BrokerNodes:
        """The nodes, as this process knows them. The same object as long as nothing has changed."""

    async def find_brokers(self) -> BrokerNodes:
        """The nodes, as they say themselves now. One that does not answer is left out."""

    def announce_broker(self, address: str) -> None:
        """Tell other nodes that clients of Kafka's protocol reach this process at an address."""

    async def local_logs(self) -> LocalLogs:
        """The logs on the disk of this process.

        Raises:
            FailedPrecondition: a Kafka cluster.
        """

    @property
    def troubles(self) -> Sequence[str]:
        """Sentences about what is wrong with files of this process, besides `cluster_status`."""

    async def cluster_status(self) -> ClusterStatus:
        """Status of the nodes and raft groups, also while the cluster is not ready.

        Raises:
            FailedPrecondition: a Kafka cluster; the message has the `troubles` of this process.
        """

    async def remove_node(self, node_id: int) -> None:
        """Take a node out of the cluster for good; durable on return. It is needed until
        `cluster_status` does not list it any more.

        Raises:
            NotFound: there is no such node.
            FailedPrecondition: it has the only replica of a partition, is needed for a majority, or
                is the only node; or a Kafka cluster.
        """

    async def forget_node(self, node_id: int) -> None:
        """Give up a node that is lost with its data; durable on return.

        Raises:
            NotFound: there is no such node.
            FailedPrecondition: it is up, or the only node; or a Kafka cluster.
        """

    async def drain_node(self, node_id: int, *, draining: bool) -> None:
        """Have a node give its replicas to others, or no longer; durable on return.

        Raises:
            NotFound: there is no such node.
            FailedPrecondition: a node of the cluster does not move replicas; or a Kafka cluster.
        """

    async def plan_moves(self, request: MoveRequest) -> MovesPlanned:
        """Plan moves of replicas, and begin none.

        Raises:
            NotFound, UnknownTopic, UnknownPartition: what is to move, or where to, is not there.
            FailedPrecondition: it cannot move so; as `drain_node`.
        """

    async def begin_moves(
        self, reason: MoveReason.ValueType, moves: Sequence[PartitionMove]
    ) -> Sequence[str]:
        """Begin planned moves; durable on return.

        Returns:
            The partitions that are not as they were seen any more, each with the reason.

        Raises:
            FailedPrecondition: as `drain_node`.
        """

    async def export_state(self) -> ExportedState:
        """The state beside the records, for a backup. On return all records are visible that it
        speaks of.

        Raises:
            Unavailable: there is no majority, or publications are not finished.
            FailedPrecondition: a Kafka cluster.
        """
