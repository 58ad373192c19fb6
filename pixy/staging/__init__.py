"""Stages: record batches that are durable, and invisible until they are published.

    staged_writes       the interface of their users
    stage_files         the files of a stage on disk, and their recovery
    stage, stages       one stage, and all of a node: pieces, seals, limits, removal
    stage_client        the share of a client address
    piece_files, pieces the same for stages with replicas on several nodes, whose pieces are entries
                        of Raft groups
    expiry              the end of stages that nobody publishes
    sinks               names of sinks and stages, and the decision on an epoch
    publication_marks   publications whose outcome another system has

Any kind of cluster can keep its stages here. Their publication is the cluster's own:
`cluster.publisher` makes them part of the partition logs, `backend.kafka.staged_writes` sends them
in a transaction.
"""

from pixy.staging.epochs import NotNew, Sink, StageName, judge_epoch
from pixy.staging.expiry import StageExpiry
from pixy.staging.piece_files import (
    FoundUnit,
    NewPiece,
    PieceKey,
    find_units,
    is_piece_file,
    read_piece_header,
    unit_damage,
)
from pixy.staging.pieces import Pieces
from pixy.staging.publication_marks import MarkName, mark_name, read_marks, remove_mark, write_mark
from pixy.staging.stage import Stage, StageCall, StageSeal, merged_parts
from pixy.staging.stage_client import NO_CLIENT, StageClient
from pixy.staging.stage_files import STAGE_FILE, PieceBatches, find_fault, stage_directory, staged_part
from pixy.staging.staged_writes import (
    Published,
    StagedBatches,
    StagedWrites,
    publish_command,
    sizes_by_topic,
)
from pixy.staging.stages import (
    EXTENTS_MAX,
    KAFKA_CLUSTER_ID,
    PIECES_MAX,
    PUBLICATIONS_MAX,
    STAGE_BYTES_MAX,
    STAGES_MAX,
    Stages,
    seal_crc,
)

__all__ = [
    "EXTENTS_MAX",
    "KAFKA_CLUSTER_ID",
    "NO_CLIENT",
    "PIECES_MAX",
    "PUBLICATIONS_MAX",
    "STAGES_MAX",
    "STAGE_BYTES_MAX",
    "STAGE_FILE",
    "FoundUnit",
    "MarkName",
    "NewPiece",
    "NotNew",
    "PieceBatches",
    "PieceKey",
    "Pieces",
    "Published",
    "Sink",
    "Stage",
    "StageCall",
    "StageClient",
    "StageExpiry",
    "StageName",
    "StageSeal",
    "StagedBatches",
    "StagedWrites",
    "Stages",
    "find_fault",
    "find_units",
    "is_piece_file",
    "judge_epoch",
    "mark_name",
    "merged_parts",
    "publish_command",
    "read_marks",
    "read_piece_header",
    "remove_mark",
    "seal_crc",
    "sizes_by_topic",
    "stage_directory",
    "staged_part",
    "unit_damage",
    "write_mark",
]
