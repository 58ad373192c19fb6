"""An in-memory cluster for tests of the layers above the backend.

It keeps real record batches and all promises of the `Backend` protocol, uses nothing but the event
loop, and behaves the same in every run. Beyond the protocol it simulates on request what real
clusters do at bad moments:

- `hold_appends`, `release_appends`: slow appends;
- `fail_appends`, `fail_fetches`: errors for the next n calls;
- `refuse_records`, `bytes_max`: records, and sizes, that make it refuse their batch;
- `add_control_batch`, `add_gap`, `compact`: offsets without a record;
- `move_log_begin`: retention; `corrupt`: a corrupt batch; `damage`: a partition that serves nothing
  any more;
- `set_leader`: partitions with or without a leader;
- `groups`: partitions that are assigned, revoked, or owned elsewhere;
- `failures`, `gates`: failing or blocking calls, by name; `unready`: partitions that are assigned
  before they exist; `silent`: those whose offsets nobody tells.

It is strict where a mistake would be a bug of the layer above: a batch passed to `append` is whole,
its record count is correct, and it is not modified afterwards; returned batches are read-only.

`done` of an append and the assignment callbacks are never called from inside the call that causes
them.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import count

from pixy.backend import (
    ClusterStatus,
    DividedPart,
    FetchResult,
    KnownRanges,
    OffsetCommit,
    OffsetRange,
    Published,
    StagedBatches,
    StageSeal,
    TopicDescription,
    TopicPartition,
)
from pixy.backend.protocol import (
    NO_MARKS,
    AppendDone,
    Assignment,
    BrokerNodes,
    DivisibleDone,
    LocalLogs,
    OffsetsChanged,
    Owner,
    PartitionDescription,
    Revocation,
    VisitPosition,
)
from pixy.backend.record_waits import wait_by_fetches
from pixy.cluster import ExportedState, MoveRequest, MovesPlanned, NodeStatus
from pixy.errors import (
    CorruptData,
    FailedPrecondition,
    InvalidArgument,
    MessageTooLarge,
    NotFound,
    OffsetOutOfRange,
    PixyError,
    ShuttingDown,
    StartError,
    TopicExists,
    Unavailable,
    UnknownGroup,
    UnknownPartition,
    UnknownTopic,
)
from pixy.proto.state_pb2 import MoveReason, PartitionMove
from pixy.records import (
    Record,
    build_control_batch,
    check_batch,
    check_topic_name,
    read_header,
    read_records,
)
from pixy.staging import NO_CLIENT, StageClient
from tests.fakes.groups import Callbacks, FakeGroups, FakeMembership, Joining
from tests.fakes.node_links import FakeLinks
from tests.fakes.partition_log import FakeLog
from tests.fakes.staging import FakeStaging

_PARTITIONS_MAX = 10_000
_TOPIC_OPTIONS = {"retention_ms": -1, "retention_bytes": -1, "segment_bytes": 1, "segment_ms": 1}
"""Topic options that are numbers, and the smallest value of each."""
_POLICIES = ("delete", "compact", "compact,delete", None)


@dataclass(slots=True)
class _Append:
    """An accepted append without a response."""

    log: FakeLog
    batch: bytearray
    done: AppendDone
    error: PixyError | None


class FakeBackend:
    """An in-memory `Backend`.

    Args:
        node_id: the node that leads every partition.
        start_error: exception raised by `start`.
        beside: another node of the same cluster, with the same topics, records and groups.
        topics: number of partitions of existing topics; the cluster is then running.
    """

    def __init__(
        self,
        *,
        node_id: int = 1,
        start_error: StartError | None = None,
        topics: Mapping[str, int] | None = None,
        beside: "FakeBackend | None" = None,
    ) -> None:
        self._node_id = node_id
        self._start_error = start_error
        self._running = topics is not None or beside is not None
        # The reason why the cluster is not ready.
        self.away = ""
        self._topics: dict[str, TopicDescription] = {} if beside is None else beside._topics
        self._logs: dict[TopicPartition, FakeLog] = {} if beside is None else beside._logs
        self.groups: FakeGroups = FakeGroups(self._count) if beside is None else beside.groups
        self.links: FakeLinks = FakeLinks() if beside is None else beside.links
        self._topic_ids = count(1)
        self._staging = FakeStaging(self.topic, self._log)
        # Other processes that can be asked may own partitions.
        self.may_have_neighbours = False
        # This one knows partitions of others without asking.
        self.knows_owners = True
        # Time that the oldest record of each append had waited, in order of the calls.
        self.ages: list[float] = []
        self._producer_ids = 0
        # Accepted appends of all partitions, in order of the calls.
        self._appends: deque[_Append] = deque()
        # Number of appends that may be answered, None for all.
        self._answerable: int | None = None
        self._append_errors: deque[PixyError] = deque()
        self._refused_records: Callable[[Sequence[Record]], Mapping[int, PixyError]] = lambda _: {}
        self._names_records = False
        # Largest batch that is taken, which callers know when one was refused, and how many were.
        self.bytes_max: int | None = None
        self.refused_as_large = 0
        self._fetch_errors: deque[PixyError] = deque()
        # Failing calls and blocking calls, by name.
        self.failures: dict[str, PixyError] = {}
        self.gates: dict[str, asyncio.Event] = {}
        # All fetches: partition, offset, max_bytes.
        self.fetched: list[tuple[TopicPartition, int, int]] = []
        # All commits, including failed ones.
        self.commit_calls: list[dict[TopicPartition, OffsetCommit]] = []
        # Number of joins that have begun.
        self.joins = 0
        # Partitions that are assigned but otherwise unknown.
        self.unready: set[TopicPartition] = set()
        # Partitions whose offsets nobody tells.
        self.silent: set[TopicPartition] = set()
        for name, partitions in (topics or {}).items():
            self.create(name, partitions)
        # Status of its nodes, and those that were removed or forgotten.
        self.status = ClusterStatus(b"", (NodeStatus(node_id, "127.0.0.1:19094", is_self=True),), ())
        self.left: list[tuple[str, int]] = []
        # Requests for plans of moves, the answer to them, moves that were begun, and the answer.
        self.move_requests: list[MoveRequest] = []
        self.planned = MovesPlanned(())
        self.exported = ExportedState(b"", 0, 0, ())
        self.begun: list[tuple[MoveReason.ValueType, list[PartitionMove]]] = []
        self.refused_moves: Sequence[str] = ()

    async def step(self, name: str) -> None:
        """A step of a call: waits for its gate, and fails if a failure is set."""
        if name in self.gates:
            await self.gates[name].wait()
        if name in self.failures:
            raise self.failures[name]

    async def start(self) -> None:
        if self._start_error is not None:
            raise self._start_error
        self._running = True

    @property
    def fault(self) -> str:
        return self.away

    @property
    def why_left(self) -> str:
        return ""

    def watch(self, on_change: Callable[[], None]) -> None:
        """Never called: the cluster is always ready."""

    async def wait_ready(self) -> None:
        return

    async def stop(self) -> None:
        self._running = False
        self.release_appends()
        self._answer()
        for log in self._logs.values():
            log.wake()
        self.groups.end(self._node_id)

    # --- topics ----------------------------------------------------------------------------------

    def topic(self, name: str) -> TopicDescription | None:
        return self._topics.get(name)

    async def describe_topic(self, name: str) -> TopicDescription:
        self._check_running()
        return self._known(name)

    async def list_topics(self, names: Sequence[str] | None = None) -> Sequence[TopicDescription]:
        self._check_running()
        return [self._topics[name] for name in sorted(self._topics) if names is None or name in names]

    async def create_topic(
        self, name: str, partitions: int, config: Mapping[str, str] | None = None
    ) -> TopicDescription:
        self._check_running()
        check_topic_name(name)
        _check_partitions(partitions)
        config = config or {}
        _check_options(config)
        # A real cluster takes time here, so that another caller may be faster.
        await asyncio.sleep(0)
        if name in self._topics:
            raise TopicExists(f"topic {name} exists already")
        return self.create(name, partitions, config)

    async def alter_topic(
        self,
        name: str,
        *,
        partitions: int | None = None,
        config: Mapping[str, str | None] | None = None,
    ) -> TopicDescription:
        self._check_running()
        config = config or {}
        _check_options(config)
        await asyncio.sleep(0)
        before = self._known(name)
        if partitions is not None:
            _check_partitions(partitions)
            if partitions < len(before.partitions):
                raise InvalidArgument(f"topic {name} has {len(before.partitions)} partitions already")
        options = {
            option: value for option, value in {**before.config, **config}.items() if value is not None
        }
        after = self._grown(replace(before, config=options), partitions or 0)
        if after == before:
            return before
        return self._set_topic(replace(after, version=before.version + 1))

    async def delete_topic(self, name: str, *, force: bool = False) -> None:
        self._check_running()
        await asyncio.sleep(0)
        if not force and (sinks := self._staging.sinks_of(self._known(name).topic_id)):
            raise FailedPrecondition(f"records of topic {name} are staged by {', '.join(sinks)}")
        self.delete(name)

    def create(self, name: str, partitions: int, config: Mapping[str, str] | None = None) -> TopicDescription:
        """Create a topic at once."""
        topic_id = next(self._topic_ids).to_bytes(16, "big")
        return self._set_topic(self._grown(TopicDescription(name, topic_id, 1, config or {}, ()), partitions))

    def grow(self, name: str, partitions: int, *, silently: bool = False) -> None:
        """Add partitions to a topic at once; `silently`: without assigning them."""
        self._set_topic(self._grown(self._known(name), partitions), silently=silently)

    def delete(self, name: str, *, silently: bool = False) -> None:
        """Delete a topic at once; `silently`: without notifying the owners of its partitions."""
        deleted = [
            self._logs.pop(TopicPartition(name, each.partition)) for each in self._known(name).partitions
        ]
        del self._topics[name]
        for log in deleted:
            log.delete()
        under_way = [append for append in self._appends if append.log in deleted]
        self._appends = deque(append for append in self._appends if append.log not in deleted)
        for append in under_way:
            asyncio.get_running_loop().call_soon(append.done, -1, append.log.refusal)
        self.groups.forget(name)
        if silently:
            self.groups.lose(name)
        else:
            self.groups.assign_all()

    def _grown(self, topic: TopicDescription, partitions: int) -> TopicDescription:
        """The topic with that many partitions, or unchanged if it has them already."""
        node = (self._node_id,)
        added = range(len(topic.partitions), partitions)
        new = tuple(PartitionDescription(number, self._node_id, node, node) for number in added)
        return replace(topic, partitions=topic.partitions + new)

    def _set_topic(self, topic: TopicDescription, *, silently: bool = False) -> TopicDescription:
        self._topics[topic.name] = topic
        for each in topic.partitions:
            partition = TopicPartition(topic.name, each.partition)
            if partition not in self._logs:
                self._logs[partition] = FakeLog(partition)
        if not silently:
            self.groups.assign_all()
        return topic

    # --- records ---------------------------------------------------------------------------------

    def append(
        self,
        partition: TopicPartition,
        batch: bytearray,
        records: int,
        done: AppendDone,
        age_s: float = 0.0,
    ) -> None:
        log = self._log(partition)
        self.ages.append(age_s)
        check_batch(batch)
        header = read_header(batch)
        assert isinstance(batch, bytearray), "the header is patched in place"
        assert header.records == records, f"the batch has {header.records} records, not {records}"
        assert header.last_offset_delta == records - 1, "the offsets of a batch have no holes"
        error: PixyError | None = ShuttingDown()
        if self._running:
            error = self._append_errors.popleft() if self._append_errors else None
        self._appends.append(_Append(log, batch, done, error))
        asyncio.get_running_loop().call_soon(self._answer)

    def _answer(self) -> None:
        """Write and answer accepted appends in order, up to the first held one."""
        while self._appends and self._answerable != 0:
            if self._answerable is not None:
                self._answerable -= 1
            append = self._appends.popleft()
            error = append.error or append.log.refusal
            if error is None:
                self._write(append)
            else:
                append.done(-1, error)

    def batch_bytes_max(self, topic: str) -> int | None:
        return self.bytes_max if self.refused_as_large else None

    def _write(self, append: _Append) -> None:
        records = list(read_records(append.batch))
        if self.bytes_max is not None and len(append.batch) > self.bytes_max:
            self._refuse_large(append, len(records))
            return
        faults = self._refused_records(records)
        if not faults:
            append.done(append.log.append_batch(append.batch), None)
        elif len(records) == 1 or not isinstance(append.done, DivisibleDone):
            append.done(-1, faults[0])
        else:
            self._write_parts(append, append.done.divide(append.batch, faults if self._names_records else {}))

    def _refuse_large(self, append: _Append, records: int) -> None:
        self.refused_as_large += 1
        if records == 1 or not isinstance(append.done, DivisibleDone):
            append.done(-1, MessageTooLarge("the batch is too large"))
        else:
            self._write_parts(append, append.done.divide(append.batch, {}, self.bytes_max))

    def _write_parts(self, append: _Append, parts: Sequence[DividedPart]) -> None:
        self.ages += [0.0] * len(parts)
        self._appends.extendleft(_Append(append.log, part.batch, part.done, None) for part in reversed(parts))

    async def fetch(
        self, partition: TopicPartition, offset: int, *, max_bytes: int, max_wait: float | None = None
    ) -> FetchResult:
        self._check_running()
        self.fetched.append((partition, offset, max_bytes))
        await self.step("fetch")
        log = self._log(partition)
        if self._fetch_errors:
            raise self._fetch_errors.popleft()
        log.check(offset)
        with suppress(TimeoutError):
            async with asyncio.timeout(max_wait):
                while offset == log.end:
                    await log.wait()
                    self._check_running()
                    log.check(offset)
        return log.read(offset, max_bytes)

    def fetch_nowait(self, partition: TopicPartition, offset: int, max_bytes: int) -> FetchResult | None:
        return None

    async def wait_records(self, offsets: Mapping[TopicPartition, int], max_wait: float) -> None:
        await wait_by_fetches(self, offsets, max_wait)

    async def offset_ranges(
        self, topic: str, partitions: Collection[int] | None = None
    ) -> Mapping[int, OffsetRange]:
        self._check_running()
        await self.step("offset_ranges")
        known = self._known(topic).partitions
        asked = [each for each in known if partitions is None or each.partition in partitions]
        for each in asked:
            if TopicPartition(topic, each.partition) in self.silent:
                raise _leaderless(topic, each.partition)
        logs = [self._logs[TopicPartition(topic, each.partition)] for each in asked]
        return {
            log.partition.partition: OffsetRange(log.begin, log.end)
            for log in logs
            if log.partition not in self.unready
        }

    async def known_ranges(
        self, topic: str, partitions: Collection[int] | None = None, *, patience_s: float = 5.0
    ) -> KnownRanges:
        known = {each.partition for each in self._known(topic).partitions}
        asked = known if partitions is None else known.intersection(partitions)
        silent = {each for each in asked if TopicPartition(topic, each) in self.silent}
        ranges = await self.offset_ranges(topic, asked - silent)
        return KnownRanges(ranges, {each: _leaderless(topic, each) for each in sorted(silent)})

    async def log_ranges(self, topic: str) -> Mapping[int, OffsetRange]:
        return await self.offset_ranges(topic)

    async def visit_positions(self, visit: VisitPosition) -> None:
        await self.step("visit_positions")
        for group, commits in self.groups.commits.items():
            offsets: dict[str, dict[int, int]] = {}
            for each, commit in commits.items():
                offsets.setdefault(each.topic, {})[each.partition] = commit.offset
            for topic, found in offsets.items():
                visit(group, topic, found)

    async def offset_for_timestamp(self, partition: TopicPartition, timestamp_ms: int) -> int | None:
        self._check_running()
        await self.step("offset_for_timestamp")
        return self._log(partition).find_timestamp(timestamp_ms)

    async def new_producer_id(self) -> int:
        self._check_running()
        await self.step("new_producer_id")
        self._producer_ids += 1
        return self._producer_ids

    async def delete_records(self, topic: str, offsets: Mapping[int, int]) -> Mapping[int, int]:
        self._check_running()
        await self.step("delete_records")
        self._known(topic)
        begins = {}
        for number, offset in offsets.items():
            log = self._log(TopicPartition(topic, number))
            if offset > log.end:
                raise OffsetOutOfRange(f"offset {offset} of {topic}-{number}", log.begin, log.end)
            log.move_begin(max(log.begin, log.end if offset < 0 else offset))
            begins[number] = log.begin
        return begins

    # --- staged writes ---------------------------------------------------------------------------

    async def stage(
        self,
        sink_id: str,
        stage_id: str,
        piece: int,
        batches: Sequence[StagedBatches],
        seal: StageSeal | None = None,
        client: StageClient = NO_CLIENT,
    ) -> int:
        self._check_running()
        await asyncio.sleep(0)
        return self._staging.stage(sink_id, stage_id, piece, batches, seal)

    async def publish(
        self,
        sink_id: str,
        epoch: int,
        query_id: str,
        stage_ids: Sequence[str],
        *,
        reset: bool = False,
        replaces: str = "",
        client: StageClient = NO_CLIENT,
    ) -> Published:
        self._check_running()
        await asyncio.sleep(0)
        return self._staging.publish(sink_id, epoch, query_id, stage_ids, reset=reset, replaces=replaces)

    async def discard(self, sink_id: str, stage_ids: Sequence[str]) -> None:
        self._check_running()
        self._staging.discard(sink_id, stage_ids)

    # --- consumer groups -------------------------------------------------------------------------

    async def join_consumer_group(
        self,
        group: str,
        client_id: str,
        topics: Sequence[str],
        on_assignment: Assignment,
        on_revocation: Revocation | None = None,
        on_offsets_set: OffsetsChanged | None = None,
    ) -> FakeMembership:
        self._check_running()
        self.joins += 1
        await self.step("join")
        callbacks = Callbacks(on_assignment, on_revocation, on_offsets_set)
        return self.groups.join(group, topics, Joining(client_id, self._node_id, callbacks, self.step))

    async def commit_offsets(
        self,
        group: str,
        offsets: Mapping[TopicPartition, OffsetCommit],
        *,
        set: bool = False,
        begins: bool = False,
        handed_out: Mapping[TopicPartition, int] = NO_MARKS,
    ) -> None:
        self._check_running()
        self.commit_calls.append(dict(offsets))
        epochs = self.groups.epochs(group, offsets)
        await self.step("commit")
        if begins:
            await self.step("begin")
        for partition in offsets:
            self._log(partition)
        if set:
            self.groups.set_offsets(group, offsets, self._node_id)
        else:
            self.groups.commit(group, offsets, self._node_id, epochs, handed_out)

    async def committed_offsets(self, group: str, topic: str) -> Mapping[int, OffsetCommit]:
        self._check_running()
        await self.step("committed")
        commits = self.groups.commits.get(group, {})
        return {each.partition: commit for each, commit in commits.items() if each.topic == topic}

    classic_groups: None = None
    joins_at_once: bool = True
    keeps_handed_out: bool = True

    def handed_out(self, group: str, topic: str) -> Mapping[int, int]:
        marks = self.groups.of(group).handed_out
        return {each.partition: mark for each, mark in marks.items() if each.topic == topic}

    async def list_groups(self) -> Collection[str]:
        self._check_running()
        committed = {name for name, commits in self.groups.commits.items() if commits}
        return committed.union(self.groups.members)

    async def delete_group(self, group: str, topic: str = "") -> None:
        self._check_running()
        await self.step("delete_group")
        where = f" in {topic}" if topic else ""
        if topic:
            self._known(topic)
        found = self.groups.of(group)
        if clients := {each.client_id for each in found.members if not topic or topic in each.topics}:
            raise FailedPrecondition(
                f"consumer group {group} has consumers{where}: {', '.join(sorted(clients))}"
            )
        gone = [each for each in found.commits if topic in ("", each.topic)]
        if not gone:
            raise UnknownGroup(f"consumer group {group} has no offsets{where}")
        for partition in gone:
            del found.commits[partition]
            found.handed_out.pop(partition, None)

    async def list_consumers(self, topic: str) -> Mapping[str, Mapping[str, Sequence[int]]]:
        self._check_running()
        return self.groups.consumers(topic)

    async def partition_owner(self, group: str, partition: TopicPartition) -> Owner | None:
        self._check_running()
        await self.step("owner")
        return self.groups.owner(group, partition)

    def other_owners(self, group: str, topic: str) -> Sequence[int]:
        return self.groups.other_owners(group, topic, self._node_id) if self.knows_owners else ()

    async def ask_node(self, node_id: int, request: bytes, timeout_s: float) -> bytes:
        self._check_running()
        return await self.links.ask(self._node_id, node_id, request, timeout_s)

    def serve_nodes(self, handler: Callable[[int, bytes], Awaitable[bytes]]) -> None:
        self.links.serve(self._node_id, handler)

    async def consumer_group_exists(self, group: str) -> bool:
        self._check_running()
        return group in self.groups.members

    # --- controls for tests: appends, errors -----------------------------------------------------

    def hold_appends(self) -> None:
        """Accept further appends, but neither write nor answer them."""
        self._answerable = 0

    def release_appends(self, appends: int | None = None) -> None:
        """Release the next `appends` held appends, or all of them and later ones."""
        if appends is None:
            self._answerable = None
        else:
            self._answerable = (self._answerable or 0) + appends
        if self._appends:
            asyncio.get_running_loop().call_soon(self._answer)

    @property
    def held_appends(self) -> int:
        """Number of accepted appends without a response."""
        return len(self._appends)

    def fail_appends(self, error: PixyError, appends: int = 1) -> None:
        """Answer the next `appends` appends with an error, in order, and write nothing."""
        self._append_errors.extend([error] * appends)

    def refuse_records(
        self, faults: Callable[[Sequence[Record]], Mapping[int, PixyError]], *, named: bool
    ) -> None:
        """Refuse batches because of some of their records.

        Args:
            faults: the errors of the records of a batch that are at fault, by number.
            named: callers are told which these are.
        """
        self._refused_records, self._names_records = faults, named

    def heal_appends(self) -> None:
        """Answer no further appends with an error."""
        self._append_errors.clear()

    def fail_fetches(self, error: PixyError, fetches: int = 1) -> None:
        """Make the next fetches, of any partition, raise an error."""
        self._fetch_errors.extend([error] * fetches)

    # --- controls for tests: the log -------------------------------------------------------------

    def add_control_batch(self, partition: TopicPartition) -> int:
        """Append a transaction marker; returns its offset."""
        return self._log(partition).append_batch(build_control_batch(1, b"", 0))

    def add_gap(self, partition: TopicPartition, offsets: int) -> None:
        """Skip offsets, as if compaction had removed whole batches."""
        self._log(partition).add_gap(offsets)

    def compact(self, partition: TopicPartition, *offsets: int) -> None:
        """Remove the records at these offsets; their batches keep their range, empty ones
        disappear.
        """
        self._log(partition).compact(set(offsets))

    def move_log_begin(self, partition: TopicPartition, begin: int) -> None:
        """Remove everything below `begin`, as retention does.

        A batch that contains `begin` stays whole.
        """
        self._log(partition).move_begin(begin)

    def corrupt(self, partition: TopicPartition, offset: int) -> None:
        """Flip a byte of the batch with `offset`; fetches that reach it raise CorruptData."""
        self._log(partition).corrupt(offset)

    def damage(self, partition: TopicPartition) -> None:
        """Answer all further appends and fetches of a partition with CorruptData; it has no leader
        any more.
        """
        topic, number = partition
        self._log(partition).refuse(
            CorruptData(f"{topic}-{number}/00000000000000000000.log, byte 0: damaged")
        )
        self.set_leader(partition, -1)

    def set_leader(self, partition: TopicPartition, leader: int) -> None:
        """Set the reported leader of a partition: another node, or -1 for none.

        The partition serves as before.
        """
        topic = self._known(partition.topic)
        partitions = list(topic.partitions)
        partitions[partition.partition] = replace(partitions[partition.partition], leader=leader)
        self._topics[topic.name] = replace(topic, version=topic.version + 1, partitions=tuple(partitions))

    def set_led_here(self, topic: str, *partitions: int) -> None:
        """Set the partitions that this process is said to lead."""
        known = self._known(topic)
        self._topics[topic] = replace(known, version=known.version + 1, led_here=partitions)

    def waiting_fetches(self, partition: TopicPartition) -> int:
        """Number of fetches that wait at the end of a partition."""
        return len(self._log(partition).waiters)

    # --- controls for tests: consumer groups -----------------------------------------------------

    async def rebalance(self, group: str, seconds: float = 10.0) -> None:
        """Revoke all assignments, let members settle, and assign everything again."""
        for member in list(self.groups.of(group).members):
            assert member.on_revocation is not None
            await member.on_revocation(seconds, None)
        self.groups.assign(group, again=True)

    # --- inside -----------------------------------------------------------------------------------

    def _check_running(self) -> None:
        if not self._running:
            raise ShuttingDown

    def _known(self, topic: str) -> TopicDescription:
        description = self._topics.get(topic)
        if description is None:
            raise UnknownTopic(f"unknown topic {topic}")
        return description

    def _count(self, topic: str) -> int | None:
        return len(self._topics[topic].partitions) if topic in self._topics else None

    def topic_id(self, topic: str) -> bytes:
        return self._topics[topic].topic_id

    def log(self, partition: TopicPartition) -> FakeLog:
        """The stored contents of a partition, for inspection and modification."""
        return self._log(partition)

    def _log(self, partition: TopicPartition) -> FakeLog:
        log = self._logs.get(partition)
        if log is None:
            raise UnknownPartition(f"unknown partition {partition.partition} of topic {partition.topic}")
        return log

    # --- nodes -----------------------------------------------------------------------------------

    @property
    def troubles(self) -> Sequence[str]:
        return ()

    async def local_logs(self) -> LocalLogs:
        raise FailedPrecondition("records are in memory")

    @property
    def broker_nodes(self) -> BrokerNodes:
        return BrokerNodes("fake", 1)

    async def find_brokers(self) -> BrokerNodes:
        return self.broker_nodes

    def announce_broker(self, address: str) -> None:
        """As `Backend.announce_broker`: no other process asks."""

    async def cluster_status(self) -> ClusterStatus:
        await self.step("cluster_status")
        return self.status

    async def remove_node(self, node_id: int) -> None:
        self._leave("remove", node_id)

    async def forget_node(self, node_id: int) -> None:
        self._leave("forget", node_id)

    async def drain_node(self, node_id: int, *, draining: bool) -> None:
        self._check_running()
        await self.step("drain_node")
        node = self.status.node(node_id)
        if node is None:
            raise NotFound(f"no node {node_id}")
        nodes = tuple(
            replace(each, draining=draining) if each is node else each for each in self.status.nodes
        )
        self.status = replace(self.status, nodes=nodes)

    async def plan_moves(self, request: MoveRequest) -> MovesPlanned:
        await self.step("plan_moves")
        self.move_requests.append(request)
        return self.planned

    async def begin_moves(
        self, reason: MoveReason.ValueType, moves: Sequence[PartitionMove]
    ) -> Sequence[str]:
        self._check_running()
        await self.step("begin_moves")
        self.begun.append((reason, list(moves)))
        return self.refused_moves

    async def export_state(self) -> ExportedState:
        await self.step("export_state")
        return self.exported

    def _leave(self, how: str, node_id: int) -> None:
        self._check_running()
        if self.status.node(node_id) is None:
            raise NotFound(f"no node {node_id}")
        if len(self.status.nodes) == 1:
            raise FailedPrecondition(f"node {node_id} is the only node of its cluster")
        left = tuple(node for node in self.status.nodes if node.node_id != node_id)
        groups = tuple(
            replace(group, voters=tuple(voter for voter in group.voters if voter != node_id))
            for group in self.status.groups
        )
        self.status = replace(self.status, nodes=left, groups=groups)
        self.left.append((how, node_id))


def _leaderless(topic: str, partition: int) -> Unavailable:
    return Unavailable(f"partition {partition} of topic {topic} has no leader")


def _check_partitions(partitions: int) -> None:
    if not 1 <= partitions <= _PARTITIONS_MAX:
        raise InvalidArgument(f"{partitions} partitions; 1 to {_PARTITIONS_MAX} are allowed")


def _check_options(config: Mapping[str, str | None]) -> None:
    for option, value in config.items():
        if option == "cleanup_policy" and value in _POLICIES:
            continue
        minimum = _TOPIC_OPTIONS.get(option)
        if minimum is None:
            raise InvalidArgument(f"unknown option {option}")
        if value is not None and (not value.removeprefix("-").isdecimal() or int(value) < minimum):
            raise InvalidArgument(f"{option} must be a whole number from {minimum} on, not {value!r}")
