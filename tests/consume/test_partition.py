"""pixy/consume/partition/partition.py: one live partition with its own host, cluster and clock."""

import asyncio
import tracemalloc
from collections.abc import AsyncIterator, Iterable

import pytest
from structlog.testing import capture_logs

from pixy.aio.tasks import Tasks
from pixy.backend import OffsetCommit, TopicPartition
from pixy.config import ConsumerConfig
from pixy.consume.core.join_turns import JoinTurns
from pixy.consume.core.offer import Offer, OfferLimits
from pixy.consume.core.offset_tracker import OffsetTracker
from pixy.consume.core.partition_limit import PartitionLimit
from pixy.consume.core.passing_turns import PassingTurns
from pixy.consume.core.sparse_acks import AckRange
from pixy.consume.core.timers import Timers
from pixy.consume.core.voided import VoidedOffsets
from pixy.consume.core.waiting_ack_limit import WaitingAckLimit
from pixy.consume.memory.memory_turns import Demand
from pixy.consume.memory.pins import bounded_pins
from pixy.consume.memory.unpacking import Unpacking
from pixy.consume.partition.dispatcher import Dispatcher
from pixy.consume.partition.end_questions import EndQuestions
from pixy.consume.partition.environment import ConsumeEnvironment
from pixy.consume.partition.fetched_memory import bounded_fetches
from pixy.consume.partition.partition import LivePartition
from pixy.errors import AckBeyondEnd, InvalidAck, ResourceExhausted, Unavailable
from tests.consume.fakes import Answers
from tests.fakes.backend import FakeBackend
from tests.fakes.clock import FakeClock
from tests.fakes.partition_log import FakeLog
from tests.fakes.waiting import settle

T0 = TopicPartition("t", 0)
ACK_TIMEOUT = 30.0


class Host:
    """A subscription that records its notifications, and owns the partition's dependencies."""

    def __init__(self) -> None:
        self.group_name = "g"
        self.topic = "t"
        self.dispatcher = Dispatcher(100, 3.0)
        self.watching = False
        self.dirty: list[LivePartition] = []
        self.handed_out: list[LivePartition] = []
        self.looks = 0
        self.backend = FakeBackend(topics={"t": 1})
        self.clock = FakeClock()
        self.faults: list[BaseException] = []
        self.limits = OfferLimits(ACK_TIMEOUT, 3, 1 << 20, 1, 1 << 20)
        timers = Timers(self.clock, self.clock.call_later)
        tasks = Tasks(self.faults.append)
        self.environment = ConsumeEnvironment(
            self.backend,
            ConsumerConfig(),
            "me",
            timers,
            tasks,
            self.limits,
            lambda topic, fail: None,
            Unpacking(1 << 20, timers),
            bounded_fetches(1 << 20, timers),
            bounded_pins(1 << 20, timers),
            PartitionLimit(100),
            JoinTurns(timers, 100),
            PassingTurns(timers),
            WaitingAckLimit(1000),
            EndQuestions(self.backend, tasks),
        )
        self.live: LivePartition | None = None

    @property
    def log(self) -> FakeLog:
        return self.backend.log(TopicPartition("t", 0))

    def mark_dirty(self, partition: LivePartition) -> None:
        self.dirty.append(partition)

    def mark_handed_out(self, partition: LivePartition) -> None:
        self.handed_out.append(partition)

    def ack_kept(self, partition: LivePartition, offset: int) -> None:
        pass

    def wake(self, partition: LivePartition) -> None:
        self.dispatcher.wake(partition, self.clock.monotonic())

    def demand(self, now: float) -> Demand:
        return Demand.WAITING

    def check_quiet(self) -> None:
        self.looks += 1

    def make(self, base: int = 0, acked: Iterable[AckRange] = (), *, handed_out: int = 0) -> LivePartition:
        """A fetching partition with all offsets below `base` acked."""
        topic_id = self.backend.topic_id("t")
        tracker = OffsetTracker(base, acked)
        self.live = LivePartition(self.environment, self, 0, tracker, base, topic_id, handed_out)
        self.live.start()
        return self.live

    async def take(self, live: LivePartition, count: int = 1, *, deliver: bool = True) -> list[Offer]:
        await settle()
        taken = [offer for _ in range(count) if (offer := live.offers.take()) is not None]
        live.look()
        if deliver:
            for offer in taken:
                offer.delivered()
        return taken

    async def pass_time(self, seconds: float) -> None:
        await settle()
        self.clock.advance(seconds)
        await settle()


@pytest.fixture
async def host() -> AsyncIterator[Host]:
    host = Host()
    yield host
    if host.live is not None:
        host.live.close()
    await host.environment.tasks.cancel_all()
    assert host.faults == []
    assert host.clock.timers == 0


async def test_a_committed_position_takes_the_bytes_of_its_metadata(host: Host) -> None:
    live = host.make()
    set_by_client = [OffsetCommit(5, f"\U0001f600{number}" + "m" * 4091) for number in range(100)]
    tracemalloc.start()
    try:
        kept = []
        for commit in set_by_client:
            live.commit_begins(commit)
            kept.append((live._committed_offset, live._committed_metadata))
            assert live.committed == commit
        assert tracemalloc.get_traced_memory()[0] < 100 * 4096 * 1.1 + 4 * 4096
    finally:
        tracemalloc.stop()


# --- acks -----------------------------------------------------------------------------------------


async def test_acks_notify_the_host_once_until_it_has_committed(host: Host) -> None:
    host.log.append(b"a", b"b", b"c")
    live = host.make()
    await host.take(live, 3)
    live.ack(0)
    live.ack(2)
    assert host.dirty == [live]
    assert live.commit().offset == 1
    live.dirty = False
    live.ack(1)
    assert host.dirty == [live, live]
    assert live.commit() == OffsetCommit(3)


async def test_an_auto_ack_that_does_not_fit_into_a_commit_is_not_forgotten(host: Host) -> None:
    host.log.append(b"a", b"b", b"c")
    live = host.make(acked=[AckRange(offset, offset + 1) for offset in range(3001, 3001 + 2 * 2047, 2)])
    assert len(live.commit().metadata) == 4096
    first, second, third = await host.take(live, 3, deliver=False)
    first.delivered()
    second.auto_ack = True
    second.delivered()
    assert (live.offers.outstanding, host.dirty) == (3, [])
    with pytest.raises(ResourceExhausted, match="ack not accepted: offset 2 of t/0"):
        live.ack(2)
    third.delivered()
    live.ack(0)
    await host.pass_time(ACK_TIMEOUT)
    assert [offer.record.offset for offer in await host.take(live, 2)] == [1, 2]
    live.ack(1)
    live.ack(2)
    assert live.commit().offset == 3


async def test_an_ack_of_a_record_on_its_way_counts_at_its_delivery(host: Host) -> None:
    host.log.append(b"a", b"b")
    live = host.make()
    first, second = await host.take(live, 2, deliver=False)
    live.ack(0)
    live.ack(1)
    assert (host.dirty, live.commit().offset) == ([], 0)
    second.undelivered()
    first.delivered()
    assert (host.dirty, live.commit().offset, live.offers.outstanding) == ([live], 1, 0)
    assert [offer.record.value for offer in await host.take(live)] == [b"b"]


async def test_an_ack_without_effect_does_not_notify_the_host(host: Host) -> None:
    host.log.append(b"a", b"b")
    live = host.make(base=1)
    await host.take(live)
    live.ack(0)
    live.ack(1, only_if_offered=True)
    live.ack(1)
    assert host.dirty == [live]


async def test_an_impossible_ack_is_rejected(host: Host) -> None:
    host.log.append(b"a")
    live = host.make()
    await settle()
    with pytest.raises(InvalidAck, match="bad offset: -1"):
        live.ack(-1)
    with pytest.raises(AckBeyondEnd):
        live.ack(1)
    assert host.dirty == []


async def test_a_delivered_offer_with_auto_ack_acks_unless_it_is_void(host: Host) -> None:
    host.log.append(b"a", b"b")
    live = host.make()
    first, second = await host.take(live, 2, deliver=False)
    for offer in (first, second):
        offer.auto_ack = True
    first.delivered()
    assert live.commit() == OffsetCommit(1)
    live.reset(OffsetTracker(1), 2)
    second.delivered()
    assert live.commit() == OffsetCommit(1)


async def test_an_ack_lets_the_next_record_go_to_a_waiting_request(host: Host) -> None:
    host.log.append(b"a", b"b", b"c", b"d")
    live = host.make()
    await host.take(live, 3)
    answers = Answers()
    host.dispatcher.consume(answers, False, None, host.clock.monotonic())
    assert answers.values == []
    live.ack(1)
    assert answers.values == [b"d"]


# --- redelivery -----------------------------------------------------------------------------------


async def test_an_undelivered_offer_goes_to_a_waiting_request(host: Host) -> None:
    host.log.append(b"a")
    live = host.make()
    (offer,) = await host.take(live, deliver=False)
    answers = Answers()
    host.dispatcher.consume(answers, False, None, host.clock.monotonic())
    live.undelivered(offer)
    assert answers.values == [b"a"]
    live.undelivered(offer)
    assert live.offers.outstanding == 1


async def test_an_offer_not_acked_in_time_goes_to_a_waiting_request(host: Host) -> None:
    host.log.append(b"a")
    live = host.make()
    await host.take(live)
    await host.pass_time(ACK_TIMEOUT - 1)
    answers = Answers()
    host.dispatcher.consume(answers, False, None, host.clock.monotonic())
    await host.pass_time(0.9)
    assert answers.values == []
    await host.pass_time(0.1)
    assert answers.values == [b"a"]


async def test_the_ack_timeout_starts_at_delivery(host: Host) -> None:
    host.log.append(b"a", b"b")
    live = host.make()
    slow, quick = await host.take(live, 2, deliver=False)
    quick.delivered()
    await host.pass_time(10 * ACK_TIMEOUT)
    assert (live.offers.outstanding, live.offers.expired) == (1, 1)
    slow.delivered()
    await host.pass_time(ACK_TIMEOUT - 1)
    assert (live.offers.outstanding, live.offers.expired) == (1, 1)
    await host.pass_time(1)
    assert (live.offers.outstanding, live.offers.expired) == (0, 2)


async def test_every_offer_has_its_own_deadline(host: Host) -> None:
    host.log.append(b"a", b"b")
    live = host.make()
    await host.take(live)
    await host.pass_time(10)
    await host.take(live)
    await host.pass_time(ACK_TIMEOUT - 10)
    assert live.offers.outstanding == 1
    await host.pass_time(10)
    assert live.offers.outstanding == 0


async def test_a_record_never_acked_is_dropped_after_the_last_retry_and_logged(host: Host) -> None:
    host.log.append(b"a")
    live = host.make()
    with capture_logs() as logs:
        for _ in range(2):
            await host.take(live)
            await host.pass_time(ACK_TIMEOUT)
    assert [(entry["count"], entry["first"]) for entry in logs] == [(1, 0)]
    assert live.commit() == OffsetCommit(1)
    assert host.dirty == [live]


# --- watching hosts -------------------------------------------------------------------------------


async def test_a_watching_host_is_notified_whenever_offers_may_have_decreased(host: Host) -> None:
    host.log.append(b"a", b"b", b"c")
    live = host.make()
    first, second, third = await host.take(live, 3, deliver=False)
    second.delivered()
    third.delivered()
    live.ack(1)
    assert host.looks == 0
    host.watching = True
    live.ack(2)
    assert host.looks == 1
    live.undelivered(first)
    assert host.looks == 2
    await host.take(live)
    await host.pass_time(ACK_TIMEOUT)
    assert host.looks == 3
    live.reset(OffsetTracker(0), 3)
    assert host.looks == 4


# --- records and gaps -----------------------------------------------------------------------------


async def test_arriving_records_go_to_waiting_requests(host: Host) -> None:
    host.make()
    answers = Answers()
    host.dispatcher.consume(answers, False, None, host.clock.monotonic())
    await settle()
    host.log.append(b"a")
    await settle()
    assert answers.values == [b"a"]


async def test_a_skipped_gap_is_committed(host: Host) -> None:
    live = host.make()
    host.log.add_gap(5)
    await settle()
    assert host.dirty == [live]
    assert live.commit() == OffsetCommit(5)


async def test_the_reason_for_missing_records_is_reported_until_it_is_gone(host: Host) -> None:
    live = host.make()
    live.stop_fetching()
    host.backend.failures["fetch"] = Unavailable("no leader")
    with capture_logs():
        live.start()
        await settle()
        assert {key: str(fault) for key, fault in host.dispatcher.faults.items()} == {live: "no leader"}
        host.backend.failures.clear()
        host.log.append(b"a")
        await host.pass_time(1)
    assert host.dispatcher.faults == {}


# --- resets and close -----------------------------------------------------------------------------


async def test_after_a_reset_records_are_redelivered_and_old_acks_do_not_count(host: Host) -> None:
    host.log.append(b"a", b"b")
    live = host.make()
    await host.take(live, 2)
    live.ack(0)
    live.reset(OffsetTracker(0), 2)
    assert not live.dirty
    live.ack(1)
    assert live.commit() == OffsetCommit(0)
    assert [offer.record.offset for offer in await host.take(live, 2)] == [0, 1]


async def test_a_closed_partition_still_reports_its_position_and_does_nothing_else(host: Host) -> None:
    host.log.append(b"a", b"b", b"c")
    live = host.make()
    first, second, third = await host.take(live, 3, deliver=False)
    first.delivered()
    live.ack(first.record.offset)
    host.dirty.clear()
    live.close()
    second.auto_ack = True
    live.delivered(second)
    live.undelivered(third)
    assert live.closed
    assert live.commit() == OffsetCommit(1)
    assert (host.dirty, live.offers.outstanding, live.offers.ready) == ([], 0, False)
    await host.pass_time(ACK_TIMEOUT)
    await asyncio.wait_for(host.environment.tasks.cancel_all(), 1)
    assert len(host.environment.tasks) == 0


async def test_closing_clears_its_fault(host: Host) -> None:
    host.backend.failures["fetch"] = Unavailable("no leader")
    with capture_logs():
        live = host.make()
        await settle()
    assert list(host.dispatcher.faults) == [live]
    live.close()
    assert host.dispatcher.faults == {}


async def test_offers_voided_by_a_reset_are_remembered_across_restarts_of_the_partition(host: Host) -> None:
    host.log.append(b"a", b"b", b"c")
    live = host.make()
    await host.take(live, 2)
    live.reset(OffsetTracker(0), 3)
    assert host.environment.voided.of("g", T0) == VoidedOffsets(frozenset({0, 1}))
    await host.take(live, 1)
    live.close()
    live = host.make(handed_out=3)
    await settle()
    live.ack(1)
    assert host.dirty == []
    live.ack(0)  # was offered again
    live.ack(2)  # was not out
    assert live.commit() == OffsetCommit(1, "BB")


async def test_acks_of_a_replaced_topic_have_no_effect_at_any_offset(host: Host) -> None:
    host.environment.voided.put("g", T0, VoidedOffsets(replaced=range(1001)))
    host.log.append(b"a", b"b")
    live = host.make()
    await host.take(live)
    for offset in (1, 2, 1000):
        live.ack(offset)
    assert host.dirty == []
    live.ack(0)
    assert live.commit() == OffsetCommit(1)
