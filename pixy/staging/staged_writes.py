"""Staged writes to a cluster of any kind: the interface of their users.

Its implementations are the backends. An embedded node publishes by an entry of the state group
`sinks` and one of each partition, a Kafka cluster by a transaction.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from pixy.proto.state_pb2 import PublicationPart, PublishStages, StagePart
from pixy.records import TopicPartition
from pixy.staging.stage import StageSeal
from pixy.staging.stage_client import NO_CLIENT, StageClient


class StagedBatches(NamedTuple):
    """Whole batches back to back for one partition, and the number of their records."""

    partition: TopicPartition
    batches: bytes | memoryview
    records: int


@dataclass(frozen=True, order=True, slots=True)
class Published:
    """The outcome of a publish.

    Attributes:
        published: False if the epoch was published before.
        last_epoch: the last epoch that the sink has published.
        written: the number and the bytes of the records that this call has published, by topic.
    """

    published: bool
    last_epoch: int
    written: Mapping[str, tuple[int, int]] = field(default_factory=dict, compare=False)


def sizes_by_topic(parts: Iterable[StagePart | PublicationPart]) -> dict[str, tuple[int, int]]:
    """Records and bytes of parts of a publication, by topic."""
    found: dict[str, tuple[int, int]] = {}
    for part in parts:
        records, size = found.get(part.topic, (0, 0))
        found[part.topic] = records + part.records, size + part.bytes
    return found


def publish_command(
    sink_id: str,
    epoch: int,
    query_id: str,
    stage_ids: Sequence[str],
    *,
    reset: bool,
    replaces: str,
    client: StageClient = NO_CLIENT,
) -> PublishStages:
    """The command of a publish; the arguments are those of `StagedWrites.publish`."""
    return PublishStages(
        sink_id=sink_id,
        epoch=epoch,
        query_id=query_id,
        reset_sink=reset,
        replaces_query_id=replaces,
        stage_ids=stage_ids,
        client=client.address,
    )


class StagedWrites(Protocol):
    """Accepts, publishes and discards stages.

    A sink is a writer of stages; its publications have ascending epochs.
    """

    async def stage(
        self,
        sink_id: str,
        stage_id: str,
        piece: int,
        batches: Sequence[StagedBatches],
        seal: StageSeal | None = None,
        client: StageClient = NO_CLIENT,
    ) -> int:
        """Accept a piece of a stage, seal the stage, or both. The first piece creates the stage.

        A piece is written once, however often it is sent. A sealed stage is complete and durable;
        an unsealed one is lost with this process.

        Args:
            piece: its number, from 0 on. Pieces may come in any order; the batches of a partition
                are in the order of the numbers.
            batches: validated, each partition once; empty: only `seal`.
            client: who stages.

        Returns:
            The size of the stage in bytes.

        Raises:
            UnknownPartition: there is no such partition.
            InvalidArgument: a different piece of this number was accepted before.
            FailedPrecondition: the stage is sealed or published, or `seal` does not match its
                pieces.
            ResourceExhausted: a limit on stages, or the share of the client, is reached.
            Unavailable: the disk is full.
        """

    async def publish(
        self,
        sink_id: str,
        epoch: int,
        query_id: str,
        stage_ids: Sequence[str],
        *,
        reset: bool = False,
        replaces: str = "",
        client: StageClient = NO_CLIENT,
    ) -> Published:
        """Make sealed stages visible, all or none, each exactly once; return once they are visible.

        Batches of a partition become visible in the order of the stages.

        Args:
            epoch: has no effect unless it is above the last epoch of the sink.
            query_id: the query of the sink; empty: the sink is for this one publication.
            reset: take the sink over from another query; its epochs begin anew.
            replaces: the same, if the sink belongs to this query; empty: no takeover.
            client: has a share of the sinks that a cluster remembers.

        Raises:
            FailedPrecondition: a stage is missing, unsealed or published, a topic of it is deleted,
                or the sink belongs to another query. Nothing was published.
            CorruptData: a stage or a partition is damaged.
            ResourceExhausted, Unavailable: too many sinks, or too many unfinished publications.
        """

    async def discard(self, sink_id: str, stage_ids: Sequence[str]) -> None:
        """Drop stages; published and missing ones are passed over."""
