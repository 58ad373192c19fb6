"""Calls of clients at nodes, and the history of all calls.

A client calls a backend in the process of a node, and hears of the outcome as long as that process
lives. A call whose process ends, or that takes longer than its client waits, has no known outcome:
it may take effect at any later time, or never. Begins and ends are numbered, so that it is known
which calls followed which, also at the same moment.
"""

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from enum import Enum
from functools import partial
from typing import Any

from pixy.backend import EmbeddedBackend, FetchResult, TopicDescription
from pixy.backend.embedded.group_membership import GroupMembership
from pixy.errors import (
    CorruptData,
    DeadlineExceeded,
    Internal,
    OffsetsSet,
    PixyError,
    Unavailable,
)
from tests.sim.kit.failure import require
from tests.sim.kit.lives import Life
from tests.sim.kit.scene import Scene
from tests.sim.whole.machine import Machine


class Outcome(Enum):
    """Knowledge of a call."""

    OPEN = "open"
    OK = "ok"
    FAILED = "failed"
    """It had no effect."""
    UNKNOWN = "unknown"


@dataclass(eq=False, slots=True)
class Call:
    """One call.

    Attributes:
        number: its number.
        client: who called.
        machine, life: where.
        what: kind of call.
        input: what was asked.
        begin, end: positions in the history.
        began_at, ended_at: the same in virtual time.
        outcome, answer: what came of it; the answer is a result or an error.
    """

    number: int
    client: str
    machine: Machine
    life: Life
    what: str
    input: Any
    begin: int
    began_at: float
    end: int = 0
    ended_at: float = 0.0
    outcome: Outcome = Outcome.OPEN
    answer: Any = None
    on_end: Callable[["Call"], None] = field(default=lambda _: None, repr=False)

    def __str__(self) -> str:
        return f"#{self.number} of {self.client} at node of {self.machine}: {self.what} {self.input}"


_PRINTED = (int, str, tuple, dict, type(None))

Ask = Callable[[EmbeddedBackend], Coroutine[Any, Any, Any]]
"""Asks a backend for something."""


class Calls:
    """All calls.

    Args:
        scene: see `Scene`.

    Attributes:
        all: every call, by begin.
        open: calls without an outcome.
    """

    def __init__(self, scene: Scene) -> None:
        self._scene = scene
        self._position = 0
        self.all: list[Call] = []
        self.open: dict[Call, None] = {}
        # Tasks of calls that may be cancelled.
        self._tasks: dict[Call, asyncio.Task[Any]] = {}

    @property
    def position(self) -> int:
        """Position of the next begin or end."""
        return self._position

    def begin(
        self,
        client: str,
        machine: Machine,
        what: str,
        input: Any,
        patience_s: float,
        on_end: Callable[[Call], None],
    ) -> Call:
        """Note the begin of a call.

        Args:
            patience_s: time after which the client gives up.
            on_end: called with the call when its outcome is known, or known to stay unknown.
        """
        assert machine.life is not None
        number, position = len(self.all) + 1, self._next()
        call = Call(number, client, machine, machine.life, what, input, position, self._scene.now)
        call.on_end = on_end
        self.all.append(call)
        self.open[call] = None
        self._scene.note(f"{machine.number}   asked: {call}")
        self._scene.counts[f"calls: {what}"] += 1
        self._scene.loop.outside(patience_s, self._give_up, call)
        return call

    def ask(self, call: Call, ask: Ask) -> None:
        """Carry out a call by a coroutine."""
        call.life.run(self._ask, call, ask)

    def _ask(self, call: Call, ask: Ask) -> None:
        if call.outcome is not Outcome.OPEN or call.machine.process is None:
            return
        task = asyncio.get_running_loop().create_task(ask(call.machine.process.backend))
        self._tasks[call] = task
        task.add_done_callback(partial(self._asked, call))

    def _asked(self, call: Call, task: "asyncio.Task[Any]") -> None:
        self._tasks.pop(call, None)
        if task.cancelled():
            return
        error = task.exception()
        if error is not None and not isinstance(error, PixyError):
            self._scene.fail(error)
        self.answered(call, task.result() if error is None else error)

    def answered(self, call: Call, answer: Any) -> None:
        """A call is answered, with a result or an error."""
        require(call.life.alive, f"{call}: answered by a process that has ended")
        if call.outcome is not Outcome.OPEN:
            return
        call.outcome = outcome_of(answer)
        self._end(call, answer)

    def _give_up(self, call: Call) -> None:
        if call.outcome is not Outcome.OPEN:
            return
        task = self._tasks.pop(call, None)
        if task is not None:
            call.life.run(task.cancel)
        self._lose(call, "the client has given up")

    def ended(self, life: Life) -> None:
        """A process has ended: its clients get no answers."""
        for call in [call for call in self.open if call.life is life]:
            self._tasks.pop(call, None)
            self._lose(call, "the process has ended")

    def _lose(self, call: Call, why: str) -> None:
        call.outcome = Outcome.UNKNOWN
        self._end(call, why)

    def _end(self, call: Call, answer: Any) -> None:
        call.answer, call.end, call.ended_at = answer, self._next(), self._scene.now
        del self.open[call]
        self._scene.note(f"{call.machine.number}   {call.outcome.value}: #{call.number}: {_brief(answer)}")
        self._scene.counts[f"calls {call.outcome.value}"] += 1
        # In no process: the client is elsewhere.
        self._scene.loop.outside(0, call.on_end, call)

    def _next(self) -> int:
        self._position += 1
        return self._position


def outcome_of(answer: Any) -> Outcome:
    """Effect of a call by its answer: an error leaves it open, unless it proves that
    there was none.
    """
    if not isinstance(answer, PixyError):
        return Outcome.OK
    if isinstance(answer, OffsetsSet):
        return Outcome.FAILED
    if isinstance(answer, DeadlineExceeded | Unavailable | Internal | CorruptData):
        return Outcome.UNKNOWN
    return Outcome.FAILED


def _brief(answer: Any) -> str:
    if isinstance(answer, FetchResult):
        return f"{len(answer.batches)} batches to {answer.next_offset} of {answer.high_watermark}"
    if isinstance(answer, TopicDescription):
        return f"{answer.name}, version {answer.version}, {len(answer.partitions)} partitions"
    if isinstance(answer, GroupMembership):
        return "a member"
    if isinstance(answer, list):
        return ", ".join(map(_brief, answer))
    if isinstance(answer, PixyError):
        return repr(answer)[:160]
    # Others may print their address, which is not the same in two runs.
    return str(answer)[:160] if isinstance(answer, _PRINTED) else type(answer).__name__
