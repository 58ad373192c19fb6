"""Checks of the batches of requests, in turns (`check_turns`), before any of them is written."""

from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from typing import NamedTuple

from pixy.backend import TopicPartition
from pixy.check_turns import CheckTurns, SteppedCheck
from pixy.errors import InvalidBatch, InvalidRecords, MessageTooLarge
from pixy.records import BatchLimits, CheckEffort, NewBatch, check_next_batch


class PartitionBatches(NamedTuple):
    """Whole batches back to back for one partition."""

    partition: TopicPartition
    batches: bytes | memoryview


Checked = list[NewBatch] | InvalidRecords
"""The batches of one partition, or why they are refused."""


class BatchChecks:
    """The checks of one cluster's requests."""

    def __init__(self) -> None:
        self._turns = CheckTurns()

    @property
    def is_idle(self) -> bool:
        """True if no check has a turn."""
        return self._turns.is_idle

    async def check(
        self,
        partitions: Sequence[PartitionBatches],
        limits: BatchLimits,
        client: str = "",
        room: AbstractAsyncContextManager[None] | None = None,
    ) -> list[Checked]:
        """Check the batches of a request, by partition.

        Args:
            client, room: see `CheckTurns.run`.

        Raises:
            InvalidBatch, MessageTooLarge: something is not a batch that could be appended, or the
                request costs too much.
        """
        check = _RequestCheck(partitions, limits)
        await self._turns.run(check, client, room)
        return check.checked


class _RequestCheck(SteppedCheck):
    """The check of one request.

    Attributes:
        checked: the partitions that are checked.
    """

    def __init__(self, partitions: Sequence[PartitionBatches], limits: BatchLimits) -> None:
        super().__init__(sum(len(each.batches) for each in partitions), "request")
        self.checked: list[Checked] = []
        self._partitions = partitions
        self._limits = limits
        # Of the next partition.
        self._batches: list[NewBatch] = []

    @property
    def is_done(self) -> bool:
        """See `SteppedCheck`."""
        return len(self.checked) == len(self._partitions)

    def _check_next(self, effort: CheckEffort) -> None:
        (topic, number), buffer = self._partitions[len(self.checked)]
        try:
            self._batches.append(check_next_batch(memoryview(buffer), self._batches, self._limits, effort))
        except (InvalidBatch, MessageTooLarge) as error:
            located = type(error)(f"partition {number} of topic {topic}: {error}")
            if not isinstance(located, InvalidRecords):
                raise located from None
            self.checked.append(located)
            self._batches = []
            return
        if self._batches[-1].end == len(buffer):
            self.checked.append(self._batches)
            self._batches = []
