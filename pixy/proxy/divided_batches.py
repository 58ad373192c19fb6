"""Division of a batch that the backend refuses because of some of its records.

Records of several clients share a batch, so one that the cluster does not accept must not fail the
others. If the backend knows which ones are at fault, all others become one part. If the batch is
too large, and the limit is known, the parts are as large as that allows, and the records that are
too large alone are at fault. Else the batch is halved, until what is refused is a single record:
about two requests for each doubling of the number of records, and each record at fault.

The records are decoded from the batch: to keep them for this would double the memory of what is in
flight.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from pixy.backend import Batch, DividedPart
from pixy.errors import PixyError
from pixy.proxy.batch_sizes import BatchSizes
from pixy.proxy.topic_accumulators import ProduceBatch, record_size
from pixy.records import NewRecordFields, read_records


class Divided(NamedTuple):
    """The parts of a batch.

    Attributes:
        parts: what is to be written, in order.
        refused: records at fault, with their error.
    """

    parts: list[ProduceBatch]
    refused: list[tuple[ProduceBatch, PixyError]]


class BatchDone:
    """The `DivisibleDone` of a batch.

    Args:
        batch: the batch.
        content_bytes: size of its keys, values and headers.
        appended: called with the batch and its answer, and with its size if it was written.
        divide: called with the batch, and the arguments of `divide`.
    """

    __slots__ = ("_appended", "_batch", "_content_bytes", "_divide")

    def __init__(
        self,
        batch: ProduceBatch,
        content_bytes: int,
        appended: Callable[[ProduceBatch, int, PixyError | None, int], None],
        divide: Callable[[ProduceBatch, Batch, Mapping[int, PixyError], int | None], Sequence[DividedPart]],
    ) -> None:
        self._batch = batch
        self._content_bytes = content_bytes
        self._appended = appended
        self._divide = divide

    def __call__(self, base_offset: int, error: PixyError | None) -> None:
        self._appended(self._batch, base_offset, error, self._content_bytes)

    def divide(
        self, batch: Batch, faults: Mapping[int, PixyError], bytes_max: int | None = None
    ) -> Sequence[DividedPart]:
        """See `DivisibleDone`."""
        return self._divide(self._batch, batch, faults, bytes_max)


def divided(
    batch: ProduceBatch, packed: Batch, faults: Mapping[int, PixyError], sizes: BatchSizes | None
) -> Divided:
    """The parts of a batch, with their records.

    Args:
        batch, packed, faults: see `DivisibleDone.divide`.
        sizes: the limits that it exceeds, as far as they are known.
    """
    records: list[NewRecordFields] = [
        (each.key, each.value, each.headers, each.timestamp) for each in read_records(packed)
    ]
    if faults:
        return without(batch, records, faults)
    if sizes is not None:
        by_size = _divided_by_size(batch, records, sizes)
        if by_size.refused or len(by_size.parts) > 1:
            return by_size
    count = len(records)
    halves = [range(count // 2), range(count // 2, count)]
    return Divided([_part(batch, records, half) for half in halves], [])


def _divided_by_size(batch: ProduceBatch, records: list[NewRecordFields], sizes: BatchSizes) -> Divided:
    parts: list[ProduceBatch] = []
    too_large: list[int] = []
    end, count = 0, len(records)
    while end < count:
        first, (end, gone) = end, sizes.fitting(records, end, count)
        too_large += gone
        left = sorted({*range(first, end)}.difference(gone))
        if left:
            parts.append(_part(batch, records, left))
    error = sizes.error(batch.accumulator.partition.topic)
    return Divided(parts, [(_part(batch, records, too_large), error)] if too_large else [])


def without(
    batch: ProduceBatch, records: Sequence[NewRecordFields], faults: Mapping[int, PixyError]
) -> Divided:
    """All records of a batch but those at fault; of these, those with equal errors are one part."""
    count = len(records)
    at_fault: dict[str, list[int]] = {}
    for number in sorted(faults):
        at_fault.setdefault(str(faults[number]), []).append(number)
    refused = [(_part(batch, records, part), faults[part[0]]) for part in at_fault.values()]
    others = [number for number in range(count) if number not in faults]
    return Divided([_part(batch, records, others)] if others else [], refused)


def _part(batch: ProduceBatch, records: Sequence[NewRecordFields], numbers: Sequence[int]) -> ProduceBatch:
    chosen = [records[number] for number in numbers]
    return ProduceBatch(
        batch.accumulator,
        [batch.dones[number] for number in numbers],
        [batch.waiters[number] for number in numbers],
        sum(map(record_size, chosen)),
        chosen,
        batch.until,
    )
