"""A node with one bit of its files flipped while it is stopped.

The probe works on a copy. The start must repair the damage, or be refused with its position, or the
one damaged partition reports it while all others are intact and continue, also over crashes. Files
of a partition that is not ready are not changed: once the bit is restored, all data is there. A
part of a stage keeps its flipped bit when it becomes a segment under another name.
"""

import asyncio
from collections import Counter
from copy import deepcopy
from pathlib import Path
from random import Random

from pixy.backend import EmbeddedBackend
from pixy.errors import PixyError
from pixy.records import TopicPartition
from pixy.staging import STAGE_FILE
from tests.sim.disk import SimulatedDisk
from tests.sim.life import make_node
from tests.sim.model_offsets import PartitionId
from tests.sim.nodes import Inode
from tests.sim.reading import read_everything
from tests.sim.workload import Workload
from tests.sim.world import DIRECTORY, World, run_process

_TOPICS = DIRECTORY / "topics"
_STAGING = DIRECTORY / "staging"
_OF_PARTITIONS = ("log", "partition identity")
"""Kinds of files whose damage keeps a partition from being ready."""
_OUTCOMES = ("harmless", "answered when read", "not ready", "refused at start")


class Probe:
    """One flipped bit.

    Args:
        world: the world to copy; only its random generator is changed.

    Attributes:
        counts: outcomes by kind.
    """

    def __init__(self, world: World) -> None:
        self._rng = rng = Random(world.rng.getrandbits(64))
        model = deepcopy(world.model)
        self._world = World(rng, world.disk.copy(), model.clock, model)
        self._disk = self._world.disk
        self._path = Path()
        self._outcome = "harmless"
        self._deletes = False
        self._mended = False
        # Lives are such that entries of a damaged partition are relocated.
        self._relocates = False
        self.counts: Counter[str] = Counter()

    def run(self) -> None:
        """Raise AssertionError if an expectation does not hold."""
        rng, disk = self._rng, self._disk
        self._relocates = rng.random() < 0.2
        if self._relocates:
            disk.restart()
            run_process(self._world, self._leave_entries)
            disk.end()
            disk.restart()
        kinds = _kinds(disk)
        if self._relocates:
            kinds = {kind: kinds[kind] for kind in _OF_PARTITIONS if kind in kinds}
        if not kinds:
            return
        kind = rng.choice(sorted(kinds))
        path = self._path = rng.choice(kinds[kind])
        end = disk.files()[path]
        if kind == "journal" and rng.random() < 0.3:
            end = min(end, disk.last_durable_write(path) + 300)
        position, bit = rng.randrange(end), rng.randrange(8)
        disk.flip(path, position, bit)
        self._inode = disk.inode(path)
        damaged = _read(disk, path)[: position + 1]
        for number in range(rng.choice((1, 1, 2, 3))):
            self._run_damaged(again=number > 0)
            if self._outcome == "refused at start":
                # The journal reaches back to the older of two checkpoints, or to the begin.
                assert kind != "checkpoint", f"a start is refused for want of one checkpoint: {path}"
                break
        else:
            disk.restart()
            # If it is still the same file.
            if self._outcome != "harmless" and _read(disk, path)[: position + 1] == damaged:
                disk.flip(path, position, bit)
                self.counts["flipped bits flipped back"] += 1
                self._mended = True
            run_process(self._world, self._live_again)
        self.counts[f"flipped bits {self._outcome}"] += 1
        self.counts[f"flipped bits in {kind}"] += 1

    async def _leave_entries(self) -> None:
        """Append to every partition, and end before the segments are written: a partition that is
        damaged then needs its entries, however long the journal becomes.
        """
        model, faults = self._world.model, list[BaseException]()
        node, options = make_node(self._world, faults)
        backend = EmbeddedBackend(node)
        model.begin_life(options.storage, options.staging)
        await backend.start()
        promised = model.promised()
        found = await read_everything(node, backend, _raise)
        model.check(found, promised)
        model.adopt(found, ends_known=True)
        workload = Workload(self._world, node, backend, faults)
        for partition in workload.partitions():
            workload.append(partition)
        await asyncio.sleep(0.01)
        assert not faults, f"a node breaks before its bit is flipped: {faults}"

    def _run_damaged(self, *, again: bool) -> None:
        disk, directory = self._disk, self._path.parent
        disk.restart()
        before = _content(disk, directory)
        life = _DamagedLife(
            self._world, self._path, self._inode, dies=self._rng.random() < 0.4, is_long=self._relocates
        )
        run_process(self._world, life.live)
        life.check_end()
        if again and not self._deletes:
            assert life.outcome != "refused at start", f"a start is refused that was not before: {self._path}"
        # A crash may have come before the rename of the damaged directory; then its owner is
        # unknown.
        self._deletes = self._deletes or life.deletes
        self._outcome = max(self._outcome, life.outcome, key=_OUTCOMES.index)
        loses_power = disk.ended and self._rng.random() < 0.5
        if life.outcome == "not ready" and not life.deletes:
            disk.restart()
            after = _content(disk, directory)
            assert after == before, f"files of a damaged partition are changed: {_difference(before, after)}"
        disk.end()
        if loses_power:
            disk.lose_power()

    async def _live_again(self) -> None:
        """Check that all data is there once the bit is restored or its file deleted; otherwise that
        the damage is reported.
        """
        model, faults = self._world.model, list[BaseException]()
        node, options = make_node(self._world, faults)
        backend = EmbeddedBackend(node)
        model.begin_life(options.storage, options.staging)
        await backend.start()
        promised = model.promised()
        model.check(await read_everything(node, backend, self._check_still_damaged), promised)
        await backend.stop()
        assert not faults, f"a node whose flipped bit was flipped back breaks: {faults}"

    def _check_still_damaged(self, error: PixyError) -> None:
        has_it = any(str(path) in str(error) for path in self._disk.aliases(self._inode))
        assert has_it, f"{self._path} is damaged, said: {error}"
        assert not self._mended, f"{self._path} is mended, said: {error}"


class _DamagedLife:
    """One process that starts with the flipped bit.

    Args:
        path, inode: the damaged file, and its original name.
        dies: True if the process may end at any operation.
        is_long: True to fill many journal files.

    Attributes:
        outcome: one of `_OUTCOMES`.
        deletes: True if it deletes the damaged topic.
    """

    def __init__(self, world: World, path: Path, inode: Inode, *, dies: bool, is_long: bool) -> None:
        self._world = world
        self._rng = world.rng
        self._model = world.model
        self._path = path
        self._inode = inode
        self._paths_before = {path, *world.disk.aliases(inode)}
        self._dies = dies
        self._is_long = is_long
        self._faults: list[BaseException] = []
        self._node, self._options = make_node(world, self._faults)
        self._backend = EmbeddedBackend(self._node)
        self._workload = Workload(world, self._node, self._backend, self._faults)
        self.outcome = "harmless"
        self.deletes = False

    async def live(self) -> None:
        """Run the life. Raises AssertionError if an expectation does not hold."""
        self._model.begin_life(self._options.storage, self._options.staging)
        try:
            await self._backend.start()
        except PixyError as error:
            self.outcome = "refused at start"
            self._check_says_where(error)
            return
        if any(replica.fault is not None for replica in self._node.partitions):
            self.outcome = "not ready"
        # Publications that the start goes on with are applied, and the writer reads their parts.
        await asyncio.sleep(1)
        promised = self._model.promised()
        found = await read_everything(self._node, self._backend, self._check_says_where)
        self._model.check(found, promised)
        self._model.adopt(found, ends_known=True)
        damaged = {self._directory(partition) for partition in found.damaged}
        hit = {name for path in self._paths for name in self._hit(path)}
        assert damaged <= hit, f"{self._path} is damaged, and not ready are {damaged}"
        if damaged and self.outcome == "harmless":
            self.outcome = "answered when read"
        if self._dies:
            disk = self._world.disk
            # Sometimes long enough to relocate entries that the damaged partition needs.
            disk.die_at = disk.operations + self._rng.randint(1, self._rng.choice((200, 2000)))
            disk.die_phase = self._rng.choice(("before", "middle", "after"))
        await self._go_on(damaged)
        await self._backend.stop()

    @property
    def _paths(self) -> set[Path]:
        """All names of the damaged file."""
        return self._paths_before.union(self._world.disk.aliases(self._inode))

    def check_end(self) -> None:
        """Check it after its end. Raises AssertionError if an expectation does not hold."""
        self._workload.check_tasks()
        assert not self._faults, f"a node with a flipped bit breaks: {self._faults}"

    async def _go_on(self, damaged: set[str]) -> None:
        """Use the intact partitions until the journal has deleted its oldest files; sometimes
        delete the damaged topic.
        """
        rng, workload = self._rng, self._workload
        whole = [each for each in workload.partitions() if "{}-{}".format(*each) not in damaged]
        hit = next((each for each in workload.partitions() if "{}-{}".format(*each) in damaged), None)
        if hit is not None and rng.random() < 0.3:
            self.deletes = True
            await workload.delete_now(hit.topic)
            whole = [each for each in whole if each.topic != hit.topic]
            if rng.random() < 0.5:
                workload.create_topic(hit.topic)
                await asyncio.sleep(0.1)
                whole.append(TopicPartition(hit.topic, 0))
        for _ in range(150 if self._is_long else rng.choice((2, 40, 150))):
            if whole:
                workload.append(rng.choice(whole))
                workload.commit(rng.choice(whole))
            await asyncio.sleep(rng.choice((0, 0, 1)))
        await asyncio.sleep(20)

    def _hit(self, path: Path) -> list[str]:
        """The partition directories of a damaged file: of a stage's own file, those of its parts,
        of which nobody knows any more whether they were published.
        """
        if path.parent.parent != _STAGING:
            return [path.parent.name]
        files = self._world.disk.files() if path.name == STAGE_FILE else [path]
        parts = [each.stem for each in files if each.parent == path.parent and each.suffix == ".batches"]
        ids = [part.split("-") for part in parts]
        return [
            self._directory(PartitionId(bytes.fromhex(topic_id), int(number))) for topic_id, number in ids
        ]

    def _directory(self, partition: PartitionId) -> str:
        return f"{self._model.topics.by_id(partition.topic_id).name}-{partition.partition}"

    def _check_says_where(self, error: PixyError) -> None:
        text = str(error)
        where = any(str(path) in text or str(path.parent) in text for path in self._paths)
        # Of which publication a stage is, nobody knows but its file.
        where |= f"{_STAGING}/publication " in text and any(path.name == STAGE_FILE for path in self._paths)
        assert where, f"{self._path} is damaged, said: {text}"
        if self._path.suffix in (".journal", ".log"):
            how = any(word in text for word in ("byte", "version", "header", "begins"))
            assert how, f"{self._path} is damaged, said: {text}"


def _raise(error: PixyError) -> None:
    raise error


def _kinds(disk: SimulatedDisk) -> dict[str, list[Path]]:
    """Non-empty files, by kind."""
    kinds: dict[str, list[Path]] = {}
    for path, size in disk.files().items():
        kind = path.suffix.removeprefix(".") or path.name
        if kind == "identity" and path.parent.parent == _TOPICS:
            kind = "partition identity"
        if size and kind != "lock":
            kinds.setdefault(kind, []).append(path)
    return kinds


def _read(disk: SimulatedDisk, path: Path) -> bytes:
    """Content of a file; empty if it does not exist."""
    if path not in disk.files():
        return b""
    file = disk.open(path)
    content = file.read_at(file.size(), 0)
    file.close()
    return content


def _content(disk: SimulatedDisk, directory: Path) -> dict[str, bytes]:
    """All files of a partition's directory; empty for other directories."""
    if directory.parent != _TOPICS:
        return {}
    return {path.name: _read(disk, path) for path in disk.files() if path.parent == directory}


def _difference(before: dict[str, bytes], after: dict[str, bytes]) -> list[str]:
    return [name for name in before.keys() | after.keys() if before.get(name) != after.get(name)]
