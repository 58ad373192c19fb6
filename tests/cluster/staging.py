"""Stages on a test's node, and the outcome of publications."""

from pixy.proto.state_pb2 import PublishStages
from pixy.records import NewRecord, build_batch, crc32c
from pixy.staging import PieceBatches, Published, StageCall, StageName, StageSeal
from tests.cluster.nodes import Cluster, copy_of


def piece_of(
    cluster: Cluster, *values: bytes, topic: str = "topic", partition: int = 0
) -> list[PieceBatches]:
    """A piece with one batch per value."""
    batches = [build_batch([NewRecord(None, value, (), cluster.clock.wall_ms())]) for value in values]
    topic_id = cluster.node.metadata.topics[topic].topic_id
    return [PieceBatches(topic, topic_id, partition, b"".join(batches), len(values))]


def seal_of(*pieces: list[PieceBatches]) -> tuple[int, int]:
    crcs = [crc32c(b"".join(each.batches for each in piece)) for piece in pieces]
    return len(pieces), crc32c(b"".join(crc.to_bytes(4, "big") for crc in crcs))


async def stage(cluster: Cluster, stage_id: str, *pieces: list[PieceBatches], sink: str = "sink") -> None:
    for number, piece in enumerate(pieces):
        await cluster.node.publisher.stage(StageCall(StageName(sink, stage_id), number, piece))
    await cluster.node.publisher.stage(
        StageCall(StageName(sink, stage_id), 0, [], StageSeal(*seal_of(*pieces)))
    )


async def publish(
    cluster: Cluster, epoch: int, *stage_ids: str, sink: str = "sink", query: str = "query"
) -> Published:
    command = PublishStages(sink_id=sink, epoch=epoch, query_id=query, stage_ids=stage_ids)
    return await cluster.node.publisher.publish(command)


def staged(cluster: Cluster) -> list[str]:
    directory = cluster.directory / "staging"
    return sorted(path.name for path in directory.iterdir()) if directory.exists() else []


def publications(cluster: Cluster) -> list[int]:
    return list(cluster.node.publisher._state.publications)


async def finished(cluster: Cluster) -> None:
    """True when all publications are finished."""
    for _ in range(50):
        if not publications(cluster):
            return
        await cluster.sync()
    raise AssertionError(f"not finished: {publications(cluster)}")


def start(cluster: Cluster, name: str = "killed") -> Cluster:
    """A node on the directory of a killed process."""
    return Cluster(copy_of(cluster.directory, name))
