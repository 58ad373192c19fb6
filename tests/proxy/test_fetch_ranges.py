"""pixy/proxy/fetch_ranges.py: ranges of running calls, in all and by client address."""

import pytest

from pixy.errors import ResourceExhausted
from pixy.proxy.fetch_ranges import FetchRanges


def test_ranges_behind_the_first_of_each_call_are_bounded_in_all() -> None:
    ranges = FetchRanges(limit=10)
    with ranges.holding(6, "192.0.2.1:1"), ranges.holding(5, "192.0.2.2:1"):
        assert ranges.running == 9
        with (
            pytest.raises(ResourceExhausted, match="have 9 ranges behind their first, 2 more exceed 10"),
            ranges.holding(3, "192.0.2.3:1"),
        ):
            pass
        with ranges.holding(2, "192.0.2.3:1"), ranges.holding(1, "192.0.2.3:1"):
            assert ranges.running == 10
    assert ranges.running == 0


def test_the_clients_of_one_address_have_a_share() -> None:
    ranges = FetchRanges(50, limit=10)
    with ranges.holding(6, "192.0.2.1:1"):
        with (
            pytest.raises(ResourceExhausted, match="1 more exceed 5, their share") as caught,
            ranges.holding(2, "192.0.2.1:2"),
        ):
            pass
        assert caught.value.limit == "client_share_percent of ranges of running Fetch calls"
        with ranges.holding(6, "192.0.2.2:1"), ranges.holding(1, "192.0.2.1:2"):
            assert ranges.running == 10
    with ranges.holding(6, "192.0.2.1:2"):
        assert ranges.running == 5
