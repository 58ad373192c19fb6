"""Staged writes of the in-memory cluster: a minimal implementation of the `Backend` protocol's
promises.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from pixy.backend import Published, StagedBatches, StageSeal, TopicDescription, TopicPartition
from pixy.errors import FailedPrecondition, InvalidArgument
from pixy.records import batch_bytes, crc32c
from tests.fakes.partition_log import FakeLog


@dataclass(slots=True)
class _Stage:
    pieces: dict[int, Sequence[StagedBatches]] = field(default_factory=dict)
    crcs: dict[int, int] = field(default_factory=dict)
    # Id of each topic it has records for.
    topic_ids: dict[str, bytes] = field(default_factory=dict)
    seal: StageSeal | None = None


class FakeStaging:
    """Sinks and stages.

    Args:
        topic: returns the description of a topic.
        log: returns the log of a partition.
    """

    def __init__(
        self, topic: Callable[[str], TopicDescription | None], log: Callable[[TopicPartition], FakeLog]
    ) -> None:
        self._topic = topic
        self._log = log
        self._stages: dict[tuple[str, str], _Stage] = {}
        self._sinks: dict[str, tuple[str, int]] = {}

    def stage(
        self,
        sink_id: str,
        stage_id: str,
        piece: int,
        batches: Sequence[StagedBatches],
        seal: StageSeal | None,
    ) -> int:
        if not batches and seal is not None and seal.pieces and (sink_id, stage_id) not in self._stages:
            raise FailedPrecondition(f"there is no stage {stage_id} of sink {sink_id}")
        for each in batches:
            self._log(each.partition)
        stage = self._stages.setdefault((sink_id, stage_id), _Stage())
        if batches:
            crc = crc32c(b"".join(each.batches for each in batches))
            if stage.crcs.get(piece, crc) != crc:
                raise InvalidArgument(f"piece {piece} differs")
            if piece not in stage.pieces and stage.seal is not None:
                raise FailedPrecondition(f"stage {stage_id} is sealed")
            stage.pieces[piece], stage.crcs[piece] = batches, crc
            for each in batches:
                topic = self._topic(each.partition.topic)
                assert topic is not None
                stage.topic_ids[topic.name] = topic.topic_id
        if seal is not None:
            whole = sorted(stage.pieces) == list(range(seal.pieces))
            crc = crc32c(b"".join(stage.crcs[each].to_bytes(4, "big") for each in sorted(stage.crcs)))
            if not whole or crc != seal.crc or stage.seal not in (None, seal):
                raise FailedPrecondition(f"the seal of stage {stage_id} does not fit")
            stage.seal = seal
        return sum(len(each.batches) for taken in stage.pieces.values() for each in taken)

    def publish(
        self,
        sink_id: str,
        epoch: int,
        query_id: str,
        stage_ids: Sequence[str],
        *,
        reset: bool,
        replaces: str,
    ) -> Published:
        owner, last_epoch = self._sinks.get(sink_id, (query_id, -1))
        if owner != query_id:
            if not reset and owner != replaces:
                raise FailedPrecondition(f"sink {sink_id} belongs to query {owner}")
        elif epoch <= last_epoch:
            return Published(False, last_epoch)
        stages = [self._stages.get((sink_id, stage_id)) for stage_id in stage_ids]
        for stage in stages:
            if stage is None or stage.seal is None:
                raise FailedPrecondition("a stage is not there, or not sealed")
            for name, topic_id in stage.topic_ids.items():
                topic = self._topic(name)
                if topic is None or topic.topic_id != topic_id:
                    raise FailedPrecondition(f"topic {name} was deleted")
        self._sinks[sink_id] = (query_id, epoch)
        written: dict[str, tuple[int, int]] = {}
        for stage in stages:
            assert stage is not None
            for _, batches in sorted(stage.pieces.items()):
                for each in batches:
                    self._append(each)
                    records, size = written.get(each.partition.topic, (0, 0))
                    written[each.partition.topic] = records + each.records, size + len(each.batches)
        self.discard(sink_id, stage_ids)
        return Published(True, epoch, written)

    def discard(self, sink_id: str, stage_ids: Sequence[str]) -> None:
        for stage_id in stage_ids:
            self._stages.pop((sink_id, stage_id), None)

    def sinks_of(self, topic_id: bytes) -> list[str]:
        return sorted(
            {sink for (sink, _), each in self._stages.items() if topic_id in each.topic_ids.values()}
        )

    def _append(self, of: StagedBatches) -> None:
        at = 0
        while at < len(of.batches):
            end = at + batch_bytes(of.batches, at)
            self._log(of.partition).append_batch(bytearray(of.batches[at:end]))
            at = end
