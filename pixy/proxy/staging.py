"""Staged writes to one cluster: validates requests and passes them to the backend.

Batches are checked in the queues of `Log`, those of small requests apart from those of large ones.
Then they are staged: `producer.buffer_bytes` of them at a time, separate from those that are
appended.
"""

import re
from collections.abc import Sequence

from pixy.aio.steps import in_steps
from pixy.backend import Published, StagedBatches, StageSeal
from pixy.client_address import client_address, share_of
from pixy.config import ProxyConfig
from pixy.errors import (
    InvalidArgument,
    PartitionNotFound,
    ShuttingDown,
    UnknownPartition,
)
from pixy.proxy.batch_check_turns import PartitionBatches
from pixy.proxy.log import Log, TopicVersion
from pixy.proxy.produced_counts import ProducedCounts
from pixy.staging import NO_CLIENT, StageClient, StagedWrites

_NAME = re.compile(r"[a-zA-Z0-9._-]{1,249}")
_PIECE_MAX = 2**31 - 1


class Staging:
    """Staged writes to one cluster; `pixy.staging.StagedWrites` explains them.

    Args:
        backend: the cluster.
        config: its section of the configuration.
        log: validates batches and versions.
        client_share_percent: part of `staging.max_bytes` that the clients of one address may have.

    Attributes:
        semaphore: bytes of the batches that are being staged.
        published: what was published.
    """

    def __init__(
        self, backend: StagedWrites, config: ProxyConfig, log: Log, client_share_percent: int = 100
    ) -> None:
        self._backend = backend
        self._log = log
        self._client_share_percent = client_share_percent
        self._client_share = share_of(config.staging.max_bytes, client_share_percent)
        self.semaphore = log.shared_bytes(config.producer.buffer_bytes)
        self.published = ProducedCounts()
        self._draining = False

    def begin_drain(self) -> None:
        """Accept no more requests."""
        self._draining = True

    async def stage(
        self,
        sink_id: str,
        stage_id: str,
        piece: int,
        partitions: Sequence[PartitionBatches],
        versions: Sequence[TopicVersion],
        seal: StageSeal | None,
        peer: str = "",
    ) -> int:
        """Accept a piece of a stage, seal the stage, or both; returns the size of the stage.

        Args:
            peer: the client, see `client_address`; "": it has no share.

        Raises:
            InvalidArgument: of the classes below it; nothing was accepted.
            PartitionNotFound: no such topic or partition.
            FailedPrecondition, ResourceExhausted, Unavailable, ShuttingDown: as the backend or the
                check of versions raise them.
        """
        _check_name("sink_id", sink_id)
        _check_name("stage_id", stage_id)
        if not 0 <= piece <= _PIECE_MAX:
            raise InvalidArgument(f"piece is {piece}, expected 0 or above")
        if seal is not None and seal.pieces < 0:
            raise InvalidArgument(f"seal.pieces is {seal.pieces}, expected 0 or above")
        if not partitions and seal is None:
            raise InvalidArgument("neither partitions nor a seal: there is nothing to do")
        await self._log.check_partitions([each.partition for each in partitions])
        size, client = sum(len(each.batches) for each in partitions), client_address(peer)
        self._log.check_queued(client, size, self.semaphore)
        checked = await self._log.check_batches(partitions, client)
        batches = [
            StagedBatches(each.partition, each.batches, sum(batch.records for batch in found))
            for each, found in zip(partitions, checked, strict=True)
        ]
        async with self.semaphore.holding(client, size):
            await self._log.update(versions)
            if self._draining:
                raise ShuttingDown
            self._log.check_versions(versions)
            try:
                return await self._backend.stage(sink_id, stage_id, piece, batches, seal, self._client(peer))
            except UnknownPartition as error:
                raise PartitionNotFound(str(error)) from None

    async def publish(
        self,
        sink_id: str,
        epoch: int,
        query_id: str,
        stage_ids: Sequence[str],
        *,
        reset: bool,
        replaces: str,
        peer: str = "",
    ) -> Published:
        """Make stages visible, all or none.

        Args:
            peer: the client, see `client_address`; "": it has no share.

        Raises:
            InvalidArgument: a name or number that is not allowed, or a stage that is named twice.
            FailedPrecondition, CorruptData, ResourceExhausted, Unavailable, ShuttingDown: as the
                backend raises them.
        """
        _check_name("sink_id", sink_id)
        if epoch < 0:
            raise InvalidArgument(f"epoch is {epoch}, expected 0 or above")
        if query_id:
            _check_name("query_id", query_id)
        if replaces:
            _check_name("replaces_query_id", replaces)
        await self._check_stages(stage_ids)
        if self._draining:
            raise ShuttingDown
        outcome = await self._backend.publish(
            sink_id,
            epoch,
            query_id,
            stage_ids,
            reset=reset,
            replaces=replaces,
            client=self._client(peer),
        )
        for topic, (records, size) in outcome.written.items():
            self.published.add(topic, records, size)
        return outcome

    async def discard(self, sink_id: str, stage_ids: Sequence[str]) -> None:
        """Drop stages that were not published.

        Raises:
            InvalidArgument: a name that is not allowed, or a stage that is named twice.
            ShuttingDown.
        """
        _check_name("sink_id", sink_id)
        await self._check_stages(stage_ids)
        if self._draining:
            raise ShuttingDown
        await self._backend.discard(sink_id, stage_ids)

    def _client(self, peer: str) -> StageClient:
        if not peer:
            return NO_CLIENT
        return StageClient(client_address(peer), self._client_share, self._client_share_percent)

    async def _check_stages(self, stage_ids: Sequence[str]) -> None:
        seen: set[str] = set()
        async for stage_id in in_steps(stage_ids):
            _check_name("stage_ids", stage_id)
            if stage_id in seen:
                raise InvalidArgument(f"stage {stage_id} is there more than once")
            seen.add(stage_id)


def _check_name(field: str, name: str) -> None:
    if _NAME.fullmatch(name) is None:
        shown = name if len(name) <= 60 else name[:60] + "..."
        raise InvalidArgument(
            f"{field} is {shown!r}; 1 to 249 of the characters a-z A-Z 0-9 . _ - are allowed"
        )
