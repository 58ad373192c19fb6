"""A machine of the simulated cluster: its disk, and one process after the other on it."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from random import Random

from pixy.cluster.log.peer_starts import PeerStart, PeerStarts, StartClaim
from pixy.errors import StorageFault
from pixy.proto.state_pb2 import NodeIdentity
from pixy.storage import copy_directory, load_identity, replaced_directory
from tests.sim.cluster.member import Member
from tests.sim.disk import Operation, SimulatedDisk
from tests.sim.kit.durable import DurableJournal
from tests.sim.kit.lives import Life
from tests.sim.kit.machine import AnyMachine
from tests.sim.kit.rare import Rare
from tests.sim.kit.scene import Scene
from tests.sim.world import DIRECTORY

CLUSTER_ID = b"simulated--group"

_COPY_STEPS = (
    ("write", ".log"),
    ("write", "copy.part"),
    ("rename", "copy"),
    ("link", ".log"),
    ("sync_directory", "-copy"),
    ("rename", "-replaced"),
    ("rename", "-replaced"),
    ("rename", "-replaced"),
    ("rename", "-0"),
    ("rename", "-0"),
    ("sync_directory", "topics"),
)
"""Operations near which a process ends that copies a partition."""
_COPY_DEATHS_MAX = 2


class Machine(AnyMachine):
    """One machine.

    Args:
        node_id: id of its node.
        scene: see `Scene`.
        make: makes the member of a process.
        interleaves: see `Sizes`.
        on_end: called when a process has ended.

    Attributes:
        durable: model of its journal.
        acknowledged: the same; that of the disk that was there before an older copy replaced it.
        peers: what its node knows of the starts of the others, over all processes: as metadata
            would.
        member: the member of the process that runs; None while there is none.
        flushes: newest flush that each other node has told of.
        admitted: the last one that another node has let in.
        dies_installing: its process ends near the next install of a snapshot.
        has_rotted: a segment was damaged.
    """

    def __init__(
        self,
        node_id: int,
        scene: Scene,
        make: Callable[["Machine", Life], Member],
        on_end: Callable[["Machine"], None],
        *,
        interleaves: bool,
    ) -> None:
        super().__init__(node_id, scene, interleaves=interleaves)
        self.id = node_id
        self._make = make
        self._on_end = on_end
        self.durable = self.acknowledged = DurableJournal(CLUSTER_ID)
        self.peers = PeerStarts()
        self.member: Member | None = None
        self.flushes: dict[int, int] = {}
        self.admitted = 0
        self.dies_installing = False
        self.has_rotted = False
        # Bytes of segments that are damaged, by raft group: file, position, and what it was.
        self._rotten: dict[int, tuple[Path, int, int]] = {}
        # How often its process may yet end near a step of a copy, also once everything is healed;
        # then it starts again soon.
        self._deaths_left = _COPY_DEATHS_MAX
        self._restarts = False
        self._watch_disk()
        self.disk.make_directory(DIRECTORY)
        load_identity(self.disk, DIRECTORY, NodeIdentity(cluster_id=CLUSTER_ID, node_id=node_id))

    def _watch_disk(self) -> None:
        self.disk.before = self._before
        self.disk.on_writing = self.durable.writing
        self.disk.on_durable = self.durable.synced

    def _before(self, operation: Operation) -> None:
        self._scene.note(f"{self.id}   {operation.what} {operation.path.name}")
        if operation.what == "unlink" and operation.path.suffix == ".journal":
            self._scene.counts[Rare.CARRIED_RESET] += self.durable.carries_reset
            self.durable.carries_reset = False

    @property
    def online(self) -> bool:
        """True while its node talks to others."""
        return self.member is not None and self.member.online

    # --- processes --------------------------------------------------------------------------------

    def _make_process(self, life: Life) -> Member:
        self.member = self._make(self, life)
        return self.member

    @property
    def _running(self) -> Member | None:
        return self.member if self.online else None

    def _started(self, task: "asyncio.Task[None]") -> None:
        error = None if task.cancelled() else task.exception()
        if error is None or self._task is not task:
            return
        if not (self._has_failed or self.disk.refused is not None or self.disk.full):
            self._scene.fail(error)
            return
        self._scene.counts["refused starts"] += 1
        self.end(power=False)

    def heal(self) -> None:
        """See `AnyMachine`."""
        super().heal()
        self.dies_installing = False

    def _ended(self, life: Life, *, power: bool) -> None:
        self.member = None
        if self._task is not None:
            task, self._task = self._task, None
            self._scene.loop.outside(0, task.cancel)
        self._scene.loop.outside(0, self._on_end, self)
        if self._restarts:
            self._restarts = False
            self._scene.loop.outside(0.5, self.start)

    def heard(self, node_id: int, start: PeerStart) -> None:
        """A node that was admitted tells how far its journal is."""
        if start.flush_number > self.flushes.get(node_id, 0):
            self.flushes[node_id] = start.flush_number
            self.peers.admit(StartClaim(node_id, start))

    def fault(self, error: BaseException) -> None:
        """The process has found that nothing can be made durable: it ends, and recovery decides."""
        if not self._has_failed or not isinstance(error, OSError | StorageFault):
            self._scene.fail(error)
            return
        self._scene.counts["faults of a disk"] += 1
        self._scene.loop.outside(0, self._end_after_fault, self.life)

    def installing(self) -> None:
        """The data of a snapshot is about to be put in its place."""
        if self.dies_installing:
            self.dies_installing = False
            self.disk.die_near = ("rename", ".checkpoint")
            self.disk.die_phase = "after"

    def copying(self) -> None:
        """A partition is about to be copied."""
        is_planned = self.dies_installing or self.disk.die_near is not None
        if self._deaths_left and not is_planned and self._rng.random() < 0.5:
            self._deaths_left -= 1
            self._restarts = True
            self.disk.die_near = self._rng.choice(_COPY_STEPS)
            self.disk.die_phase = self._rng.choice(("before", "middle", "after"))

    # --- damage -----------------------------------------------------------------------------------

    def rot(self, raft_group: int, path: Path, rng: Random) -> None:
        """Flip a bit of the last record of a segment."""
        data = self.disk.inode(path).data
        position = len(data) - 1
        self.has_rotted = True
        self._rotten[raft_group] = path, position, data[position]
        self.disk.flip(path, position, rng.randrange(8))

    def is_rotten(self, raft_group: int) -> bool:
        """True while a damaged segment of a raft group is in its place, or kept for a copy."""
        found = self._rotten.get(raft_group)
        if found is None:
            return False
        path, position, good = found
        sizes, topics = self.disk.files(), path.parents[1]
        directories = path.parent, copy_directory(topics, raft_group), replaced_directory(topics, raft_group)
        for each in (directory / path.name for directory in directories):
            if sizes.get(each, 0) > position and self.disk.inode(each).data[position] != good:
                return True
        del self._rotten[raft_group]
        return False

    # --- backups ----------------------------------------------------------------------------------

    def put_back(self, disk: SimulatedDisk, durable: DurableJournal) -> None:
        """Replace the disk by an older copy of it, while no process runs."""
        self.disk, self.durable = disk, durable
        self._loses_power = False
        self._watch_disk()
