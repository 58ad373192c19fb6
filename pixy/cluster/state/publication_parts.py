"""The commands that bring the records of a publication to each of its partitions."""

import asyncio
from collections.abc import Mapping

import structlog

from pixy.cluster.state.publications import Publication
from pixy.proto.state_pb2 import PiecePart, PieceRecord, PublishedPart, PublishParts

log = structlog.get_logger(__name__)

_PIECES_PER_ITERATION = 2000

PartKey = tuple[bytes, int]
"""Topic id and number of a partition."""


async def part_commands(publication: Publication) -> dict[PartKey, PublishParts]:
    """The command for each partition of a publication."""
    commands = _empty_commands(publication)
    try:
        await _add_stages(publication, commands)
    except ValueError as error:
        log.error(
            "a publication has impossible numbers, and none of its records appears",
            publication=publication.number,
            sink=publication.sink_id,
            reason=str(error),
        )
        return _empty_commands(publication)
    return commands


def _empty_commands(publication: Publication) -> dict[PartKey, PublishParts]:
    return {
        (part.topic_id, part.partition): PublishParts(
            publication=publication.number, sink_id=publication.sink_id, predecessor=part.predecessor
        )
        for part in publication.parts
    }


async def _add_stages(publication: Publication, commands: Mapping[PartKey, PublishParts]) -> None:
    """Add the pieces of all stages.

    Raises:
        ValueError: numbers that no piece has.
    """
    count = 0
    for stage in publication.stages:
        parts: dict[PartKey, PublishedPart] = {}
        for encoded in stage.pieces:
            piece = PieceRecord.FromString(encoded)
            for extent in piece.parts:
                key = (extent.topic_id, extent.partition)
                part = parts.get(key)
                if part is None:
                    part = parts[key] = commands[key].parts.add()
                    part.stage_id, part.stage_number = stage.stage_id, stage.number
                _add(part, piece.number, extent)
            count += len(piece.parts)
            if count >= _PIECES_PER_ITERATION:
                count = 0
                await asyncio.sleep(0)


def _add(part: PublishedPart, number: int, extent: PiecePart) -> None:
    if not 0 <= extent.records <= extent.bytes:
        raise ValueError(f"{extent.records} records in {extent.bytes} bytes of piece {number}")
    part.bytes += extent.bytes
    part.records += extent.records
    part.pieces.append(number)
    part.piece_bytes.append(extent.bytes)
    part.piece_records.append(extent.records)
    part.piece_crcs.append(extent.crc)
