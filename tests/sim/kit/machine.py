"""A machine: its disk, and one process after the other on it."""

import asyncio
from random import Random
from typing import Protocol

from tests.sim.disk import SimulatedDisk
from tests.sim.kit.lives import Life
from tests.sim.kit.scene import Scene
from tests.sim.worker import SimulatedWorker

_POWER = 0.7
"""Share of the ends in a call on the disk at which the machine loses its power."""
_DELAYS_S = (0.0, 0.0002, 0.001, 0.001, 0.005)


class MachineProcess(Protocol):
    """A process of a machine."""

    async def start(self) -> None:
        """Recover everything from the disk."""

    async def stop(self) -> None:
        """Hand over, and make everything durable."""


class AnyMachine:
    """One machine, without what its processes are.

    Args:
        number: its number.
        scene: see `Scene`.
        interleaves: calls on the disk of different threads interleave.

    Attributes:
        disk: its disk.
        life: the process that runs; None while there is none.
        lives: number of processes so far.
        slow_s: largest additional delay of its disk.
        stopping: the process is being stopped.
        power: probability that the machine loses its power when its process ends in a call on the
            disk.
        retired: never started again by itself.
        fails_reads: reads of its disk may have failed: its log may begin behind what it could read.
    """

    def __init__(self, number: int, scene: Scene, *, interleaves: bool) -> None:
        self.number = number
        self._scene = scene
        self._interleaves = interleaves
        self._rng = scene.random(f"machine {number}")
        self.disk = SimulatedDisk(Random(self._rng.getrandbits(64)))
        self.life: Life | None = None
        self.lives = 0
        self.slow_s = 0.0
        self.stopping = False
        self.power = _POWER
        self.retired = False
        self.fails_reads = False
        self._loses_power = False
        self._task: asyncio.Task[None] | None = None

    # --- of each kind -----------------------------------------------------------------------------

    def _make_process(self, life: Life) -> MachineProcess:
        """Make a process."""
        raise NotImplementedError

    @property
    def _running(self) -> MachineProcess | None:
        """The process, if it can be stopped in an orderly way."""
        raise NotImplementedError

    def _started(self, task: "asyncio.Task[None]") -> None:
        """A process has started, or does not."""
        raise NotImplementedError

    def _ended(self, life: Life, *, power: bool) -> None:
        """A process has ended."""
        raise NotImplementedError

    def _disk_restarted(self, room: int | None) -> None:
        """The disk is ready for the next process, with this free space; None: any."""

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
        self._disk_restarted(room)
        self.lives += 1
        self.stopping = False
        scene.note(f"{self.number} starts, the {self.lives}. time")
        life = self.life = Life(scene.loop, self.lives)
        life.run(self._begin, life)

    def _begin(self, life: Life) -> None:
        process = self._make_process(life)
        self._task = asyncio.get_running_loop().create_task(process.start())
        self._task.add_done_callback(self._started)

    def stop(self) -> None:
        """Stop the process in an orderly way, unless it is starting."""
        if self.life is not None and self._running is not None and not self.stopping:
            self.life.run(self._begin_stop)

    def _begin_stop(self) -> None:
        process = self._running
        assert process is not None
        self.stopping = True
        self._scene.note(f"{self.number} stops")
        self._task = asyncio.get_running_loop().create_task(process.stop())
        self._task.add_done_callback(self._stopped)

    def _stopped(self, task: "asyncio.Task[None]") -> None:
        if self._task is not task:
            return
        error = None if task.cancelled() else task.exception()
        if error is not None:
            self._scene.fail(error)
        self._scene.counts["orderly stops"] += 1
        self.end(power=False)

    def end(self, *, power: bool) -> None:
        """End the process.

        Args:
            power: True if the machine loses its power, and with it what was not synced.
        """
        if self.life is None:
            return
        self._scene.note(f"{self.number} ends{', without power' if power else ''}")
        self._release(power=power)
        if not self.disk.ended:
            self.disk.end()

    def _disk_ended(self) -> None:
        """The process ends in the middle of a call on the disk."""
        if self.life is not None:
            self._scene.note(f"{self.number} ends in a call on the disk")
            self._release(power=self._rng.random() < self.power)

    def _release(self, *, power: bool) -> None:
        life = self.life
        assert life is not None
        life.end()
        self._loses_power = power
        self.disk.on_ended = lambda: None
        self._ended(life, power=power)
        self.life = None

    def _end_after_fault(self, life: Life | None) -> None:
        if self.life is life:
            self.end(power=self._rng.random() < 0.5)

    @property
    def _has_failed(self) -> bool:
        """True if a call on the disk has failed in this process."""
        disk = self.disk
        return disk.failed is not None or 0 < disk.fail_read_at <= disk.reads

    # --- its disk ---------------------------------------------------------------------------------

    def heal(self) -> None:
        """From here on the disk is fast, has room, and works."""
        disk = self.disk
        self.slow_s = 0.0
        disk.room = None
        disk.die_at = disk.fail_at = disk.fail_read_at = 0
        disk.die_near = None

    def worker(self, name: str, *, background: bool) -> SimulatedWorker:
        """A worker thread of the process."""
        rng = Random(self._rng.getrandbits(64))

        def delay() -> float:
            usual = rng.choice(_DELAYS_S)
            if not self.slow_s:
                return usual
            slow = usual + rng.random() * self.slow_s
            self._slows(slow)
            return slow

        return SimulatedWorker(self.disk, rng, interleaves=self._interleaves, delay=delay)

    def _slows(self, delay_s: float) -> None:
        """A call on a slow disk takes so long."""
