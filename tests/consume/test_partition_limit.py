import pytest

from pixy.consume.core.partition_limit import PartitionLimit
from pixy.errors import TooManyRequests


def test_a_subscription_counts_with_the_most_partitions_that_it_had() -> None:
    limit = PartitionLimit(10)
    assert limit.count("a", 4) == 4
    assert limit.count("b", 3) == 3
    assert limit.count("a", 2) == 4
    assert limit.count("b", 9) == 6
    with pytest.raises(
        TooManyRequests, match=r"`consumer\.max_partitions`: t has 1 partitions, and 10 of at most 10"
    ):
        limit.check("t", 1)
    limit.release("a")
    limit.check("t", 4)
    assert limit.count("c", 5) == 4


def test_a_lone_subscription_may_have_any_number() -> None:
    limit = PartitionLimit(10)
    limit.check("t", 30)
    assert limit.count("a", 30) == 30
    assert limit.count("b", 1) == 0
    assert limit.count("a", 40) == 40
    limit.release("a")
    assert limit.count("b", 11) == 11


def test_a_subscription_that_never_counted_may_end() -> None:
    limit = PartitionLimit(10)
    limit.release("a")
    assert limit.count("b", 3) == 3


def test_an_address_has_a_share_also_of_partitions_that_come_later() -> None:
    limit = PartitionLimit(10, 50)
    limit.check("t", 4, "near")
    limit.begin("a", 4, "near")
    with pytest.raises(
        TooManyRequests, match=r"clients of this address consume 4 at this node.*: 5 are their share"
    ):
        limit.check("t", 2, "near")
    limit.check("t", 1, "near")
    limit.begin("b", 1, "near")
    assert limit.count("a", 7) == 4
    assert limit.exceeded("a", "t", 7).limit == "client_share_percent of consumer.max_partitions"
    # Other addresses, and callers without one, have the rest.
    limit.check("t", 4, "far")
    limit.begin("c", 3, "far")
    limit.check("t", 2)
    limit.begin("d", 2, "")
    assert limit.exceeded("a", "t", 7).limit == "consumer.max_partitions"
    limit.release("b")
    assert limit.count("a", 7) == 5
    limit.release("a")
    limit.release("c")
    limit.release("d")
    limit.check("t", 30, "near")


def test_a_lone_subscription_of_an_address_may_have_more_than_its_share() -> None:
    limit = PartitionLimit(10, 50)
    limit.begin("a", 1, "far")
    limit.check("t", 8, "near")
    limit.begin("b", 8, "near")
    assert limit.count("b", 9) == 9
    with pytest.raises(TooManyRequests, match="10 of at most 10"):
        limit.check("t", 1, "near")
