"""Requests for offsets of consumer groups, as GetOffsets answers them: no node shows a committed
offset beyond the end that it shows beside it, also not one that has just started again.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from pixy.backend import EmbeddedBackend
from tests.sim.kit.failure import require
from tests.sim.kit.lives import Life
from tests.sim.kit.scene import Scene
from tests.sim.whole.audits import Audits
from tests.sim.whole.calls import Call, Calls, Outcome
from tests.sim.whole.machine import Machine
from tests.sim.whole.swarm import Consuming

_PATIENCE_S = 5.0
_CLIENT = "s"
SHOWN, SHOWN_FIRST = "offsets shown", "offsets shown by a node that has just started"


class ShownOffsets:
    """Asks one node after the other, and each process as soon as it is ready.

    Args:
        scene: see `Scene`.
        calls: see `Calls`.
        audits: knows the topics.
        habits: consumer groups, of which nobody sets an offset beyond an end, and how often to ask.
        serving: machines whose node takes calls.
    """

    def __init__(
        self,
        scene: Scene,
        calls: Calls,
        audits: Audits,
        habits: Consuming,
        serving: Callable[[], Sequence[Machine]],
    ) -> None:
        self._scene = scene
        self._calls = calls
        self._audits = audits
        self._habits = habits
        self._serving = serving
        self._rng = scene.random("shown offsets")
        # Processes that have been asked.
        self._asked: set[Life] = set()

    def start(self) -> None:
        """Begin to ask."""
        if self._habits.shows_s and self._habits.clients:
            self._later()

    def _later(self) -> None:
        self._scene.loop.outside(self._rng.expovariate(1 / self._habits.shows_s), self._next)

    def _next(self) -> None:
        serving = self._serving()
        topics = [topic for topic in self._habits.topics if topic in self._audits.topics_seen]
        started = [machine for machine in serving if machine.life not in self._asked]
        # Once everything is repaired only those that have started again: all calls must end.
        machines = started or ([] if self._scene.healed else serving)
        if machines and topics:
            machine = self._rng.choice(machines)
            assert machine.life is not None
            self._asked.add(machine.life)
            group, topic = self._rng.choice(self._habits.groups), self._rng.choice(topics)
            self._ask(machine, group, topic, SHOWN_FIRST if started else SHOWN)
        self._later()

    def _ask(self, machine: Machine, group: str, topic: str, what: str) -> None:
        judge = partial(self._shown, group, topic, what)
        call = self._calls.begin(_CLIENT, machine, "shown offsets", (group, topic), _PATIENCE_S, judge)

        async def ask(_: EmbeddedBackend) -> Any:
            assert machine.process is not None
            return await machine.process.proxy.get_offsets(group, topic)

        self._calls.ask(call, ask)

    def _shown(self, group: str, topic: str, what: str, call: Call) -> None:
        if call.outcome is not Outcome.OK:
            return
        for each in call.answer:
            self._scene.counts[what] += each.offset >= 0
            require(
                each.offset <= each.end,
                f"{call}: {group} has committed {each.offset} of {topic}-{each.partition}, which ends at {each.end}",
            )
