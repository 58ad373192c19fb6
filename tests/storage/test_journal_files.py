"""Bookkeeping of the entries in each journal file."""

from pathlib import Path

from pixy.storage import FilePart, JournalFile, parts_with
from pixy.storage.journal import journal_path


def test_a_file_is_named_by_its_number_with_twenty_digits() -> None:
    assert journal_path(Path("/j"), 12) == Path("/j/00000000000000000012.journal")


def test_a_span_has_the_lowest_and_the_highest_index_and_the_first_flush() -> None:
    file = JournalFile(3)
    file.add({1: 5, 2: 7}, {1: 6, 2: 7}, 64)
    file.add({1: 4}, {1: 4}, 200)
    file.add({1: 5, 3: 1}, {1: 9, 3: 2}, 300)
    assert file.spans == {1: (4, 9, 64), 2: (7, 7, 64), 3: (1, 2, 300)}
    file.add({}, {}, 400)
    assert file == JournalFile(3, 2, 64, {1: (4, 9, 64), 2: (7, 7, 64), 3: (1, 2, 300)})


def test_parts_are_those_of_files_whose_span_has_some_of_the_entries() -> None:
    files = [JournalFile(3, end=500, spans={1: (4, 9, 64)}), JournalFile(4, end=900, spans={1: (8, 12, 200)})]
    third, fourth = FilePart(3, 64, 500), FilePart(4, 200, 900)
    assert parts_with(files, 1, 4, 13) == parts_with(files, 1, 9, 10) == [third, fourth]
    assert parts_with(files, 1, 1, 5) == parts_with(files, 1, 4, 8) == [third]
    assert parts_with(files, 1, 10, 11) == parts_with(files, 1, 12, 99) == [fourth]
    assert parts_with(files, 1, 1, 4) == parts_with(files, 1, 13, 20) == parts_with(files, 2, 1, 99) == []
