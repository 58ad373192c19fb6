"""Sinks: each stages and publishes records of one epoch after the other, at one node after the
other.

Every call is repeated unchanged until it is answered, as Spark's sink does. So nothing is ever
refused, what was published is there once, and what was only staged is never seen.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from typing import Any, NamedTuple

from pixy.backend import StagedBatches
from pixy.records import TopicPartition
from tests.conformance.staged import piece_of, seal_of
from tests.fakes.clock import EPOCH_MS
from tests.sim.kit.failure import require
from tests.sim.kit.scene import Scene
from tests.sim.whole.audits import Audits
from tests.sim.whole.calls import Ask, Call, Calls, Outcome
from tests.sim.whole.log_audit import Send
from tests.sim.whole.machine import Machine
from tests.sim.whole.swarm import Writing

_QUERY = "query"
_ABANDONED = 0.3
"""Share of the epochs with a stage that is not published."""
_DISCARDED = 0.5
"""Share of these stages that are discarded."""

Values = Mapping[TopicPartition, Sequence[bytes]]


class _Step(NamedTuple):
    """A call that is repeated until it is answered."""

    what: str
    ask: Ask
    on_begin: Callable[[], None] = lambda: None
    on_answer: Callable[[Any], None] = lambda _: None


@dataclass(slots=True)
class _Sink:
    """One sink; `steps` are those that are left of its epoch."""

    name: str
    epoch: int = 0
    machine: Machine | None = None
    steps: list[_Step] = field(default_factory=list)


class Sinks:
    """All sinks.

    Args:
        scene: see `Scene`.
        calls: see `Calls`.
        audits: judges of what was published.
        habits: what they do.
        topics: what they write to; topics that are never deleted.
        serving: machines whose node takes calls.
    """

    def __init__(
        self,
        scene: Scene,
        calls: Calls,
        audits: Audits,
        habits: Writing,
        topics: Sequence[str],
        serving: Callable[[], Sequence[Machine]],
    ) -> None:
        self._scene = scene
        self._calls = calls
        self._audits = audits
        self._habits = habits
        self._topics = topics
        self._serving = serving
        self._rng = scene.random("sinks")
        self._names = count(1)
        self._sinks = [_Sink(f"s{number}") for number in range(habits.sinks)]
        self._drains = False
        self._is_stuck: Callable[[], bool] = lambda: False

    def start(self) -> None:
        """Begin to write."""
        for sink in self._sinks:
            self._later(sink)

    def drain(self, serving: Callable[[], Sequence[Machine]], is_stuck: Callable[[], bool]) -> None:
        """From here on, only finish what was begun.

        Args:
            serving: nodes to call.
            is_stuck: true if some of it cannot be finished.
        """
        self._drains, self._serving, self._is_stuck = True, serving, is_stuck

    def unfinished(self) -> Sequence[str]:
        """Names of the sinks that have not published their epoch."""
        return [sink.name for sink in self._sinks if sink.steps]

    # --- steps ------------------------------------------------------------------------------------

    def _later(self, sink: _Sink) -> None:
        delay = self._rng.expovariate(1 / self._habits.think_s)
        self._scene.loop.outside(delay, self._next, sink)

    def _next(self, sink: _Sink) -> None:
        known = [topic for topic in self._topics if topic in self._audits.topics_seen]
        if self._drains and not sink.steps:
            return
        if not sink.steps and known:
            self._begin_epoch(sink, known)
        machine = None if self._drains and self._is_stuck() else self._node_of(sink)
        if not sink.steps or machine is None:
            self._later(sink)
            return
        step = sink.steps[0]
        step.on_begin()
        patience_s = self._rng.choice(self._habits.patience_s)
        what = f"{step.what} of epoch {sink.epoch}"
        ended = partial(self._ended, sink, step)
        call = self._calls.begin(sink.name, machine, step.what, what, patience_s, ended)
        self._calls.ask(call, step.ask)

    def _node_of(self, sink: _Sink) -> Machine | None:
        serving = self._serving()
        if sink.machine not in serving or self._rng.random() < self._habits.moves:
            sink.machine = self._rng.choice(serving) if serving else None
        return sink.machine

    def _ended(self, sink: _Sink, step: _Step, call: Call) -> None:
        require(call.outcome is not Outcome.FAILED, f"{call}: refused: {call.answer!r}")
        if call.outcome is Outcome.OK:
            step.on_answer(call.answer)
            sink.steps.pop(0)
        self._later(sink)

    # --- epochs -----------------------------------------------------------------------------------

    def _begin_epoch(self, sink: _Sink, topics: Sequence[str]) -> None:
        rng = self._rng
        sink.epoch += 1
        stage_ids = [f"{sink.epoch}-{number}" for number in range(rng.choice((1, 1, 2)))]
        abandoned = [f"{sink.epoch}-abandoned"] if rng.random() < _ABANDONED else []
        published: list[Values] = []
        for stage_id in (*stage_ids, *abandoned):
            pieces = [self._values(sink, topics) for _ in range(rng.choice((1, 1, 2)))]
            sink.steps += self._stage(sink, stage_id, pieces)
            if stage_id not in abandoned:
                published += pieces
        sink.steps.append(self._publish(sink, stage_ids, published))
        if abandoned and rng.random() < _DISCARDED:
            sink.steps.append(_Step("discard", lambda backend: backend.discard(sink.name, abandoned)))

    def _values(self, sink: _Sink, topics: Sequence[str]) -> Values:
        """The records of a piece."""
        rng = self._rng
        partitions = [
            TopicPartition(topic, number)
            for topic in topics
            for number in range(self._audits.topics_seen[topic])
        ]
        chosen = rng.sample(partitions, min(len(partitions), rng.choice((1, 2, 3))))
        return {
            partition: [
                b"%s-%d" % (sink.name.encode(), next(self._names)) for _ in range(rng.choice((1, 1, 4)))
            ]
            for partition in sorted(chosen)
        }

    def _stage(self, sink: _Sink, stage_id: str, pieces: Sequence[Values]) -> list[_Step]:
        """Steps that write and seal a stage, its pieces in any order."""
        rng = self._rng
        filling = b" " * rng.choice((1, 20, 600))
        now_ms = EPOCH_MS + round(1000 * self._scene.now)
        made = [
            piece_of({key: [value + filling for value in each] for key, each in piece.items()}, now_ms)
            for piece in pieces
        ]
        seal = seal_of(*made)

        def step(number: int, batches: Sequence[StagedBatches], *, sealed: bool) -> _Step:
            return _Step(
                "stage",
                lambda backend: backend.stage(sink.name, stage_id, number, batches, seal if sealed else None),
            )

        order = rng.sample(range(len(made)), len(made))
        if rng.random() < 0.5:
            return [step(number, made[number], sealed=number == order[-1]) for number in order]
        return [*(step(number, made[number], sealed=False) for number in order), step(0, (), sealed=True)]

    def _publish(self, sink: _Sink, stage_ids: Sequence[str], pieces: Sequence[Values]) -> _Step:
        epoch = sink.epoch

        def begin() -> None:
            for partition, values in _batches(pieces):
                send = Send(values, self._calls.position, sink.name)
                self._audits.sent_to(partition).add(send)

        def answered(answer: Any) -> None:
            require(answer.last_epoch == epoch, f"{sink.name} has published {epoch}: {answer}")
            self._scene.counts["publications"] += 1
            for partition, values in _batches(pieces):
                self._scene.counts["records published"] += len(values)
                audit = self._audits.log(partition)
                if audit is not None:
                    audit.published(values)

        return _Step(
            "publish",
            lambda backend: backend.publish(sink.name, epoch, _QUERY, stage_ids),
            begin,
            answered,
        )


def _batches(pieces: Sequence[Values]) -> list[tuple[TopicPartition, tuple[bytes, ...]]]:
    return [(partition, tuple(values)) for piece in pieces for partition, values in piece.items()]
