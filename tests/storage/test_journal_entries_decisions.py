"""Meaning of each record of a raft group: one test for each row of the table in `docs/storage.md`,
with its name.

`entry_histories` has the words of a history.
"""

import pytest

from pixy.errors import CorruptData
from pixy.storage.journal.journal_entries import entries_after
from tests.storage.entry_histories import take


def left(history: str) -> str:
    """Words of the entries still needed after a history."""
    entries = list(take(history))
    assert [index for index, _ in entries] == [entry.index for _, entry in entries]
    return " ".join(entry.word for _, entry in entries)


def begin(history: str) -> tuple[int, int] | None:
    """Index and term of the newest reset."""
    position = take(history).reset
    return None if position is None else (position.index, position.term)


def needed(history: str, applied: int) -> str:
    """Words of the entries found when those after `applied` are requested."""
    group = take(history)
    found = entries_after(1000, [entry for _, entry in group], applied, group.reset)
    return " ".join(each.word for each in found)


def refused(history: str, reason: str, applied: int = 0) -> None:
    """Refused for this reason, at the latest when the entries after `applied` are requested."""
    with pytest.raises(CorruptData, match=f"^raft group 1000.* {reason}$"):
        needed(history, applied)


def test_next_original() -> None:
    assert left("1 2 3") == "1 2 3"
    assert left("7 8") == "7 8"  # the earlier files were removed


def test_original_replaces() -> None:
    assert left("1 2 3 4 2/2") == "1 2/2"
    assert left("1 2 3 2/2 3/2") == "1 2/2 3/2"
    assert left("1 2/3 2/2 3/4") == "1 2/2 3/4"  # of a lower term, as in the new leader's log
    assert left("5 6 3/2 4/2") == "3/2 4/2"  # below all remaining entries
    assert left("1 2 3 1/2") == "1/2"


def test_original_over_copies() -> None:
    assert left("r5 r6 r7 6/2") == "r5 6/2"
    assert left("r5 r6 r7 8 6/2") == "r5 6/2"
    assert left("8 9 r5 r6 r7 6/2 7/2") == "r5 6/2 7/2"
    assert left("r5 r6 5/2") == "5/2"


def test_original_leaves_a_hole() -> None:
    refused("1 3", "has entry 3 where 2 was expected")
    refused("4 5 r2 r3 7", "has entry 7 where 6 was expected")
    refused("1 2 3 2/2 4/2", "has entry 4 where 3 was expected")


def test_copy_in_front() -> None:
    assert left("7 8 r5 r6") == "r5 r6 7 8"
    assert left("r5 r6") == "r5 r6"
    assert left("r5 r6 7 8") == "r5 r6 7 8"
    assert left("7 r6 r5 8 r4") == "r4 r5 r6 7 8"


def test_copy_of_what_is_there() -> None:
    assert left("5 6 7 r5 r6") == "5 6 7"
    assert left("5 6/2 r5 r6") == "5 6/2"  # copied before it was replaced
    assert left("5 6/2 r5 r6/3") == "5 6/2"  # even with the higher term


def test_copy_behind() -> None:
    assert left("5 6 7 6/2 r7") == "5 6/2"
    assert left("6/2 r7 r8") == "6/2"
    assert left("a6 6/2 r7") == ""
    assert left("6/2 a6 r7") == ""
    assert left("6/2 r7 7/2") == "6/2 7/2"


def test_copied_twice() -> None:
    assert left("r5 r6 r5 r6 7") == "r5 r6 7"
    assert left("r5 8 r6 r7 r5") == "r5 r6 r7 8"


def test_two_different_copies() -> None:
    refused("r5 r5/2", "has two relocated entries 5, of terms 1 and 2")
    assert left("r5 r6 5/2 r5") == "5/2"


def test_reset() -> None:
    assert left("1 2 3 4 s3") == ""
    assert left("1 2 3 4 s3 4/2 5/2") == "4/2 5/2"
    assert left("1 2 s9 10") == "10"
    assert left("7 8 9 s3 4") == "4"
    assert left("r3 r5 r7 s5 6/2") == "6/2"
    assert left("8 r5 r6 s6 7/2") == "7/2"
    assert left("1 2 3 a2 s5/3 a5 6/3") == "6/3"
    assert begin("1 2 s5/3 6/4") == (5, 3)


def test_original_behind_a_reset() -> None:
    assert left("s5 6 7") == "6 7"
    assert left("1 s5 6 7 8 7/2") == "6 7/2"
    assert left("s5 6 7 6/2") == "6/2"
    assert left("1 s5/2 6") == "6"  # terms are judged when the entries are requested


def test_hole_behind_a_reset() -> None:
    refused("s5 7", "has entry 7 where 6 was expected")
    refused("1 2 3 s5 7", "has entry 7 where 6 was expected")
    refused("s5 6 8", "has entry 8 where 7 was expected")


def test_original_below_a_reset() -> None:
    for history in ("1 2 s5 3", "s5 5", "s5 6 7 5/2", "c5 4", "c5 5/2", "7 8 c5 5"):
        index = history.split()[-1].partition("/")[0]
        refused(history, f"has entry {index}, but its log begins behind entry 5")


def test_copy_behind_a_reset() -> None:
    for index in (3, 5, 6, 7, 9):
        assert left(f"1 2 s5 r{index} 6 7 r{index}") == "6 7"
        assert left(f"s5 r{index}") == ""
        assert left(f"s5 6 7 c5 r{index}") == "6 7"


def test_two_resets() -> None:
    assert left("1 s3 4 5 s8/2 9/2") == "9/2"
    assert left("s3 4 5 s3 4/2") == "4/2"
    assert left("c3 4 5 s8 9") == "9"
    assert left("c3 4 s3 4/2") == "4/2"
    assert begin("s3 4 s8/2") == begin("c3 s8/2") == (8, 2)


def test_reset_goes_back() -> None:
    refused("s5 s4", "has a reset at entry 4 behind one at entry 5")
    refused("s5 6 7 s2", "has a reset at entry 2 behind one at entry 5")
    refused("c5 6 s4", "has a reset at entry 4 behind one at entry 5")


def test_carried_over_reset() -> None:
    assert left("6 7 c5 8") == "6 7 8"
    assert left("9 10 c5/2") == "9 10"
    assert left("c5") == ""
    assert left("s5 6 7 c5 8") == "6 7 8"
    assert left("r7 9 c5 r6") == "r6 r7 9"
    assert begin("9 c5/2") == begin("c5/2 9") == begin("s5/2 c5/2") == (5, 2)


def test_carried_over_reset_in_front() -> None:
    assert left("c5 6 7") == "6 7"
    assert left("c5 9 10") == "9 10"
    assert left("c5 r7 9") == "r7 9"
    assert left("c5 9 10 9/2") == "9/2"
    assert left("c5 9 10 7/2") == "7/2"


def test_carried_over_behind_originals() -> None:
    refused("4 5 6 c4", "has entry 4, but its log begins behind entry 4")
    refused("1 2 3 c5", "has entry 1, but its log begins behind entry 5")
    refused("4 5 6 a5 c5", "has entry 4, but its log begins behind entry 5")


def test_copy_below_a_carried_over_reset() -> None:
    assert left("r3 r5 r6 7 c5") == "r6 7"
    assert left("c5 r3 r5 r6 7") == "r6 7"


def test_older_reset_carried_over() -> None:
    assert left("s5 6 s8 9 c5 10") == "9 10"
    assert left("c8 9 c5") == "9"
    assert begin("s5 s8/2 c5") == begin("c8/2 c5") == (8, 2)


def test_newer_reset_carried_over() -> None:
    assert left("c5 9 10 c8") == "9 10"
    assert begin("c5 c8/2") == (8, 2)


def test_reset_is_missing() -> None:
    reason = "has a carried-over reset at entry 8, but the reset itself is missing behind the one at entry 5"
    refused("s5 c8", reason)
    refused("s5 6 7 c5 c8", reason)


def test_two_different_resets() -> None:
    for history in ("s5 s5/2", "s5 c5/2", "c5 c5/2", "c5 s5/2"):
        refused(history, "has two resets at entry 5, of terms 1 and 2")


def test_applied() -> None:
    assert left("1 2 3 4 a2") == "3 4"
    assert left("a2 1 2 3") == "3"
    assert left("1 2 a2") == ""
    assert left("r1 r2 r3 a2 r1 4") == "r3 4"
    assert left("1 2 3 a1 a3 4") == "4"
    assert left("9 10 a8 r8 r7") == "9 10"
    assert left("1 2 3 4/1 a3 4/2 5/2") == "4/2 5/2"


def test_hole_in_the_end() -> None:
    refused("r5 r6 9", "has entries 6 and 9, but not those in between", applied=4)
    refused("9 r5 r6 a4", "has entries 6 and 9, but not those in between", applied=4)
    refused("5 6", "is applied up to entry 3, but the journal goes on with entry 5", applied=3)
    refused("r5 r6 9", "is applied up to entry 6, but the journal goes on with entry 9", applied=6)
    assert needed("r5 r6 9", 8) == "9"
    assert needed("r5 r6 9 a8 10", 8) == "9 10"
    assert needed("r5 r6 9 a6 r8 r7", 6) == "r7 r8 9"
    assert needed("r5 r6 9", 9) == needed("", 3) == ""


def test_terms_that_go_back() -> None:
    refused("1/2 2", "entry 2: term 1 after 2", applied=0)
    refused("r1/2 2", "entry 2: term 1 after 2", applied=0)
    refused("s5/2 6", "entry 6: term 1 after 2", applied=5)
    refused("c5/2 9", "entry 9: term 1 after 2", applied=8)
    assert needed("s5/2 6/2", 5) == "6/2"
    assert needed("1/2 2", 1) == "2"  # applied entries were verified when they were applied


def test_reset_without_its_state() -> None:
    for history in ("s5 6", "c5 6", "s5", "1 2 s5 a4", "c5 9"):
        for applied in (0, 4):
            reason = f"is applied up to entry {applied}, but its log begins behind entry 5"
            refused(history, reason, applied)
    assert needed("s5 6 7", 5) == needed("c5 6 7", 5) == "6 7"
    assert needed("s5 6 7", 6) == "7"
    assert needed("1 2 s5", 5) == needed("s5", 9) == ""
