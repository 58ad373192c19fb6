"""pixy/serving/receipts.py: a receipt is told exactly one of delivered and undelivered."""

import pytest

from pixy.serving.receipts import Receipts
from tests.serving.support import NotedReceipt


@pytest.fixture
async def faults() -> list[BaseException]:
    return []


@pytest.fixture
async def receipts(faults: list[BaseException]) -> Receipts:
    return Receipts(faults.append)


async def test_an_answer_in_the_output_is_delivered_by_the_next_write(receipts: Receipts) -> None:
    receipt = NotedReceipt()
    receipts.add(receipt)
    assert (len(receipts), receipt.said) == (1, [])
    receipts.handed_over()
    receipts.handed_over()
    assert (len(receipts), receipt.said) == (0, ["delivered"])


async def test_a_queued_answer_is_delivered_with_the_write_of_its_last_byte(receipts: Receipts) -> None:
    receipt = NotedReceipt()
    receipts.queue(1, receipt)
    receipts.handed_over()
    assert receipt.said == []
    receipts.sent(3)
    receipts.sent(1)
    receipts.sent(1)
    receipts.reset(1)
    receipts.handed_over()
    assert receipt.said == ["delivered"]


async def test_a_queued_answer_is_undelivered_when_its_stream_is_reset(receipts: Receipts) -> None:
    receipt = NotedReceipt()
    receipts.queue(1, receipt)
    receipts.reset(1)
    receipts.sent(1)
    receipts.handed_over()
    assert receipt.said == ["undelivered"]


async def test_a_lost_connection_delivers_nothing(receipts: Receipts) -> None:
    told = [NotedReceipt() for _ in range(4)]
    for stream_id, receipt in enumerate(told):
        if stream_id % 2:
            receipts.queue(stream_id, receipt)
        else:
            receipts.add(receipt)
    while receipts.drop_one():
        pass
    assert [receipt.said for receipt in told] == [["undelivered"]] * 4
    assert len(receipts) == 0


async def test_an_answer_that_a_receipt_causes_waits_for_the_next_write(receipts: Receipts) -> None:
    second = NotedReceipt()

    class Causing(NotedReceipt):
        def delivered(self) -> None:
            super().delivered()
            receipts.add(second)

    first = Causing()
    receipts.add(first)
    receipts.handed_over()
    assert (first.said, second.said) == (["delivered"], [])
    receipts.handed_over()
    assert second.said == ["delivered"]


async def test_a_bug_of_one_receipt_is_noted_and_the_others_are_told(
    receipts: Receipts, faults: list[BaseException]
) -> None:
    class Broken(NotedReceipt):
        def delivered(self) -> None:
            raise KeyError("delivered")

    other = NotedReceipt()
    receipts.add(Broken())
    receipts.add(other)
    receipts.handed_over()
    assert (len(faults), other.said) == (1, ["delivered"])
