"""pixy/consume/core/resumption.py: where a group continues."""

import pytest

from pixy.backend import OffsetCommit, OffsetRange, TopicPartition
from pixy.consume.core.start_position import Remark, resume

SERVED = OffsetRange(10, 20)


@pytest.mark.parametrize(
    ("offset", "metadata", "base", "after", "said"),
    [
        (12, "", 12, "", []),
        (12, "BB", 12, "BB", []),
        (10, "", 10, "", []),
        (20, "", 20, "", []),
        (20, "BB", 20, "", []),
        (3, "", 10, "", ["committed offset is below the log begin offset"]),
        (3, "JC", 10, "CC", ["committed offset is below the log begin offset"]),
        (3, "GF", 14, "", ["committed offset is below the log begin offset"]),
        (21, "BB", 20, "", ["committed offset is beyond the end"]),
        (12, "no acks", 12, "", ["sparse acks cannot be read and are discarded"]),
        (
            50,
            "@",
            20,
            "",
            ["sparse acks cannot be read and are discarded", "committed offset is beyond the end"],
        ),
    ],
)
def test_a_group_continues_at_its_commit_as_far_as_it_still_exists(
    offset: int, metadata: str, base: int, after: str, said: list[str]
) -> None:
    remarks: list[Remark] = []
    tracker = resume(TopicPartition("t", 0), OffsetCommit(offset, metadata), SERVED, remarks)
    assert (tracker.base, tracker.metadata()) == (base, after)
    assert [remark.event for remark in remarks] == said
    tracker.check_invariants()
