"""Checkpoints from leaders: the follower's side of FetchSnapshot.

The Raft core of a follower names a snapshot that it needs (`DriverHooks.fetch`). Its checkpoint is
pulled into a file (`storage.checkpoint_download`), verified, made a state on the thread for files,
and handed to `NodeLog.install`, which makes it durable and lets the core go on from it. The
decisions are in `fetch_snapshot`.

There is one download of a group at a time, and a limited number in all. An end without success is
told to the leader at once only if it does not have the checkpoint any more, and the first time.
Else the leader offers a snapshot again when it has waited long enough (`snapshot_patience`): a
follower whose disk is full, or whose leader has a damaged file, does not ask without pause.
"""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from itertools import count

import structlog

from pixy.aio.retries import Backoff
from pixy.aio.tasks import Tasks
from pixy.cluster.log import NodeLog, PartitionReplica, RestoredState, StateReplica, restored_state
from pixy.cluster.snapshots.copy_fetching import CopyFetching
from pixy.cluster.snapshots.fetch_snapshot import Again, Append, GiveUp, Outcome, Restart, SnapshotDownload
from pixy.cluster.snapshots.fetch_snapshot_codec import SliceRequest, decode_answer, encode_request
from pixy.errors import CorruptData, DataDirectoryError, PixyError
from pixy.faults import OnFault
from pixy.multiraft import RaftGroup, conf_state_of
from pixy.raft import ConfState, Message, Snapshot
from pixy.storage import CheckpointDownload, CheckpointId, run_on

log = structlog.get_logger(__name__)

Call = Callable[[int, bytes, float], Awaitable[bytes]]
"""Sends a request to a node, with a timeout in seconds; returns the answer or raises PixyError."""


@dataclass(frozen=True, slots=True)
class FetchingOptions:
    """Options of a `SnapshotFetching`.

    Attributes:
        cluster_id: of this node's cluster, as in `SnapshotServing`.
        node_id: this node.
        slice_bytes: largest slice to ask for.
        timeout_s: seconds to wait for a slice.
        attempts_max: requests in a row without progress.
        pause_s, pause_max_s: shortest and longest pause between such requests, in seconds.
        downloads_max: downloads at a time.
    """

    cluster_id: str
    node_id: int
    slice_bytes: int = 1 << 20
    timeout_s: float = 5.0
    attempts_max: int = 8
    pause_s: float = 0.05
    pause_max_s: float = 2.0
    downloads_max: int = 2


class SnapshotFetching:
    """Fetches the snapshots that this node's raft groups need.

    Args:
        call: see `Call`.
        on_fault: called with an unexpected exception.

    Attributes:
        fetched, fetched_bytes, failed: see `TransferCounts`.
    """

    def __init__(self, call: Call, options: FetchingOptions, on_fault: OnFault) -> None:
        self._call = call
        self._options = options
        self._tasks = Tasks(on_fault)
        self._slots = asyncio.Semaphore(options.downloads_max)
        self._running: dict[RaftGroup, asyncio.Task[None]] = {}
        # Groups whose last download has failed.
        self._failed: set[RaftGroup] = set()
        self._correlation_ids = count(1)
        self._log: NodeLog
        self._copies: CopyFetching
        self._stopped = False
        self.fetched = self.fetched_bytes = self.failed = 0

    def attach(self, node_log: NodeLog, copies: CopyFetching) -> None:
        """Set the log of this node, and the copies of its partitions, before its driver gets
        messages.
        """
        self._log, self._copies = node_log, copies

    async def stop(self) -> None:
        """End all downloads. What has arrived is kept for the next start."""
        self._stopped = True
        await self._copies.stop()
        await self._tasks.cancel_all()

    def fetch(self, group: RaftGroup, message: Message) -> None:
        """Fetch the data of a snapshot; see `DriverHooks`."""
        assert message.snapshot is not None
        if self._stopped:
            return
        replica = group.application
        if isinstance(replica, StateReplica):
            before = self._running.pop(group, None)
            if before is not None:
                before.cancel()
            self._running[group] = self._tasks.spawn(
                self._fetch(replica, message.snapshot, message.sender, before), f"snapshot of {replica.name}"
            )
            return
        if isinstance(replica, PartitionReplica):
            self._copies.offered(group, message)
            return
        # Nobody knows yet what the group is for: the leader tries again later.
        self._log.driver.snapshots.failed(group, message.snapshot, silently=True)

    # --- one download -----------------------------------------------------------------------------

    async def _fetch(
        self, replica: StateReplica, snapshot: Snapshot, sender: int, before: "asyncio.Task[None] | None"
    ) -> None:
        if before is not None:
            await asyncio.wait([before])
        group, file = replica.group, CheckpointDownload(replica.store, _id_of(snapshot))
        try:
            async with self._slots:
                result = await self._pull(replica, snapshot, sender, file)
            if isinstance(result, RestoredState):
                log.info("a checkpoint was fetched", state_group=replica.name, up_to_entry=snapshot.index)
                self._failed.discard(group)
                self.fetched += 1
                self._log.install(replica, snapshot, result)
            else:
                await self._give_up(replica, snapshot, file, result)
        except OSError as error:
            self.failed += 1
            self._log.checkpoints.failed(replica, error)
            self._log.driver.snapshots.failed(group, snapshot, silently=True)
        except Exception:
            self._log.driver.snapshots.failed(group, snapshot, silently=True)
            raise
        finally:
            if self._running.get(group) is asyncio.current_task():
                del self._running[group]

    async def _give_up(
        self, replica: StateReplica, snapshot: Snapshot, file: CheckpointDownload, end: GiveUp | None
    ) -> None:
        """End a download without a checkpoint; `end` is None if it is not needed any more."""
        if end is None or not end.keeps:
            await run_on(self._log.files, file.remove)
        if end is None:
            return
        self.failed += 1
        again = replica.group in self._failed
        self._failed.add(replica.group)
        log.warning(
            "a checkpoint cannot be fetched",
            state_group=replica.name,
            up_to_entry=snapshot.index,
            reason=end.reason,
        )
        self._log.driver.snapshots.failed(replica.group, snapshot, silently=again or not end.gone)

    async def _pull(
        self, replica: StateReplica, snapshot: Snapshot, sender: int, file: CheckpointDownload
    ) -> RestoredState | GiveUp | None:
        """Fetch slice by slice; returns the state of the verified checkpoint, or None if it is not
        needed any more.
        """
        options, files = self._options, self._log.files
        size, position = await run_on(files, file.resume)
        download = SnapshotDownload(_id_of(snapshot), options.attempts_max, size=size, position=position)
        backoff = Backoff(options.pause_s, options.pause_max_s)
        while self._log.driver.snapshots.awaits(replica.group, snapshot):
            outcome: RestoredState | Outcome
            try:
                if download.is_complete:
                    outcome = await self._verified(replica, snapshot, file)
                else:
                    outcome = await self._ask(replica, sender, download)
                if isinstance(outcome, Append):
                    await run_on(files, partial(file.write, outcome.content, outcome.position, outcome.size))
            except CorruptData as error:
                outcome = download.damaged(str(error))
            match outcome:
                case Append():
                    backoff.reset()
                case Again() | Restart():
                    log.info(
                        "a checkpoint is asked for again", state_group=replica.name, reason=outcome.reason
                    )
                    await asyncio.sleep(backoff.grow())
                case RestoredState() | GiveUp():
                    return outcome
        return None

    async def _ask(self, replica: StateReplica, sender: int, download: SnapshotDownload) -> Outcome:
        """Ask the leader for the next slice."""
        group, options = replica.group, self._options
        leader = group.leader or sender
        if leader == options.node_id or group.node is None:
            return download.failed("this node leads")
        wanted = download.next_slice(replica.name, group.node.raft.term)
        number = next(self._correlation_ids) & 0x7FFFFFFF
        request = SliceRequest(options.cluster_id, options.node_id, options.slice_bytes, wanted)
        try:
            payload = await self._call(leader, encode_request(request, number), options.timeout_s)
            answer = decode_answer(payload, wanted, number)
            size = len(answer.content)
            if size > options.slice_bytes:
                return download.failed(
                    f"node {leader} answers with {size} bytes, {options.slice_bytes} were asked for"
                )
            self.fetched_bytes += size
            return download.take(answer)
        except (PixyError, OSError, ValueError) as error:
            return download.failed(f"node {leader}: {error}")

    async def _verified(
        self, replica: StateReplica, snapshot: Snapshot, file: CheckpointDownload
    ) -> RestoredState | GiveUp:
        """The state of the complete checkpoint.

        Raises:
            CorruptData: it is damaged.
        """

        def read() -> RestoredState:
            return restored_state(replica.name, type(replica.machine), file.read().records)

        try:
            restored = await run_on(self._log.files, read)
        except DataDirectoryError as error:
            return GiveUp(str(error), keeps=False)
        found = conf_state_of(restored.configuration)
        if _members(found) != _members(snapshot.conf_state):
            return GiveUp(f"it has the members {found}, expected {snapshot.conf_state}", keeps=False)
        return restored


def _id_of(snapshot: Snapshot) -> CheckpointId:
    return CheckpointId(snapshot.term, snapshot.index)


def _members(conf: ConfState) -> tuple[frozenset[int], ...]:
    """A configuration, without the order of its members."""
    return tuple(map(frozenset, (conf.voters, conf.learners, conf.voters_outgoing, conf.learners_next)))
