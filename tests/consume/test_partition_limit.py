import pytest

from pixy.consume.partition_limit import PartitionLimit
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
