"""Sizes of batches: the records that fit into one.

The cluster may limit the batches of a topic below what the producer allows. A record that is too
large for that is told apart by its size alone, before it is sent: the cluster would refuse all of
its batch, without a word on which record it was.
"""

from collections.abc import Sequence
from typing import NamedTuple

from pixy.errors import MessageTooLarge
from pixy.proxy.topic_accumulators import batch_bytes
from pixy.records import HEADER_BYTES, NewRecordFields, build_batch

_TOO_LARGE_MAX = 1000
"""Too large records of a batch, which nothing else bounds."""


class Fitting(NamedTuple):
    """Consecutive records for one batch.

    Attributes:
        end: number of the record behind them.
        too_large: numbers of those among them that no batch may have.
    """

    end: int
    too_large: list[int]


class BatchSizes:
    """Limits of the batches of a topic.

    Args:
        batch_bytes_max: largest batch with several records.
        topic_bytes_max: largest batch that the topic takes; None: not known.
        compression: codec of the batches.
    """

    def __init__(self, batch_bytes_max: int, topic_bytes_max: int | None, compression: int) -> None:
        self._topic_bytes_max = topic_bytes_max
        self._compression = compression
        self._batch_bytes_max = batch_bytes_max
        self._bytes_max = min(batch_bytes_max, topic_bytes_max or batch_bytes_max)

    def fitting(self, records: Sequence[NewRecordFields], first: int, end: int) -> Fitting:
        """The records from a number on that fit into one batch, before `end`; one at least."""
        size, refused_bytes = HEADER_BYTES, 0
        too_large: list[int] = []
        for at in range(first, end):
            added = batch_bytes(records[at])
            if HEADER_BYTES + added > self._bytes_max and self._is_too_large(records[at]):
                too_large.append(at)
                refused_bytes += added
                if len(too_large) == _TOO_LARGE_MAX or refused_bytes > self._batch_bytes_max:
                    return Fitting(at + 1, too_large)
            elif size + added > self._bytes_max and size > HEADER_BYTES:
                return Fitting(at, too_large)
            else:
                size += added
        return Fitting(end, too_large)

    def _is_too_large(self, record: NewRecordFields) -> bool:
        limit = self._topic_bytes_max
        return (
            limit is not None
            and HEADER_BYTES + batch_bytes(record) > limit
            and len(build_batch([record], self._compression)) > limit
        )

    def error(self, topic: str) -> MessageTooLarge:
        """The error of a record that is too large."""
        return MessageTooLarge(
            f"the message is too large for topic {topic}, whose record batches have {self._topic_bytes_max} bytes at most "
            "(max_message_bytes of the topic)"
        )
