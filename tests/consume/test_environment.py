from pixy.backend import TopicPartition
from pixy.consume import environment
from pixy.consume.environment import VoidedOffers


def test_voided_partitions_are_remembered_per_group() -> None:
    voided = VoidedOffers()
    voided.add("g", TopicPartition("t", 1))
    assert ("g", TopicPartition("t", 1)) in voided
    assert ("h", TopicPartition("t", 1)) not in voided
    assert ("g", TopicPartition("t", 0)) not in voided


def test_the_oldest_voided_partition_is_forgotten_at_the_bound() -> None:
    voided = VoidedOffers()
    for partition in range(environment._VOIDED_MAX):
        voided.add("g", TopicPartition("t", partition))
    voided.add("g", TopicPartition("t", 0))
    voided.add("g", TopicPartition("u", 0))
    assert ("g", TopicPartition("t", 0)) in voided
    assert ("g", TopicPartition("t", 1)) not in voided
