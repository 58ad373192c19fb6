"""Meaning of each record of a raft group: one test for each row of the table in `docs/storage.md`,
with its name.

A history is written as words: `4` is original entry 4 of term 1, `4/2` of term 2, `r4` a copy, `a4`
the applied position 4.
"""

from typing import NamedTuple

import pytest

from pixy.errors import CorruptData
from pixy.storage.journal_entries import GroupEntries, entries_after


class Word(NamedTuple):
    term: int
    index: int  # type: ignore[assignment]  # hides tuple.index, as `GroupEntries` allows
    word: str


def take(history: str) -> GroupEntries[Word]:
    entries: GroupEntries[Word] = GroupEntries(1000)
    for word in history.split():
        index, _, term = word.lstrip("ra").partition("/")
        entry = Word(int(term or 1), int(index), word)
        match word[0]:
            case "a":
                entries.applied(int(index))
            case "r":
                entries.relocated(int(index), entry)
            case _:
                entries.original(int(index), entry)
    return entries


def left(history: str) -> str:
    """Words of the entries still needed after a history."""
    entries = list(take(history))
    assert [index for index, _ in entries] == [entry.index for _, entry in entries]
    return " ".join(entry.word for _, entry in entries)


def needed(history: str, applied: int) -> str:
    """Words of the entries found when those after `applied` are requested."""
    return " ".join(each.word for each in entries_after(1000, [entry for _, entry in take(history)], applied))


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
    assert needed("1/2 2", 1) == "2"  # applied entries were verified when they were applied
