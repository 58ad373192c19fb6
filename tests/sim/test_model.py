"""The model of a simulation accepts possible states, and detects any other."""

from collections.abc import Callable, Mapping

import pytest

from pixy.cluster import MetadataState, Topic
from pixy.config import StorageConfig
from pixy.errors import InvalidArgument, PixyError, TopicExists, UnknownTopic
from pixy.records import OffsetCommit
from pixy.storage import LogOptions
from tests.fakes.clock import FakeClock
from tests.sim.model import Found, FoundPartition, Model
from tests.sim.model_offsets import PartitionId
from tests.sim.model_partition import Allowed, PartitionModel, Sent
from tests.sim.model_topics import Change, TopicsModel

ID = b"id of the topic"
PARTITION = PartitionId(ID, 0)
RECORDS = [Sent(None, b"%d" % number, number) for number in range(6)]
BATCH_BYTES = 100
SENT_MS = 1000


def metadata(*topics: Topic, next_raft_group: int | None = None) -> MetadataState:
    made = MetadataState()
    made.topics = {topic.name: topic for topic in topics}
    made.next_raft_group = next_raft_group or max(
        (topic.raft_groups[-1] + 1 for topic in topics), default=1000
    )
    return made


def topic(
    name: str = "topic",
    topic_id: bytes = ID,
    version: int = 1,
    config: Mapping[str, str] | None = None,
    raft_groups: tuple[int, ...] = (1000,),
) -> Topic:
    return Topic(name, topic_id, version, config or {}, raft_groups)


# --- the whole model ------------------------------------------------------------------------------


def model() -> Model:
    """A model with three batches of two records sent and one acknowledged, and two commits with the
    first acknowledged.
    """
    made = Model(FakeClock(monotonic=0.0))
    made.begin_life(StorageConfig(retention=0.0))
    made.topics.send(Change("create", "topic", 1))
    made.see(metadata(topic()))
    of = made.partition(PARTITION)
    for at in range(0, 6, 2):
        of.send(RECORDS[at : at + 2], BATCH_BYTES, made.clock.true_ms())
    of.acknowledge(0)
    for offset in (3, 4):
        made.offsets.send("g", PARTITION, OffsetCommit(offset))
    made.offsets.acknowledge("g", PARTITION, OffsetCommit(3), made.clock.true_ms())
    return made


def found(records: list[Sent], committed: int = 3, begin: int = 0) -> Found:
    return Found(
        metadata(topic()),
        {PARTITION: FoundPartition(begin, records)},
        {("g", PARTITION): OffsetCommit(committed)},
    )


@pytest.mark.parametrize("committed", [3, 4])
@pytest.mark.parametrize("count", [2, 4, 6])
def test_unacknowledged_batches_may_exist_in_order_and_stay_once_shown(count: int, committed: int) -> None:
    made = model()
    made.check(found(RECORDS[:count], committed), made.promised())
    with pytest.raises(AssertionError, match=f"{count} records were promised, they end at {count - 2}"):
        made.check(found(RECORDS[: count - 2], committed), made.promised())
    made.adopt(found(RECORDS[:count], committed))
    with pytest.raises(AssertionError, match=r"first wrong record|not in"):
        made.check(found(RECORDS, 7 - committed), made.promised())


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        (found([]), "2 records were promised, they end at 0"),
        (found(RECORDS[:3]), "no whole batches"),
        (found([*RECORDS[:2], *RECORDS[4:]]), "the first wrong record is 2"),
        (found([*RECORDS, RECORDS[0]]), "the first wrong record is 6"),
        (found([RECORDS[0], RECORDS[1]._replace(value=b"?")]), "the first wrong record is 1"),
        (found(RECORDS[2:], begin=2), "the log may begin up to 0, it does at 2"),
        (found(RECORDS, 5), "offset=5.* not in"),
        (found(RECORDS)._replace(committed={}), "None not in"),
        (found(RECORDS)._replace(committed={("x", PARTITION): OffsetCommit(1)}), "not in|never committed"),
        (found(RECORDS)._replace(partitions={}), "is not found"),
        (found(RECORDS)._replace(metadata=metadata(next_raft_group=1001)), "leads to"),
        (found(RECORDS)._replace(metadata=metadata(topic(topic_id=b"other"))), "another id"),
        (found(RECORDS)._replace(metadata=metadata(topic(raft_groups=(1001,)))), "leads to"),
    ],
)
def test_any_other_state_is_detected(wrong: Found, why: str) -> None:
    made = model()
    with pytest.raises(AssertionError, match=why):
        made.check(wrong, made.promised())


def test_a_damaged_partition_may_show_less_but_nothing_wrong() -> None:
    made = model()
    damaged = frozenset({PARTITION})
    made.check(found([])._replace(damaged=damaged), made.promised())
    with pytest.raises(AssertionError, match="the first wrong record is 0"):
        made.check(found(RECORDS[1:2])._replace(damaged=damaged), made.promised())


def test_offsets_of_a_deleted_topic_do_not_apply_to_its_successor() -> None:
    made = model()
    made.topics.send(Change("delete", "topic"))
    made.topics.send(Change("create", "topic", 1))
    new = PartitionId(b"new", 0)
    now = metadata(topic(topic_id=b"new", raft_groups=(1001,)))
    empty = Found(now, {new: FoundPartition(0, [])}, {})
    made.check(empty, made.promised())
    with pytest.raises(AssertionError, match="never committed"):
        made.check(empty._replace(committed={("g", new): OffsetCommit(3)}), made.promised())


# --- topics ---------------------------------------------------------------------------------------


def test_answers_show_applied_changes() -> None:
    made = TopicsModel(FakeClock(monotonic=0.0))
    for change, error in (
        (Change("delete", "topic"), UnknownTopic("")),
        (Change("create", "topic", 2), None),
        (Change("create", "topic", 1), TopicExists("")),
        (Change("alter", "topic", 1), InvalidArgument("")),
        (Change("alter", "topic", 3, {"retention_ms": "1", "segment_ms": "2"}), None),
        (Change("alter", "topic", 0, {"retention_ms": None}), None),
    ):
        made.send(change)
        made.answer(change, error)
    made.see(metadata(topic(version=3, config={"segment_ms": "2"}, raft_groups=(1000, 1001, 1002))))
    assert made.unanswered == 0


@pytest.mark.parametrize(
    ("change", "error"),
    [
        (Change("delete", "topic"), None),
        (Change("create", "topic", 1), UnknownTopic("")),
    ],
)
def test_a_wrong_answer_is_detected(change: Change, error: PixyError | None) -> None:
    made = TopicsModel(FakeClock(monotonic=0.0))
    made.send(change)
    with pytest.raises(AssertionError, match="is answered with"):
        made.answer(change, error)


def test_changes_happen_in_order_and_stay() -> None:
    made = TopicsModel(FakeClock(monotonic=0.0))
    for name in ("a", "b"):
        made.send(Change("create", name, 1))
    with pytest.raises(AssertionError, match="leads to"):
        made.see(metadata(topic("b", raft_groups=(1000,))))
    made.see(metadata(topic("a")))
    with pytest.raises(AssertionError, match="leads to"):
        made.see(metadata())
    made.see(metadata(topic("a"), topic("b", b"other", raft_groups=(1001,))))


def test_after_a_start_no_earlier_request_is_applied() -> None:
    made = TopicsModel(FakeClock(monotonic=0.0))
    made.send(Change("create", "topic", 1))
    made.adopt(metadata())
    with pytest.raises(AssertionError, match="leads to"):
        made.see(metadata(topic()))


def test_ids_are_never_reused() -> None:
    made = TopicsModel(FakeClock(monotonic=0.0))
    made.send(Change("create", "topic", 1))
    made.see(metadata(topic()))
    made.send(Change("delete", "topic"))
    made.send(Change("create", "topic", 1))
    with pytest.raises(AssertionError, match="another id"):
        made.see(metadata(topic(topic_id=b"other")))  # with the raft group of the first
    with pytest.raises(AssertionError, match="the id of another topic"):
        made.see(metadata(topic(raft_groups=(1001,))))


# --- begin of a partition -------------------------------------------------------------------------


def partition() -> PartitionModel:
    made = PartitionModel()
    for at in range(0, 6, 2):
        made.send(RECORDS[at : at + 2], BATCH_BYTES, SENT_MS + at)
    made.adopt(6)
    return made


def options(retention_bytes: int | None = None, retention_ms: int | None = None) -> LogOptions:
    return LogOptions(1 << 20, 1 << 20, retention_bytes, retention_ms)


def at(now_ms: int) -> Callable[[int], int]:
    return lambda _: now_ms


@pytest.mark.parametrize(
    ("allowed", "now_ms", "last"),
    [
        ([Allowed(options())], 10**6, 0),
        ([Allowed(options(retention_bytes=3 * BATCH_BYTES))], 0, 0),
        ([Allowed(options(retention_bytes=2 * BATCH_BYTES))], 0, 2),
        ([Allowed(options(retention_bytes=0))], 0, 4),
        # The records have timestamps 0 to 5, and a batch its latest.
        ([Allowed(options(retention_ms=100))], 98, 0),
        ([Allowed(options(retention_ms=100))], 99, 2),
        ([Allowed(options(retention_ms=100))], 103, 6),
        ([Allowed(options(retention_ms=100), until_ms=101)], 10**6, 4),
        # One option allows some deletions, and then another one the rest.
        ([Allowed(options(retention_ms=100), 99), Allowed(options(retention_bytes=BATCH_BYTES))], 10**6, 4),
    ],
)
def test_records_are_deleted_as_far_as_options_have_ever_allowed(
    allowed: list[Allowed], now_ms: int, last: int
) -> None:
    for begin in (0, 2, 4, 6):
        if begin <= last:
            partition().check_begin(begin, allowed, at(now_ms))
        else:
            with pytest.raises(AssertionError, match=f"may begin up to {last}, it does at {begin}"):
                partition().check_begin(begin, allowed, at(now_ms))


def test_a_log_begins_with_a_batch_and_never_earlier_again() -> None:
    made = partition()
    everything = [Allowed(options(retention_bytes=0))]
    with pytest.raises(AssertionError, match="within a batch"):
        made.check_begin(3, everything, at(0))
    made.check_begin(4, everything, at(0))
    with pytest.raises(AssertionError, match="the log began at 4, now at 2"):
        made.check_begin(2, everything, at(0))


def test_answers_out_of_order_are_detected() -> None:
    made = PartitionModel()
    for record in RECORDS:
        made.send([record], BATCH_BYTES, SENT_MS)
    with pytest.raises(AssertionError, match=r"batch 2 is answered, 0 is due"):
        made.acknowledge(2)


def test_the_latest_time_is_that_of_a_wall_clock_which_may_be_behind() -> None:
    clock = FakeClock(monotonic=0.0)
    began_ms = clock.true_ms()
    clock.advance(10)
    clock.set_wall(-60_000)
    stamped_ms = clock.true_ms()
    clock.advance(20)
    assert clock.latest_ms(began_ms) == began_ms + 10_000
    assert clock.latest_ms(stamped_ms + 1) == clock.wall_ms() == began_ms + 30_000 - 60_000
    clock.set_wall(5000)
    clock.advance(1)
    assert clock.latest_ms(stamped_ms + 1) == clock.true_ms()


# --- offsets of consumer groups -------------------------------------------------------------------


def test_offsets_expire_together_and_only_after_their_time() -> None:
    made = model()
    made.offsets.begin_life(1000)
    made.clock.advance(0.99)
    with pytest.raises(AssertionError, match="None not in"):
        made.offsets.check({})
    made.clock.advance(0.01)
    made.offsets.check({})
    assert made.offsets.forgotten == 1
    with pytest.raises(AssertionError, match=r"offset=3.* not in"):
        made.offsets.check({("g", PARTITION): OffsetCommit(3)})


def test_a_commit_may_have_expired_when_its_answer_arrives() -> None:
    made = model()
    made.offsets.begin_life(1000)
    sent_ms = made.clock.true_ms()
    made.offsets.send("g", PARTITION, OffsetCommit(5))
    made.clock.advance(2)
    made.offsets.acknowledge("g", PARTITION, OffsetCommit(5), sent_ms)
    made.offsets.check({})


def test_offsets_of_a_group_with_members_do_not_expire() -> None:
    made = model()
    made.offsets.begin_life(1000)
    made.offsets.set_members("g", True)
    made.clock.advance(5)
    with pytest.raises(AssertionError, match="None not in"):
        made.offsets.check({})


def test_offsets_kept_past_their_time_are_detected() -> None:
    made = model()
    stored = {("g", PARTITION): OffsetCommit(3)}
    now_ms = made.clock.true_ms()
    made.offsets.check_forgotten(stored, now_ms)
    with pytest.raises(AssertionError, match="g is not forgotten"):
        made.offsets.check_forgotten(stored, now_ms + 1)
