"""pixy/backend/kafka: a new leader that does not know yet how far its log is committed gives less
of it than was answered. It refuses to tell its end (KIP-207), but not to be read up to the old one.
"""

import asyncio
from pathlib import Path
from typing import Any

from pixy.backend import TopicPartition
from pixy.backend.kafka import KafkaBackend
from pixy.clock import SystemClock
from pixy.proxy.range_reader import Range, RangeReader, RangeState
from pixy.records import patch_batch, read_records
from tests.conformance.support import make_batch
from tests.fakes.brokers import FETCH, LIST_OFFSETS, Brokers
from tests.kafka.backends import staging_place

_NOT_AVAILABLE, _BEGIN = 78, -2
"""OFFSET_NOT_AVAILABLE, and the timestamp of a question for the begin."""


class NewLeader(Brokers):
    """Partition 0 of the topic `t` has a record at each offset below `end`. Its leader takes those
    below `known` for committed, until it has been asked for the end three times.
    """

    def __init__(self) -> None:
        super().__init__({"t": [0]})
        self.known, self.end = 1, 3
        self.refused = 0
        self.on(FETCH, self._fetch)
        self.on(LIST_OFFSETS, self._list)

    async def _fetch(self, request: Any) -> tuple[Any, ...]:
        ((topic_id, ((number, _, offset, *_),), *_),) = request.topics
        records = b""
        if offset < self.known:
            batch = make_batch(b"%d" % offset)
            patch_batch(batch, offset, -1)
            records = bytes(batch)
        else:
            await asyncio.sleep(request.max_wait_ms / 1000)
        partition: Any = number, 0, self.known, self.known, 0, [], -1, records, {}
        return 0, 0, 0, [(topic_id, [partition], {})], {}

    def _list(self, request: Any) -> tuple[Any, ...]:
        ((topic, ((number, timestamp, *_),), *_),) = request.topics
        if timestamp == _BEGIN:
            return 0, [(topic, [(number, 0, -1, 0)])]
        if self.known < self.end:
            self.refused += 1
            if self.refused == 3:
                self.known = self.end
            return 0, [(topic, [(number, _NOT_AVAILABLE, -1, -1)])]
        return 0, [(topic, [(number, 0, -1, self.end)])]


def test_a_range_has_what_was_answered_before_the_leader_was_elected(
    virtual: asyncio.Runner, tmp_path: Path
) -> None:
    async def scenario() -> None:
        brokers = NewLeader()
        backend = KafkaBackend(brokers.options(), staging_place(tmp_path / "kafka"), dial=brokers.dial)
        await backend.start()
        try:
            wanted = Range(TopicPartition("t", 0), 0, -1)
            reader = RangeReader(backend, SystemClock(), wanted, max_bytes=1000, max_wait=0)
            found = []
            while True:
                fetched = await reader.read()
                found += [record.value for batch in fetched.batches for record in read_records(batch)]
                if fetched.state is not RangeState.MORE:
                    break
            assert (found, fetched.state) == ([b"0", b"1", b"2"], RangeState.END_OF_RANGE)
            assert brokers.refused
        finally:
            await backend.stop()

    virtual.run(scenario())
