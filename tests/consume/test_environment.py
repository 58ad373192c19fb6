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


def test_a_topic_that_comes_back_with_another_id_is_replaced_for_who_consumed_the_old_one() -> None:
    voided = VoidedOffers()
    voided.see("g", "t", b"1")
    voided.see("g", "t", b"1")
    assert not voided.is_replaced("g", "t")
    voided.see("g", "t", b"2")
    voided.see("g", "t", b"2")
    voided.see("h", "t", b"2")
    voided.see("g", "u", b"2")
    assert [voided.is_replaced(*key) for key in (("g", "t"), ("h", "t"), ("g", "u"))] == [True, False, False]


def test_the_topics_that_are_remembered_are_bounded() -> None:
    voided = VoidedOffers()
    for number in range(environment._VOIDED_MAX + 1):
        voided.see("g", str(number), b"1")
        voided.see("g", "t", b"1" if number == 0 else b"2")
    assert len(voided._topics) == environment._VOIDED_MAX
    assert voided.is_replaced("g", "t")
