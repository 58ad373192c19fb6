"""Questions of other nodes: waiting for records, and the end of a node that is heard of no more."""

import asyncio

from pixy.consume import Timers
from pixy.consume.lending.lender import NEWS_S, SILENCE_S, Lender
from pixy.consume.lending.lending import RecordPosition
from pixy.consume.lending.lent_records import encode_positions
from pixy.proto.consumer_calls_pb2 import LentRecords, OffersRequest, Settled
from tests.consume.fakes import Answers
from tests.consume.test_lending import Scene, at
from tests.fakes.clock import FakeClock
from tests.fakes.waiting import settle


class LenderScene(Scene):
    """A lender with one partition, on a clock that a test advances."""

    def __init__(self) -> None:
        super().__init__()
        self.clock = FakeClock()
        self.acked_elsewhere: list[RecordPosition] = []
        timers = Timers(self.clock, self.clock.call_later)
        self.lender = Lender(timers, self.dispatcher, self.acked_elsewhere.append)

    def ack_kept(self, offset: int) -> None:
        """An ack of a record that is not known to be delivered."""
        assert not self.partition.offers.ack(offset)
        self.lender.keep_ack(RecordPosition(0, offset))

    async def ask(
        self, node_id: int = 2, wanted: int = 1, held: list[RecordPosition] | None = None, **settled: object
    ) -> "asyncio.Task[LentRecords]":
        request = OffersRequest(
            wanted=wanted, wait_ms=1000, held=encode_positions(held or []), settled=settlements(**settled)
        )
        task = asyncio.create_task(self.lend(node_id, request))
        await settle()
        return task

    async def lend(self, node_id: int, request: OffersRequest) -> LentRecords:
        return LentRecords.FromString(await self.lender.lend(node_id, request))

    async def pass_time(self, seconds: float) -> None:
        self.clock.advance(seconds)
        await settle()

    def client(self) -> Answers:
        answers = Answers()
        self.dispatcher.consume(answers, False, None, self.clock.monotonic())
        return answers


def settlements(**settled: object) -> Settled:
    return Settled(**{name: encode_positions(each) for name, each in settled.items()})  # type: ignore[arg-type]


def offsets(task: "asyncio.Task[LentRecords]") -> list[int]:
    return [record.offset for record in task.result().records]


async def test_a_question_waits_for_a_record_and_says_how_long() -> None:
    scene = LenderScene()
    question = await scene.ask()
    await scene.pass_time(0.4)
    assert not question.done()
    scene.partition.add(b"value")
    await settle()
    assert offsets(question) == [0]
    assert question.result().records[0].value == b"value"
    assert question.result().waited_ms == 400
    scene.lender.close()


async def test_records_that_come_together_are_sent_together() -> None:
    scene = LenderScene()
    question = await scene.ask(wanted=5)
    scene.partition.add(b"x", b"x", b"x")
    await settle()
    assert offsets(question) == [0, 1, 2]
    scene.lender.close()


async def test_a_question_ends_without_a_record_and_leaves_no_request_behind() -> None:
    scene = LenderScene()
    question = await scene.ask()
    await scene.pass_time(1.0)
    assert offsets(question) == []
    assert not scene.lender.active
    scene.partition.add(b"x")
    assert scene.client().offsets == [0]
    assert scene.clock.timers == 0


async def test_a_question_replaces_the_one_before() -> None:
    scene = LenderScene()
    first = await scene.ask()
    second = await scene.ask(wanted=2)
    assert (first.done(), second.done()) == (True, False)
    scene.partition.add(b"x", b"x")
    await settle()
    assert (offsets(first), offsets(second)) == ([], [0, 1])
    scene.lender.close()


async def test_a_question_for_nothing_is_answered_at_once() -> None:
    scene = LenderScene()
    scene.partition.add(b"x")
    assert offsets(await scene.ask(wanted=0)) == []
    assert not scene.lender.active


async def test_what_is_told_with_a_question_counts() -> None:
    scene = LenderScene()
    scene.partition.add(*[b"x"] * 3)
    assert offsets(await scene.ask(wanted=3)) == [0, 1, 2]
    await scene.ask(wanted=0, acked=at(0, 7), delivered=at(1), undelivered=at(2))
    assert scene.acked == 1
    assert scene.acked_elsewhere == at(7)
    assert scene.client().offsets == [2]
    assert not scene.lender.active
    assert scene.clock.timers == 0


async def test_a_record_is_given_back_once_its_node_was_silent_for_long() -> None:
    scene = LenderScene()
    scene.partition.add(b"x")
    await scene.ask()
    here = scene.client()
    await scene.pass_time(SILENCE_S - 0.1)
    await scene.ask(wanted=0, held=at(0))
    await scene.pass_time(SILENCE_S - 0.1)
    scene.lender.settle(2, settlements())
    await scene.pass_time(SILENCE_S - 0.1)
    assert here.offsets == []
    await scene.pass_time(0.1)
    assert here.offsets == [0]
    assert not scene.lender.active


async def test_a_node_whose_question_waits_is_not_silent() -> None:
    scene = LenderScene()
    scene.partition.add(b"x")
    await scene.ask()
    here = scene.client()
    for _ in range(5):
        question = await scene.ask(held=at(0))
        scene.lender.settle(2, settlements())
        await scene.pass_time(1.0)
        assert offsets(question) == []
    assert here.offsets == []
    scene.lender.close()


async def test_a_node_whose_question_is_cancelled_gives_everything_back_at_once() -> None:
    scene = LenderScene()
    scene.partition.add(b"x")
    await scene.ask()
    question = await scene.ask(held=at(0))
    here = scene.client()
    question.cancel()
    await settle()
    assert here.offsets == [0]
    assert not scene.lender.active
    assert scene.clock.timers == 0


async def test_the_cancellation_of_a_replaced_question_is_of_no_interest() -> None:
    scene = LenderScene()
    first = await scene.ask()
    second = asyncio.create_task(scene.lend(2, OffersRequest(wanted=1, wait_ms=1000)))
    await asyncio.sleep(0)
    first.cancel()
    await settle()
    scene.partition.add(b"x")
    await settle()
    assert offsets(second) == [0]
    scene.lender.close()


async def test_an_ack_counts_if_nothing_is_heard_of_the_node_that_has_the_record() -> None:
    scene = LenderScene()
    scene.partition.add(b"x", b"x")
    await scene.ask(wanted=2)
    await scene.ask(wanted=0, held=at(0, 1))
    scene.ack_kept(0)
    await scene.pass_time(NEWS_S - 0.1)
    assert scene.acked == 0
    await scene.pass_time(0.1)
    assert scene.acked == 1
    scene.lender.close()
    assert (scene.acked, scene.clock.timers) == (1, 0)


async def test_an_ack_of_a_record_that_its_node_still_has_waits_for_the_delivery() -> None:
    scene = LenderScene()
    scene.partition.add(b"x")
    await scene.ask()
    question = await scene.ask(held=at(0))
    scene.ack_kept(0)
    await settle()
    assert offsets(question) == []  # so that the next one comes at once
    assert (await scene.ask(held=at(0))).done()
    question = await scene.ask(held=at(0))
    await scene.pass_time(NEWS_S)
    assert (question.done(), scene.acked) == (False, 0)
    scene.lender.settle(2, settlements(delivered=at(0)))
    assert scene.acked == 1
    scene.lender.close()


async def test_a_question_that_was_sent_before_an_ack_says_nothing_of_it() -> None:
    scene = LenderScene()
    scene.partition.add(b"x")
    await scene.ask()
    scene.ack_kept(0)
    await scene.pass_time(NEWS_S - 0.1)
    await scene.ask(held=at(0))
    await scene.pass_time(NEWS_S - 0.1)
    assert scene.acked == 0
    await scene.pass_time(0.1)
    assert scene.acked == 1
    scene.lender.close()


async def test_nodes_are_served_in_turn() -> None:
    scene = LenderScene()
    questions = [await scene.ask(node_id) for node_id in (2, 3)]
    scene.partition.add(b"x", b"x")
    await settle()
    assert [offsets(question) for question in questions] == [[0], [1]]
    scene.lender.close()


async def test_nothing_is_lent_during_a_pause_and_what_is_lent_stays() -> None:
    scene = LenderScene()
    scene.partition.add(b"x")
    await scene.ask()
    waiting = await scene.ask(held=at(0))
    scene.lender.pause(scene.clock.monotonic() + 1.5)
    scene.partition.add(b"x")
    await scene.pass_time(1.0)
    assert offsets(waiting) == []
    during = await scene.ask(held=at(0))
    await scene.pass_time(1.0)
    assert offsets(during) == []
    assert offsets(await scene.ask(held=at(0))) == [1]
    scene.lender.close()


async def test_a_resumed_lender_lends() -> None:
    scene = LenderScene()
    scene.partition.add(b"x")
    scene.lender.pause(scene.clock.monotonic() + 100)
    scene.lender.resume()
    assert offsets(await scene.ask()) == [0]
    scene.lender.close()


async def test_a_closed_lender_answers_what_waits() -> None:
    scene = LenderScene()
    question = await scene.ask()
    scene.lender.close()
    await settle()
    assert offsets(question) == []
    assert scene.clock.timers == 0
