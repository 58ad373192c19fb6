"""The commands that bring the records of a publication to each of its partitions."""

from collections.abc import Iterator, Mapping

import structlog

from pixy.aio.steps import in_steps
from pixy.cluster.state.publications import Publication, StagePieces
from pixy.parsed_messages import parsed
from pixy.proto.state_pb2 import PiecePart, PieceRecord, PublishedPart, PublishParts

log = structlog.get_logger(__name__)

PartKey = tuple[bytes, int]
"""Topic id and number of a partition."""


async def part_commands(publication: Publication) -> dict[PartKey, PublishParts]:
    """The command for each partition of a publication."""
    commands = await _empty_commands(publication)
    try:
        await _add_stages(publication, commands)
    except ValueError as error:
        log.error(
            "a publication has impossible numbers, and none of its records appears",
            publication=publication.number,
            sink=publication.sink_id,
            reason=str(error),
        )
        return await _empty_commands(publication)
    return commands


async def _empty_commands(publication: Publication) -> dict[PartKey, PublishParts]:
    return {
        (part.topic_id, part.partition): PublishParts(
            publication=publication.number, sink_id=publication.sink_id, predecessor=part.predecessor
        )
        async for part in in_steps(publication.parts)
    }


async def _add_stages(publication: Publication, commands: Mapping[PartKey, PublishParts]) -> None:
    """Add the pieces of all stages.

    Raises:
        ValueError: numbers that no piece has.
    """
    parts: dict[PartKey, PublishedPart] = {}
    last: StagePieces | None = None
    async for stage, number, extent in in_steps(_extents(publication)):
        if stage is not last:
            parts, last = {}, stage
        key = (extent.topic_id, extent.partition)
        part = parts.get(key)
        if part is None:
            part = parts[key] = commands[key].parts.add()
            part.stage_id, part.stage_number = stage.stage_id, stage.number
        _add(part, number, extent)


def _extents(publication: Publication) -> Iterator[tuple[StagePieces, int, PiecePart]]:
    """The parts of all pieces, each with its stage and the number of its piece."""
    for stage in publication.stages:
        for encoded in stage.pieces:
            piece = parsed(PieceRecord, encoded)
            for extent in piece.parts:
                yield stage, piece.number, extent


def _add(part: PublishedPart, number: int, extent: PiecePart) -> None:
    if not 0 <= extent.records <= extent.bytes:
        raise ValueError(f"{extent.records} records in {extent.bytes} bytes of piece {number}")
    part.bytes += extent.bytes
    part.records += extent.records
    part.pieces.append(number)
    part.piece_bytes.append(extent.bytes)
    part.piece_records.append(extent.records)
    part.piece_crcs.append(extent.crc)
