"""A journal that writes nothing: what is appended becomes durable when the test says so."""

from collections.abc import Callable, Sequence
from typing import cast

from pixy.storage import Journal, JournalFile, RecordKind, UnitRecord


class HeldJournal:
    """As much of a journal as writers of single records take.

    Attributes:
        files: files 3 and 4.
        units: what was appended.
    """

    def __init__(self) -> None:
        self.files = [JournalFile(3), JournalFile(4)]
        self.units: list[list[UnitRecord]] = []
        self._callbacks: list[Callable[[], None]] = []

    def append(self, records: Sequence[UnitRecord], durable: Callable[[], None]) -> None:
        self.units.append(list(records))
        self._callbacks.append(durable)

    @property
    def kinds(self) -> list[list[RecordKind]]:
        """Kinds of the records of each unit."""
        return [[RecordKind(record[0]) for record in unit] for unit in self.units]

    def make_durable(self) -> None:
        """Report everything that was appended."""
        callbacks, self._callbacks = self._callbacks, []
        for durable in callbacks:
            durable()

    def as_journal(self) -> Journal:
        """Itself, for arguments of that type."""
        return cast(Journal, self)
