"""Receipts: the outcome of an answer, told exactly once.

    delivered      the whole answer was handed to the transport, which took it
    undelivered    its call, its stream or the connection ended first, or the client takes so
                   little that the answer was not accepted

Invariant of `Receipts`: a receipt that was given to it is in exactly one place until it is told,
and is removed from there before.

    place            meaning                                       leaves it by
    in the output    the whole answer is in the output             `handed_over`, `drop_one`
    queued           a part waits for the client                   `sent`, `reset`, `drop_one`
"""

from collections.abc import Callable
from typing import Protocol


class Receipt(Protocol):
    """Told the outcome of an answer: one of the two methods is called, once."""

    def delivered(self) -> None:
        """The whole answer was handed to the transport."""

    def undelivered(self) -> None:
        """It was not, and will not be."""


class Receipts:
    """The receipts of one connection.

    Args:
        note: called with each exception of a receipt, which is a bug. The other receipts are told.

    Attributes:
        add: takes the receipt of an answer that is in the output.
        in_output: these receipts, in the order of their answers.
    """

    __slots__ = ("_note", "_queued", "add", "in_output")

    def __init__(self, note: Callable[[BaseException], None]) -> None:
        self._note = note
        # Invariant: one list object for life, because `add` is bound to it: it is called for every
        # answer.
        self.in_output: list[Receipt] = []
        self.add: Callable[[Receipt], None] = self.in_output.append
        # By stream, which has one answer under way.
        self._queued: dict[int, Receipt] = {}

    def __len__(self) -> int:
        """Receipts that are not told."""
        return len(self.in_output) + len(self._queued)

    def queue(self, stream_id: int, receipt: Receipt) -> None:
        """Take the receipt of an answer of which a part waits for the client."""
        self._queued[stream_id] = receipt

    def sent(self, stream_id: int) -> None:
        """A queued answer is in the output."""
        if stream_id in self._queued:
            self.in_output.append(self._queued.pop(stream_id))

    def reset(self, stream_id: int) -> None:
        """A stream was reset: its queued answer is undelivered."""
        if stream_id in self._queued:
            self.undelivered(self._queued.pop(stream_id))

    def handed_over(self) -> None:
        """The transport took the output."""
        delivered = self.in_output[:]
        # Receipts may cause new answers, whose receipts wait for the next write.
        self.in_output.clear()
        for receipt in delivered:
            try:
                receipt.delivered()
            except Exception as bug:
                self._note(bug)

    def undelivered(self, receipt: Receipt) -> None:
        """Tell a receipt that was not taken here: its answer was not accepted."""
        try:
            receipt.undelivered()
        except Exception as bug:
            self._note(bug)

    def drop_one(self) -> bool:
        """Tell one receipt that the connection is lost; False if none is left."""
        if self._queued:
            self.undelivered(self._queued.popitem()[1])
        elif self.in_output:
            self.undelivered(self.in_output.pop())
        else:
            return False
        return True
