"""One stage, as a node knows it: its pieces, and its contents once it is sealed."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from pixy.errors import CorruptData
from pixy.proto.state_pb2 import StagePart, StageRecord
from pixy.staging.epochs import StageName
from pixy.staging.fair_queue import Lane
from pixy.staging.stage_client import NO_CLIENT, StageClient
from pixy.staging.stage_files import PieceBatches, StageFiles
from pixy.staging.stage_jobs import StageJob


class StageSeal(NamedTuple):
    """The contents of a sealed stage.

    Attributes:
        pieces: the number of its pieces.
        crc: CRC-32C over their checksums, 4 bytes each, big-endian, by number.
    """

    pieces: int
    crc: int


class StageCall(NamedTuple):
    """A piece for a stage, or its seal, or both; see `StagedWrites.stage`."""

    name: StageName
    piece: int
    batches: Sequence[PieceBatches]
    seal: StageSeal | None = None
    client: StageClient = NO_CLIENT


@dataclass(eq=False, slots=True)
class Piece:
    """A piece of a stage; `writing` is None once it is written."""

    crc: int
    size: int
    writing: StageJob | None


@dataclass(eq=False, slots=True)
class Stage:
    """One stage.

    Attributes:
        number: number of its directory.
        lane: the place of its file work in the queue: that of its first client.
        size: bytes of all its pieces.
        bytes_of: bytes by address of the client, as far as it is known.
        extents: its extents in memory, see `stages.EXTENTS_MAX`.
        topic_ids: topics that it has records of.
        record: its contents, once it is sealed.
        parts: the parts of `record` by topic id and partition.
        fault: damage of its files, None if none is known.
        holders: number of publications that work on it.
    """

    name: StageName
    number: int
    lane: Lane
    files: StageFiles
    size: int = 0
    bytes_of: Counter[str] = field(default_factory=Counter)
    extents: int = 0
    pieces: dict[int, Piece] = field(default_factory=dict)
    topic_ids: set[bytes] = field(default_factory=set)
    record: StageRecord | None = None
    parts: dict[tuple[bytes, int], StagePart] = field(default_factory=dict)
    fault: CorruptData | None = None
    holders: int = 0
    seal: StageSeal | None = None
    sealing: StageJob | None = None

    @property
    def is_empty(self) -> bool:
        """True if nothing of it is anywhere: every piece was dropped before its write."""
        return not (self.pieces or self.seal or self.files.made)

    def sealed(self, record: StageRecord) -> None:
        """Set its contents: no more pieces will follow."""
        self.record = record
        self.parts = {(part.topic_id, part.partition): part for part in record.parts}


def merged_parts(stages: Iterable[Stage]) -> Mapping[tuple[bytes, int], StagePart]:
    """Parts of several sealed stages, merged by topic id and partition."""
    merged: dict[tuple[bytes, int], list[StagePart]] = {}
    for stage in stages:
        for key, part in stage.parts.items():
            parts = merged.get(key)
            if parts is None:
                merged[key] = [part]
            else:
                parts.append(part)
    return {
        key: StagePart(
            topic=parts[0].topic,
            topic_id=parts[0].topic_id,
            partition=parts[0].partition,
            bytes=sum(part.bytes for part in parts),
            records=sum(part.records for part in parts),
        )
        for key, parts in merged.items()
    }
