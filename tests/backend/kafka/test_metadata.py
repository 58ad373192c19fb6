"""pixy/backend/kafka/metadata.py: answers of lagging brokers do not replace newer metadata."""

from types import SimpleNamespace
from typing import Any

import pytest

from pixy.backend.kafka.metadata import Broker, Metadata
from pixy.backend.protocol import PartitionDescription

A, B = b"a" * 16, b"b" * 16


def answer(*topics: Any, brokers: int = 3) -> Any:
    """A metadata response with these topics."""
    found: list[Any] = [(number, f"host-{number}", 9092, None, {}) for number in range(1, brokers + 1)]
    return SimpleNamespace(brokers=found, topics=list(topics))


def topic(
    name: str,
    topic_id: bytes = A,
    leaders: tuple[int, ...] = (1,),
    *,
    epoch: int = 5,
    error: int = 0,
    internal: bool = False,
) -> Any:
    """A topic whose partitions have these leaders, listed in any order."""
    partitions: list[Any] = [
        (0, number, leader, epoch, [1, 2], [1], [], {}) for number, leader in enumerate(leaders)
    ]
    return (error, name, topic_id, internal, partitions[::-1], 0, {})


def known(*topics: Any) -> Metadata:
    metadata = Metadata()
    metadata.apply(answer(*topics), None, 0.0)
    return metadata


def test_topics_are_described_with_ascending_partitions() -> None:
    metadata = known(topic("orders", leaders=(1, 2, -1)))
    described = metadata.topics["orders"]
    assert (described.topic_id, described.version, described.config) == (A, 3000, {})
    assert described.partitions[1] == PartitionDescription(1, 2, (1, 2), (1,))
    assert [metadata.leader("orders", number) for number in (0, 1, 2, 3, -1)] == [1, 2, -1, -1, -1]
    assert metadata.leader("other", 0) == -1
    assert metadata.names == {A: "orders"}
    assert metadata.brokers[2] == Broker(2, "host-2", 9092)


def test_a_description_is_the_same_object_until_something_changes() -> None:
    metadata = known(topic("orders"))
    before = metadata.topics["orders"]
    assert metadata.apply(answer(topic("orders")), None, 0.0) == set()
    assert metadata.topics["orders"] is before
    assert metadata.apply(answer(topic("orders", leaders=(2,))), ["orders"], 0.0) == {"orders"}
    assert metadata.topics["orders"].partitions != before.partitions


def test_the_version_grows_with_partitions_and_options_and_not_with_leaders() -> None:
    metadata = known(topic("orders", leaders=(1, 1)))
    versions = [metadata.topics["orders"].version]
    for number in range(3):
        metadata.set_config("orders", {"retention_ms": f"{number}"})
        versions.append(metadata.topics["orders"].version)
    metadata.apply(answer(topic("orders", leaders=(2, 3))), None, 0.0)
    assert metadata.topics["orders"].version == versions[-1]
    metadata.apply(answer(topic("orders", leaders=(2, 3, 1))), None, 0.0)
    versions.append(metadata.topics["orders"].version)
    assert versions == [2000, 2001, 2002, 2003, 3000]


def test_versions_are_equal_only_of_equal_numbers_of_partitions_in_whatever_process() -> None:
    """However many changes a process has seen, and whatever happened before it started."""
    metadata = known(topic("orders", leaders=(1, 1)))
    for number in range(5000):
        metadata.set_config("orders", {"retention_ms": f"{number}"})
    other = known(topic("orders", leaders=(1, 1, 1)))
    assert metadata.topics["orders"].version < other.topics["orders"].version


def test_options_stay_when_partitions_change() -> None:
    metadata = known(topic("orders"))
    metadata.set_config("orders", {"retention_ms": "1"})
    metadata.apply(answer(topic("orders", leaders=(1, 1))), None, 0.0)
    assert metadata.topics["orders"].config == {"retention_ms": "1"}
    assert metadata.set_config("other", {}) is None


def test_kafkas_internal_topics_are_unknown() -> None:
    assert known(topic("__consumer_offsets", internal=True)).topics == {}


MISSING = topic("orders", bytes(16), (), error=3)
REFUSED = topic("orders", bytes(16), (), error=29)


@pytest.mark.parametrize("asked", [None, ["orders"]], ids=["of all", "of some"])
def test_a_topic_that_an_answer_lacks_is_gone_once_the_brokers_agree(asked: Any) -> None:
    metadata = known(topic("orders"), topic("bills", B))
    assert metadata.apply(answer(topic("bills", B), MISSING), asked, 0.0) == set()
    assert list(metadata.doubted) == ["orders"]
    assert "orders" in metadata.topics
    assert metadata.settle([answer(MISSING), answer(MISSING), answer(MISSING)], 0.0) == {"orders"}
    assert (list(metadata.topics), metadata.names, metadata.doubted) == (["bills"], {B: "bills"}, {})


def test_an_answer_of_some_topics_does_not_put_others_in_doubt() -> None:
    metadata = known(topic("orders"), topic("bills", B))
    assert metadata.apply(answer(topic("bills", B)), ["bills", "other"], 0.0) == set()
    assert metadata.doubted == {}


HAS, LACKS = answer(topic("orders")), answer(MISSING)


@pytest.mark.parametrize(
    ("opinions", "soon", "late"),
    [
        ([HAS, HAS, HAS], "there", "there"),
        ([HAS], "there", "there"),
        ([answer(REFUSED)] * 3, "there", "there"),
        ([answer(topic("orders", leaders=(-1,), error=5))], "there", "there"),
        ([LACKS, LACKS, LACKS], "gone", "gone"),
        ([LACKS, LACKS], "gone", "gone"),
        ([LACKS], "doubted", "gone"),
        ([HAS, LACKS, LACKS], "doubted", "gone"),
        ([HAS, HAS, LACKS], "doubted", "there"),
        ([HAS, LACKS], "doubted", "there"),
        ([], "doubted", "there"),
    ],
)
def test_what_brokers_say_of_a_doubted_topic(opinions: list[Any], soon: str, late: str) -> None:
    for now, expected in (100.0, soon), (129.0, soon), (130.0, late):
        metadata = known(topic("orders"))
        metadata.apply(LACKS, ["orders"], 100.0)
        metadata.apply(LACKS, ["orders"], 101.0)
        gone = metadata.settle(opinions, now)
        assert ("doubted" if metadata.doubted else "gone" if gone else "there") == expected
        assert ("orders" in metadata.topics) == (not gone)


def test_fewer_partitions_are_those_of_a_broker_that_lags() -> None:
    metadata = known(topic("orders", leaders=(1, 1, 1)))
    before = metadata.topics["orders"]
    assert metadata.apply(answer(topic("orders", leaders=(2,))), None, 0.0) == set()
    assert metadata.topics["orders"] is before
    assert metadata.doubted == {}


def test_a_leader_of_an_earlier_epoch_was_deposed() -> None:
    metadata = known(topic("orders", leaders=(1, 1), epoch=5))
    metadata.apply(answer(topic("orders", leaders=(2, 2), epoch=6)), None, 0.0)
    assert metadata.apply(answer(topic("orders", leaders=(1, 1), epoch=5)), None, 0.0) == set()
    assert metadata.leader("orders", 1) == 2
    grown = answer(topic("orders", leaders=(1, 1, 3), epoch=5))
    assert metadata.apply(grown, None, 0.0) == {"orders"}
    assert [metadata.leader("orders", number) for number in range(3)] == [2, 2, 3]
    assert metadata.apply(answer(topic("orders", leaders=(-1, 1, 1), epoch=6)), None, 0.0) == {"orders"}
    assert [metadata.leader("orders", number) for number in range(3)] == [-1, 1, 1]


def test_a_topic_during_leader_election_is_unchanged() -> None:
    metadata = known(topic("orders"))
    before = metadata.topics["orders"]
    assert metadata.apply(answer(topic("orders", leaders=(), error=5)), ["orders"], 0.0) == set()
    assert metadata.topics["orders"] is before


def test_a_topic_with_another_id_is_another_topic_once_the_brokers_agree() -> None:
    metadata = known(topic("orders", leaders=(1, 1)))
    metadata.set_config("orders", {"retention_ms": "1"})
    another = answer(topic("orders", B))
    assert metadata.apply(another, ["orders"], 0.0) == set()
    assert metadata.topics["orders"].topic_id == A
    assert metadata.settle([answer(topic("orders")), another], 0.0) == set()
    assert metadata.settle([another, answer(MISSING), answer(MISSING)], 0.0) == {"orders"}
    assert (metadata.topics["orders"].version, metadata.topics["orders"].config) == (1000, {})
    assert metadata.names == {B: "orders"}


def test_a_topic_created_here_replaces_one_whose_deletion_was_not_noticed() -> None:
    metadata = known(topic("orders"))
    metadata.created("orders", B)
    assert metadata.apply(answer(topic("orders")), None, 0.0) == set()
    assert metadata.apply(answer(topic("orders", B)), None, 0.0) == {"orders"}
    metadata.created("orders", B)
    assert metadata.names == {B: "orders"}


def test_a_lagging_broker_does_not_restore_a_deleted_topic() -> None:
    metadata = known(topic("orders"))
    metadata.deleted("orders")
    assert (metadata.topics, metadata.names) == ({}, {})
    assert metadata.apply(answer(topic("orders")), None, 0.0) == set()
    assert metadata.topics == {}
    assert metadata.apply(answer(topic("orders", B)), None, 0.0) == {"orders"}


def test_a_topic_created_and_deleted_here_is_unknown_at_once() -> None:
    metadata = Metadata()
    metadata.created("orders", A)
    metadata.apply(answer(topic("orders")), None, 0.0)
    metadata.deleted("orders")
    metadata.apply(answer(topic("orders")), None, 0.1)
    assert metadata.topics == {}


def test_brokers_missing_from_an_answer_stay_known() -> None:
    metadata = known()
    metadata.apply(answer(brokers=0), [], 0.0)
    assert len(metadata.brokers) == 3
    metadata.apply(answer(brokers=2), [], 0.0)
    assert list(metadata.brokers) == [1, 2]
