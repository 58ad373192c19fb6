"""Functions of the product with one rule of idempotent producers left out; `producer_rules` says
which.
"""

from typing import Any

from pixy.errors import OutOfOrderSequence
from pixy.records import producers
from pixy.records.producers import KeptProducers, ProducerBatch, ProducerTable, last_offset

_judge_known = producers._judge_known
_judge = ProducerTable._judge


def judged_by_what_is_applied(self: ProducerTable, batch: ProducerBatch, proposed: dict[int, bytes]) -> Any:
    """A batch that is proposed, and not applied yet, is not looked at."""
    before, self._proposed = self._proposed, {}
    try:
        return _judge(self, batch, proposed)
    finally:
        self._proposed = before


def keeps_nothing(self: ProducerTable, end_offset: int) -> KeptProducers:
    """A table is not what is kept and copied."""
    return KeptProducers({}, self.forgotten, end_offset)


def accepts_a_gap(entry: bytes, batch: ProducerBatch) -> Any:
    """A batch behind the next one is accepted."""
    found = _judge_known(entry, batch)
    if isinstance(found, OutOfOrderSequence) and batch.first_sequence > producers._expected(entry):
        return None
    return found


def answers_with_the_newest(entry: bytes, batch: ProducerBatch) -> Any:
    """A repetition is answered with the offset of the newest batch."""
    found = _judge_known(entry, batch)
    return last_offset(entry) if isinstance(found, int) else found
