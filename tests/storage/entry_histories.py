"""Histories of a raft group's records in words: `4` is original entry 4 of term 1, `4/2` of term 2,
`r4` a copy, `a4` the applied position 4, `s4` a reset at entry 4, `c4` a carried-over one.
"""

from typing import NamedTuple

from pixy.entry_ids import LogPosition
from pixy.storage.journal.journal_entries import GroupEntries


class Word(NamedTuple):
    term: int
    index: int  # type: ignore[assignment]  # hides tuple.index, as `GroupEntries` allows
    word: str


def take(history: str) -> GroupEntries[Word]:
    entries: GroupEntries[Word] = GroupEntries(1000)
    for word in history.split():
        index, _, term = word.lstrip("rasc").partition("/")
        entry = Word(int(term or 1), int(index), word)
        match word[0]:
            case "a":
                entries.applied(int(index))
            case "r":
                entries.relocated(int(index), entry)
            case "s":
                entries.reset_to(LogPosition(entry.term, entry.index))
            case "c":
                entries.carried_over(LogPosition(entry.term, entry.index))
            case _:
                entries.original(int(index), entry)
    return entries
