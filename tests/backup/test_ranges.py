"""pixy/backup/ranges.py: objects cover a range, or leave gaps; against a naive model."""

from hypothesis import given
from hypothesis import strategies as st

from pixy.backup.object_names import RangeName
from pixy.backup.ranges import cover

OFFSETS = st.integers(0, 30)
NAMES = st.tuples(OFFSETS, st.integers(1, 10)).map(lambda at: RangeName(at[0], sum(at), 1, 1))


@given(OFFSETS, OFFSETS, st.lists(NAMES, max_size=8))
def test_objects_and_gaps_are_the_whole_range(begin: int, length: int, there: list[RangeName]) -> None:
    end = begin + length
    objects, missing = cover(begin, end, there)
    had = {offset for name in there for offset in range(name.first, name.end)}
    lacks = {offset for gap in missing for offset in range(*gap)}
    assert lacks == set(range(begin, end)) - had
    found = {offset for name in objects for offset in range(name.first, name.end)}
    assert lacks | (found & set(range(begin, end))) == set(range(begin, end))
    assert set(objects) <= set(there)
    # In order, and each brings something.
    ends = [name.end for name in objects]
    assert ends == sorted({*ends})
    assert missing == sorted(missing)


def test_the_longest_object_is_taken() -> None:
    first, second, third = RangeName(0, 5, 1, 1), RangeName(0, 8, 1, 1), RangeName(4, 10, 1, 1)
    assert cover(0, 10, [first, second, third]) == ([second, third], [])
    assert cover(0, 12, [first, third]) == ([first, third], [(10, 12)])
    assert cover(3, 3, [first]) == ([], [])
