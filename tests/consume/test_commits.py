"""pixy/consume/partition/commits.py: positions are committed together, again after a failure, and
without those of topics that are gone.
"""

import asyncio

import pytest
from structlog.testing import capture_logs

from pixy.backend import OffsetCommit, TopicPartition
from pixy.consume.partition import commits
from pixy.errors import Unavailable
from tests.consume.conftest import MakeWorld

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)


async def test_commits_are_batched(make_world: MakeWorld) -> None:
    world = make_world(2)
    for partition in range(2):
        world.log(partition).append(*[b"x"] * 50)
    answers = await world.consume(100, auto_ack=True)
    world.backend.commit_calls.clear()
    for offer in answers.offers:
        offer.delivered()
    await world.pass_time(0.4)
    assert world.backend.commit_calls == []
    await world.pass_time(0.1)
    assert world.backend.commit_calls == [{T0: OffsetCommit(50), T1: OffsetCommit(50)}]
    await world.pass_time(10)
    assert len(world.backend.commit_calls) == 1


async def test_a_failed_commit_is_logged_once_and_retried(make_world: MakeWorld) -> None:
    world = make_world(subscription_timeout=100.0)
    world.log().append(b"a", b"b")
    answers = await world.consume(2, auto_ack=True)
    world.backend.failures["commit"] = Unavailable("no leader")
    with capture_logs() as logs:
        answers.offers[0].delivered()
        for _ in range(4):
            await world.pass_time(0.5)
        answers.offers[1].delivered()
        world.backend.failures.clear()
        await world.pass_time(0.5)
    assert world.committed() == OffsetCommit(2)
    events = [entry["event"] for entry in logs]
    assert events == ["cannot commit offsets, trying again", "committing offsets again"]


async def test_acks_during_a_slow_commit_are_committed_together_when_it_ends(make_world: MakeWorld) -> None:
    world = make_world(subscription_timeout=100.0)
    world.log().append(*[b"x"] * 5)
    answers = await world.consume(5, auto_ack=True)
    world.backend.commit_calls.clear()
    gate = world.backend.gates["commit"] = asyncio.Event()
    for offer in answers.offers:
        offer.delivered()
        await world.pass_time(1)
    gate.set()
    await world.pass_time(0)
    assert world.backend.commit_calls == [{T0: OffsetCommit(1)}, {T0: OffsetCommit(5)}]


async def test_gaps_are_committed_without_any_ack(make_world: MakeWorld) -> None:
    world = make_world()
    await world.consume()
    world.log().add_gap(5)
    await world.pass_time(0.5)
    assert world.committed() == OffsetCommit(5)


async def test_a_deleted_topic_does_not_block_the_others(make_world: MakeWorld) -> None:
    world = make_world()
    world.backend.create("u", 1)
    for topic in "tu":
        world.log(0, topic).append(b"x")
        answers = await world.consume(topic=topic, auto_ack=True)
        answers.offers[0].delivered()
    world.backend.delete("u", silently=True)
    await world.pass_time(0.5)
    assert world.committed() == OffsetCommit(1)


async def test_a_commit_with_much_metadata_is_made_in_parts(
    make_world: MakeWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = make_world(8)
    for partition in range(8):
        world.log(partition).append(*[b"x"] * 40)
    acked = {number: OffsetCommit(0, "BB" * 20) for number in range(8)}  # each second message
    await world.consumers.set_offsets("g", "t", acked)
    answers = await world.consume(8 * 20)
    monkeypatch.setattr(commits, "METADATA_PER_COMMIT", 120)
    world.backend.commit_calls.clear()
    for offer in answers.offers:
        offer.delivered()
    await world.pass_time(0.5)
    assert [len(call) for call in world.backend.commit_calls] == [3, 3, 2]


async def test_a_commit_of_many_partitions_is_made_in_parts(
    make_world: MakeWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(commits, "PARTITIONS_PER_COMMIT", 3)
    world = make_world(8)
    for partition in range(8):
        world.log(partition).append(b"x")
    answers = await world.consume(8, auto_ack=True)
    world.backend.commit_calls.clear()
    for offer in answers.offers:
        offer.delivered()
    await world.pass_time(0.5)
    assert [len(call) for call in world.backend.commit_calls] == [3, 3, 2]
    assert all(world.committed(partition) == OffsetCommit(1) for partition in range(8))
