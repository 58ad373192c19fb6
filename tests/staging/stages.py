"""Sealed stages for tests."""

from pathlib import Path

from pixy.proto.state_pb2 import StageRecord
from pixy.records import NewRecord, build_batch, crc32c
from pixy.staging import PieceBatches
from pixy.staging.stage_files import StageFiles
from pixy.storage import Disk, run_steps
from tests.storage.logs import CLUSTER_ID

TOPIC_ID = bytes(range(16))


def batches_of(*values: bytes, records: int = 1) -> bytes:
    """A batch for each value, with that many records."""
    return b"".join(build_batch([NewRecord(None, value, (), 1000)] * records) for value in values)


def piece_of(*values: bytes, partition: int = 0) -> PieceBatches:
    """A batch for each value."""
    return PieceBatches("topic", TOPIC_ID, partition, batches_of(*values), len(values))


def seal_stage(
    disk: Disk, directory: Path, number: int, *pieces: PieceBatches, sink: str = "sink", stage: str = ""
) -> StageRecord:
    """A sealed stage of these pieces, each of one partition."""
    files = StageFiles(disk, directory, number)
    for at, piece in enumerate(pieces):
        run_steps(files.write(at, [piece]))
    crcs = [crc32c(piece.batches) for piece in pieces]
    record: StageRecord = run_steps(files.seal(CLUSTER_ID, sink, stage or f"stage-{number}", crcs))
    return record
