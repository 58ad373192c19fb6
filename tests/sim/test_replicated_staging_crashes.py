"""A stage is written, sealed and published in a cluster of three nodes, and one of them ends at
every operation of its disk on the way, killed or by a power failure, alone or with all others.

The client goes on at the next node, as Spark's sink does: every call is repeated unchanged until it
is answered. So nothing of it is ever refused, and in the end every replica has the records once, in
the same place. Random faults meet these moments too seldom: here every operation is tried.
"""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from enum import Enum
from functools import partial
from typing import Any

import pytest
from structlog.testing import capture_logs

from pixy.backend import EmbeddedBackend, Published, StagedBatches, TopicPartition
from pixy.config import JournalConfig, StorageConfig
from pixy.errors import DeadlineExceeded, FailedPrecondition, PixyError, Unavailable
from pixy.records import NewRecord, build_batch, read_records
from pixy.storage import WriterPace
from tests.conformance.staged import piece_of, seal_of
from tests.sim.kit.lives import Life, LivesLoop
from tests.sim.kit.scene import Scene
from tests.sim.whole.calls import Call, Calls
from tests.sim.whole.machine import Machine
from tests.sim.whole.network import CALM, SimulatedNetwork
from tests.sim.whole.process import WholeProcess
from tests.sim.whole.simulation import close_loop
from tests.sim.whole.swarm import Formation, Habits, Sizes, Swarm

PARTITIONS = [TopicPartition("t", number) for number in range(2)]
BEFORE, BEHIND = b"before", b"behind"
PIECES = [
    {partition: [b"%d of piece %d" % (partition.partition, number), bytes(3000)] for partition in PARTITIONS}
    for number in range(3)
]
EXPECTED = [[BEFORE, *(value for piece in PIECES for value in piece[partition])] for partition in PARTITIONS]
PHASES = ("before", "middle", "after")
PATIENCE_S = 6.0
LONGEST_S = 120.0
AFTER_S = 2.0
"""Time after the answer within which the node may still end: the others finish the publication."""
OPERATIONS = 100
"""More operations than a node has from the first piece to what follows the publication."""
MOST_OPERATIONS = 60
"""Operations that every node has in every run."""
STRIDE = 31
"""The long test tries all operations."""

SWARM = Swarm(
    Formation(3, 0.0, 0, anew=False),
    Sizes(
        JournalConfig(file_bytes=30_000),
        StorageConfig(reserve_bytes=0, checkpoint_entries=10),
        WriterPace(gather_s=0.02, sync_after_s=0.1),
        interleaves=False,
        queue_bytes=32 << 20,
    ),
    Habits(0, 0, 0.0, 0.0, (), {}, (), (), (), ()),
    CALM,
    b"",
    0,
    {},
    0,
    0.0,
    0.0,
    heals_all=True,
)

Ask = Callable[[EmbeddedBackend], Awaitable[Any]]


class Step(Enum):
    """Steps of the stage, as the nodes that go on know them."""

    NOTHING = "there is no stage"
    OPEN = "it is open"
    FIRST_PIECE = "it has one piece"
    PIECES = "it has several pieces"
    SEALED = "it is sealed"
    PUBLISHED = "the publication is committed, and in no partition"
    ROLLED_FORWARD = "the publication is in some or all replicas"
    FINISHED = "the publication is finished"


@dataclass
class Try:
    """One attempt.

    Attributes:
        seed: determines everything else.
        victim: number of the machine whose process ends.
        at, phase: operation of its disk at which it does, counted from the first piece.
        all_end: all others lose their power at that moment.
        reached: the operation was reached.
        step: how far the others were at that moment.
    """

    seed: int
    victim: int
    at: int
    phase: str
    all_end: bool
    reached: bool = False
    step: Step | None = None
    _scene: Scene = field(init=False, repr=False)
    _machines: list[Machine] = field(init=False, repr=False)
    _calls: Calls = field(init=False, repr=False)
    _network: SimulatedNetwork = field(init=False, repr=False)

    def run(self) -> None:
        """Raise AssertionError if anything is lost, partial, doubled, refused, or not finished."""
        loop = LivesLoop()
        asyncio.set_event_loop(loop)
        try:
            scene = self._scene = Scene(self.seed, loop)
            self._calls = Calls(scene)
            self._network = SimulatedNetwork(scene, CALM)
            self._machines = [
                Machine(number, scene, self._make, self._ended, interleaves=False) for number in (1, 2, 3)
            ]
            for machine in self._machines:
                # Nobody compares its journal with a model.
                machine.disk.on_writing = machine.disk.on_durable = lambda *_: None
            with capture_logs():
                loop.run_until_complete(loop.create_task(self._run()))
        finally:
            with capture_logs():
                close_loop(loop)

    # --- machines ---------------------------------------------------------------------------------

    def _make(self, machine: Machine, life: Life) -> WholeProcess:
        return WholeProcess(self._scene, SWARM, self._network, machine, life)

    def _ended(self, machine: Machine, life: Life, power: bool) -> None:
        self._network.ended(machine.host, life, power=power)
        self._calls.ended(life)
        if machine.number == self.victim and not self.reached and machine.disk.die_at:
            self.reached, self.step = True, self._step()
            for other in self._machines if self.all_end else ():
                self._scene.loop.outside(0, partial(other.end, power=True))
        self._scene.loop.outside(0.5, self._start, machine)

    def _step(self) -> Step:
        others = [each for each in self._machines if each.number != self.victim]
        nodes = [machine.node for machine in others if machine.node is not None]
        states = [node.state_groups.sinks for node in nodes]
        if any(state.publications for state in states):
            replicas = [node.partition(partition) for node in nodes for partition in PARTITIONS]
            rolled = any(replica is not None and replica.publication for replica in replicas)
            return Step.ROLLED_FORWARD if rolled else Step.PUBLISHED
        if any(state.sinks for state in states):
            return Step.FINISHED
        stages = [stage for state in states for stage in state.table.stages.values()]
        if any(stage.seal is not None for stage in stages):
            return Step.SEALED
        pieces = max((len(stage.pieces) for stage in stages), default=-1)
        return {-1: Step.NOTHING, 0: Step.OPEN, 1: Step.FIRST_PIECE}.get(pieces, Step.PIECES)

    def _start(self, machine: Machine) -> None:
        self._network.turn_on(machine.host)
        machine.start()

    async def _until(self, holds: Callable[[], bool], what: str) -> None:
        for _ in range(round(LONGEST_S / 0.1)):
            if self._scene.failure is not None:
                raise self._scene.failure
            if holds():
                return
            await asyncio.sleep(0.1)
        raise AssertionError(f"not within {LONGEST_S} s: {what}")

    async def _all_ready(self) -> None:
        await self._until(lambda: all(machine.ready for machine in self._machines), "all nodes serve")

    # --- the client -------------------------------------------------------------------------------

    async def _ask(self, what: str, ask: Ask, first: int = 0) -> Any:
        """Call one node after the other until one answers."""
        for attempt in range(first, first + 60):
            machine = self._machines[attempt % 3]
            if machine.ready and machine.life is not None and not machine.life.paused:
                ended: asyncio.Future[Call] = asyncio.get_running_loop().create_future()
                call = self._calls.begin("client", machine, what, "", PATIENCE_S, ended.set_result)
                self._calls.ask(call, ask)  # type: ignore[arg-type]  # a coroutine, whatever its type
                answer = (await ended).answer
                if isinstance(answer, PixyError) and not isinstance(answer, Unavailable | DeadlineExceeded):
                    raise AssertionError(f"{what}: {answer!r}") from answer
                if not isinstance(answer, PixyError | str):
                    return answer
            await asyncio.sleep(0.3)
        raise AssertionError(f"no node answers {what}")

    async def _run(self) -> None:
        for machine in self._machines:
            self._start(machine)
        await self._all_ready()
        await self._ask("create", lambda backend: backend.create_topic("t", 2))
        for partition in PARTITIONS:
            await self._ask("append", partial(_append, partition, BEFORE))
        victim = self._machines[self.victim - 1]
        victim.disk.die_at, victim.disk.die_phase = victim.disk.operations + self.at, self.phase
        await self._write()
        await asyncio.sleep(AFTER_S)
        victim.disk.die_at = 0
        await self._settle(EXPECTED)
        await self._ask("append", partial(_append, PARTITIONS[0], BEHIND))
        for machine in self._machines:
            machine.end(power=True)
        await asyncio.sleep(1)
        await self._settle([[*EXPECTED[0], BEHIND], EXPECTED[1]])

    async def _write(self) -> None:
        pieces = [piece_of(each) for each in PIECES]
        # Out of order, and each at another node.
        for number in (2, 0, 1):
            await self._ask("stage", partial(_stage, number, pieces[number]), self.seed + number)
        await self._ask(
            "seal", lambda backend: backend.stage("s", "a", 0, [], seal_of(*pieces)), self.seed + 2
        )
        answer = await self._ask(
            "publish", lambda backend: backend.publish("s", 3, "q", ["a"]), self.seed + 1
        )
        assert answer.last_epoch == 3

    async def _settle(self, expected: list[list[bytes]]) -> None:
        await self._all_ready()
        for first in range(3):
            again = await self._ask(
                "publish again", lambda backend: backend.publish("s", 3, "q", ["a"]), first
            )
            assert again == Published(False, 3)
            await self._ask("publish anew", _is_gone, first)
        await self._until(lambda: self._contents() == [expected] * 3, f"{expected}")
        await self._until(self._is_finished, "the publication is finished")

    def _contents(self) -> list[list[list[bytes]]]:
        """Records in the log of each replica."""
        return [[_values(machine, partition) for partition in PARTITIONS] for machine in self._machines]

    def _is_finished(self) -> bool:
        nodes = [machine.node for machine in self._machines if machine.node is not None]
        return len(nodes) == 3 and not any(node.state_groups.sinks.publications for node in nodes)


def _values(machine: Machine, partition: TopicPartition) -> list[bytes]:
    replica = None if machine.node is None or not machine.ready else machine.node.partition(partition)
    if replica is None:
        return []
    assert replica.fault is None, replica.fault
    values: list[bytes] = []
    at = replica.log.begin_offset
    while at < replica.log.end_offset:
        chunk = replica.log.read_memory(at, 1 << 20) or replica.log.read(at, 1 << 20)
        values += [record.value or b"" for batch in chunk.batches for record in read_records(batch)]
        at = chunk.next_offset
    return values


async def _stage(number: int, piece: list[StagedBatches], backend: EmbeddedBackend) -> int:
    return await backend.stage("s", "a", number, piece)


async def _is_gone(backend: EmbeddedBackend) -> bool:
    with suppress(FailedPrecondition):
        await backend.publish("s", 4, "q", ["a"])
        raise AssertionError("a stage was published twice")
    return True


async def _append(partition: TopicPartition, value: bytes, backend: EmbeddedBackend) -> int:
    written: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    def done(offset: int, error: PixyError | None) -> None:
        if not written.done():
            if error is None:
                written.set_result(offset)
            else:
                written.set_exception(error)

    backend.append(partition, build_batch([NewRecord(None, value, (), 1000)]), 1, done)
    return await written


def attempt(each: Try) -> Try:
    try:
        each.run()
    except Exception as error:
        raise AssertionError(f"{each}: {error!r}") from error
    return each


@pytest.mark.slow
def test_without_a_crash_everything_is_there() -> None:
    assert not attempt(Try(0, 1, 10_000, "before", all_end=False)).reached


@pytest.mark.slow
@pytest.mark.parametrize("all_end", [False, True])
@pytest.mark.parametrize("victim", [1, 2, 3])
def test_a_publication_is_complete_and_once_when_a_node_ends(victim: int, all_end: bool) -> None:
    for at in range(victim + 3 * all_end, MOST_OPERATIONS, STRIDE):
        assert attempt(Try(at, victim, at, PHASES[at % 3], all_end)).reached


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize("all_end", [False, True])
@pytest.mark.parametrize(("victim", "phase"), [(1, "before"), (2, "middle"), (3, "after")])
def test_a_publication_is_complete_and_once_wherever_a_node_ends(
    victim: int, all_end: bool, phase: str
) -> None:
    reached, steps = 0, set()
    for at in range(1, OPERATIONS):
        each = attempt(Try(at, victim, at, phase, all_end))
        reached = max(reached, at * each.reached)
        steps.add(each.step)
        if at > reached + 5:
            break  # the client has done everything before
    assert MOST_OPERATIONS <= reached < OPERATIONS - 5, f"{reached} operations were tried"
    assert steps >= set(Step), set(Step) - steps
