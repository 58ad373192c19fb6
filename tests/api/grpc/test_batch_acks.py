"""pixy/api/grpc/batch_acks.py: few acks of a partition wait at a time, and share a refusal."""

from collections import defaultdict, deque
from collections.abc import Callable
from typing import cast

import pytest

from pixy.api.grpc.batch_acks import BatchAcks
from pixy.consume import AckDone
from pixy.errors import AckBeyondEnd, InvalidAck, PixyError
from pixy.proto.pixy_log_pb2 import MessagePosition
from pixy.rpc import UnaryCall

AT_ONCE = 50


class Acking:
    """The acks of one call, whose steps and answers come when they are asked for.

    Attributes:
        begun: number of acks that were begun, by step.
        waiting: answers that are owed, by partition and offset.
        outcomes: of the call.
    """

    def __init__(self, *acks: tuple[int, int], answers: bool = False) -> None:
        self.begun: list[int] = []
        self.waiting: dict[int, dict[int, AckDone]] = defaultdict(dict)
        self.outcomes: list[PixyError | None] = []
        self._answers = answers
        self._steps: deque[Callable[[], None]] = deque()
        positions = [MessagePosition(partition=partition, offset=offset) for partition, offset in acks]
        work = BatchAcks(positions, self._ack, cast(UnaryCall, self), self.outcomes.append)
        work.begin()
        self.run()

    def step_later(self, step: Callable[[], None]) -> None:
        self._steps.append(step)

    first_step = step_later

    def run(self) -> None:
        """Take all steps."""
        while self._steps:
            self.begun.append(0)
            self._steps.popleft()()

    def answer(self, partition: int, offset: int, error: PixyError | None = None) -> None:
        self.waiting[partition].pop(offset)(error)

    def _ack(self, partition: int, offset: int, done: AckDone) -> None:
        self.begun[-1] += 1
        if partition < 0:
            raise InvalidAck("bad partition")
        if self._answers:
            done(None)
        else:
            self.waiting[partition][offset] = done


@pytest.mark.parametrize("count", [0, 1, AT_ONCE, AT_ONCE + 1, 2000])
def test_acks_that_are_answered_at_once_take_few_in_each_step(count: int) -> None:
    acking = Acking(*((each % 3, each) for each in range(count)), answers=True)
    assert sum(acking.begun) == count
    assert max(acking.begun) <= AT_ONCE
    assert acking.outcomes == [None]


def test_few_acks_of_a_partition_wait_at_a_time_and_hold_up_no_others() -> None:
    acking = Acking(*((0, offset) for offset in range(200)), *((1, offset) for offset in range(20)))
    assert {partition: len(offsets) for partition, offsets in acking.waiting.items()} == {0: AT_ONCE, 1: 20}
    for offset in range(20):
        acking.answer(1, offset)
    order = []
    while acking.waiting[0]:
        assert acking.outcomes == []
        assert len(acking.waiting[0]) <= AT_ONCE
        order.append(next(iter(acking.waiting[0])))
        acking.answer(0, order[-1])
        acking.run()
    assert order == list(range(200))
    assert acking.outcomes == [None]


def test_acks_behind_one_that_is_beyond_the_end_share_its_answer() -> None:
    acking = Acking(*[(0, 7)] * 2, *((0, offset) for offset in range(100, 2098)))
    refusal = AckBeyondEnd("beyond")
    acking.answer(0, 100, refusal)
    acking.run()
    assert sum(acking.begun) == AT_ONCE
    for offset in list(acking.waiting[0]):
        acking.answer(0, offset, AckBeyondEnd("later"))
        acking.run()
    assert sum(acking.begun) == AT_ONCE
    assert max(acking.begun) <= AT_ONCE


def test_acks_below_a_refused_one_and_of_other_partitions_still_count() -> None:
    acks = [*((0, offset) for offset in range(100, 200)), *((0, offset) for offset in range(90))]
    acking = Acking(*acks, *((1, offset) for offset in range(100)))
    refusal = AckBeyondEnd("beyond")
    for offset in range(100, 100 + AT_ONCE):
        acking.answer(0, offset, refusal)
        acking.run()
    counted = {0: set[int](), 1: set[int]()}
    for partition, offsets in counted.items():
        while acking.waiting[partition]:
            offset = next(iter(acking.waiting[partition]))
            offsets.add(offset)
            acking.answer(partition, offset)
            acking.run()
    assert counted == {0: set(range(90)), 1: set(range(100))}
    assert acking.outcomes == [refusal]


def test_the_first_error_is_the_outcome_once_all_are_answered() -> None:
    acking = Acking((0, 0), (-1, 0), (0, 1))
    acking.answer(0, 0, AckBeyondEnd("beyond"))
    assert acking.outcomes == []
    acking.answer(0, 1)
    assert [str(outcome) for outcome in acking.outcomes] == ["bad partition"]
