"""A machine of the simulated cluster: its disk, and one process after the other on it."""

import asyncio
from collections.abc import Callable
from random import Random

from pixy.cluster.log.peer_starts import PeerStart, PeerStarts, StartClaim
from pixy.errors import StorageFault
from pixy.proto.state_pb2 import NodeIdentity
from pixy.storage import load_identity
from tests.sim.cluster.member import Member
from tests.sim.disk import Operation, SimulatedDisk
from tests.sim.kit.durable import DurableJournal
from tests.sim.kit.lives import Life
from tests.sim.kit.rare import Rare
from tests.sim.kit.scene import Scene
from tests.sim.worker import SimulatedWorker
from tests.sim.world import DIRECTORY

__all__ = ["CLUSTER_ID", "Machine"]

CLUSTER_ID = b"simulated--group"
_DELAYS_S = (0.0, 0.0002, 0.001, 0.001, 0.005)


class Machine:
    """One machine.

    Args:
        node_id: id of its node.
        scene: see `Scene`.
        make: makes the member of a process.
        interleaves: see `Sizes`.
        on_end: called when a process has ended.

    Attributes:
        disk: its disk.
        durable: model of its journal.
        acknowledged: the same; that of the disk that was there before an older copy replaced it.
        peers: what its node knows of the starts of the others, over all processes: as metadata
            would.
        life, member: the process that runs, and its member; None while there is none.
        flushes: newest flush that each other node has told of.
        lives: number of processes so far.
        admitted: the last one that another node has let in.
        slow_s: largest additional delay of its disk.
        stopping: the process is being stopped.
        retired: never started again, because its data is an older copy.
        fails_reads: reads of its disk may have failed: its log may begin behind what it could read.
        dies_installing: its process ends near the next install of a snapshot.
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
        self.id = node_id
        self._scene = scene
        self._make = make
        self._on_end = on_end
        self._interleaves = interleaves
        self._rng = scene.random(f"machine {node_id}")
        self.disk = SimulatedDisk(Random(self._rng.getrandbits(64)))
        self.durable = self.acknowledged = DurableJournal(CLUSTER_ID)
        self.peers = PeerStarts()
        self.life: Life | None = None
        self.member: Member | None = None
        self.flushes: dict[int, int] = {}
        self.lives = 0
        self.admitted = 0
        self.slow_s = 0.0
        self.stopping = False
        self.retired = False
        self.fails_reads = False
        self.dies_installing = False
        self._loses_power = False
        self._task: asyncio.Task[None] | None = None
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

    def start(self) -> None:
        """Start a process, unless one runs."""
        if self.life is not None or self.retired:
            return
        scene, disk = self._scene, self.disk
        if self._loses_power:
            self._loses_power = False
            disk.lose_power()
        room = disk.room
        disk.restart()
        disk.room = room
        disk.on_ended = self._disk_ended
        self.lives += 1
        self.stopping = False
        scene.note(f"{self.id} starts, the {self.lives}. time")
        life = self.life = Life(scene.loop, self.lives)
        life.run(self._begin, life)

    def _begin(self, life: Life) -> None:
        self.member = self._make(self, life)
        self._task = asyncio.get_running_loop().create_task(self.member.start())
        self._task.add_done_callback(self._started)

    def _started(self, task: "asyncio.Task[None]") -> None:
        error = None if task.cancelled() else task.exception()
        if error is None or self._task is not task:
            return
        if not (self._has_failed or self.disk.refused is not None or self.disk.full):
            self._scene.fail(error)
            return
        self._scene.counts["refused starts"] += 1
        self.end(power=False)

    def stop(self) -> None:
        """Stop the process in an orderly way, unless it is starting."""
        if self.life is not None and self.online and not self.stopping:
            self.life.run(self._begin_stop)

    def _begin_stop(self) -> None:
        assert self.member is not None
        self.stopping = True
        self._scene.note(f"{self.id} stops")
        self._task = asyncio.get_running_loop().create_task(self.member.stop())
        self._task.add_done_callback(self._stopped)

    def _stopped(self, task: "asyncio.Task[None]") -> None:
        error = None if task.cancelled() else task.exception()
        if self._task is not task:
            return
        if error is not None:
            self._scene.fail(error)
        self._scene.counts["orderly stops"] += 1
        self.end(power=False)

    def heal(self) -> None:
        """From here on the disk is fast, has room, and works."""
        disk = self.disk
        self.slow_s = 0.0
        self.dies_installing = False
        disk.room = None
        disk.die_at = disk.fail_at = disk.fail_read_at = 0
        disk.die_near = None

    def end(self, *, power: bool) -> None:
        """End the process.

        Args:
            power: True if the machine loses its power, and with it what was not synced.
        """
        if self.life is None:
            return
        self._scene.note(f"{self.id} ends{', without power' if power else ''}")
        self._loses_power = power
        self._release()
        if not self.disk.ended:
            self.disk.end()

    def _disk_ended(self) -> None:
        """The process ends in the middle of a call on the disk."""
        if self.life is not None:
            self._scene.note(f"{self.id} ends in a call on the disk")
            self._loses_power = self._rng.random() < 0.7
            self._release()

    def _release(self) -> None:
        assert self.life is not None
        self.life.end()
        self.life = self.member = None
        self.disk.on_ended = lambda: None
        if self._task is not None:
            task, self._task = self._task, None
            self._scene.loop.outside(0, task.cancel)
        self._scene.loop.outside(0, self._on_end, self)

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

    @property
    def _has_failed(self) -> bool:
        """True if a call on the disk has failed in this process."""
        disk = self.disk
        return disk.failed is not None or 0 < disk.fail_read_at <= disk.reads

    def _end_after_fault(self, life: Life | None) -> None:
        if self.life is life:
            self.end(power=self._rng.random() < 0.5)

    # --- workers ----------------------------------------------------------------------------------

    def worker(self, name: str, *, background: bool) -> SimulatedWorker:
        """A worker thread of the process."""
        rng = Random(self._rng.getrandbits(64))

        def delay() -> float:
            usual = rng.choice(_DELAYS_S)
            return usual + rng.random() * self.slow_s if self.slow_s else usual

        return SimulatedWorker(self.disk, rng, interleaves=self._interleaves, delay=delay)

    def installing(self) -> None:
        """The data of a snapshot is about to be put in its place."""
        if self.dies_installing:
            self.dies_installing = False
            self.disk.die_near = ("rename", ".checkpoint")
            self.disk.die_phase = "after"

    # --- backups ----------------------------------------------------------------------------------

    def put_back(self, disk: SimulatedDisk, durable: DurableJournal) -> None:
        """Replace the disk by an older copy of it, while no process runs."""
        self.disk, self.durable = disk, durable
        self._loses_power = False
        self._watch_disk()
