"""Offsets of groups at the target that become others."""

import pytest

from pixy.consume import decode
from pixy.errors import InvalidOffset
from pixy.mirror.carried_offsets import MARK, is_carried


@pytest.mark.parametrize(
    ("offset", "metadata", "wanted", "expected"),
    [
        (-1, "", 5, True),
        (5, MARK, 5, False),
        (5, MARK, 7, True),
        (5, MARK, 3, True),
        (5, "", 7, True),
        (5, "", 5, False),
        (5, "", 3, False),
    ],
)
def test_a_group_is_carried(offset: int, metadata: str, wanted: int, expected: bool) -> None:
    assert is_carried(offset, metadata, wanted) is expected


def test_the_mark_acknowledges_nothing() -> None:
    with pytest.raises(InvalidOffset):
        decode(5, MARK)
