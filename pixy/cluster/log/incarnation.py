"""The incarnation of a node: the number of its start.

Each start raises it, in the journal, before anything that the start does there. So identities of
proposals never repeat, and a peer that knows a node by a number that is not below the one it comes
with recognizes an older self: a directory that was put back from a backup, or copied.
"""

from pixy.storage import Journal, RecordKind


class Incarnation:
    """The incarnation of this start.

    Args:
        journal: the node's journal, in which nothing was written by this start.
        before: incarnation of the start before, 0 for none.

    Attributes:
        number: the incarnation.
        file: number of the journal file that holds it, 0 while it is not durable.
    """

    def __init__(self, journal: Journal, before: int) -> None:
        self._journal = journal
        self.number = before + 1
        self.file = 0
        self.write()

    def write(self) -> None:
        """Write it, or write it again before its file is removed."""
        record = (RecordKind.INCARNATION, 0, 0, self.number, 0, 0, None, b"")
        self._journal.append((record,), self._durable)

    def _durable(self) -> None:
        self.file = self._journal.files[-1].number
