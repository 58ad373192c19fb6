"""Histograms."""

import pytest

from pixy.metrics import Histogram


@pytest.mark.parametrize(("value", "bucket"), [(0.0, 0), (1.0, 0), (1.5, 1), (10.0, 1), (11.0, 2)])
def test_a_value_is_in_the_first_bucket_whose_bound_is_not_below_it(value: float, bucket: int) -> None:
    histogram = Histogram((1.0, 10.0))
    histogram.observe(value)
    assert [at for at, count in enumerate(histogram.counts) if count] == [bucket]


def test_a_value_may_stand_for_several() -> None:
    histogram = Histogram((1.0, 10.0))
    histogram.observe(0.5, 3)
    histogram.observe(2.0)
    assert histogram.counts == [3, 1, 0]
    assert histogram.sum == 3.5
