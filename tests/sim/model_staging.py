"""What staged writes must come to: a sealed stage stays until it is published, and a publication happens whole and once, or not at all.

Where its records are in a partition is known from the moment on at which they are proposed to it: their order is that of the proposals.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from pixy.cluster.sinks import SinksState
from pixy.proto.state_pb2 import PublishParts
from tests.fakes.clock import FakeClock
from tests.sim.model_offsets import PartitionId
from tests.sim.model_partition import PartitionModel, Sent

__all__ = ["Attempt", "StageModel", "StagedBatch", "StagingModel"]


class StagedBatch(NamedTuple):
    """One batch of a piece."""

    records: Sequence[Sent]
    size: int


Piece = Mapping[PartitionId, Sequence[StagedBatch]]


@dataclass(eq=False, slots=True)
class StageModel:
    """One stage.

    Attributes:
        pieces: those that were sent, by number.
        sealed: whether its seal was answered, or it was found sealed.
        sealing: whether its seal was sent.
        gone: whether it was discarded or its seal has failed, or either was asked for.
        attempts: the publications that it was to be part of.
        passed_ms: when its sink first published without it in this life, None if it has not.
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
        """What each partition is to get, in the order of the pieces."""
        parts: dict[PartitionId, list[StagedBatch]] = {}
        for _, piece in sorted(self.pieces.items()):
            for partition, batches in piece.items():
                parts.setdefault(partition, []).extend(batches)
        return parts


@dataclass(eq=False, slots=True)
class Attempt:
    """One publication that was asked for.

    Attributes:
        committed: whether it is known to happen.
    """

    query_id: str
    epoch: int
    stages: Sequence[StageModel]
    committed: bool = False

    def parts(self) -> dict[PartitionId, list[StagedBatch]]:
        """What each partition is to get, in the order of the stages."""
        parts: dict[PartitionId, list[StagedBatch]] = {}
        for stage in self.stages:
            for partition, batches in stage.parts().items():
                parts.setdefault(partition, []).extend(batches)
        return parts


@dataclass(eq=False, slots=True)
class SinkModel:
    """One sink.

    Attributes:
        last: the last publication that happened.
        under_way: the one that was asked for and not answered.
        active_ms: when it last did anything in this life, or when that began.
        idle_ms: the longest time that it did nothing.
    """

    stages: dict[str, StageModel] = field(default_factory=dict)
    last: Attempt | None = None
    under_way: Attempt | None = None
    active_ms: int = 0
    idle_ms: int = 0


class StagingModel:
    """Every sink.

    Args:
        clock: what time it is.
    """

    def __init__(self, clock: FakeClock) -> None:
        self._clock = clock
        self._expiry_ms = 0
        self._stages = 0
        self.sinks: dict[str, SinkModel] = {}
        self.attempts: list[Attempt] = []

    # --- what is asked for --------------------------------------------------------------------------------------

    def begin_life(self, expiry_ms: int) -> None:
        """A process begins that drops stages after this time. Those that were not sealed go with the one before it."""
        for sink in self.sinks.values():
            for stage in sink.stages.values():
                stage.gone = stage.gone or self.may_have_expired(sink, stage)
                stage.passed_ms = None
        self._expiry_ms = expiry_ms
        for sink in self.sinks.values():
            sink.active_ms, sink.idle_ms = self._clock.true_ms(), 0
            sink.stages = {name: stage for name, stage in sink.stages.items() if stage.sealing}

    def sink(self, sink_id: str) -> SinkModel:
        """A sink; it does something."""
        now_ms = self._clock.true_ms()
        sink = self.sinks.setdefault(sink_id, SinkModel(active_ms=now_ms))
        sink.idle_ms = max(sink.idle_ms, now_ms - sink.active_ms)
        sink.active_ms = now_ms
        return sink

    def may_have_expired(self, sink: SinkModel, stage: StageModel) -> bool:
        """Whether a stage may be gone because its sink has done nothing, or has passed it by."""
        now_ms = self._clock.true_ms()
        waited_ms = 0 if stage.passed_ms is None else now_ms - stage.passed_ms
        return max(sink.idle_ms, now_ms - sink.active_ms, waited_ms) >= self._expiry_ms - 10

    def new_stage(self, sink: SinkModel) -> StageModel:
        """A stage of a name that no other one has."""
        self._stages += 1
        stage = StageModel(f"stage-{self._stages}")
        sink.stages[stage.stage_id] = stage
        return stage

    def attempt(self, sink: SinkModel, attempt: Attempt) -> None:
        """A publication is asked for."""
        sink.under_way = attempt
        self.attempts.append(attempt)
        for stage in attempt.stages:
            stage.attempts.append(attempt)

    def answered(self, sink: SinkModel, attempt: Attempt) -> None:
        """A publication was answered, in whatever way."""
        if sink.under_way is attempt:
            sink.under_way = None

    def commit(self, sink: SinkModel, attempt: Attempt) -> None:
        """A publication happens."""
        attempt.committed = True
        sink.last = attempt
        for stage in attempt.stages:
            sink.stages.pop(stage.stage_id, None)
        for stage in sink.stages.values():
            if stage.passed_ms is None:
                stage.passed_ms = self._clock.true_ms()

    # --- what is found ------------------------------------------------------------------------------------------

    def adopt(self, state: SinksState) -> None:
        """A start shows these sinks: raise AssertionError if it cannot; from here on it is known what has happened."""
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
        """A partition is to get what a publication has for it; returns the numbers of the batches.

        Raises:
            AssertionError: the publication has not happened, or the partition has got it already.
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
        """Raise AssertionError if a publication has happened in part, more than once, or without having been committed.

        Args:
            partitions: those that there are, and whose records are known.
        """
        for attempt in self.attempts:
            for partition, batches in attempt.parts().items():
                if partition in partitions:
                    found = partitions[partition].tagged(attempt)
                    expected = len(batches) if attempt.committed else 0
                    assert found == expected, (
                        f"{partition} has {found} of {expected} batches of epoch {attempt.epoch}"
                    )
