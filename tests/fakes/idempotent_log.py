"""A scripted broker with one partition that checks producer ids and sequences as Kafka does, and
refuses batches because of some of their records.
"""

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from pixy.records import Record, read_header, read_records
from tests.fakes.brokers import DESCRIBE_CONFIGS, INIT_PRODUCER_ID, PRODUCE, Brokers

_TOO_LARGE, _NOT_ALLOWED, _OUT_OF_ORDER = 10, 29, 45
_BYTES_MAX = 1_048_588
_REMEMBERED = 5
"""Batches of a producer that Kafka knows again."""


class IdempotentLog(Brokers):
    """Partition 0 of the topic `t`.

    Attributes:
        values: what was written.
        judge: called with the records of a batch before anything else, as in Kafka; the error code
            (0: none), and the reason for each record at fault, as far as they are named.
        bytes_max: larger batches are refused; None: none are.
        tells_bytes_max: it is told who asks; else nobody may ask for options of topics.
        before, after: called before and after a batch is judged and written; may cut connections.
    """

    def __init__(self) -> None:
        super().__init__({"t": [0]})
        self.values: list[bytes | None] = []
        self.judge: Callable[[Sequence[Record]], tuple[int, Mapping[int, str]]] = lambda _: (0, {})
        self.bytes_max: int | None = None
        self.tells_bytes_max = True
        self.before: Callable[[], None] = lambda: None
        self.after: Callable[[], None] = lambda: None
        # First and last sequence and offset of the last batches of each producer id.
        self._written: dict[int, deque[tuple[int, int, int]]] = {}
        self._producers = 0
        self.on(PRODUCE, self._produce)
        self.on(INIT_PRODUCER_ID, self._new_producer)
        self.on(DESCRIBE_CONFIGS, self._describe_config)

    def _describe_config(self, request: Any) -> tuple[Any, ...]:
        (kind, topic, options), *_ = request.resources
        assert options == ["max.message.bytes"]
        if not self.tells_bytes_max:
            return 0, [(_NOT_ALLOWED, None, kind, topic, [])]
        return 0, [
            (0, None, kind, topic, [(options[0], str(self.bytes_max or _BYTES_MAX), False, 1, False, [])])
        ]

    def _new_producer(self, _: Any) -> tuple[int, int, int, int]:
        self._producers += 1
        return 0, 0, self._producers, 0

    def _produce(self, request: Any) -> tuple[Any, ...]:
        self.before()
        ((topic, ((number, batch),)),) = request.topics
        code, offset, faults = self._append(batch)
        self.after()
        return [(topic, [(number, code, offset, -1, 0, list(faults.items()), None)])], 0

    def _append(self, batch: bytes) -> tuple[int, int, Mapping[int, str]]:
        records = list(read_records(batch))
        if self.bytes_max is not None and len(batch) > self.bytes_max:
            return _TOO_LARGE, -1, {}
        code, faults = self.judge(records)
        if code:
            return code, -1, faults
        header = read_header(batch)
        first, last = header.base_sequence, header.base_sequence + len(records) - 1
        written = self._written.setdefault(header.producer_id, deque(maxlen=_REMEMBERED))
        for known_first, known_last, offset in written:
            if (known_first, known_last) == (first, last):
                return 0, offset, {}
        if written and first != written[-1][1] + 1:
            return _OUT_OF_ORDER, -1, {}
        offset = len(self.values)
        written.append((first, last, offset))
        self.values += [record.value for record in records]
        return 0, offset, {}
