"""Checkpoints for followers: the leader's side of FetchSnapshot.

The decisions are in `fetch_snapshot`. Slices are read by the thread for files, from files that stay
open while somebody fetches them: two newer checkpoints may be written meanwhile, and remove the
name of this one.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import structlog

from pixy.cluster.log import StateReplica
from pixy.cluster.snapshots.fetch_snapshot import (
    FetchSnapshotError,
    GroupFacts,
    ServerFacts,
    cut_slice,
    find_checkpoint,
)
from pixy.cluster.snapshots.fetch_snapshot_codec import (
    SliceAnswer,
    WantedSlice,
    decode_request,
    encode_answer,
)
from pixy.cluster.snapshots.snapshot_patience import SnapshotPatience
from pixy.errors import CorruptData
from pixy.multiraft import Driver, RaftGroup
from pixy.raft import StateType
from pixy.storage import CheckpointId, CheckpointStore, File, Worker, lost_is_corrupt, run_on

log = structlog.get_logger(__name__)

_SWEEP_S = 1.0


@dataclass(frozen=True, slots=True)
class ServingOptions:
    """Limits of a `SnapshotServing`.

    Attributes:
        slice_bytes: largest slice.
        open_files: files open at a time.
        idle_s: seconds after which a file is closed that nobody reads.
        patience_s: seconds of silence after which a follower of a state group counts as lost.
        copy_patience_s: the same of a partition, whose follower has nothing to fetch.
    """

    slice_bytes: int = 1 << 20
    open_files: int = 16
    idle_s: float = 60.0
    patience_s: float = 10.0
    copy_patience_s: float = 30.0


class SnapshotServing:
    """Serves checkpoints of the state groups that this node leads.

    Args:
        cluster_id: of this node's cluster, as it is in requests.
        find: a state group by name, None if there is no such group.
        driver: of the raft groups.
        files: the thread that reads.

    Attributes:
        sent, sent_bytes: see `TransferCounts`.
        sweeps: called with the time once a second.
    """

    def __init__(
        self,
        cluster_id: str,
        find: Callable[[str], StateReplica | None],
        driver: Driver,
        files: Worker,
        options: ServingOptions = ServingOptions(),
    ) -> None:
        self._cluster_id = cluster_id
        self._find = find
        self._driver = driver
        self._files = files
        self._options = options
        self._patience = SnapshotPatience()
        # Open files, the one that was read last at the end.
        self._open: dict[tuple[str, CheckpointId], _OpenCheckpoint] = {}
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._stopping = False
        self.sent = self.sent_bytes = 0
        self.sweeps: list[Callable[[float], None]] = []

    def start(self) -> None:
        """Begin to look after followers that are silent."""
        self._timer = self._loop.call_later(_SWEEP_S, self._tick)

    def stop(self) -> None:
        """Serve nothing more."""
        self._stopping = True
        if self._timer is not None:
            self._timer.cancel()
        while self._open:
            self._close(next(iter(self._open)))

    async def answer(self, caller: int, payload: bytes) -> bytes:
        """Answer a request of a node. What it says of its id has no effect.

        Raises:
            InvalidArgument: the request is malformed, or of an unknown version.
        """
        header, request = decode_request(payload)
        wanted = request.wanted
        replica = None if wanted is None else self._find(wanted.topic)
        group = None if replica is None else self._facts(replica)
        found = find_checkpoint(request, ServerFacts(self._cluster_id, self._stopping, group))
        if isinstance(found, SliceAnswer):
            return encode_answer(header, found)
        assert replica is not None
        assert group is not None
        answer = await self._read(replica, caller, request.max_bytes, found)
        return encode_answer(header, replace(answer, leader=group.current_leader))

    def _facts(self, replica: StateReplica) -> GroupFacts:
        group = replica.group
        node = group.node
        leads = node is not None and node.raft.state is StateType.LEADER
        term = group.storage.hard_state.term if node is None else node.raft.term
        checkpoints = {*replica.checkpoints, *[id for name, id in self._open if name == replica.name]}
        return GroupFacts(leads, group.leader, term, checkpoints)

    async def _read(
        self, replica: StateReplica, caller: int, max_bytes: int, wanted: WantedSlice
    ) -> SliceAnswer:
        limit = min(max_bytes, self._options.slice_bytes)
        opened = self._opened(replica, wanted.id)
        answer = await run_on(self._files, partial(opened.answer, wanted, limit))
        if answer.error in (FetchSnapshotError.SNAPSHOT_NOT_FOUND, FetchSnapshotError.UNKNOWN_SERVER_ERROR):
            self._close((replica.name, wanted.id))
        if answer.error == FetchSnapshotError.SNAPSHOT_NOT_FOUND:
            replica.lost_checkpoint(wanted.id)
        if not answer.error:
            has_all = answer.position + len(answer.content) == answer.size
            self.sent += has_all
            self.sent_bytes += len(answer.content)
            self.heard(replica.group, caller, has_all=has_all)
        return answer

    def heard(self, group: RaftGroup, peer: int, *, has_all: bool = False) -> None:
        """A follower has got a slice, or a part of a copy: a sign of life."""
        if group.node is not None:
            group.node.report_active(peer)
        if peer in self._driver.snapshots.waiting(group):
            self._patience.heard(group.raft_group, peer, self._loop.time(), has_all=has_all)

    # --- files ------------------------------------------------------------------------------------

    def _opened(self, replica: StateReplica, id: CheckpointId) -> "_OpenCheckpoint":
        key = replica.name, id
        opened = self._open.pop(key, None) or _OpenCheckpoint(replica.store, id)
        while len(self._open) >= self._options.open_files:
            self._close(next(iter(self._open)))
        self._open[key] = opened
        opened.used_at = self._loop.time()
        return opened

    def _close(self, key: tuple[str, CheckpointId]) -> None:
        opened = self._open.pop(key, None)
        if opened is not None:
            self._files.submit(opened.close, _nothing)

    # --- followers that are silent ----------------------------------------------------------------

    def lost(self, peer: int) -> None:
        """A connection to a node has ended, or is a new one: what it was sent may be lost. A
        download that goes on is begun again where it was.
        """
        snapshots = self._driver.snapshots
        for group in list(snapshots.offered):
            if peer in snapshots.waiting(group):
                snapshots.report(group, peer, failed=True)

    def _tick(self) -> None:
        now = self._loop.time()
        self.sweep(now)
        for sweep in self.sweeps:
            sweep(now)
        self._timer = self._loop.call_later(_SWEEP_S, self._tick)

    def sweep(self, now: float) -> None:
        """Report followers that have been silent for too long, and close files that nobody reads;
        called by a timer.
        """
        snapshots = self._driver.snapshots
        for group in list(snapshots.offered):
            waiting = snapshots.waiting(group)
            if not waiting:
                del snapshots.offered[group]
            is_state = isinstance(group.application, StateReplica)
            patience_s = self._options.patience_s if is_state else self._options.copy_patience_s
            overdue = self._patience.overdue(group.raft_group, waiting, now, patience_s)
            for peer, failed in list(overdue):
                snapshots.report(group, peer, failed=failed)
        for key, opened in list(self._open.items()):
            if now - opened.used_at >= self._options.idle_s:
                self._close(key)


class _OpenCheckpoint:
    """A checkpoint file that is open from the first read on.

    Attributes:
        used_at: loop time of the last request.
    """

    def __init__(self, store: CheckpointStore, id: CheckpointId) -> None:
        self._store = store
        self._id = id
        self._file: File | None = None
        self.used_at = 0.0

    def answer(self, wanted: WantedSlice, max_bytes: int) -> SliceAnswer:
        """The answer to a request for this checkpoint. Blocks."""
        path = self._store.directory / self._id.file_name
        try:
            if self._file is None:
                self._file = self._store.open(self._id)
            size = self._file.size()
            cut = cut_slice(wanted, size, max_bytes)
            if cut is None:
                return SliceAnswer(FetchSnapshotError.POSITION_OUT_OF_RANGE, wanted)
            with lost_is_corrupt(path):
                content = self._file.read_at(cut.length, cut.position)
        except FileNotFoundError:
            return SliceAnswer(FetchSnapshotError.SNAPSHOT_NOT_FOUND, wanted)
        except CorruptData as error:
            log.error(
                "a checkpoint is damaged, and another one is written", file=str(path), reason=str(error)
            )
            return SliceAnswer(FetchSnapshotError.SNAPSHOT_NOT_FOUND, wanted)
        except OSError as error:
            log.error("a checkpoint cannot be read for a follower", file=str(path), error=str(error))
            return SliceAnswer(FetchSnapshotError.UNKNOWN_SERVER_ERROR, wanted)
        return SliceAnswer(0, wanted, cut.id, size=size, position=cut.position, content=content)

    def close(self) -> None:
        """Close the file. Blocks."""
        file, self._file = self._file, None
        if file is not None:
            file.close()


def _nothing(*_: object) -> None:
    """Callback of a closed file, which nobody waits for."""
