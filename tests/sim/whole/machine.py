"""A machine: its disk, its clock, its host, and one process after the other on it."""

import asyncio
from collections.abc import Callable
from typing import Any, Protocol

from pixy.backend import EmbeddedBackend
from pixy.cluster import Node, Process
from pixy.cluster.log.recovery import RecoveredNode
from pixy.consume import Consumers
from pixy.errors import CorruptData, DataDirectoryError, PixyError, StorageFault
from pixy.proto.state_pb2 import NodeIdentity
from pixy.proxy import Proxy
from pixy.storage.disk.identity import read_identity
from tests.fakes.clock import FakeClock
from tests.sim.disk import Operation, SimulatedDisk
from tests.sim.kit.durable import DurableJournal
from tests.sim.kit.lives import Life
from tests.sim.kit.machine import AnyMachine, MachineProcess
from tests.sim.kit.scene import Scene
from tests.sim.world import DIRECTORY


class DaemonProcess(MachineProcess, Protocol):
    """A process of the daemon, as far as the simulation has one.

    Attributes:
        node: its node.
        backend, proxy, consumers: take the requests of clients.
    """

    node: Node
    backend: EmbeddedBackend
    proxy: Proxy
    consumers: Consumers


class Machine(AnyMachine):
    """One machine.

    Args:
        number: its number, and that of its host.
        scene: see `Scene`.
        make: makes a process.
        on_end: called with each process that has ended, and whether the machine lost its power.

    Attributes:
        host: name of its host.
        clock: its clocks.
        durable: model of its journal; None before it has an identity.
        journals: models of all journals that it ever had, each with the id of its node.
        process: the process that runs; None while there is none.
        serving: the process takes requests.
        busy_until: virtual time until which its disk is still as slow as it was.
        broken: it stays as it is for good: deaf, slow, paused or down.
        stranger: its node belongs to another cluster.
        emptied: its disk was replaced by an empty one.
        noted_ms: the time that its node noted last, as the daemon does for `NodeTime.resume`.
        suspect: its disk was replaced or damaged: it may refuse to start.
        refusal: error of the last start that was refused.
        on_pause: called when a process is paused, with the seconds.
        crashed_starts: the operation of the disk at which each of the next processes ends, the last
            one first, and if before, in the middle of or after it.
    """

    def __init__(
        self,
        number: int,
        scene: Scene,
        make: Callable[["Machine", Life], DaemonProcess],
        on_end: Callable[["Machine", Life, bool], None],
        *,
        interleaves: bool,
    ) -> None:
        super().__init__(number, scene, interleaves=interleaves)
        self.host = f"127.0.0.{number}"
        self._make = make
        self._on_end = on_end
        self.clock = FakeClock(monotonic=float(number))
        self.clock.follow(scene.loop)
        self.durable: DurableJournal | None = None
        self.journals: list[tuple[int, DurableJournal]] = []
        self.process: DaemonProcess | None = None
        self.serving = False
        self.busy_until = 0.0
        self.broken = self.stranger = self.emptied = False
        self.noted_ms: int | None = None
        self.suspect = False
        self.refusal: BaseException | None = None
        self.on_pause: Callable[[Machine, float], None] = lambda *_: None
        self.crashed_starts: list[tuple[int, str]] = []
        # Virtual time of the end of a pause.
        self._paused_until = 0.0
        # The disk was full at some time in this process.
        self._was_full = False
        self._watch_disk()

    def __str__(self) -> str:
        return f"machine {self.number}"

    def _watch_disk(self) -> None:
        self.disk.before = self._before
        self.disk.on_writing = self._writing
        self.disk.on_durable = lambda *written: (
            None if self.durable is None else self.durable.synced(*written)
        )

    def _before(self, operation: Operation) -> None:
        self._scene.note(f"{self.number}   {operation.what} {operation.path.name}")

    def _writing(self, *written: Any) -> None:
        if self.durable is None:
            identity = self.identity
            if identity is None:
                return
            self.durable = DurableJournal(identity.cluster_id)
            self.journals.append((identity.node_id, self.durable))
        self.durable.writing(*written)

    def recovered(self, node: RecoveredNode) -> None:
        """A start has read the journal."""
        if self.durable is None:
            self.durable = DurableJournal.found(node.identity.cluster_id, node.journal)
            self.journals.append((node.identity.node_id, self.durable))
        else:
            self.durable.take_up(node.journal)

    @property
    def identity(self) -> NodeIdentity | None:
        """Identity in its directory, None if there is none."""
        disk = self.disk.copy()
        try:
            return read_identity(disk, DIRECTORY / "identity")
        except (OSError, CorruptData, DataDirectoryError):
            return None

    @property
    def ready(self) -> bool:
        """True if its node has started, found its cluster, and is not stopping."""
        return self.serving and not self.stopping and self.node is not None and self.node.has_started

    @property
    def node(self) -> Node | None:
        """The node of the process that runs."""
        return None if self.process is None else self.process.node

    @property
    def identity_of_process(self) -> Process | None:
        """The process that runs as other nodes know it, None before it has an incarnation."""
        node = self.node
        if node is None or not node.node_id or getattr(node, "_log", None) is None:
            return None
        return Process(node.node_id, node.incarnation)

    # --- processes --------------------------------------------------------------------------------

    def _disk_restarted(self, room: int | None) -> None:
        self._was_full = room is not None
        if self.crashed_starts:
            self.disk.die_at, self.disk.die_phase = self.crashed_starts.pop()
        self.serving = False

    def _make_process(self, life: Life) -> DaemonProcess:
        self.process = self._make(self, life)
        return self.process

    @property
    def _running(self) -> DaemonProcess | None:
        return self.process if self.serving else None

    def _started(self, task: "asyncio.Task[None]") -> None:
        if self._task is not task:
            return
        error = None if task.cancelled() else task.exception()
        if error is None:
            self._scene.note(f"{self.number} serves")
            self.serving, self.refusal = True, None
            return
        self.refusal = error
        self._scene.note(f"{self.number} does not start: {error}")
        if not self._may_fail:
            self._scene.fail(error)
            return
        self._scene.counts["refused starts"] += 1
        self.end(power=False)

    def _ended(self, life: Life, *, power: bool) -> None:
        self._on_end(self, life, power)
        if self.node is not None:
            self.noted_ms = self.node.time.steady_ms()
        self.process = self._task = None
        self.serving = False

    # --- pauses -----------------------------------------------------------------------------------

    def pause(self, duration_s: float) -> None:
        """Pause the process for a while, also if it is paused, but not as long."""
        life, until = self.life, self._scene.now + duration_s
        if life is not None and not (life.paused and until <= self._paused_until):
            self._scene.note(f"{self.number} is paused for {duration_s:.2f} s")
            self._paused_until = until
            life.pause()
            self.on_pause(self, duration_s)
            self._scene.loop.outside(duration_s, self._end_pause, life, until)

    def _end_pause(self, life: Life, until: float) -> None:
        if until == self._paused_until:
            self._resume(life)

    def _resume(self, life: Life) -> None:
        if life.alive and life.paused:
            self._scene.note(f"{self.number} goes on")
            life.resume()

    # --- its disk ---------------------------------------------------------------------------------

    def heal(self) -> None:
        """From here on the disk is fast, has room, and works; the process runs."""
        super().heal()
        self.crashed_starts = []
        if self.life is not None:
            self._resume(self.life)

    def limit_room(self, room: int | None) -> None:
        """Limit the free space of the disk, or lift the limit."""
        self.disk.room = room
        self._was_full = self._was_full or room is not None

    def put_back(self, disk: SimulatedDisk, durable: DurableJournal | None) -> None:
        """Replace the disk by another one, while no process runs.

        Args:
            durable: model of its journal.
        """
        self.disk, self.durable = disk, durable
        identity = self.identity
        if durable is not None and identity is not None:
            self.journals.append((identity.node_id, durable))
        self._loses_power = False
        self._watch_disk()

    def fault(self, error: BaseException) -> None:
        """The process has found that nothing can be made durable: it ends, and recovery decides."""
        if not self._may_fail or not isinstance(error, OSError | StorageFault | PixyError):
            self._scene.fail(error)
            return
        self.refusal = error
        self._scene.counts["faults of a disk"] += 1
        self._scene.loop.outside(0, self._end_after_fault, self.life)

    @property
    def _may_fail(self) -> bool:
        """True if the process may end by itself: a call on the disk has failed in it, or what is on
        the disk is not what it was.
        """
        return self._has_failed or self.disk.refused is not None or self._was_full or self.suspect

    def _slows(self, delay_s: float) -> None:
        self.busy_until = max(self.busy_until, self._scene.now + delay_s)
