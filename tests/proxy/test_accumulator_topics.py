"""pixy/proxy/accumulator.py: topics that grow, lose leaders, are deleted and recreated while
records are in flight.
"""

from dataclasses import replace

import pytest
import structlog

from pixy.backend import TopicPartition
from pixy.config import ProducerConfig
from pixy.errors import Unavailable
from pixy.proxy.accumulator import _TOPICS_MIN, Accumulators
from tests.fakes.backend import FakeBackend
from tests.fakes.waiting import until
from tests.proxy.producing import TOPIC, Answers, append, batches, flat, make


async def described(backend: FakeBackend, partition: int, leader: int) -> None:
    backend.set_leader(TopicPartition(TOPIC, partition), leader)


async def partitions_of(
    accumulators: Accumulators, count: int, *, key: bytes | None = None, topic: str = TOPIC
) -> list[int]:
    """Partitions of the next records, produced one after the other."""
    answers = Answers()
    for number in range(count):
        append(accumulators, b"v", answers, key=key, topic=topic)
        await answers.wait(number + 1)
    assert [error for _, _, error in answers.all if error is not None] == []
    return [partition for partition, _, _ in answers.all]


def in_turn(options: ProducerConfig | None = None) -> ProducerConfig:
    return replace(options or ProducerConfig(), partitioner="roundrobin")


async def test_added_partitions_are_used_by_the_next_record() -> None:
    accumulators, backend, _ = await make(in_turn(), partitions=2)
    assert sorted(await partitions_of(accumulators, 4)) == [0, 0, 1, 1]
    await backend.alter_topic(TOPIC, partitions=3)
    assert sorted(await partitions_of(accumulators, 6)) == [0, 0, 1, 1, 2, 2]


async def test_keys_are_hashed_over_the_new_number_of_partitions() -> None:
    accumulators, backend, answers = await make(partitions=1)
    append(accumulators, b"v", answers, key=b"A")
    await backend.alter_topic(TOPIC, partitions=4)
    for key in (b"", b"foo", b"bar", b"A"):
        append(accumulators, b"v-" + key, answers, key=key)
    await answers.wait(5)
    assert {partition: flat(await batches(backend, partition)) for partition in range(4)} == {
        0: [b"v", b"v-A"],
        1: [b"v-foo"],
        2: [b"v-bar"],
        3: [b"v-"],
    }


async def test_growth_keeps_gathered_records_and_their_order() -> None:
    accumulators, backend, answers = await make(partitions=1)
    backend.hold_appends()
    append(accumulators, b"0", answers, key=b"A")
    await until(lambda: backend.held_appends)
    append(accumulators, b"1", answers, key=b"A")
    await backend.alter_topic(TOPIC, partitions=4)
    append(accumulators, b"2", answers, key=b"A")
    backend.release_appends()
    await answers.wait(3)
    assert flat(await batches(backend)) == [b"0", b"1", b"2"]


async def test_every_topic_has_its_own_rotation() -> None:
    accumulators, backend, answers = await make(in_turn(), partitions=2)
    await backend.create_topic("other", 2)
    for _ in range(2):
        append(accumulators, b"v", answers)
        append(accumulators, b"v", answers, topic="other")
    await answers.wait(4)
    assert sorted(partition for partition, _, _ in answers.all) == [0, 0, 1, 1]
    assert [len(flat(await batches(backend, number))) for number in (0, 1)] == [1, 1]


@pytest.mark.slow
@pytest.mark.parametrize("partitioner", ["hash", "murmur2", "random", "roundrobin"])
async def test_records_without_a_key_avoid_partitions_without_a_leader(partitioner: str) -> None:
    accumulators, backend, _ = await make(ProducerConfig(partitioner=partitioner), partitions=4)
    assert set(await partitions_of(accumulators, 200)) == {0, 1, 2, 3}
    await described(backend, 1, -1)
    await described(backend, 2, -1)
    assert set(await partitions_of(accumulators, 200)) == {0, 3}
    await described(backend, 1, 7)
    assert set(await partitions_of(accumulators, 200)) == {0, 1, 3}


@pytest.mark.slow
@pytest.mark.parametrize("partitioner", ["hash", "murmur2", "random", "roundrobin"])
async def test_records_without_a_key_go_to_partitions_that_this_process_leads(partitioner: str) -> None:
    accumulators, backend, _ = await make(ProducerConfig(partitioner=partitioner), partitions=4)
    backend.set_led_here(TOPIC, 1, 3)
    await described(backend, 2, -1)
    assert set(await partitions_of(accumulators, 200)) == {1, 3}
    backend.set_led_here(TOPIC)
    await described(backend, 2, 7)
    assert set(await partitions_of(accumulators, 200)) == {0, 1, 2, 3}


async def test_records_without_a_key_leave_a_partition_that_loses_its_leader_while_they_gather() -> None:
    accumulators, backend, answers = await make(partitions=2)
    backend.hold_appends()
    for value in (b"a", b"b"):
        append(accumulators, value, answers, key=None)
    (lost,) = [each.partition.partition for each in accumulators._dirty]
    await described(backend, lost, -1)
    append(accumulators, b"c", answers, key=None)
    backend.release_appends()
    await answers.wait(3)
    assert flat(await batches(backend, 1 - lost)) == [b"c"]


async def test_keys_stay_with_their_partition_whether_it_has_a_leader_or_not() -> None:
    accumulators, backend, _ = await make(partitions=4)
    await described(backend, 1, -1)
    assert set(await partitions_of(accumulators, 3, key=b"foo")) == {1}


async def test_records_go_anywhere_if_no_partition_has_a_leader() -> None:
    accumulators, backend, _ = await make(partitions=2)
    for partition in range(2):
        await described(backend, partition, -1)
    assert set(await partitions_of(accumulators, 200)) == {0, 1}


async def test_all_records_of_a_deleted_topic_are_answered() -> None:
    accumulators, backend, answers = await make(ProducerConfig(channel_buffer_size=3))
    backend.hold_appends()
    append(accumulators, b"in flight", answers)
    await until(lambda: backend.held_appends)
    append(accumulators, b"gathered", answers)
    append(accumulators, b"asynchronous", Answers(), sync=False)
    waits = [append(accumulators, b"waits for room", answers, sync=sync) for sync in (True, False)]
    assert all(each is not None for each in waits)
    with structlog.testing.capture_logs() as logs:
        await backend.delete_topic(TOPIC)
        await accumulators.drained()
        accumulators.report_lost()
    errors = [error for _, _, error in answers.all]
    assert [type(error) for error in errors] == [
        Unavailable,
        Unavailable,
        Unavailable,
        Unavailable,
    ]
    assert (accumulators.buffered, accumulators.buffered_bytes, accumulators.lost) == (0, 0, 1)
    assert [entry["messages"] for entry in logs] == [1]
    assert backend.topic(TOPIC) is None


async def test_records_gathered_for_a_topic_go_to_its_replacement_in_order() -> None:
    accumulators, backend, answers = await make()
    backend.hold_appends()
    append(accumulators, b"in flight", answers)
    await until(lambda: backend.held_appends)
    append(accumulators, b"before", answers)
    await backend.delete_topic(TOPIC)
    await backend.create_topic(TOPIC, 1)
    append(accumulators, b"after", answers)
    backend.release_appends()
    await answers.wait(3)
    assert [type(error) for _, _, error in answers.all] == [Unavailable, type(None), type(None)]
    assert flat(await batches(backend)) == [b"before", b"after"]


async def test_a_topic_recreated_with_fewer_partitions_is_used_and_nothing_hangs() -> None:
    accumulators, backend, answers = await make(in_turn(ProducerConfig(flush_frequency=3600.0)), partitions=4)
    for value in (b"0", b"1", b"2", b"3"):
        append(accumulators, value, answers)
    await backend.delete_topic(TOPIC)
    await backend.create_topic(TOPIC, 2)
    for value in (b"4", b"5", b"6", b"7"):
        append(accumulators, value, answers)
    await accumulators.drained()
    assert len(answers.all) == 8
    written = flat(await batches(backend, 0)) + flat(await batches(backend, 1))
    assert sorted(written, key=str) == [b"0", b"1", b"4", b"5", b"6", b"7"]
    refused = [error for _, _, error in answers.all if error is not None]
    assert [type(error) for error in refused] == [Unavailable] * 2


@pytest.mark.slow
async def test_deleted_topics_are_forgotten() -> None:
    accumulators, backend, answers = await make()
    for number in range(500):
        await backend.create_topic(f"t-{number}", 1)
        append(accumulators, b"v", answers, topic=f"t-{number}")
        await answers.wait(number + 1)
        await backend.delete_topic(f"t-{number}")
    assert len(accumulators._topics) <= _TOPICS_MIN


async def test_existing_topics_are_not_forgotten() -> None:
    accumulators, backend, answers = await make()
    names = [f"t-{number}" for number in range(3 * _TOPICS_MIN)]
    for at, name in enumerate(names):
        await backend.create_topic(name, 1)
        append(accumulators, b"v", answers, topic=name)
        await answers.wait(at + 1)
    assert list(accumulators._topics) == names
