from pixy.backend import TopicPartition
from pixy.consume.core.voided import NOTHING_VOIDED, VoidedByPartition, VoidedOffsets

T0, T1, U0 = TopicPartition("t", 0), TopicPartition("t", 1), TopicPartition("u", 0)


def offers(*offsets: int) -> VoidedOffsets:
    return VoidedOffsets(frozenset(offsets))


def test_offsets_of_offers_and_of_a_replaced_topic_are_voided() -> None:
    voided = VoidedOffsets(frozenset({7, 9}), range(3))
    assert [offset for offset in range(12) if offset in voided] == [0, 1, 2, 7, 9]
    assert not NOTHING_VOIDED


def test_redelivered_offsets_are_no_longer_voided() -> None:
    voided = VoidedOffsets(frozenset({7, 9}), range(3))
    assert voided.after({7}, 2) == VoidedOffsets(frozenset({9}), range(2, 3))
    assert not voided.after({7, 9}, 100)


def test_voided_offsets_are_remembered_per_group_and_partition() -> None:
    voided = VoidedByPartition()
    voided.put("g", T1, offers(5))
    assert voided.of("g", T1) == offers(5)
    assert (voided.of("h", T1), voided.of("g", T0)) == (NOTHING_VOIDED, NOTHING_VOIDED)
    voided.put("g", T1, NOTHING_VOIDED)
    assert voided.of("g", T1) == NOTHING_VOIDED


def test_at_the_limit_the_least_recently_changed_partition_is_forgotten() -> None:
    voided = VoidedByPartition(limit=6)
    voided.put("g", T0, offers(1))
    voided.put("g", T1, offers(1))
    voided.put("g", T0, offers(1, 2))
    voided.put("g", U0, VoidedOffsets(replaced=range(1 << 40)))
    assert [voided.of("g", key) for key in (T0, T1)] == [offers(1, 2), offers(1)]
    voided.put("h", U0, NOTHING_VOIDED)
    voided.put("h", T0, VoidedOffsets(replaced=range(1)))
    assert [bool(voided.of("g", key)) for key in (T0, T1, U0)] == [True, False, True]
