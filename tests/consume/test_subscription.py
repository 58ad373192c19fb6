import asyncio
from collections import Counter
from collections.abc import Collection, Mapping
from math import inf

import pytest
from structlog.testing import capture_logs

from pixy.backend import OffsetCommit, OffsetRange, TopicPartition
from pixy.consume import ConsumeRequest
from pixy.consume.group.subscription import Subscription
from pixy.consume.partition import LivePartition
from pixy.errors import (
    AckBeyondEnd,
    Internal,
    InvalidAck,
    LongPollTimeout,
    PixyError,
    TooManyRequests,
    Unavailable,
)
from tests.consume.conftest import MakeWorld
from tests.consume.fakes import Answers, World
from tests.fakes.waiting import settle, until

NEVER = 10_000.0


# --- requests and timeouts ------------------------------------------------------------------------


async def test_a_request_without_a_record_times_out(make_world: MakeWorld) -> None:
    world = make_world()
    answers = await world.consume(2)
    await world.pass_time(2.9)
    assert answers.errors == []
    await world.pass_time(0.1)
    assert [type(error) for error in answers.errors] == [LongPollTimeout] * 2


async def test_requests_that_time_out_while_the_cluster_is_away_are_told_why(make_world: MakeWorld) -> None:
    world = make_world()
    answers = await world.consume(2)
    world.backend.away = "no broker can be reached"
    await world.pass_time(3)
    assert [str(error) for error in answers.errors] == ["no broker can be reached"] * 2
    world.backend.away = ""
    later = await world.consume()
    await world.pass_time(3)
    assert [type(error) for error in later.errors] == [LongPollTimeout]


async def test_one_request_that_cannot_be_answered_leaves_the_others_their_answers(
    make_world: MakeWorld,
) -> None:
    def broken(*_: object) -> None:
        raise ZeroDivisionError

    world = make_world()
    await world.consume(deadline=world.clock.monotonic() + 1)
    world.consumers.consume(ConsumeRequest("g", "t"), broken, world.clock.monotonic() + 2)
    answers = await world.consume(2)
    with pytest.raises(ZeroDivisionError):
        await world.pass_time(2)
    await world.pass_time(1)
    assert [type(error) for error in answers.errors] == [LongPollTimeout] * 2


async def test_an_earlier_deadline_of_the_caller_is_honoured(make_world: MakeWorld) -> None:
    world = make_world()
    late = await world.consume()
    early = await world.consume(deadline=world.clock.monotonic() + 1)
    await world.pass_time(1)
    assert len(early.errors) == 1
    assert late.errors == []


async def test_ten_thousand_requests_need_one_timer(make_world: MakeWorld) -> None:
    world = make_world()
    await world.consume(1)
    timers = world.clock.timers
    answers = await world.consume(10_000)
    assert world.clock.timers == timers
    await world.pass_time(3)
    assert len(answers.errors) == 10_000


async def test_a_cancelled_request_takes_nothing(make_world: MakeWorld) -> None:
    world = make_world()
    gone = await world.consume()
    gone.waiting[0].cancel()
    world.log().append(b"a")
    assert (await world.consume()).values == [b"a"]
    assert (gone.offers, gone.errors) == ([], [])


async def test_an_unacked_offer_is_redelivered(make_world: MakeWorld) -> None:
    world = make_world(ack_timeout=10.0)
    world.log().append(b"a")
    await world.consume()
    await world.pass_time(9.9)
    answers = await world.consume()
    assert answers.offers == []
    await world.pass_time(0.1)
    assert answers.values == [b"a"]
    assert world.consumers.counters().expired == 1


async def test_a_record_is_dropped_after_its_last_retry(make_world: MakeWorld) -> None:
    world = make_world(ack_timeout=5.0, max_retries=1, subscription_timeout=60.0)
    world.log().append(b"a")
    for _ in range(2):
        assert (await world.consume()).values == [b"a"]
        await world.pass_time(5)
    await world.pass_time(0.5)
    assert world.committed() == OffsetCommit(1)
    assert world.consumers.counters().dropped == 1


async def test_an_undelivered_record_goes_to_a_waiting_request(make_world: MakeWorld) -> None:
    world = make_world()
    world.log().append(b"a")
    first = await world.consume(slow=True)
    second = await world.consume()
    first.offers[0].undelivered()
    assert second.values == [b"a"]


async def test_an_ack_lets_a_waiting_request_proceed(make_world: MakeWorld) -> None:
    world = make_world(max_pending_messages=1)
    world.log().append(b"a", b"b")
    answers = await world.consume(2)
    assert answers.values == [b"a"]
    await world.ack(0, 0)
    assert answers.values == [b"a", b"b"]


async def test_exactly_300_are_pending_by_default(make_world: MakeWorld) -> None:
    world = make_world()
    world.log().append(*[b"x"] * 500)
    answers = await world.consume(400)
    assert answers.offsets == list(range(300))


async def test_partitions_are_served_in_turn(make_world: MakeWorld) -> None:
    world = make_world(3)
    for partition in range(3):
        world.log(partition).append(*[b"x"] * 20)
    await world.consume(3)
    answers = await world.consume(12)
    assert sorted(offer.partition for offer in answers.offers) == [0] * 4 + [1] * 4 + [2] * 4


# --- acks -----------------------------------------------------------------------------------------


async def test_an_ack_sent_with_a_request_is_applied_before_the_record_is_offered(
    make_world: MakeWorld,
) -> None:
    world = make_world(max_pending_messages=1)
    world.log().append(b"a", b"b")
    await world.consume()
    assert (await world.consume(ack=(0, 0))).values == [b"b"]


@pytest.mark.parametrize("ack", [(0, -1), (-1, 0), (1, 0), (7, -1)])
async def test_an_impossible_ack_sent_with_a_request_is_raised(
    make_world: MakeWorld, ack: tuple[int, int]
) -> None:
    world = make_world()
    world.log().append(b"a")
    await world.consume()
    answers = Answers()
    with pytest.raises(InvalidAck, match="invalid ack: bad"):
        world.consumers.consume(ConsumeRequest("g", "t", ack=ack), answers)
    assert (answers.offers, answers.errors) == ([], [])


async def test_an_ack_beyond_the_end_sent_with_a_request_is_answered_without_a_record(
    make_world: MakeWorld,
) -> None:
    world = make_world()
    world.log().append(b"a", b"b")
    await world.consume()
    answers = await world.consume(ack=(0, 2))
    assert isinstance(answers.errors[0], AckBeyondEnd)
    assert "ends at 2" in str(answers.errors[0])
    assert world.consumers.outstanding == 1


async def test_an_ack_ahead_of_the_known_end_is_checked_with_the_cluster(make_world: MakeWorld) -> None:
    world = make_world()
    world.log().append(b"a", b"b")
    world.handed_out_before(5)
    await world.consume(2)
    log = world.log()
    log.end += 3  # The waiting fetch is not notified.
    answers = await world.consume(ack=(0, 4))
    assert answers.errors == []
    await world.pass_time(1)
    assert world.committed() == OffsetCommit(0, "EB")


async def test_a_request_cancelled_while_its_ack_is_checked_still_acks(make_world: MakeWorld) -> None:
    world = make_world()
    world.log().append(b"a", b"b")
    world.handed_out_before(5)
    await world.consume(2)
    world.log().end += 3
    gate = world.backend.gates["offset_ranges"] = asyncio.Event()
    answers = await world.consume(ack=(0, 4))
    answers.waiting[0].cancel()
    gate.set()
    await world.pass_time(1)
    assert world.committed() == OffsetCommit(0, "EB")
    assert (answers.offers, answers.errors) == ([], [])


async def test_the_accidental_ack_counts_only_if_offered(make_world: MakeWorld) -> None:
    world = make_world()
    answers = await world.consume(ack=(0, 0), ack_if_offered=True)
    assert answers.errors == []
    world.log().append(b"a", b"b")
    await world.pass_time(1)
    assert answers.offsets == [0]
    assert world.committed() == OffsetCommit(0)
    await world.consume(ack=(0, 0), ack_if_offered=True)
    await world.pass_time(1)
    assert world.committed() == OffsetCommit(1)


async def test_an_ack_of_a_record_not_offered_here_starts_the_subscription(make_world: MakeWorld) -> None:
    world = make_world()
    world.log().append(b"a", b"b")
    world.handed_out_before(2)
    assert await world.ack(0, 1) == [None]
    await world.pass_time(1)
    assert world.committed() == OffsetCommit(0, "BB")
    assert (await world.consume(2)).offsets == [0]


async def test_an_ack_below_the_committed_offset_is_accepted(make_world: MakeWorld) -> None:
    world = make_world()
    world.log().append(*[b"x"] * 5)
    world.backend.groups.of("g").commits = {TopicPartition("t", 0): OffsetCommit(3)}
    await world.consume()
    assert await world.ack(0, 1) == [None]
    await world.pass_time(1)
    assert world.committed() == OffsetCommit(3)


@pytest.mark.parametrize(
    ("partition", "offset", "error"),
    [
        (0, -1, InvalidAck),
        (-1, 0, InvalidAck),
        (1, 0, InvalidAck),
        (0, 5, AckBeyondEnd),
        (0, 9, AckBeyondEnd),
    ],
)
@pytest.mark.parametrize("live", [True, False])
async def test_an_impossible_ack_is_rejected(
    make_world: MakeWorld, partition: int, offset: int, error: type[Exception], live: bool
) -> None:
    world = make_world()
    world.log().append(*[b"x"] * 5)
    if live:
        await world.consume()
    assert [type(outcome) for outcome in await world.ack(partition, offset)] == [error]
    assert live or world.backend.groups.events == [], "it makes no consumer group"


async def test_an_ack_for_a_partition_of_another_process_ends_after_the_timeout(
    make_world: MakeWorld,
) -> None:
    world = make_world(2, rebalance_timeout=3.0)
    world.backend.groups.withheld.add(TopicPartition("t", 1))
    world.log(1).append(b"x")
    outcome = await world.ack(1, 0)
    assert outcome == []
    await world.pass_time(3)
    assert isinstance(outcome[0], Unavailable)


async def test_a_request_with_an_ack_for_a_partition_of_another_process_is_not_delayed(
    make_world: MakeWorld,
) -> None:
    world = make_world(2)
    world.backend.groups.withheld.add(TopicPartition("t", 1))
    world.log(0).append(b"x")
    await world.consume(auto_ack=True)
    world.log(0).append(b"y")
    assert (await world.consume(ack=(1, 0))).values == [b"y"]


async def test_a_request_with_an_ack_waits_for_the_owner_while_neighbours_may_be_it(
    make_world: MakeWorld,
) -> None:
    world = make_world(2)
    key = TopicPartition("t", 1)
    world.backend.may_have_neighbours = True
    world.backend.groups.withheld.add(key)
    world.log(0).append(b"x", b"y")
    world.log(1).append(b"z")
    world.handed_out_before(1, partition=1)
    await world.consume(auto_ack=True)
    answers = await world.consume(ack=(1, 0))
    await world.pass_time(1)
    assert answers.values == []
    world.backend.groups.withheld.remove(key)
    world.backend.groups.assign_all()
    await world.pass_time(1)
    assert answers.values == [b"y"]
    await world.pass_time(1)
    assert world.committed(1) == OffsetCommit(1)


async def test_waiting_acks_are_bounded(make_world: MakeWorld) -> None:
    world = make_world(max_waiting_acks=2)
    world.backend.gates["join"] = asyncio.Event()
    world.log().append(b"x")
    assert await world.ack(0, 0) == []
    assert await world.ack(0, 0) == []
    assert [type(outcome) for outcome in await world.ack(0, 0)] == [TooManyRequests]
    assert isinstance((await world.consume(ack=(0, 0))).errors[0], TooManyRequests)


@pytest.mark.slow
@pytest.mark.parametrize("has_lease", [False, True])
async def test_acks_that_wait_look_again_when_there_is_a_change_and_not_each_by_itself(
    make_world: MakeWorld, monkeypatch: pytest.MonkeyPatch, has_lease: bool
) -> None:
    world = make_world(200)
    world.backend.gates["offset_ranges"] = asyncio.Event()
    await world.consume()
    member = world.backend.groups.member("g", 1)
    assert member is not None
    member.lease.until = inf if has_lease else 0.0
    outcomes = [ack_many(world, 10, partition, 0, "g") for partition in range(200)]
    await settle()
    looks = 0
    open_partition = Subscription.open_partition

    def count(self: Subscription, partition: int) -> LivePartition | None:
        nonlocal looks
        looks += 1
        return open_partition(self, partition)

    monkeypatch.setattr(Subscription, "open_partition", count)
    timers = world.clock.timers
    for _ in range(50):
        await world.pass_time(0.1)
    assert looks == 0
    assert world.clock.timers <= timers
    member.lease.until = 0.0 if has_lease else inf
    await world.pass_time(1.5)
    await until(lambda: looks == 200)
    member.lease.until = inf
    world.backend.gates.pop("offset_ranges").set()
    await world.pass_time(1.5)
    await until(lambda: all(len(each) == 10 for each in outcomes))


# --- questions for the end of a partition ---------------------------------------------------------


class Questions:
    """Questions for ends of partitions that a world's backend gets.

    Attributes:
        partitions: that were asked for.
        most: the largest number of questions that were under way for a partition at a time.
    """

    def __init__(self, world: World, monkeypatch: pytest.MonkeyPatch) -> None:
        self.partitions: list[int] = []
        self.most = 0
        self._under_way: Counter[int] = Counter()
        self._offset_ranges = world.backend.offset_ranges
        self._late = asyncio.Event()
        self._late.set()
        monkeypatch.setattr(world.backend, "offset_ranges", self._ask)

    def hold_answers(self) -> asyncio.Event:
        """Have answers come late, when the event is set."""
        self._late = asyncio.Event()
        return self._late

    async def _ask(self, topic: str, partitions: Collection[int]) -> Mapping[int, OffsetRange]:
        [partition] = partitions
        self.partitions.append(partition)
        self._under_way[partition] += 1
        self.most = max(self.most, self._under_way[partition])
        try:
            ranges = await self._offset_ranges(topic, partitions)
            await self._late.wait()
        finally:
            self._under_way[partition] -= 1
        return ranges


def ack_many(world: World, count: int, partition: int, offset: int, group: str) -> list[PixyError | None]:
    outcomes: list[PixyError | None] = []
    for _ in range(count):
        world.consumers.ack(group, "t", partition, offset, outcomes.append)
    return outcomes


async def test_acks_beyond_the_end_share_one_question_for_each_partition(
    make_world: MakeWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = make_world(2)
    for group in ("g", "h"):
        await world.consume(group=group)
    questions = Questions(world, monkeypatch)
    late = questions.hold_answers()
    outcomes = [ack_many(world, 500, each, 0, group) for each in range(2) for group in ("g", "h")]
    await settle()
    outcomes += [ack_many(world, 500, each, 7, "g") for each in range(2)]
    await settle()
    assert sorted(questions.partitions) == [0, 1]
    late.set()
    await until(lambda: all(len(each) == 500 for each in outcomes))
    assert {type(outcome) for each in outcomes for outcome in each} == {AckBeyondEnd}
    assert {partition: questions.partitions.count(partition) <= 3 for partition in range(2)} == {
        0: True,
        1: True,
    }
    assert questions.most == 1
    assert world.consumers.counts()["waiting_acks"] == 0


async def test_an_ack_does_not_count_on_a_question_that_was_under_way_before_it(
    make_world: MakeWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = make_world()
    world.handed_out_before(5)
    await world.consume()
    questions = Questions(world, monkeypatch)
    late = questions.hold_answers()
    early = await world.ack(0, 0)
    world.log().end += 3  # The waiting fetch is not notified.
    after = await world.ack(0, 2)
    assert questions.partitions == [0]
    late.set()
    await settle()
    assert [type(outcome) for outcome in early] == [AckBeyondEnd]
    assert after == [None]


async def test_all_acks_that_share_a_question_get_its_error(make_world: MakeWorld) -> None:
    world = make_world()
    await world.consume()
    world.backend.failures["offset_ranges"] = Unavailable("no leader")
    outcomes = ack_many(world, 100, 0, 0, "g")
    await until(lambda: len(outcomes) == 100)
    assert {str(outcome) for outcome in outcomes} == {"no leader"}
    world.backend.failures.clear()
    assert [type(outcome) for outcome in await world.ack(0, 0)] == [AckBeyondEnd]


async def test_a_bug_in_a_question_is_answered_to_all_that_share_it(
    make_world: MakeWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def broken(topic: str, partitions: Collection[int]) -> None:
        raise ZeroDivisionError("a bug")

    world = make_world()
    await world.consume()
    with monkeypatch.context() as patched:
        patched.setattr(world.backend, "offset_ranges", broken)
        outcomes = ack_many(world, 100, 0, 0, "g")
        await until(lambda: len(outcomes) == 100)
    assert {type(outcome) for outcome in outcomes} == {Internal}
    assert [type(fault) for fault in world.faults] == [ZeroDivisionError]
    world.faults.clear()
    assert [type(outcome) for outcome in await world.ack(0, 0)] == [AckBeyondEnd]


# --- end of the subscription ----------------------------------------------------------------------


async def test_without_requests_and_offers_the_subscription_ends(make_world: MakeWorld) -> None:
    world = make_world(long_polling_timeout=1.0)
    await world.consume()
    await world.pass_time(14.9)
    assert world.backend.groups.events[-1][0] != "leave"
    await world.pass_time(0.1)
    assert world.backend.groups.events[-1] == ("leave", "g")
    assert world.consumers._groups == {}
    assert world.clock.timers == 0


async def test_a_request_postpones_the_end(make_world: MakeWorld) -> None:
    world = make_world(long_polling_timeout=1.0)
    for _ in range(5):
        await world.consume()
        await world.pass_time(14)
    assert "leave" not in [event[0] for event in world.backend.groups.events]


async def test_a_waiting_request_postpones_the_end(make_world: MakeWorld) -> None:
    world = make_world(long_polling_timeout=100.0)
    answers = await world.consume()
    await world.pass_time(50)
    world.log().append(b"a")
    await world.pass_time(0)
    assert answers.values == [b"a"]


async def test_with_an_outstanding_offer_it_ends_at_the_last_ack(make_world: MakeWorld) -> None:
    world = make_world()
    world.log().append(b"a", b"b")
    await world.consume(2)
    await world.pass_time(100)
    await world.ack(0, 0)
    assert "leave" not in [event[0] for event in world.backend.groups.events]
    await world.ack(0, 1)
    assert world.backend.groups.events[-2:] == [("commit", "g"), ("leave", "g")]
    assert world.committed() == OffsetCommit(2)


async def test_with_an_outstanding_offer_it_ends_when_that_is_returned(make_world: MakeWorld) -> None:
    world = make_world()
    world.log().append(b"a")
    answers = await world.consume(slow=True)
    await world.pass_time(100)
    answers.offers[0].undelivered()
    await world.pass_time(0)
    assert world.backend.groups.events[-1] == ("leave", "g")


async def test_an_offer_in_the_queue_of_a_slow_reader_spends_no_retry_and_is_offered_to_nobody_else(
    make_world: MakeWorld,
) -> None:
    world = make_world(ack_timeout=10.0, max_retries=0)
    world.log().append(b"a")
    answers = await world.consume(slow=True)
    await world.pass_time(100)
    assert "leave" not in [event[0] for event in world.backend.groups.events]
    assert (await world.consume()).values == []
    answers.offers[0].delivered()
    await world.pass_time(9)
    assert await world.ack(0, 0) == [None]
    assert (world.consumers.counters().expired, world.consumers.counters().dropped) == (0, 0)
    await world.pass_time(20)
    assert world.committed() == OffsetCommit(1)


async def test_with_an_offer_never_acked_it_ends_after_the_ack_timeout(make_world: MakeWorld) -> None:
    world = make_world()
    world.log().append(b"a")
    await world.consume()
    await world.pass_time(299)
    assert "leave" not in [event[0] for event in world.backend.groups.events]
    await world.pass_time(1)
    assert world.backend.groups.events[-1] == ("leave", "g")
    assert (await world.consume()).values == [b"a"]


async def test_the_end_reports_the_number_of_unacked_records(make_world: MakeWorld) -> None:
    world = make_world()
    world.log().append(b"a", b"b")
    await world.consume(2)
    with capture_logs() as logs:
        await world.pass_time(300)
    assert [(entry["event"], entry["unacked"]) for entry in logs] == [
        ("subscription ends with records that are not acked", 2)
    ]


async def test_a_request_near_the_end_keeps_the_subscription(make_world: MakeWorld) -> None:
    world = make_world(long_polling_timeout=1.0)
    world.log().append(b"a")
    await world.consume()
    await world.pass_time(100)
    answers = await world.consume(ack=(0, 0))
    world.log().append(b"b")
    await world.pass_time(0)
    assert answers.values == [b"b"]
    await world.ack(0, 1)
    await world.pass_time(14)
    assert "leave" not in [event[0] for event in world.backend.groups.events]
    await world.pass_time(2)
    assert world.backend.groups.events[-1] == ("leave", "g")


async def test_a_request_while_it_ends_is_served_by_the_next_subscription(make_world: MakeWorld) -> None:
    world = make_world(long_polling_timeout=1.0)
    world.log().append(b"a", b"b")
    answers = await world.consume(auto_ack=True)
    gate = world.backend.gates["leave"] = asyncio.Event()
    answers.offers[0].delivered()
    await world.pass_time(15)
    assert ("leave", "g") not in world.backend.groups.events
    later = await world.consume()
    assert later.offers == []
    gate.set()
    await world.pass_time(0)
    assert later.values == [b"b"]
    assert [event[0] for event in world.backend.groups.events if event[0] != "commit"] == [
        "join",
        "leave",
        "join",
    ]
