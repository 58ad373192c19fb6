"""Replicated stages: a table in the state machine of raft group `sinks`.

Pure and deterministic. A stage has pieces, each of them for some partitions. The bytes of a piece
are on a majority of the replicas of each of these, as entries of their raft groups say, before the
piece is added here. So a stage is what this table says, whichever nodes have taken its pieces; it
is complete and durable once it is sealed, and no node is needed for it any longer.

    open      takes pieces
    sealed    can be published
    published leaves the table: it is part of a publication (`sinks`)
    gone      discarded or expired

A stage has a number, which ascends and is never used again: a node that does not find a number
below `next_stage` here, nor in a publication, knows that the stage is gone.

Activity of sinks, and the time at which a publication has passed by a stage, are kept here, for
whoever leads the group to decide on their expiry.

Limits are part of the state machine: every replica has to refuse the same.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain, islice
from typing import NamedTuple

from pixy.cluster.state.piece_checks import why_impossible
from pixy.errors import FailedPrecondition, InvalidArgument, PixyError, ResourceExhausted
from pixy.parsed_messages import parsed
from pixy.proto.state_pb2 import (
    AddPiece,
    DiscardStages,
    ExpireStages,
    OpenStage,
    PieceRecord,
    PublicationPart,
    ReplicatedStageRecord,
    SealRecord,
    SinkActivity,
    TouchSink,
)
from pixy.staging import (
    EXTENTS_MAX,
    PIECES_MAX,
    STAGE_BYTES_MAX,
    STAGES_MAX,
    StageName,
    StageSeal,
    seal_crc,
)

TOTALS_PER_STEP = 1000
"""Totals of stages that are merged in one step of the event loop."""
RELEASED_PER_STEP = 500
"""Pieces and totals whose memory is released in one step."""

_STAGE_KEY = b"stage\0"
_PIECE_KEY = b"piece\0"
_ACTIVITY_KEY = b"activity\0"


class GoneStages(NamedTuple):
    """Numbers of stages that were discarded or have expired."""

    numbers: tuple[int, ...]


class _Piece(NamedTuple):
    crc: int
    encoded: bytes


class PartTotal(NamedTuple):
    """The records of a stage for one partition."""

    topic: str
    bytes: int
    records: int

    @property
    def is_possible(self) -> bool:
        """False for what a release has taken from a client that did not judge pieces."""
        return 0 <= self.records <= self.bytes


class ReplicatedStage:
    """One stage.

    Attributes:
        number: see the module.
        name: its sink and its id.
        pieces: by number, each as an encoded `PieceRecord` with its checksum.
        parts: totals by topic id and partition.
        size: bytes of all its pieces.
        bytes_of: the same by address of the client.
        extents: number of its pieces and of their parts.
        impossible: number of its totals that cannot be.
        seal: its seal; None while it is open.
        passed_ms: time of the first publication of its sink without it since it has grown, 0 for
            none.
    """

    __slots__ = (
        "bytes_of",
        "extents",
        "impossible",
        "name",
        "number",
        "parts",
        "passed_ms",
        "pieces",
        "seal",
        "size",
    )

    def __init__(self, number: int, name: StageName) -> None:
        self.number = number
        self.name = name
        self.pieces: dict[int, _Piece] = {}
        self.parts: dict[tuple[bytes, int], PartTotal] = {}
        self.size = 0
        self.bytes_of: Counter[str] = Counter()
        self.extents = self.impossible = 0
        self.seal: StageSeal | None = None
        self.passed_ms = 0

    def encoded_pieces(self) -> list[bytes]:
        """Its pieces by number, each an encoded `PieceRecord`."""
        return [self.pieces[number].encoded for number in sorted(self.pieces)]

    def add(self, piece: PieceRecord) -> None:
        """Add a piece."""
        self.pieces[piece.number] = _Piece(piece.crc, piece.SerializeToString())
        size = _size(piece)
        self.size += size
        if piece.client:
            self.bytes_of[piece.client] += size
        self.extents += 1 + len(piece.parts)
        for part in piece.parts:
            key = (part.topic_id, part.partition)
            known = self.parts.get(key) or PartTotal(part.topic, 0, 0)
            total = PartTotal(known.topic, known.bytes + part.bytes, known.records + part.records)
            self.impossible += known.is_possible - total.is_possible
            self.parts[key] = total


def merged_parts(stages: Iterable[ReplicatedStage]) -> list[PublicationPart]:
    """Parts of several stages, merged by partition."""
    parts: list[PublicationPart] = []
    for _ in merge_in_steps(stages, parts):
        pass
    return parts


def merge_in_steps(stages: Iterable[ReplicatedStage], parts: list[PublicationPart]) -> Iterator[None]:
    """Add the parts of several stages, merged by partition, in steps."""
    # Half a million totals: lists, which are changed in place.
    merged: dict[tuple[bytes, int], list[int]] = {}
    topics: dict[bytes, str] = {}
    totals = chain.from_iterable(stage.parts.items() for stage in stages)
    while some := list(islice(totals, TOTALS_PER_STEP)):
        for key, (topic, size, records) in some:
            total = merged.get(key)
            if total is None:
                merged[key] = [size, records]
                topics.setdefault(key[0], topic)
            else:
                total[0] += size
                total[1] += records
        yield
    sums = iter(merged.items())
    while sum_of := list(islice(sums, TOTALS_PER_STEP)):
        parts += [
            PublicationPart(
                topic=topics[topic_id], topic_id=topic_id, partition=partition, bytes=size, records=records
            )
            for (topic_id, partition), (size, records) in sum_of
        ]
        yield


class StageTable:
    """The replicated stages of a cluster.

    Attributes:
        stages: by number, ascending.
        next_stage: number of the next one. Invariant: above every number ever assigned.
        activity: time of the last activity of each sink that has stages.
        extents: of all stages.
        bytes_of: bytes of all stages by address of the client that has staged them. No decision of
            the state machine depends on it: each node has its own share.
    """

    def __init__(self) -> None:
        self.stages: dict[int, ReplicatedStage] = {}
        self.next_stage = 1
        self.activity: dict[str, int] = {}
        self.extents = 0
        self.bytes_of: Counter[str] = Counter()
        self._by_sink: dict[str, dict[str, ReplicatedStage]] = {}
        # Stages that have left the table, see `release`.
        self._left: list[ReplicatedStage] = []

    def find(self, name: StageName) -> ReplicatedStage | None:
        """A stage, None if it does not exist."""
        return self._by_sink.get(name.sink_id, {}).get(name.stage_id)

    def of_topic(self, topic_id: bytes) -> Iterator[ReplicatedStage]:
        """Stages with records of a topic."""
        return (stage for stage in self.stages.values() if any(key[0] == topic_id for key in stage.parts))

    # --- commands ---------------------------------------------------------------------------------

    def open(self, command: OpenStage) -> int | PixyError:
        """Begin a stage; returns its number."""
        name = StageName(command.sink_id, command.stage_id)
        stage = self.find(name)
        if stage is None:
            if len(self.stages) >= STAGES_MAX:
                return ResourceExhausted(f"there are {STAGES_MAX} stages, which is the limit").at_limit(
                    "stages of a cluster"
                )
            stage = ReplicatedStage(self.next_stage, name)
            self.next_stage += 1
            self._put(stage)
        self._active(name.sink_id, command.timestamp_ms)
        return stage.number

    def add_piece(self, command: AddPiece) -> int | PixyError:
        """Add a piece, seal a stage, or both; returns the size of the stage."""
        stage = self.stages.get(command.stage)
        if stage is None:
            return FailedPrecondition("the stage was published or discarded, or has expired")
        self._active(stage.name.sink_id, command.timestamp_ms)
        if command.HasField("piece"):
            refusal = self._add(stage, command.piece)
            if refusal is not None:
                return refusal
        if command.HasField("seal"):
            refusal = self._seal(stage, StageSeal(command.seal.pieces, command.seal.crc))
            if refusal is not None:
                return refusal
        return stage.size

    def _add(self, stage: ReplicatedStage, piece: PieceRecord) -> PixyError | None:
        refusal = self.judge_piece(stage, piece)
        if refusal is not None:
            return refusal
        if piece.number not in stage.pieces:
            self._grow(stage, piece)
        stage.passed_ms = 0
        return None

    def _grow(self, stage: ReplicatedStage, piece: PieceRecord) -> None:
        before = stage.extents
        stage.add(piece)
        self.extents += stage.extents - before
        if piece.client:
            self.bytes_of[piece.client] += _size(piece)

    def judge_piece(self, stage: ReplicatedStage, piece: PieceRecord) -> PixyError | None:
        """Reason why a stage cannot take a piece, None if it can or has it."""
        stage_id, number = stage.name.stage_id, piece.number
        known = stage.pieces.get(number)
        if known is not None:
            if known.crc == piece.crc:
                return None
            return InvalidArgument(
                f"piece {number} of stage {stage_id} has CRC-32C {piece.crc:#010x}, the same piece had {known.crc:#010x} "
                "before"
            )
        if stage.seal is not None:
            return FailedPrecondition(
                f"stage {stage_id} is sealed with {stage.seal.pieces} pieces, and {number} is not among them"
            )
        impossible = why_impossible(piece)
        if impossible:
            return InvalidArgument(f"piece {number} of stage {stage_id} is impossible: {impossible}")
        return self._exceeded(stage, piece)

    def _exceeded(self, stage: ReplicatedStage, piece: PieceRecord) -> ResourceExhausted | None:
        """The limit that a new piece would exceed."""
        if len(stage.pieces) >= PIECES_MAX:
            return ResourceExhausted(f"a stage may have {PIECES_MAX} pieces").at_limit("pieces of a stage")
        size = stage.size + _size(piece)
        if size > STAGE_BYTES_MAX:
            return ResourceExhausted(
                f"the stage would have {size} bytes, {STAGE_BYTES_MAX} are allowed: begin another one"
            ).at_limit("bytes of a stage")
        if self.extents + 1 + len(piece.parts) > EXTENTS_MAX:
            return ResourceExhausted(
                f"all stages together have {self.extents} pieces and parts of pieces, and {EXTENTS_MAX} are allowed: make "
                "larger pieces, of fewer partitions each, or publish or discard some stages"
            ).at_limit("parts of all stages")
        return None

    def _seal(self, stage: ReplicatedStage, seal: StageSeal) -> PixyError | None:
        stage_id = stage.name.stage_id
        if stage.seal is not None:
            if stage.seal == seal:
                return None
            return FailedPrecondition(
                f"stage {stage_id} is sealed with {stage.seal.pieces} pieces and CRC-32C {stage.seal.crc:#010x}, "
                f"not with {seal.pieces} and {seal.crc:#010x}"
            )
        missing = next((number for number in range(seal.pieces) if number not in stage.pieces), None)
        if missing is not None:
            return FailedPrecondition(
                f"stage {stage_id} must have {seal.pieces} pieces, but piece {missing} is missing: it never arrived"
            )
        if len(stage.pieces) != seal.pieces:
            return FailedPrecondition(
                f"stage {stage_id} must have {seal.pieces} pieces, but has piece {max(stage.pieces)}"
            )
        crc = seal_crc([stage.pieces[number].crc for number in range(seal.pieces)])
        if crc != seal.crc:
            return FailedPrecondition(
                f"the pieces of stage {stage_id} have CRC-32C {crc:#010x}, its seal says {seal.crc:#010x}"
            )
        stage.seal = seal
        return None

    def discard(self, command: DiscardStages) -> GoneStages:
        """Drop stages."""
        names = (StageName(command.sink_id, stage_id) for stage_id in command.stage_ids)
        end = command.next_stage or self.next_stage
        found = map(self.find, names)
        return self._drop(stage for stage in found if stage is not None and stage.number < end)

    def expire(self, command: ExpireStages) -> GoneStages:
        """Drop stages that have expired."""
        return self._drop(
            stage
            for number in command.stages
            if (stage := self.stages.get(number)) is not None and self.is_over_since(stage, command.before_ms)
        )

    def is_over_since(self, stage: ReplicatedStage, before_ms: int) -> bool:
        """True when the sink of a stage has not been active since a time, or has passed it by
        before.
        """
        return self.activity[stage.name.sink_id] < before_ms or 0 < stage.passed_ms < before_ms

    def touch(self, command: TouchSink) -> None:
        """Note activity of a sink."""
        if command.sink_id in self._by_sink:
            self._active(command.sink_id, command.timestamp_ms)

    def sealed(
        self, sink_id: str, stage_ids: Sequence[str], next_stage: int = 0
    ) -> list[ReplicatedStage] | PixyError:
        """Stages that can be published, or the reason why one cannot.

        Args:
            next_stage: those from this number on were not meant; 0: any may be.
        """
        found, end = [], next_stage or self.next_stage
        of_sink = self._by_sink.get(sink_id, {})
        for stage_id in stage_ids:
            stage = of_sink.get(stage_id)
            if stage is None:
                return FailedPrecondition(
                    f"stage {stage_id} of sink {sink_id} does not exist: it was never sealed, has expired, or was "
                    "discarded"
                )
            if stage.number >= end:
                return FailedPrecondition(
                    f"stage {stage_id} of sink {sink_id} was staged anew since it was to be published"
                )
            if stage.seal is None:
                return FailedPrecondition(f"stage {stage_id} of sink {sink_id} is not sealed")
            if stage.impossible:
                return FailedPrecondition(f"stage {stage_id} of sink {sink_id} has impossible pieces")
            found.append(stage)
        return found

    def release(self) -> Iterator[None]:
        """Release the memory of stages that have left the table, in steps."""
        items = 0
        while self._left:
            stage = self._left.pop()
            items += 1 + len(stage.parts) + len(stage.pieces)
            del stage
            if items > RELEASED_PER_STEP:
                items = 0
                yield

    def take(self, stages: Sequence[ReplicatedStage], sink_id: str, timestamp_ms: int) -> None:
        """Remove stages that are published from here on; the sink passes the others by."""
        self._drop(stages)
        for stage in self._by_sink.get(sink_id, {}).values():
            stage.passed_ms = stage.passed_ms or timestamp_ms
        self._active(sink_id, timestamp_ms)

    def _active(self, sink_id: str, timestamp_ms: int) -> None:
        if sink_id in self._by_sink:
            self.activity[sink_id] = max(timestamp_ms, self.activity.get(sink_id, 0))

    def _put(self, stage: ReplicatedStage) -> None:
        self.stages[stage.number] = stage
        self._by_sink.setdefault(stage.name.sink_id, {})[stage.name.stage_id] = stage

    def _drop(self, stages: Iterable[ReplicatedStage]) -> GoneStages:
        gone = list(dict.fromkeys(stages))
        bytes_of: Counter[str] = Counter()
        for stage in gone:
            sink_id, stage_id = stage.name
            of_sink = self._by_sink[sink_id]
            del self.stages[stage.number], of_sink[stage_id]
            self.extents -= stage.extents
            for client, size in stage.bytes_of.items():
                bytes_of[client] += size
            if not of_sink:
                del self._by_sink[sink_id], self.activity[sink_id]
        self.bytes_of -= bytes_of
        self._left += gone
        return GoneStages(tuple(stage.number for stage in gone))

    # --- checkpoints ------------------------------------------------------------------------------

    def snapshot(self) -> Iterable[tuple[bytes, bytes]]:
        """The table as checkpoint records, without `next_stage`.

        May be consumed on another thread while commands are applied.
        """
        stages = [
            (stage.number, stage.name, stage.seal, stage.passed_ms, dict(stage.pieces))
            for stage in self.stages.values()
        ]
        return _records(stages, self.activity.copy())

    def clear(self) -> None:
        """Empty the table, for `restore`."""
        self.stages, self.activity, self._by_sink = {}, {}, {}
        self.next_stage, self.extents, self.bytes_of = 1, 0, Counter()
        self._left = []

    def restore(self, key: bytes, value: bytes) -> bool:
        """Restore one checkpoint record; False if it is not of the table."""
        if key.startswith(_STAGE_KEY):
            record = parsed(ReplicatedStageRecord, value)
            stage = ReplicatedStage(record.number, StageName(record.sink_id, record.stage_id))
            stage.passed_ms = record.passed_ms
            if record.HasField("seal"):
                stage.seal = StageSeal(record.seal.pieces, record.seal.crc)
            self._put(stage)
        elif key.startswith(_PIECE_KEY):
            self._grow(self.stages[int(key.split(b"\0")[1])], parsed(PieceRecord, value))
        elif key.startswith(_ACTIVITY_KEY):
            activity = parsed(SinkActivity, value)
            self.activity[activity.sink_id] = activity.active_ms
        else:
            return False
        return True


def _size(piece: PieceRecord) -> int:
    return sum(part.bytes for part in piece.parts)


_StageFields = tuple[int, StageName, StageSeal | None, int, Mapping[int, _Piece]]


def _records(stages: Sequence[_StageFields], activity: Mapping[str, int]) -> Iterator[tuple[bytes, bytes]]:
    for number, (sink_id, stage_id), seal, passed_ms, pieces in stages:
        record = ReplicatedStageRecord(number=number, sink_id=sink_id, stage_id=stage_id, passed_ms=passed_ms)
        if seal is not None:
            record.seal.CopyFrom(SealRecord(pieces=seal.pieces, crc=seal.crc))
        yield _STAGE_KEY + b"%d" % number, record.SerializeToString()
        for piece, (_, encoded) in pieces.items():
            yield _PIECE_KEY + b"%d\0%d" % (number, piece), encoded
    for sink_id, active_ms in activity.items():
        record_of_sink = SinkActivity(sink_id=sink_id, active_ms=active_ms)
        yield _ACTIVITY_KEY + sink_id.encode(), record_of_sink.SerializeToString()
