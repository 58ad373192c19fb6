"""One process of a simulation, from its start to its end."""

import asyncio
import errno
from collections.abc import Callable, Coroutine
from functools import partial
from random import Random
from typing import Any, NamedTuple

from pixy.backend import EmbeddedBackend
from pixy.cluster import NodeOptions
from pixy.config import JournalConfig, StagingConfig, StorageConfig
from pixy.errors import PixyError, StorageFault
from pixy.records import TopicPartition
from pixy.storage import WriterPace
from tests.sim.disk import Operation, SimulatedDisk
from tests.sim.leftovers import check_files, check_retained, closed_segments
from tests.sim.model import Found
from tests.sim.reading import GROUPS, read_everything
from tests.sim.staging import ObservedNode, StagingWorkload
from tests.sim.worker import SimulatedWorker
from tests.sim.workload import Workload
from tests.sim.world import DIRECTORY, World

_PATIENCE_S = 30.0
"""Virtual time within which a healthy node must answer everything."""

_PHASES = ("before", "middle", "after")
_DECISIVE = (
    ("rename", ".checkpoint"),
    ("rename", "-deleted"),
    ("unlink", ".checkpoint"),
    ("unlink", ".journal"),
    ("unlink", ".log"),
    ("remove_directory", ""),
)
"""Operations that remove data which must be elsewhere by then. A life meets them seldom, and a
randomly chosen operation hits them even less often.
"""
_LARGE_RESERVE = 200_000
"""Enough for everything accepted before the disk is found to be full, and for operations that
continue then.
"""


class Aim(NamedTuple):
    """Ends of lives that show soon that a sync matters.

    Attributes:
        site: the site of the sync. A power failure follows.
        missed: the site of another sync, before which a process is killed, so that the next one has
            to make up for it at `site`; "" for none.
        behind: operations from the sync to the power failure, chosen at random.
    """

    site: str
    missed: str = ""
    behind: tuple[int, ...] = (0, 1, 2, 3, 5, 8, 15, 30, 60)


def make_node(world: World, faults: list[BaseException]) -> tuple[ObservedNode, NodeOptions]:
    """An unstarted node with small files and random options, and these options."""
    rng, disk = world.rng, world.disk
    order = None if rng.random() < 0.4 else Random(rng.getrandbits(64))
    interleaves = rng.random() < 0.5
    storage = StorageConfig(
        retention=rng.choice((0.0, 0.0, 7 * 24 * 3600.0, 60.0)),
        retention_bytes=rng.choice((0, 0, 0, 10_000)),
        retention_check=rng.choice((1.0, 7.0, 20.0)),
        offsets_retention=rng.choice((0.0, 20.0, 200.0, 7 * 24 * 3600.0)),
        segment_bytes=rng.choice((3000, 10_000, 50_000)),
        segment_age=rng.choice((5.0, 24 * 3600.0)),
        reserve_bytes=rng.choice((0, 3000, 20_000, _LARGE_RESERVE)),
        tail_cache_bytes=rng.choice((0, 1000, 1 << 20)),
        checkpoint_entries=rng.choice((3, 20, 1000)),
    )
    journal = JournalConfig(
        file_bytes=rng.choice((3000, 9000, 20_000)),
        max_unapplied_bytes=rng.choice((2000, 8000, 1 << 20)),
    )
    options = NodeOptions(
        DIRECTORY,
        journal,
        storage,
        rng.randbytes,
        lambda name, **_: SimulatedWorker(disk, order, pauses=name == "pixy-files", interleaves=interleaves),
        StagingConfig(expiry=rng.choice((24 * 3600.0, 24 * 3600.0, 30.0))),
        WriterPace(gather_s=0.02),  # lives are short, and should end while segments are written
    )
    return ObservedNode(world, options, faults.append), options


class Life:
    """One process.

    Args:
        world: the world that it runs on.
        healthy: True if nothing fails in it.
        aim: where the process ends; None for anywhere.
    """

    def __init__(self, world: World, *, healthy: bool, aim: Aim | None = None) -> None:
        self._world = world
        self._rng = world.rng
        self._disk: SimulatedDisk = world.disk
        self._model = world.model
        self._clock = world.clock
        self._healthy = healthy
        self._aim = aim
        self._faults: list[BaseException] = []
        self._started = False
        self._node, self._options = make_node(world, self._faults)
        self._storage = self._options.storage
        self._backend = EmbeddedBackend(self._node)
        self._workload: Workload
        self._staging: StagingWorkload
        self._stages = world.rng.random() < 0.4
        self.loses_power = False

    def plan(self) -> None:
        """Choose how this life ends."""
        rng, disk = self._rng, self._disk
        self.loses_power = rng.random() < 0.6
        if self._healthy:
            return
        at = rng.randint(1, 14) if rng.random() < 0.4 else rng.randint(1, 200)
        if self._aim is not None:
            self._take_aim(self._aim, at)
            return
        match rng.randrange(10):
            case 0:
                pass
            case 1 | 2:
                disk.fail_at = at
                disk.fail_errno = rng.choice((errno.EIO, errno.ENOSPC, errno.EDQUOT))
            case 3 if rng.random() < 0.3:
                disk.fail_read_at = at
            case 4:
                disk.die_near = rng.choice(_DECISIVE)
                disk.die_phase = rng.choice(_PHASES)
            case _:
                self._die_at(at)
        if rng.random() < 0.05:
            self._limit_room()

    def _take_aim(self, aim: Aim, at: int) -> None:
        """End by a power failure behind a sync of the site; or be killed, at an operation or before
        the sync that the site makes up for.
        """
        rng, disk = self._rng, self._disk
        self.loses_power = rng.random() < 0.6
        if self.loses_power:
            disk.die_behind = aim.site, rng.choice((0, 0, 0, 1)), rng.choice(aim.behind)
            disk.die_phase = rng.choice(_PHASES)
        elif aim.missed:
            disk.die_behind = aim.missed, rng.choice((0, 0, 1, 2, 5)), 0
        else:
            self._die_at(at)

    def check_end(self) -> None:
        """Check a finished life. Raises AssertionError if an expectation does not hold."""
        if self._started:
            self._workload.check_tasks()
        if self._disk.ended:
            self._count("ends at an operation")
            if not self._started:
                self._count("ends during a start")
        failed = self._disk.failed
        for fault in self._faults:
            assert isinstance(fault, OSError | StorageFault), f"a fault that is a bug: {fault!r}"
            assert failed is not None or self._read_failed, f"a fault without a reason: {fault!r}"
        if failed is not None:
            self._count("failed calls")
            if self._disk.fail_errno != errno.EIO and failed.what in ("sync", "sync_directory"):
                self._count("syncs without room")
        if self._disk.refused is not None:
            self._count("calls without room")

    # --- course of a life -------------------------------------------------------------------------

    def _die_at(self, operation: int) -> None:
        self._disk.die_at = operation
        self._disk.die_phase = self._rng.choice(_PHASES)

    async def live(self) -> None:
        """Run the life. Raises AssertionError if an expectation does not hold."""
        self._clock.follow(asyncio.get_running_loop())
        self._model.begin_life(self._storage, self._options.staging)
        if self._disk.full:
            asyncio.get_running_loop().call_later(3, self._make_room)
        is_first = not any(path.suffix == ".journal" for path in self._disk.files())
        try:
            # in which workers may pause several times
            async with asyncio.timeout(10 * _PATIENCE_S):
                await self._backend.start()
        except (PixyError, OSError) as error:
            is_full = self._disk.full and is_first  # later starts need no space
            if not (self._disk.failed or self._disk.refused or is_full or self._read_failed):
                raise AssertionError(f"a start was refused: {error}") from error
            self._count("refused starts")
            return
        self._started = True
        self._workload = Workload(self._world, self._node, self._backend, self._faults)
        self._staging = StagingWorkload(self._world, self._node, self._backend, lambda: self._read_failed)
        self._model.adopt(await self._check(), ends_known=True)
        for _ in range(self._rng.randint(3, 40)):
            if self._faults:
                break
            await self._step()
            self._workload.check_tasks()
        await self._finish()

    async def _finish(self) -> None:
        """End a life that nothing has ended before."""
        gives_up = self._disk.full or self._disk.refused is not None
        self._make_room()
        if self._faults or self._disk.failed:
            await asyncio.sleep(_PATIENCE_S)
            self._check_fault()
        elif self._healthy or self._rng.random() < 0.5:
            if self._healthy:
                for partition in self._workload.partitions():
                    self._workload.append(partition)
            await self._settle()
            if self._healthy and not self._broken:
                await self._check_quiet()
        if self._healthy or self._rng.random() < 0.6:
            await self._stop(gives_up)
        if not self._disk.ended:
            for task in self._workload.tasks:
                task.cancel()

    async def _stop(self, gives_up: bool) -> None:
        blocked = self._node.blocked
        await self._backend.stop()
        await asyncio.sleep(0.1)  # answered tasks record their answers
        # Requests waiting for space at a stop are given up, also if it is missing only then.
        if not self._faults and blocked is None and not gives_up and self._disk.refused is None:
            assert not self._model.outstanding, f"not answered by a clean stop: {self._model.outstanding}"
            self._count("clean stops")

    async def _settle(self) -> None:
        """Wait until all requests are answered, and the node reports no fault."""
        for _ in range(10):
            await asyncio.sleep(_PATIENCE_S / 10)
            if self._faults or not (self._model.outstanding or self._node.blocked):
                break
        if self._faults or self._disk.failed:
            return
        assert not self._model.outstanding, f"never answered: {self._model.outstanding}"
        assert self._node.blocked is None, f"still blocked: {self._node.blocked}"
        await self._check()

    async def _check_quiet(self) -> None:
        """Check that after an idle while all expired files are removed, and no others are left."""
        kept_ms = round(self._storage.offsets_retention * 1000)
        self._clock.set_wall(0)
        for _ in range(10):
            now_ms = self._clock.true_ms()
            begins = self._begins()
            await asyncio.sleep(2 * self._storage.retention_check + 10)
            found = await self._check()
            if self._begins() == begins:  # otherwise segments may be about to be removed
                break
        for _ in range(100):
            if not any(each.checkpointing for each in self._node.state_groups.replicas()):
                break
            await asyncio.sleep(0.1)  # files of the journal wait for it
        if kept_ms:
            self._model.offsets.check_forgotten(found.committed, now_ms - kept_ms)
        known = {topic.topic_id for topic in self._node.metadata.topics.values()}
        for group in GROUPS:
            assert self._node.state_groups.offsets_of(group).topic_ids() <= known, (
                "offsets of a deleted topic are kept"
            )
        check_retained(self._disk, self._model, now_ms)
        check_files(self._disk, self._model, self._storage.reserve_bytes)
        assert not self._node.publisher._state.publications, "a publication is not finished"
        await asyncio.sleep(0.1)  # stages that have just expired are being removed
        self._staging.check_left(dict.fromkeys(self._disk.names(DIRECTORY / "staging")))

    def _begins(self) -> list[int]:
        """Current begins of the logs, which may be later than those just read."""
        return [
            replica.log.begin_offset
            for topic in self._model.topics.live.values()
            for number in range(len(topic.partitions))
            if (replica := self._node.partition(TopicPartition(topic.name, number))) is not None
        ]

    async def _check(self) -> Found:
        self._node.check_publications()
        promised = self._model.promised()
        try:
            found = await read_everything(self._node, self._backend)
        except StorageFault:
            assert self._read_failed, "a read has failed without a reason"
            self._count("failed reads")
            found = await read_everything(self._node, self._backend)
        self._model.check(found, promised)
        return found

    @property
    def _read_failed(self) -> bool:
        return self._disk.reads >= self._disk.fail_read_at > 0

    def _check_fault(self) -> None:
        """Check that the node has reported the failed call."""
        failed = self._disk.failed
        if failed is not None and not _may_fail_silently(failed):
            assert self._faults or self._staging.told, f"{failed} has failed, and nobody was told"

    # --- steps ------------------------------------------------------------------------------------

    async def _step(self) -> None:  # noqa: PLR0912 - a list of what may happen is easiest read as one
        rng, workload = self._rng, self._workload
        partitions = workload.partitions()
        choice = rng.randrange(1000)
        if choice < 60 or not partitions:
            workload.create_topic()
            await asyncio.sleep(0.1)
            return
        partition = rng.choice(partitions)
        if choice < 200:
            workload.commit(partition)
        elif choice < 380:
            await self._pass_time()
        elif choice < 410:
            await self._change_room()
        elif choice < 450:
            await self._check()
        elif choice < 480:
            self._delete_topic(partition.topic)
        elif choice < 520:
            workload.alter_topic(partition.topic)
        elif choice < 570:
            workload.begin(workload.read_slowly(partition))
        elif choice < 580:
            workload.join()
        elif choice < 590:
            await self._fill_disk()
        elif choice < 850 and self._stages:
            staging = self._staging
            workload.begin(staging.stage(partitions) if choice < 720 else staging.publish())
        else:
            for _ in range(rng.choice((1, 1, 1, 6))):
                workload.append(rng.choice(partitions))

    def _delete_topic(self, name: str) -> None:
        self._workload.delete_topic(name)
        if not self._healthy and self._rng.random() < 0.2:
            self._die_at(self._disk.operations + self._rng.randint(1, 20))

    async def _pass_time(self) -> None:
        rng = self._rng
        if rng.random() < 0.1:
            # Less than an hour ahead, and not for long: a node treats that as a mistake.
            self._clock.set_wall(rng.choice((0, 0, 100_000, 3_000_000, -100_000, -3 * 86_400_000)))
        await asyncio.sleep(rng.choice((0.0, 0.0, 0.0, 0.001, 0.03, 0.03, 6.0, 6.0, 70.0)))

    # --- space on the disk ------------------------------------------------------------------------

    def _limit_room(self) -> None:
        self._disk.room = self._rng.choice((0, 0, 1, 100, 700, 3000, 9000, 30_000))

    def _make_room(self) -> None:
        self._disk.room = None

    async def _change_room(self) -> None:
        if self._disk.full:
            self._make_room()
            self._count("full disks")
            await self._settle()
        else:
            self._limit_room()

    async def _fill_disk(self) -> None:
        """With a large reserve, commits and deletions of topics are answered while the disk is
        full.
        """
        self._make_room()
        if self._rng.random() < 0.5:
            for _ in range(15):
                self._workload.append(self._rng.choice(self._workload.partitions()), sizes=(9000,))
        await self._settle()
        if self._broken or self._disk.files().get(DIRECTORY / "reserve") != _LARGE_RESERVE:
            return
        self._disk.room = self._rng.choice((0, 0, 100, 3000))
        for _ in range(200):
            if self._node.blocked is not None or self._broken or not self._workload.partitions():
                break
            self._workload.append(self._rng.choice(self._workload.partitions()), sizes=(300,))
            await asyncio.sleep(0.1)
        # If retention frees as much space as messages take, the disk never fills up.
        if self._broken or self._node.blocked is None or not self._workload.partitions():
            return
        partition = self._rng.choice(self._workload.partitions())
        await self._answered(lambda: self._workload.commit_now(partition))
        if closed_segments(self._disk) > _LARGE_RESERVE // 2 and self._rng.random() < 0.7:
            await self._let_retention_make_room()
        else:
            await self._answered(lambda: self._workload.delete_now(partition.topic))
            self._make_room()
        await self._settle()
        self._make_room()
        if not self._broken:
            assert self._disk.files()[DIRECTORY / "reserve"] == _LARGE_RESERVE
            self._count("full disks with a reserve")

    async def _let_retention_make_room(self) -> None:
        """If enough data may be deleted, service resumes by itself."""
        for name in list(self._node.metadata.topics):
            config = {"retention_bytes": "0", "retention_ms": None}
            await self._answered(partial(self._workload.alter_now, name, config))
        await asyncio.sleep(self._storage.retention_check)
        self._count("full disks with retention")

    async def _answered(self, ask: Callable[[], Coroutine[Any, Any, bool]]) -> None:
        """Retry a request that may be rejected temporarily."""
        for _ in range(20):
            asked = self._workload.begin(ask())
            await asyncio.wait({asked}, timeout=10)
            if self._broken:
                return  # after which nothing is answered
            assert asked.done(), "a full disk with a reserve keeps somebody waiting"
            if asked.result():
                return
            await asyncio.sleep(0.5)
        raise AssertionError(f"a full disk with a reserve refuses everything: {self._node.blocked}")

    @property
    def _broken(self) -> bool:
        return bool(self._faults or self._disk.failed)

    def _count(self, what: str) -> None:
        self._world.counts[what] += 1


def _may_fail_silently(failed: Operation) -> bool:
    """True for operations whose failure has no effect: hints, the reserve, remains of deleted
    topics, unfinished files. Failures of stages are reported to their writer.
    """
    return (
        failed.what == "remove_directory"
        or (
            failed.what == "unlink"
            and (failed.path.name == "identity" or failed.path.suffix in (".part", ".deleted"))
        )
        or failed.path.suffix in (".index", ".timeindex")
        or failed.path.name == "reserve"
        or DIRECTORY / "staging" in failed.path.parents
        or failed.path.parent.name.endswith("-deleted")
    )
