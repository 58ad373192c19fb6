"""Pieces of stages are written, and the process ends at every operation on the way, killed or by a
power failure. The next one finds every piece that was taken; what it finds, another power failure
does not take away.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from random import Random

import pytest
from structlog.testing import capture_logs

from pixy.records import crc32c
from pixy.staging import PieceKey, Pieces
from tests.sim.disk import SimulatedDisk
from tests.sim.worker import SimulatedWorker
from tests.staging.pieces import new_piece
from tests.storage.logs import CLUSTER_ID

DIRECTORY = Path("/node/pieces")
WRITES = [
    [new_piece(b"a" * 3000), new_piece(b"b", raft_group=1001)],
    [new_piece(b"c" * 5000, number=1)],
    [new_piece(b"d" * 700, stage=8)],
    [new_piece(b"e", number=2)],
]
PIECES = {piece.key: piece for write in WRITES for piece in write}
PHASES = ("before", "middle", "after")
OPERATIONS = 40
"""More operations than the writes have."""

SITES = {
    "staging/piece_files.py:PieceFile.write make_directory": (5, 5, "before", False),
    "staging/piece_files.py:PieceFile._write sync": (0, 7, "before", True),
    "staging/piece_files.py:PieceFile._write sync_directory": (3, 7, "before", True),
    "staging/piece_files.py:_recover sync": (4, 4, "after", False),
    "staging/piece_files.py:recover_pieces sync_directory": (4, 4, "after", False),
}
"""Site -> a seed, operation, phase and power failure with which a piece is lost without the site.
Only hints.
"""


@dataclass
class Try:
    """One attempt.

    Attributes:
        at, phase: operation at which the first process ends.
        loses_power: the machine loses its power with it.
    """

    seed: int
    at: int
    phase: str
    loses_power: bool
    ignored: str = ""

    def run(self) -> bool:
        """Raise AssertionError if a piece is lost; True if the operation was reached."""
        disk = SimulatedDisk(Random(self.seed))
        disk.ignored = frozenset([self.ignored] if self.ignored else ())
        disk.make_directory(DIRECTORY.parent)
        taken: set[PieceKey] = set()

        async def write(pieces: Pieces) -> None:
            for some in WRITES:
                await pieces.put(some)
                taken.update(piece.key for piece in some)

        async def look(pieces: Pieces) -> None:
            found = {key for key in PIECES if pieces.has(key)}
            assert taken <= found, "a piece is lost"
            for key in found:
                batches = await pieces.read(key, 0, 1 << 20)
                assert crc32c(batches) == key.crc, "a piece is torn"
            taken.update(found)

        self._process(disk, write, self.at)
        reached = disk.ended
        if not disk.ended:
            disk.end()
        if self.loses_power:
            disk.lose_power()
        for _ in range(2):
            self._process(disk, look)
            disk.end()
            disk.lose_power()
        return reached

    def _process(
        self, disk: SimulatedDisk, live: Callable[[Pieces], Awaitable[None]], die_at: int = 0
    ) -> None:
        disk.restart()
        disk.die_at, disk.die_phase = die_at, self.phase
        faults: list[BaseException] = []

        async def run() -> None:
            worker = SimulatedWorker(disk, None)
            pieces = Pieces(disk, DIRECTORY, worker, 1 << 30, faults.append)
            begun = asyncio.create_task(pieces.recover(CLUSTER_ID))
            done, _ = await asyncio.wait([begun], timeout=0.01)
            if not done or disk.ended:
                return
            living = asyncio.create_task(_as_coroutine(live(pieces)))
            done, _ = await asyncio.wait([living], timeout=0.01)
            if done:
                living.result()
            living.cancel()

        asyncio.run(run())
        assert not faults, faults


async def _as_coroutine(awaitable: Awaitable[None]) -> None:
    await awaitable


def tries(ignored: str = "", seeds: int = 3) -> Iterator[Try]:
    for at in range(1, OPERATIONS):
        for phase in PHASES:
            yield Try(at, at, phase, False, ignored)
            for seed in range(seeds):
                yield Try(seed, at, phase, True, ignored)


@pytest.mark.slow
def test_no_piece_that_was_taken_is_lost_wherever_the_process_ends() -> None:
    reached = 0
    with capture_logs():
        for each in tries():
            try:
                if each.run():
                    reached = each.at
            except Exception as error:
                raise AssertionError(f"{each}: {error!r}") from error
            if each.at > reached + 1:
                break
    assert 10 < reached < OPERATIONS - 2, f"{reached} operations were tried"


@pytest.mark.parametrize("site", SITES)
def test_without_any_of_its_syncs_one_is(site: str) -> None:
    with capture_logs():
        for each in (Try(*SITES[site], site), *tries(site, seeds=30)):
            try:
                each.run()
            except AssertionError:
                return
    pytest.fail(f"no crash shows that {site} is missing")
