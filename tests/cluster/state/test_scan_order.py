"""The order of a scan, against a set as the model."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pixy.cluster.state.scan_order import ScanOrder

NAMES = st.sampled_from("abcdefgh")
CHANGES = st.lists(st.lists(st.tuples(st.booleans(), NAMES), max_size=4), max_size=6)


@pytest.mark.slow
@given(st.lists(NAMES, unique=True), CHANGES, st.integers(1, 4))
def test_a_scan_meets_every_name_that_is_there_all_the_time(
    names: list[str], changes: list[list[tuple[bool, str]]], size: int
) -> None:
    order, there = ScanOrder(names), set(names)
    stayed, met = set(names), set[str]()
    for step, piece in enumerate(order.pieces(size)):
        assert len(piece) <= size
        assert set(piece) <= there
        met.update(piece)
        for adds, name in changes[step] if step < len(changes) else ():
            if adds:
                order.add(name)
                there.add(name)
            elif name in there:
                order.remove(name)
                there.remove(name)
                stayed.discard(name)
    assert stayed <= met
    assert {name for piece in order.pieces(3) for name in piece} == there


def test_a_scan_without_changes_meets_each_name_once() -> None:
    assert sorted(name for piece in ScanOrder("abcdefg").pieces(3) for name in piece) == list("abcdefg")
