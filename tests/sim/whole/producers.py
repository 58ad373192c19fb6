"""Idempotent producers: each numbers its batches for one partition, has up to five of them under
way, and sends each again until it is answered, at one node after the other, as Kafka's clients do.

So each batch is written once, and in order, whoever leads and whatever was lost. Now and then a
producer sends a batch again that was answered: the answer was lost on its way, and it gets the same
one.
"""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import count

from pixy.backend import EmbeddedBackend
from pixy.errors import DuplicateSequence, InvalidProducerEpoch, OutOfOrderSequence, PixyError
from pixy.records import NewRecord, TopicPartition, build_batch, patch_producer
from tests.sim.kit.failure import require
from tests.sim.kit.scene import Scene
from tests.sim.whole.audits import Audits
from tests.sim.whole.calls import Call, Calls, Outcome
from tests.sim.whole.log_audit import Send
from tests.sim.whole.machine import Machine
from tests.sim.whole.swarm import Producing

_IN_FLIGHT = 5
"""Batches of a producer from the oldest unanswered one on, at most: as of Kafka's clients."""
_NEW_EPOCH, _NEW_ID = 0.02, 0.02
"""Probabilities that a producer whose batches are all answered begins anew."""


@dataclass(eq=False, slots=True)
class _Batch:
    """A batch of a producer.

    Attributes:
        number: position among those of its epoch.
        sequence: of its first record.
        calls: calls with it that are open.
        offset: of its first record, -1 while it is not answered.
    """

    epoch: int
    number: int
    sequence: int
    send: Send
    calls: int = 0
    offset: int = -1


@dataclass(slots=True)
class _Producer:
    """One producer.

    Attributes:
        id: its producer id, -1 for none yet.
        unanswered: its batches that are not answered, oldest first.
        last: its last batches.
    """

    name: str
    partition: TopicPartition | None = None
    id: int = -1
    epoch: int = 0
    sequence: int = 0
    batches: int = 0
    machine: Machine | None = None
    asks: bool = False
    unanswered: list[_Batch] = field(default_factory=list)
    last: deque[_Batch] = field(default_factory=lambda: deque(maxlen=_IN_FLIGHT))


class Producers:
    """All producers.

    Args:
        scene: see `Scene`.
        calls: see `Calls`.
        audits: judges of what was written.
        habits: what they do.
        topics: what they write to; topics that are never deleted.
        serving: machines whose node takes calls.
    """

    def __init__(
        self,
        scene: Scene,
        calls: Calls,
        audits: Audits,
        habits: Producing,
        topics: Sequence[str],
        serving: Callable[[], Sequence[Machine]],
    ) -> None:
        self._scene = scene
        self._calls = calls
        self._audits = audits
        self._habits = habits
        self._topics = topics
        self._serving = serving
        self._rng = scene.random("producers")
        self._names = count(1)
        self._producers = [_Producer(f"p{number}") for number in range(habits.producers)]
        self._ids: set[int] = set()
        self._drains = False
        self._is_stuck: Callable[[], bool] = lambda: False

    def start(self) -> None:
        """Begin to write."""
        for producer in self._producers:
            self._later(producer)

    def drain(self, serving: Callable[[], Sequence[Machine]], is_stuck: Callable[[], bool]) -> None:
        """From here on, only finish what was begun; arguments are those of `Sinks.drain`."""
        self._drains, self._serving, self._is_stuck = True, serving, is_stuck

    def unfinished(self) -> Sequence[str]:
        """Names of the producers with batches that are not answered."""
        return [producer.name for producer in self._producers if producer.unanswered]

    # --- steps ------------------------------------------------------------------------------------

    def _later(self, producer: _Producer) -> None:
        delay = self._rng.expovariate(1 / self._habits.think_s)
        self._scene.loop.outside(delay, self._next, producer)

    def _next(self, producer: _Producer) -> None:
        if self._drains and not producer.unanswered:
            return
        self._later(producer)
        machine = None if self._drains and self._is_stuck() else self._node_of(producer)
        if machine is None or not self._is_ready(producer, machine):
            return
        batch = self._batch_to_send(producer)
        if batch is not None:
            self._send(producer, machine, batch)

    def _node_of(self, producer: _Producer) -> Machine | None:
        serving = self._serving()
        if producer.machine not in serving or self._rng.random() < self._habits.moves:
            producer.machine = self._rng.choice(serving) if serving else None
        return producer.machine

    def _is_ready(self, producer: _Producer, machine: Machine) -> bool:
        """True if a producer has an id and a partition; it asks for the former."""
        rng = self._rng
        if not producer.unanswered and producer.id >= 0:
            if rng.random() < _NEW_EPOCH:
                self._begin_epoch(producer, producer.epoch + 1)
            elif rng.random() < _NEW_ID:
                producer.id = -1
        if producer.id < 0:
            self._ask_id(producer, machine)
            return False
        if producer.partition is None:
            seen = self._audits.topics_seen
            known = [TopicPartition(name, at) for name in self._topics for at in range(seen.get(name, 0))]
            producer.partition = rng.choice(known) if known else None
        return producer.partition is not None

    def _begin_epoch(self, producer: _Producer, epoch: int) -> None:
        producer.epoch, producer.sequence, producer.batches = epoch, 0, 0
        producer.last.clear()

    def _ask_id(self, producer: _Producer, machine: Machine) -> None:
        if producer.asks:
            return
        producer.asks = True

        def ended(call: Call) -> None:
            producer.asks = False
            if call.outcome is Outcome.OK:
                require(call.answer not in self._ids, f"{call}: producer id {call.answer} is given twice")
                self._ids.add(call.answer)
                producer.id, producer.partition = call.answer, None
                self._begin_epoch(producer, 0)

        async def ask(backend: EmbeddedBackend) -> int:
            return await backend.new_producer_id()

        patience_s = self._rng.choice(self._habits.patience_s)
        call = self._calls.begin(producer.name, machine, "new producer id", "", patience_s, ended)
        self._calls.ask(call, ask)

    def _batch_to_send(self, producer: _Producer) -> _Batch | None:
        rng = self._rng
        if producer.last and rng.random() < self._habits.again:
            return rng.choice(producer.last)
        unanswered = producer.unanswered
        for batch in unanswered:
            if not batch.calls:
                return batch
        is_full = bool(unanswered) and producer.batches - unanswered[0].number >= _IN_FLIGHT
        if self._drains or is_full:
            return None
        return self._new_batch(producer)

    def _new_batch(self, producer: _Producer) -> _Batch:
        name = producer.name.encode()
        values = tuple(b"%s-%d" % (name, next(self._names)) for _ in range(self._rng.choice((1, 1, 2, 4))))
        process = (producer.name, producer.id, producer.epoch)
        send = Send(values, self._calls.position, process)
        batch = _Batch(producer.epoch, producer.batches, producer.sequence, send)
        producer.sequence += len(values)
        producer.batches += 1
        assert producer.partition is not None
        self._audits.sent_to(producer.partition).add(send)
        producer.unanswered.append(batch)
        producer.last.append(batch)
        return batch

    def _send(self, producer: _Producer, machine: Machine, batch: _Batch) -> None:
        batch.calls += 1
        before = [each for each in producer.unanswered if each.number < batch.number]
        ended = partial(self._ended, producer, batch, batch.offset >= 0 or not before)
        what = (producer.partition, producer.id, producer.epoch, batch.sequence, batch.send.values)
        patience_s = self._rng.choice(self._habits.patience_s)
        call = self._calls.begin(producer.name, machine, "produce", what, patience_s, ended)
        filling = b" " * self._rng.choice((1, 20, 600))
        call.life.run(self._append, call, producer, batch, filling)

    def _append(self, call: Call, producer: _Producer, batch: _Batch, filling: bytes) -> None:
        """Runs in the process, which may have been paused since the call began."""
        node = call.machine.node
        if call.outcome is not Outcome.OPEN or call.machine.process is None or node is None:
            return
        wall_ms, values = node.time.wall_ms(), batch.send.values
        built = build_batch([NewRecord(None, value + filling, (), wall_ms) for value in values])
        _, producer_id, epoch, sequence, _ = call.input
        patch_producer(built, producer_id, epoch, sequence)

        def done(offset: int, error: PixyError | None) -> None:
            self._calls.answered(call, offset if error is None else error)

        assert producer.partition is not None
        try:
            call.machine.process.backend.append(call.input[0], built, len(values), done)
        except PixyError as error:
            self._calls.answered(call, error)

    # --- answers ----------------------------------------------------------------------------------

    def _ended(self, producer: _Producer, batch: _Batch, is_due: bool, call: Call) -> None:
        """A call has ended.

        Args:
            is_due: everything before the batch, or itself, was answered when the call began.
        """
        batch.calls -= 1
        if call.outcome is Outcome.OK:
            self._answered(producer, batch, call)
        elif isinstance(call.answer, InvalidProducerEpoch):
            require(batch not in producer.unanswered, f"{call}: no later epoch was begun: {call.answer}")
        elif isinstance(call.answer, DuplicateSequence):
            require(batch not in producer.last, f"{call}: it is one of the last five: {call.answer}")
        elif isinstance(call.answer, OutOfOrderSequence):
            self._scene.counts["batches out of order"] += 1
            require(not is_due, f"{call}: everything before it was answered: {call.answer}")

    def _answered(self, producer: _Producer, batch: _Batch, call: Call) -> None:
        if batch.offset >= 0:
            require(call.answer == batch.offset, f"{call}: answered {batch.offset}, and now {call.answer}")
            self._scene.counts["batches answered again"] += 1
            return
        batch.offset = call.answer
        if batch in producer.unanswered:
            producer.unanswered.remove(batch)
        self._scene.counts["batches of producers"] += 1
        audit = self._audits.log(call.input[0])
        if audit is not None:
            audit.answered(batch.send, call.answer, call.end)
