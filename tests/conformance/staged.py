"""Stages for tests: pieces, and matching seals."""

from collections.abc import Mapping, Sequence

from pixy.backend import Backend, Published, StagedBatches, StageSeal, TopicPartition
from pixy.records import NewRecord, build_batch, crc32c, read_header


def piece_of(
    values: Mapping[TopicPartition, Sequence[bytes]], timestamp_ms: int = 1000
) -> list[StagedBatches]:
    """A piece with a batch of these values per partition."""
    return [
        StagedBatches(partition, bytes(batch), read_header(batch).records)
        for partition, each in values.items()
        for batch in [build_batch([NewRecord(b"key", value, [], timestamp_ms) for value in each])]
    ]


def seal_of(*pieces: Sequence[StagedBatches]) -> StageSeal:
    """The seal of a stage of these pieces."""
    crcs = [crc32c(b"".join(each.batches for each in piece)) for piece in pieces]
    return StageSeal(len(pieces), crc32c(b"".join(crc.to_bytes(4, "big") for crc in crcs)))


async def stage_values(
    backend: Backend, sink: str, stage: str, *pieces: Mapping[TopicPartition, Sequence[bytes]]
) -> None:
    """Stage pieces with these values, and seal them with the last one."""
    made = [piece_of(each) for each in pieces]
    for number, piece in enumerate(made):
        seal = seal_of(*made) if number == len(made) - 1 else None
        await backend.stage(sink, stage, number, piece, seal)


async def publish_values(
    backend: Backend, epoch: int, values: Mapping[TopicPartition, Sequence[bytes]], sink: str = "sink"
) -> Published:
    """Stage one piece and publish it."""
    await stage_values(backend, sink, f"stage-{epoch}", values)
    return await backend.publish(sink, epoch, "query", [f"stage-{epoch}"])
