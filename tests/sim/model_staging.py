"""Model of staged writes: a sealed stage stays until it is published, and a publication happens
completely and once, or not at all.

The position of its records in a partition is known once they are proposed: they have the order of
the proposals.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from pixy.cluster.state.publications import SinksState
from pixy.proto.state_pb2 import PublishParts
from tests.fakes.clock import FakeClock
from tests.sim.model_offsets import PartitionId
from tests.sim.model_partition import PartitionModel, Sent


class StagedBatch(NamedTuple):
    """One batch of a piece."""

    records: Sequence[Sent]
    size: int


Piece = Mapping[PartitionId, Sequence[StagedBatch]]


@dataclass(eq=False, slots=True)
class StageModel:
    """One stage.

    Attributes:
        pieces: pieces sent, by number.
        sealed: True if its seal was answered, or it was found sealed.
        sealing: True if its seal was sent.
        gone: True if it was discarded or its seal failed, or if either was requested.
        attempts: publications that included it.
        passed_ms: time at which its sink first published without it in this life; None if it has
            not.
    """

    stage_id: str
    pieces: dict[int, Piece] = field(default_factory=dict)
    sealed: bool = False
    sealing: bool = False
    gone: bool = False
    attempts: list["Attempt"] = field(default_factory=list)
    passed_ms: int | None = None

    @property
    def published(self) -> bool:
        return any(attempt.committed for attempt in self.attempts)

    def parts(self) -> dict[PartitionId, list[StagedBatch]]:
        """Batches by partition, in the order of the pieces."""
        parts: dict[PartitionId, list[StagedBatch]] = {}
        for _, piece in sorted(self.pieces.items()):
            for partition, batches in piece.items():
                parts.setdefault(partition, []).extend(batches)
        return parts


@dataclass(eq=False, slots=True)
class Attempt:
    """One requested publication.

    Attributes:
        committed: True if it is known to be committed.
    """

    query_id: str
    epoch: int
    stages: Sequence[StageModel]
    committed: bool = False

    def parts(self) -> dict[PartitionId, list[StagedBatch]]:
        """Batches by partition, in the order of the stages."""
        parts: dict[PartitionId, list[StagedBatch]] = {}
        for stage in self.stages:
            for partition, batches in stage.parts().items():
                parts.setdefault(partition, []).extend(batches)
        return parts


@dataclass(eq=False, slots=True)
class SinkModel:
    """One sink.

    Attributes:
        last: the last committed publication.
        under_way: the publication in flight.
        active_ms: time of its last activity in this life, or the start of the life.
        idle_ms: its longest idle time.
    """

    stages: dict[str, StageModel] = field(default_factory=dict)
    last: Attempt | None = None
    under_way: Attempt | None = None
    active_ms: int = 0
    idle_ms: int = 0


class StagingModel:
    """All sinks.

    Args:
        clock: the simulated clock.
    """

    def __init__(self, clock: FakeClock) -> None:
        self._clock = clock
        self._expiry_ms = 0
        self._stages = 0
        self.sinks: dict[str, SinkModel] = {}
        self.attempts: list[Attempt] = []

    # --- requests ---------------------------------------------------------------------------------

    def begin_life(self, expiry_ms: int) -> None:
        """Begin a process with this expiry of stages. Unsealed ones are dropped with the previous
        process.
        """
        for sink in self.sinks.values():
            for stage in sink.stages.values():
                stage.gone = stage.gone or self.may_have_expired(sink, stage)
                stage.passed_ms = None
        self._expiry_ms = expiry_ms
        for sink in self.sinks.values():
            sink.active_ms, sink.idle_ms = self._clock.true_ms(), 0
            sink.stages = {name: stage for name, stage in sink.stages.items() if stage.sealing}

    def sink(self, sink_id: str) -> SinkModel:
        """The model of a sink; records activity."""
        now_ms = self._clock.true_ms()
        sink = self.sinks.setdefault(sink_id, SinkModel(active_ms=now_ms))
        sink.idle_ms = max(sink.idle_ms, now_ms - sink.active_ms)
        sink.active_ms = now_ms
        return sink

    def may_have_expired(self, sink: SinkModel, stage: StageModel) -> bool:
        """True if a stage may be gone because its sink was idle or published without it."""
        now_ms = self._clock.true_ms()
        waited_ms = 0 if stage.passed_ms is None else now_ms - stage.passed_ms
        return max(sink.idle_ms, now_ms - sink.active_ms, waited_ms) >= self._expiry_ms - 10

    def new_stage(self, sink: SinkModel) -> StageModel:
        """A new stage with a unique name."""
        self._stages += 1
        stage = StageModel(f"stage-{self._stages}")
        sink.stages[stage.stage_id] = stage
        return stage

    def attempt(self, sink: SinkModel, attempt: Attempt) -> None:
        """Record a requested publication."""
        sink.under_way = attempt
        self.attempts.append(attempt)
        for stage in attempt.stages:
            stage.attempts.append(attempt)

    def answered(self, sink: SinkModel, attempt: Attempt) -> None:
        """Record any answer of a publication."""
        if sink.under_way is attempt:
            sink.under_way = None

    def commit(self, sink: SinkModel, attempt: Attempt) -> None:
        """Record a committed publication."""
        attempt.committed = True
        sink.last = attempt
        for stage in attempt.stages:
            sink.stages.pop(stage.stage_id, None)
        for stage in sink.stages.values():
            if stage.passed_ms is None:
                stage.passed_ms = self._clock.true_ms()

    # --- checks -----------------------------------------------------------------------------------

    def adopt(self, state: SinksState) -> None:
        """Adopt the sinks after a start; raise AssertionError if they are impossible."""
        for sink_id, found in state.sinks.items():
            sink = self.sinks[sink_id]
            shown = (found.query_id, found.last_epoch)
            under_way = sink.under_way
            if under_way is not None and shown == (under_way.query_id, under_way.epoch):
                self.commit(sink, under_way)
            expected = None if sink.last is None else (sink.last.query_id, sink.last.epoch)
            assert shown == expected, f"sink {sink_id} has published {shown}, and was to have {expected}"
        for sink_id, sink in self.sinks.items():
            sink.under_way = None
            assert sink.last is None or sink_id in state.sinks, f"sink {sink_id} is forgotten"

    def proposed(
        self, partition: PartitionId, of: PartitionModel, command: PublishParts, now_ms: int
    ) -> list[int]:
        """Record the proposal of a publication's batches to a partition; returns their numbers.

        Raises:
            AssertionError: the publication is not committed, or the partition has it already.
        """
        stage_ids = [part.stage_id for part in command.parts]
        stages = {each.stage_id: each for attempt in self.attempts for each in attempt.stages}
        attempt = next(
            attempt
            for attempt in reversed(stages[stage_ids[0]].attempts)
            if attempt.committed or attempt is self.sinks[command.sink_id].under_way
        )
        if not attempt.committed:
            self.commit(self.sinks[command.sink_id], attempt)
        assert not of.tagged(attempt), f"{command} is proposed again"
        batches = attempt.parts()[partition]
        assert sum(batch.size for batch in batches) == sum(part.bytes for part in command.parts)
        assert sum(len(batch.records) for batch in batches) == sum(part.records for part in command.parts)
        return of.send_together(batches, now_ms, attempt)

    def check(self, partitions: Mapping[PartitionId, PartitionModel]) -> None:
        """Raise AssertionError if a publication is partial, repeated, or not committed.

        Args:
            partitions: existing partitions whose records are known.
        """
        for attempt in self.attempts:
            for partition, batches in attempt.parts().items():
                if partition in partitions:
                    found = partitions[partition].tagged(attempt)
                    expected = len(batches) if attempt.committed else 0
                    assert found == expected, (
                        f"{partition} has {found} of {expected} batches of epoch {attempt.epoch}"
                    )
